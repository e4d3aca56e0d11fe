//! The training step of a model whose layers are another library's: what each call reads, writes and uses.
//!
//! Weights are used rowwise in backward too, because autograd wants the operand that forward had; unless
//! autograd's graph is kept between forward and backward, which then has it already.

use warpweft::prelude::*;

use crate::model::Layer;
use crate::sizes::{WIDTH, WINDOW};

/// A weight's name and shape.
pub(crate) struct Weight {
    pub(crate) name: String,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Whether every rank holds all of it, unquantized: vectors are, matrices are sharded.
    pub(crate) replicated: bool,
}

/// What a call does, and with which buffers.
#[derive(Clone, Copy)]
pub(crate) enum Pass {
    /// A layer's output.
    Forward { output: BufferId },
    /// The last layer's forward, the loss, and the last layer's backward.
    Loss { targets: BufferId, loss: BufferId, input_gradient: BufferId },
    /// A layer once more, unless its graph was kept, and its gradients. The first layer's input has none.
    Backward { output_gradient: BufferId, input_gradient: Option<BufferId> },
}

/// A call: which layer, its input, what to do.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub(crate) layer: usize,
    pub(crate) input: BufferId,
    pub(crate) pass: Pass,
}

/// The program, its calls in order, and the ids of each layer's weights.
pub(crate) struct Declared {
    pub(crate) program: StepProgram,
    pub(crate) jobs: Vec<Job>,
    pub(crate) weights: Vec<Vec<WeightId>>,
}

/// Declares `layers` with weights in `format`, for `samples` on each rank. With `keeps_graph`, autograd's
/// graph of a layer is kept from its forward to its backward; else backward computes the layer again, as with
/// activation recompute.
pub(crate) fn declare(
    layers: &[Layer],
    format: Format,
    samples: usize,
    keeps_graph: bool,
) -> Result<Declared, DeclareError> {
    let mut model = Model::builder();
    let mut weights = Vec::new();
    for layer in layers {
        let own = layer.weights.iter().map(|weight| match weight.replicated {
            true => model.replicated(&weight.name, weight.rows, weight.columns),
            false => model.sharded(&weight.name, weight.rows, weight.columns, format),
        });
        weights.push(own.collect::<Result<Vec<_>, _>>()?);
    }

    let mut program = StepProgram::builder("train", &model.build());
    let windows = program.input("windows", samples * WINDOW, ElementType::U32)?;
    let targets = program.input("targets", samples, ElementType::U32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let (mut inputs, mut gradients) = (vec![windows], Vec::new());
    for layer in &layers[..layers.len() - 1] {
        inputs.push(program.activation(&format!("{}.output", layer.name), samples * WIDTH)?);
        gradients.push(program.activation(&format!("{}.output_gradient", layer.name), samples * WIDTH)?);
    }

    let last = layers.len() - 1;
    let job = |layer: usize, pass| Job { layer, input: inputs[layer], pass };
    let mut jobs: Vec<Job> =
        (0..last).map(|layer| job(layer, Pass::Forward { output: inputs[layer + 1] })).collect();
    jobs.push(job(last, Pass::Loss { targets, loss, input_gradient: gradients[last - 1] }));
    jobs.extend((0..last).rev().map(|layer| {
        let input_gradient = layer.checked_sub(1).map(|before| gradients[before]);
        job(layer, Pass::Backward { output_gradient: gradients[layer], input_gradient })
    }));

    for Job { layer, input, pass } in &jobs {
        let name = &layers[*layer].name;
        let (name, phase) = match pass {
            Pass::Forward { .. } => (format!("{name}.forward"), Phase::Forward),
            Pass::Loss { .. } => (name.clone(), Phase::Backward),
            Pass::Backward { .. } => (format!("{name}.backward"), Phase::Backward),
        };
        let mut call = program.call(&name, phase);
        // A graph that was kept has the layer's input and weights: no weight is gathered again.
        let has_graph = keeps_graph && matches!(pass, Pass::Backward { .. });
        if !has_graph {
            call = call.reads(*input);
        }
        for weight in &weights[*layer] {
            if !has_graph {
                call = call.uses_dense(*weight);
            }
            if !matches!(pass, Pass::Forward { .. }) {
                call = call.gradient(*weight);
            }
        }
        call = match *pass {
            Pass::Forward { output } => call.writes(output),
            Pass::Loss { targets, loss, input_gradient } => {
                call.reads(targets).writes(loss).writes(input_gradient)
            }
            Pass::Backward { output_gradient, input_gradient } => {
                let call = call.reads(output_gradient);
                input_gradient.into_iter().fold(call, |call, buffer| call.writes(buffer))
            }
        };
        call.add()?;
    }
    Ok(Declared { program: program.build_training()?, jobs, weights })
}
