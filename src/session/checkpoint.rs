//! The weights of a session, outside of it.
//!
//! Law: a checkpoint is whole: every weight in its logical shape, independent of how many ranks
//! wrote it, so any mesh can read it. Masters, moments, delayed scales and step count determine everything; the
//! quantized planes ride along for whoever serves the model, and are not read back.

use std::ops::{Deref, Range};

use super::SessionError;
use crate::exec::{Exchange, WeightShard};
use crate::format::{
    DelayedState, Format, FormatError, Orientation, PlaneKind, PlaneSpec, Shape, expand_scale,
};
use crate::id::RankId;
use crate::layout::{WeightLayout, Weights};
use crate::model::Placement;

/// The planes of one stored orientation of a weight, in the padded shapes of its format.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanesState {
    /// Which orientation.
    pub orientation: Orientation,
    /// Shapes and element types.
    pub specs: Vec<PlaneSpec>,
    /// Bytes of every plane.
    pub planes: Vec<Vec<u8>>,
}

/// One weight.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightState {
    /// Its name.
    pub name: String,
    /// Its logical shape.
    pub shape: Shape,
    /// Its format.
    pub format: Format,
    /// FP32 master, row-major.
    pub master: Vec<f32>,
    /// First moment.
    pub exp_avg: Vec<f32>,
    /// Second moment.
    pub exp_avg_sq: Vec<f32>,
    /// Quantized planes, one entry per stored orientation; none for a replicated weight.
    pub planes: Vec<PlanesState>,
    /// What dequantizing needs beside the planes: NVFP4's amax, per-tensor FP8's scale_inv, else 1.
    pub tensor_scale: f32,
    /// Scale in use and amax history, where scaling is delayed. A session with delayed scaling that imports a
    /// weight without begins its history anew; one without delayed scaling ignores it.
    pub delayed: Option<DelayedState>,
}

/// All weights and the optimizer's step count.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Optimizer steps taken.
    pub optimizer_step: u32,
    /// The weights, in declaration order.
    pub weights: Vec<WeightState>,
}

impl Checkpoint {
    /// Puts the ranks' shards together.
    pub(super) fn gather<E: Deref<Target = Exchange>>(
        weights: &Weights,
        ranks: &[E],
    ) -> Result<Self, FormatError> {
        let states = weights.layouts.iter().enumerate().map(|(number, layout)| {
            let owners = match layout.placement {
                Placement::Sharded => ranks.len(),
                Placement::Replicated => 1,
            };
            let shards = || ranks.iter().take(owners).filter_map(move |rank| rank.shards.get(number));
            let values = |pick: fn(&WeightShard) -> &Vec<f32>| {
                shards().flat_map(|shard| pick(shard).clone()).collect()
            };
            Ok(WeightState {
                name: layout.name.clone(),
                shape: layout.shard.shape,
                format: layout.format,
                master: values(|shard| &shard.master),
                exp_avg: values(|shard| &shard.exp_avg),
                exp_avg_sq: values(|shard| &shard.exp_avg_sq),
                planes: planes(layout, shards)?,
                tensor_scale: shards().next().map_or(1.0, |shard| shard.tensor_scale),
                delayed: shards().next().and_then(|shard| shard.delayed.clone()),
            })
        });
        let optimizer_step = ranks.first().map_or(0, |rank| rank.optimizer_step);
        Ok(Self { optimizer_step, weights: states.collect::<Result<_, _>>()? })
    }

    /// Does it hold exactly the weights of the session?
    pub(super) fn check(&self, weights: &Weights) -> Result<(), SessionError> {
        if self.weights.len() != weights.layouts.len() {
            let reason = format!(
                "the checkpoint has {} weights, the session {}",
                self.weights.len(),
                weights.layouts.len()
            );
            return Err(SessionError::Import { reason });
        }
        for (state, layout) in self.weights.iter().zip(&weights.layouts) {
            let elements = layout.shard.shape.rows * layout.shard.shape.cols;
            let reason = if state.name != layout.name {
                format!("the checkpoint has `{}` where the session has `{}`", state.name, layout.name)
            } else if state.shape != layout.shard.shape {
                format!(
                    "`{}` is {:?} in the checkpoint and {:?} here",
                    state.name, state.shape, layout.shard.shape
                )
            } else if [&state.master, &state.exp_avg, &state.exp_avg_sq]
                .iter()
                .any(|part| part.len() != elements)
            {
                format!("`{}` does not hold {elements} values of master and moments", state.name)
            } else if let Some(state_of) =
                state.delayed.as_ref().filter(|delayed| !(delayed.scale > 0.0 && delayed.scale.is_finite()))
            {
                format!("`{}` has the delayed scale {}, which no cast can use", state.name, state_of.scale)
            } else {
                continue;
            };
            return Err(SessionError::Import { reason });
        }
        Ok(())
    }

    /// Cuts out what `rank` owns.
    pub(super) fn scatter(&self, weights: &Weights, rank: RankId, exchange: &mut Exchange) {
        exchange.optimizer_step = self.optimizer_step;
        exchange.shards = self
            .weights
            .iter()
            .zip(&weights.layouts)
            .map(|(state, layout)| {
                let rows = layout.shard.rows_of(rank);
                let cols = layout.shard.shape.cols;
                let range: Range<usize> = rows.begin * cols..(rows.begin + rows.rows) * cols;
                WeightShard {
                    master: state.master[range.clone()].to_vec(),
                    exp_avg: state.exp_avg[range.clone()].to_vec(),
                    exp_avg_sq: state.exp_avg_sq[range].to_vec(),
                    delayed: state.delayed.clone(),
                    ..WeightShard::default()
                }
            })
            .collect();
    }
}

/// Shards one after the other, cut or padded to the planes of the whole weight.
fn planes<'a, I: Iterator<Item = &'a WeightShard>>(
    layout: &WeightLayout,
    shards: impl Fn() -> I,
) -> Result<Vec<PlanesState>, FormatError> {
    if layout.placement == Placement::Replicated {
        return Ok(Vec::new());
    }
    let mut states = Vec::new();
    let mut stored = 0;
    for orientation in layout.format.stored_orientations() {
        let specs = layout.format.planes(*orientation, layout.shard.shape);
        let planes = specs
            .iter()
            .enumerate()
            .map(|(plane, spec)| {
                let parts = shards().filter_map(|shard| shard.planes.get(stored + plane));
                let mut bytes: Vec<u8> = parts.flatten().copied().collect();
                bytes.resize(spec.bytes(), 0);
                if spec.kind == PlaneKind::Scale {
                    expand_scale(layout.format, *orientation, layout.shard.shape, &mut bytes)?;
                }
                Ok(bytes)
            })
            .collect::<Result<_, FormatError>>()?;
        states.push(PlanesState { orientation: *orientation, specs, planes });
        stored += 2;
    }
    Ok(states)
}
