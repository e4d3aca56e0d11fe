//! Half a block of a decoder whose ranks compute parts of layers: a column-parallel product, then a row-parallel one.
//!
//! Law: what is between the two products stays on the rank, but for keys and values, which the ranks of a context
//! gather. Each exchange of backward begins before a product that does not wait for it.

use super::super::super::{CallBuilder, CollectiveKind, CostHint, DeclareError, Group, Model, Phase};
use super::super::{Part, backward, form, product};
use super::{Draft, Normed};
use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// What a column-parallel product gives a row-parallel one.
#[derive(Clone, Copy)]
struct Inner {
    /// Queries, keys and values of the rank's heads; or what gate and up give. In a context queries alone.
    own: BufferId,
    /// In a context, keys and values of all tokens of the text.
    of_text: Option<BufferId>,
}

/// Forward of half a block, as backward needs it.
pub(super) struct Half<'p> {
    column: &'p Part,
    row: &'p Part,
    pub(super) normed: Normed,
    inner: Inner,
    /// What arrived at experts.
    arrived: Option<BufferId>,
    /// What it adds to the stream.
    pub(super) output: BufferId,
}

impl Draft<'_> {
    fn weights(&self, part: &Part) -> Result<Vec<WeightId>, DeclareError> {
        part.matrices().iter().map(|name| self.model.find(name)).collect()
    }

    /// What a product with a part's matrices costs, and the attention of it.
    fn cost(&self, part: &Part, attention: u64, values: usize) -> CostHint {
        let decoder = self.decoder;
        let ranks = u64::from(self.mesh.tensor()) * u64::from(self.mesh.context());
        let flops = product(&[2, decoder.tokens, part.computed_rows, part.cols]);
        let flops = flops.saturating_add(part.extra_flops.saturating_mul(attention)) / ranks;
        let weights = part.rows.saturating_mul(part.cols) / self.tensor();
        decoder.cost(flops, weights, self.of_tokens(values))
    }

    /// What a column-parallel product gives a rank of every token: in all, and of that keys and values, which ranks of
    /// a context share.
    fn widths(&self, column: &Part, row: &Part) -> (usize, usize) {
        let all = column.output_width / self.tensor();
        // Attention is the only one that costs more than its product.
        match row.extra_flops {
            1.. if self.mesh.context() > 1 => (all, all - row.cols / self.tensor()),
            _ => (all, 0),
        }
    }

    pub(super) fn half<'p>(
        &mut self,
        column: &'p Part,
        row: &'p Part,
        before: (BufferId, Option<BufferId>),
    ) -> Result<Half<'p>, DeclareError> {
        let (forward, hidden, name) = (Phase::Forward, self.width(column), column.name.as_str());
        let normed = self.norm((name, &column.weights), before)?;
        let input = self.bring((name, forward), column, normed.normed)?;
        let (width, shared) = self.widths(column, row);
        let own = self.program.activation(&format!("{name}.output"), self.of_tokens(width - shared))?;
        let kv = match shared {
            0 => None,
            _ => Some(self.program.activation_in(
                &format!("{name}.keys and values"),
                self.of_tokens(shared),
                self.wire,
            )?),
        };
        let (weights, cost) = (self.weights(column)?, self.cost(column, 0, hidden.saturating_add(width)));
        let call = self.program.call(&format!("{name}.forward"), forward).reads(input).writes(own).cost(cost);
        let call = kv.into_iter().fold(call, CallBuilder::writes);
        uses(call, self.model, &weights, Orientation::Rowwise)?.add()?;
        let of_text = match kv {
            None => None,
            Some(kv) => {
                let elements = self.of_tokens(shared).saturating_mul(self.mesh.context() as usize);
                let all_gather = (CollectiveKind::AllGather, Group::Context);
                let name = format!("{name}.keys and values.all-gather");
                Some(self.exchange(&name, forward, all_gather, kv, (elements, self.wire))?)
            }
        };
        let inner = Inner { own, of_text };
        let parts = self.parts(&format!("{}.parts", row.name), self.width(row))?;
        let (weights, cost) = (self.weights(row)?, self.cost(row, 1, width.saturating_add(hidden)));
        let call = self.program.call(&format!("{}.forward", row.name), forward).writes(parts).cost(cost);
        uses(inner.read_by(call), self.model, &weights, Orientation::Rowwise)?.add()?;
        let output = self.give((&row.name, forward), row, parts)?;
        let arrived = column.sent.map(|_| input);
        Ok(Half { column, row, normed, inner, arrived, output })
    }

    pub(super) fn half_backward(
        &mut self,
        half: &Half<'_>,
        slope: BufferId,
    ) -> Result<BufferId, DeclareError> {
        let Half { column, row, normed, inner, .. } = half;
        let (phase, hidden) = (Phase::Backward, self.width(row));
        let (width, shared) = self.widths(column, row);
        let slopes = self.bring((&format!("{}.gradient", row.name), phase), row, slope)?;
        // The gradient of what is between both products.
        let own =
            self.program.activation(&format!("{}.gradient", row.name), self.of_tokens(width - shared))?;
        let kv = match inner.of_text {
            None => None,
            Some(_) => {
                let elements = self.of_tokens(shared).saturating_mul(self.mesh.context() as usize);
                let name = format!("{}.gradient of keys and values", row.name);
                Some(self.program.activation_in(&name, elements, self.wire)?)
            }
        };
        let weights = self.weights(row)?;
        let cost = self.cost(row, 2, width.saturating_mul(2).saturating_add(hidden));
        let call =
            self.program.call(&format!("{}.dgrad", row.name), phase).reads(slopes).writes(own).cost(cost);
        let call = kv.into_iter().fold(inner.read_by(call), CallBuilder::writes);
        uses(call, self.model, &weights, Orientation::Columnwise)?.add()?;
        let kv = match kv {
            None => None,
            Some(kv) => {
                let scatter = (CollectiveKind::ReduceScatter, Group::Context);
                let name = format!("{}.keys and values.reduce-scatter", row.name);
                Some(self.exchange(&name, phase, scatter, kv, (self.of_tokens(shared), self.wire))?)
            }
        };
        let trains = self.trains(column)?;
        let input = match trains {
            true if half.arrived.is_some() => half.arrived,
            true => Some(self.gather(&format!("{}.all-gather again", column.name), phase, normed.normed)?),
            false => None,
        };
        if self.trains(row)? {
            let cost = self.cost(row, 0, width.saturating_add(hidden));
            let call = self.program.call(&format!("{}.wgrad", row.name), phase).reads(slopes).cost(cost);
            gradients(inner.read_by(call), &weights).add()?;
        }
        let parts = self.parts(&format!("{}.gradient parts", column.name), self.width(column))?;
        let (weights, cost) = (self.weights(column)?, self.cost(column, 0, hidden.saturating_add(width)));
        let call = self.program.call(&format!("{}.dgrad", column.name), phase).reads(own).writes(parts);
        let call = kv.into_iter().fold(call, CallBuilder::reads).cost(cost);
        uses(call, self.model, &weights, Orientation::Columnwise)?.add()?;
        let of_normed = self.give((&format!("{}.gradient", column.name), phase), column, parts)?;
        if let Some(input) = input {
            let call = self.program.call(&format!("{}.wgrad", column.name), phase).reads(input).reads(own);
            let call = kv.into_iter().fold(call, CallBuilder::reads).cost(cost);
            gradients(call, &weights).add()?;
        }
        self.norm_backward((&column.name, &column.weights), normed.stream, (of_normed, Some(slope)))
    }

    fn trains(&self, part: &Part) -> Result<bool, DeclareError> {
        let weights = self.weights(part)?;
        let trained = weights.iter().map(|weight| Ok(!self.model.weight(*weight)?.frozen));
        trained.collect::<Result<Vec<bool>, DeclareError>>().map(|trained| trained.contains(&true))
    }
}

impl Inner {
    fn read_by<'c>(&self, call: CallBuilder<'c>) -> CallBuilder<'c> {
        self.of_text.into_iter().fold(call.reads(self.own), CallBuilder::reads)
    }
}

/// A call with uses of these weights, rowwise where they are replicated.
fn uses<'c>(
    call: CallBuilder<'c>,
    model: &Model,
    weights: &[WeightId],
    orientation: Orientation,
) -> Result<CallBuilder<'c>, DeclareError> {
    weights.iter().try_fold(call, |call, weight| {
        let side = match orientation {
            Orientation::Columnwise => backward(model, *weight)?,
            Orientation::Rowwise => Orientation::Rowwise,
        };
        Ok(call.uses(*weight, side, form(model, *weight)?))
    })
}

fn gradients<'c>(call: CallBuilder<'c>, weights: &[WeightId]) -> CallBuilder<'c> {
    weights.iter().fold(call, |call, weight| call.gradient_if_trained(*weight, ElementType::F32))
}
