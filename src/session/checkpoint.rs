//! The weights of a session, outside of it.
//!
//! Law: a checkpoint is whole: every weight in its logical shape, independent of how many ranks wrote it, in
//! how many replicas, so any mesh can read it: it is made of the first replica's shards, and every replica
//! gets them back. Masters, moments, delayed scales and step count determine everything; the quantized planes
//! ride along for whoever serves the model, and are not read back. Carried buffers are the exception: each
//! rank has its own, so they fit the number of ranks that wrote them, and nothing drops them silently.

use std::collections::{BTreeMap, HashSet};
use std::ops::{Deref, Range};
use std::sync::Arc;

use super::SessionError;
use crate::exec::{Exchange, WeightShard};
use crate::format::{
    DelayedState, Format, FormatError, Orientation, PlaneKind, PlaneSpec, Shape, expand_scale,
};
use crate::id::RankId;
use crate::layout::{Region, WeightLayout, Weights};
use crate::model::Placement;
use crate::plan::{StepPlan, carried};

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
    /// First moment; empty if the weight was frozen. A session in which it is frozen ignores moments. One in
    /// which it trains needs them, unless no optimizer step was taken: see [`Checkpoint::restart_optimizer`].
    pub exp_avg: Vec<f32>,
    /// Second moment, there if the first is.
    pub exp_avg_sq: Vec<f32>,
    /// Quantized planes, one entry per stored orientation; none for a replicated weight.
    pub planes: Vec<PlanesState>,
    /// What dequantizing needs beside the planes: NVFP4's amax, per-tensor FP8's scale_inv, else 1.
    pub tensor_scale: f32,
    /// Scale in use and amax history, where scaling is delayed. A session with delayed scaling that imports a
    /// weight without begins its history anew; one without delayed scaling ignores it; one whose weight has
    /// another format keeps the history and takes the scale from it.
    pub delayed: Option<DelayedState>,
}

impl WeightState {
    /// Has it as many values as its shape says, of both moments or of neither?
    pub(super) fn is_whole(&self) -> bool {
        let (elements, moments) = (self.shape.elements(), [self.exp_avg.len(), self.exp_avg_sq.len()]);
        self.master.len() == elements && (moments == [elements; 2] || moments == [0; 2])
    }
}

/// One carried buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedBuffer {
    /// Its name, the same in every program that carries it.
    pub name: String,
    /// Its bytes on every rank, in rank order, as closures left them.
    pub ranks: Vec<Vec<u8>>,
}

/// The carried buffers of a checkpoint.
///
/// An import takes them as they are: every carried buffer of the session must be there, for as many
/// ranks. What a checkpoint of other ranks, or of a program without a buffer, should mean for it only
/// the trainer knows; who wants all of them to begin anew says [`Carried::Zeros`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Every carried buffer of the session becomes zeros, as at its start.
    Zeros,
    /// These; none for programs without carried buffers.
    Buffers(Vec<CarriedBuffer>),
}

/// All weights, the optimizer's step count and the carried buffers.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Optimizer steps taken.
    pub optimizer_step: u32,
    /// The weights, in declaration order.
    pub weights: Vec<WeightState>,
    /// The carried buffers, in the order of [`crate::plan::carried`].
    pub carried: Carried,
    /// What the trainer keeps beside the weights, under names of its own: the number of its step, its loss scale,
    /// the place in its data. An export has none, an import reads none, and stores keep them with the rest, so that
    /// a file is either of one moment or not there.
    pub notes: BTreeMap<String, String>,
}

impl Checkpoint {
    /// The same weights and carried buffers, with an optimizer that begins anew: no steps taken, and no moments.
    ///
    /// For weights that were frozen and are to train. Moments of 0 beside a step count that is not would be
    /// taken for moments that have settled: by the bias correction of that step they make updates several times
    /// too large (6.6 times, of a steady gradient with the default betas).
    #[must_use]
    pub fn restart_optimizer(mut self) -> Self {
        self.optimizer_step = 0;
        for weight in &mut self.weights {
            (weight.exp_avg, weight.exp_avg_sq) = (Vec::new(), Vec::new());
        }
        self
    }

    /// Puts the ranks' shards together.
    pub(super) fn gather<E: Deref<Target = Exchange>>(
        programs: &[Arc<StepPlan>],
        ranks: &[E],
    ) -> Result<Self, FormatError> {
        let layouts = programs.first().map_or(&[][..], |plan| &plan.weights.layouts);
        let states = layouts.iter().enumerate().map(|(number, layout)| {
            // Ranks of the first replica come first.
            let owners = layout.shard.ranks as usize;
            let shards = || ranks.iter().take(owners).filter_map(move |rank| rank.shards.get(number));
            let values = |pick: fn(&WeightShard) -> &Vec<f32>| {
                shards().flat_map(|shard| pick(shard).iter().copied()).collect()
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
        let buffers = carried(programs).into_iter().enumerate().map(|(number, (name, _))| {
            let bytes = ranks.iter().filter_map(|rank| rank.carried.get(number)).cloned();
            CarriedBuffer { name: name.to_owned(), ranks: bytes.collect() }
        });
        let carried = Carried::Buffers(buffers.collect());
        let (weights, notes) = (states.collect::<Result<_, _>>()?, BTreeMap::new());
        Ok(Self { optimizer_step, weights, carried, notes })
    }

    /// Does it hold exactly the weights and carried buffers of the session?
    pub(super) fn check(&self, programs: &[Arc<StepPlan>], ranks: usize) -> Result<(), SessionError> {
        if let Some(plan) = programs.first() {
            self.check_weights(&plan.weights)?;
        }
        self.check_carried(programs, ranks).map_err(|what| SessionError::Import {
            reason: format!(
                "{what}; set `carried` to `Carried::Zeros` to let all carried buffers begin anew"
            ),
        })
    }

    fn check_carried(&self, programs: &[Arc<StepPlan>], ranks: usize) -> Result<(), String> {
        let Carried::Buffers(given) = &self.carried else { return Ok(()) };
        let expected = carried(programs);
        for (name, region) in &expected {
            let Some(buffer) = given.iter().find(|buffer| buffer.name == *name) else {
                return Err(format!("the checkpoint has no carried buffer `{name}`"));
            };
            let (theirs, bytes) = (buffer.ranks.len(), region.bytes);
            if theirs != ranks {
                return Err(format!(
                    "carried buffer `{name}` is of {theirs} ranks and the session has {ranks}"
                ));
            }
            if buffer.ranks.iter().any(|rank| rank.len() != bytes) {
                return Err(format!("carried buffer `{name}` does not hold {bytes} bytes on every rank"));
            }
        }
        let is_known = |buffer: &CarriedBuffer| expected.iter().any(|(name, _)| *name == buffer.name);
        match given.iter().find(|buffer| !is_known(buffer)) {
            Some(buffer) => Err(format!("no program carries buffer `{}` of the checkpoint", buffer.name)),
            None => Ok(()),
        }
    }

    fn check_weights(&self, weights: &Weights) -> Result<(), SessionError> {
        if self.weights.len() != weights.layouts.len() {
            return Err(SessionError::Import { reason: self.other_weights(weights) });
        }
        if self.optimizer_step == u32::MAX {
            let reason = "the checkpoint counts as many optimizer steps as can be counted; import one that is not \
                          damaged, or `checkpoint.restart_optimizer()`";
            return Err(SessionError::Import { reason: reason.to_owned() });
        }
        for (state, layout) in self.weights.iter().zip(&weights.layouts) {
            let elements = layout.shard.shape.rows * layout.shard.shape.cols;
            let reason = if state.name != layout.name {
                format!("the checkpoint has `{}` where the session has `{}`", state.name, layout.name)
            } else if state.shape != layout.shard.shape {
                format!(
                    "`{}` is {} in the checkpoint and {} here; declare it as it was saved, or load another checkpoint",
                    state.name, state.shape, layout.shard.shape
                )
            } else if !state.is_whole() {
                format!("`{}` does not hold {elements} values of master and moments", state.name)
            } else if state.exp_avg.is_empty() && !layout.frozen && self.optimizer_step > 0 {
                format!(
                    "`{}` trains here, was frozen there and has no moments, after {} optimizer steps; import \
                     `checkpoint.restart_optimizer()`, by which all moments begin anew, or freeze it here too",
                    state.name, self.optimizer_step
                )
            } else if let Some(at) = state.master.iter().position(|value| !value.is_finite()) {
                format!(
                    "`{}` holds {} in row {}, column {}, from which no training goes on; import a checkpoint of \
                     before it diverged",
                    state.name,
                    state.master[at],
                    at / state.shape.cols,
                    at % state.shape.cols
                )
            } else if !layout.frozen && !state.exp_avg.iter().chain(&state.exp_avg_sq).all(|m| m.is_finite())
            {
                format!(
                    "`{}` has a moment that is not finite, from which no training goes on; import a checkpoint of \
                     before it diverged, or `checkpoint.restart_optimizer()`",
                    state.name
                )
            } else if let Some(delayed) = state.delayed.as_ref().filter(|delayed| !delayed.is_usable()) {
                format!("`{}` has the delayed scale {}, which no cast can use", state.name, delayed.scale)
            } else {
                continue;
            };
            return Err(SessionError::Import { reason });
        }
        Ok(())
    }

    /// What to say about more or fewer weights than the session has.
    fn other_weights(&self, weights: &Weights) -> String {
        let counts = format!(
            "the checkpoint has {} weights, the session {}",
            self.weights.len(),
            weights.layouts.len()
        );
        let (saved, declared): (HashSet<&str>, HashSet<&str>) = (
            self.weights.iter().map(|state| state.name.as_str()).collect(),
            weights.layouts.iter().map(|layout| layout.name.as_str()).collect(),
        );
        let missing = weights.layouts.iter().find(|layout| !saved.contains(layout.name.as_str()));
        let unknown = self.weights.iter().find(|state| !declared.contains(state.name.as_str()));
        let which = match (missing, unknown) {
            (Some(layout), None) => format!("`{}` is not in the checkpoint", layout.name),
            (None, Some(state)) => format!("the session has no `{}`", state.name),
            (Some(layout), Some(state)) => {
                format!("`{}` is not in the checkpoint, and the session has no `{}`", layout.name, state.name)
            }
            (None, None) => "the checkpoint has some of them twice".to_owned(),
        };
        format!("{counts}: {which}; import a checkpoint of the same model")
    }

    /// Cuts out what `rank` owns.
    pub(super) fn scatter(&self, programs: &[Arc<StepPlan>], rank: RankId, exchange: &mut Exchange) {
        let layouts = programs.first().map_or(&[][..], |plan| &plan.weights.layouts);
        let bytes_of = |(name, region): (&str, Region)| match &self.carried {
            Carried::Zeros => vec![0; region.bytes],
            Carried::Buffers(buffers) => {
                let mut found = buffers.iter().filter(|buffer| buffer.name == name);
                found.find_map(|buffer| buffer.ranks.get(rank.index())).cloned().unwrap_or_default()
            }
        };
        exchange.carried = carried(programs).into_iter().map(bytes_of).collect();
        exchange.optimizer_step = self.optimizer_step;
        let weights = programs.first().map(|plan| &plan.weights);
        exchange.shards = self
            .weights
            .iter()
            .zip(layouts)
            .map(|(state, layout)| {
                let rows = layout.shard.rows_of(rank);
                let cols = layout.shard.shape.cols;
                let range: Range<usize> = rows.begin * cols..(rows.begin + rows.rows) * cols;
                let moment = |of: &[f32]| match of.get(range.clone()) {
                    _ if layout.frozen => Vec::new(),
                    Some(values) => values.to_vec(),
                    None => vec![0.0; range.len()],
                };
                WeightShard {
                    master: state.master[range.clone()].to_vec(),
                    exp_avg: moment(&state.exp_avg),
                    exp_avg_sq: moment(&state.exp_avg_sq),
                    delayed: weights.and_then(|weights| delayed(state, layout, weights)),
                    ..WeightShard::default()
                }
            })
            .collect();
    }
}

/// What delayed scaling of the session begins with: a scale is worth nothing in another format, where it may
/// saturate everything, and there follows from the history.
fn delayed(state: &WeightState, layout: &WeightLayout, weights: &Weights) -> Option<DelayedState> {
    let given = state.delayed.as_ref()?;
    match weights.delayed(layout.bucket) {
        Some((tensor, delayed)) if state.format != layout.format => {
            Some(given.with_length(delayed.history as usize).for_tensor(tensor, delayed.choice))
        }
        _ => Some(given.clone()),
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
