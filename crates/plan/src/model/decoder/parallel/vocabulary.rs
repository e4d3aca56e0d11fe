//! Embedding and head of a decoder whose ranks have parts of the vocabulary.
//!
//! Law: a rank looks up, and scores, the tokens of the vocabulary that it has. Of every token's loss it gives the
//! others three numbers.

use super::super::super::{CollectiveKind, DeclareError, Group, Phase};
use super::super::{backward, form, product};
use super::Draft;
use warpweft_base::id::BufferId;
use warpweft_format::{ElementType, Orientation};

impl Draft<'_> {
    pub(super) fn embed(&mut self, text: BufferId) -> Result<BufferId, DeclareError> {
        let (embedding, parts) =
            (self.model.find("embedding")?, self.parts("embed.parts", self.decoder.hidden)?);
        let cost = self.decoder.cost(0, 0, self.of_tokens(self.decoder.hidden));
        let call = self.program.call("embed.forward", Phase::Forward).reads(text).writes(parts).cost(cost);
        call.uses(embedding, Orientation::Rowwise, form(self.model, embedding)?).add()?;
        self.scatter("embed.reduce-scatter", Phase::Forward, parts)
    }

    pub(super) fn embed_backward(&mut self, text: BufferId, slope: BufferId) -> Result<(), DeclareError> {
        let embedding = self.model.find("embedding")?;
        if self.model.weight(embedding)?.frozen {
            return Ok(());
        }
        let slopes = self.gather("embed.gradient.all-gather", Phase::Backward, slope)?;
        let weights = self.decoder.vocabulary.saturating_mul(self.decoder.hidden) / self.tensor();
        let cost = self.decoder.cost(0, weights, self.of_tokens(self.decoder.hidden));
        let call = self.program.call("embed.backward", Phase::Backward).reads(text).reads(slopes);
        call.gradient(embedding).cost(cost).add().map(drop)
    }

    /// The loss, and the gradient of the stream.
    pub(super) fn head(&mut self, before: (BufferId, Option<BufferId>)) -> Result<BufferId, DeclareError> {
        let (decoder, model) = (self.decoder, self.model);
        let normed = self.norm(("head", "head"), before)?;
        let input = self.gather("head.all-gather", Phase::Forward, normed.normed)?;
        let head = model.find(if decoder.tied { "embedding" } else { "head.weight" })?;
        let loss = self.program.output("loss", 1, ElementType::F32)?;
        let ranks = u64::from(self.mesh.tensor()) * u64::from(self.mesh.context());
        let flops = product(&[2, decoder.tokens, decoder.hidden, decoder.vocabulary]) / ranks;
        let logits = decoder.vocabulary / self.tensor();
        let cost = decoder.cost(
            flops,
            logits.saturating_mul(decoder.hidden),
            self.of_tokens(decoder.hidden.saturating_add(logits)),
        );
        // Of each token the maximum, the sum of exponentials below it, and the logit of its target.
        let of_part = self.program.activation("head.statistics", self.of_tokens(3))?;
        let call = self.program.call("head.forward", Phase::Forward).reads(input).writes(of_part).cost(cost);
        call.uses(head, Orientation::Rowwise, form(model, head)?).add()?;
        let elements = self.of_tokens(3).saturating_mul(self.tensor());
        let statistics = self.exchange(
            "head.statistics.all-gather",
            Phase::Forward,
            (CollectiveKind::AllGather, Group::Tensor),
            of_part,
            (elements, ElementType::F32),
        )?;
        let sum = decoder.cost(0, 0, elements);
        self.program.call("loss", Phase::Forward).reads(statistics).writes(loss).cost(sum).add()?;
        let parts = self.parts("head.gradient parts", self.decoder.hidden)?;
        let call = self.program.call("head.dgrad", Phase::Backward).reads(input).reads(statistics);
        let call = call.uses(head, backward(model, head)?, form(model, head)?);
        call.writes(parts).cost(cost).add()?;
        let of_normed = self.scatter("head.gradient.reduce-scatter", Phase::Backward, parts)?;
        if !model.weight(head)?.frozen {
            let call = self.program.call("head.wgrad", Phase::Backward).reads(input).reads(statistics);
            call.gradient(head).cost(cost).add()?;
        }
        self.norm_backward(("head", "head"), normed.stream, (of_normed, None))
    }
}
