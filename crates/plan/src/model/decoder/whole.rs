//! The program of a decoder whose ranks compute whole layers of texts of their own.
//!
//! Law: each layer is a call forward and one backward, a [`LayerStack`], between embedding and head.

use super::super::layers::backward_cost;
use super::super::{DeclareError, Form, Layer, LayerStack, Model, Phase, ProgramBuilder, StepProgram};
use super::{Decoder, Part, backward, form, product};
use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{ElementType, Orientation};

pub(super) fn program(decoder: &Decoder, model: &Model) -> Result<StepProgram, DeclareError> {
    let mut program = StepProgram::builder("train", model);
    program.micro_batches(decoder.micro_batches.unwrap_or(1))?;
    let stream = decoder.tokens.saturating_mul(decoder.hidden);
    let tokens = program.input("tokens", decoder.tokens, ElementType::U32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let embedding = model.find("embedding")?;
    let embedded = program.activation("embedded", stream)?;
    program
        .call("embed.forward", Phase::Forward)
        .uses(embedding, Orientation::Rowwise, form(model, embedding)?)
        .reads(tokens)
        .writes(embedded)
        .cost(decoder.cost(0, 0, stream))
        .add()?;
    let mut read = decoder.hidden;
    let layers = decoder.parts(1).into_iter().map(|part| {
        let reads = std::mem::replace(&mut read, part.output_width);
        layer(decoder, model, &part, reads)
    });
    let layers = layers.collect::<Result<_, _>>()?;
    let stack = LayerStack::forward(&mut program, embedded, layers, Form::Planes)?;
    let gradient = program.activation("head.input_gradient", stream)?;
    let (norm, head) =
        (model.find("head.norm")?, model.find(if decoder.tied { "embedding" } else { "head.weight" })?);
    let logits = decoder.tokens.saturating_mul(decoder.vocabulary);
    let flops = product(&[2, decoder.tokens, decoder.hidden, decoder.vocabulary]);
    let cost =
        decoder.cost(flops, decoder.vocabulary.saturating_mul(decoder.hidden), stream.saturating_add(logits));
    program
        .call("head.forward", Phase::Forward)
        .uses_dense(norm)
        .uses(head, Orientation::Rowwise, form(model, head)?)
        .reads(stack.output())
        .writes(loss)
        .cost(cost)
        .add()?;
    program
        .call("head.backward", Phase::Backward)
        .uses_dense(norm)
        .uses(head, backward(model, head)?, form(model, head)?)
        .reads(stack.output())
        .writes(gradient)
        .gradient_if_trained(norm, ElementType::F32)
        .gradient_if_trained(head, ElementType::F32)
        .cost(cost.times(backward_cost(model, &[norm, head])))
        .add()?;
    let input_gradient = program.activation("embedded_gradient", stream)?;
    stack.backward(&mut program, gradient, input_gradient)?;
    if !model.weight(embedding)?.frozen {
        embed_backward(decoder, &mut program, embedding, input_gradient)?;
    }
    program.build_training()
}

fn embed_backward(
    decoder: &Decoder,
    program: &mut ProgramBuilder,
    embedding: WeightId,
    gradient: BufferId,
) -> Result<(), DeclareError> {
    let cost = decoder.cost(
        0,
        decoder.vocabulary.saturating_mul(decoder.hidden),
        decoder.tokens.saturating_mul(decoder.hidden),
    );
    let call = program.call("embed.backward", Phase::Backward).reads(gradient).gradient(embedding);
    call.cost(cost).add().map(|_| ())
}

/// The layer of a part that reads so many values a token.
fn layer(decoder: &Decoder, model: &Model, part: &Part, reads: usize) -> Result<Layer, DeclareError> {
    let norm = part.norm.then(|| format!("{}.norm", part.weights));
    let names = norm.into_iter().chain(part.matrices());
    let flops = product(&[2, decoder.tokens, part.computed_rows, part.cols]).saturating_add(part.extra_flops);
    let passed = decoder.tokens.saturating_mul(reads.saturating_add(part.output_width));
    Ok(Layer {
        name: part.name.clone(),
        weights: names.map(|name| model.find(&name)).collect::<Result<_, _>>()?,
        output_elements: decoder.tokens.saturating_mul(part.output_width),
        saved: Vec::new(),
        cost: vec![decoder.cost(flops, part.rows.saturating_mul(part.cols), passed)],
    })
}
