//! The weights of a session, outside of it.
//!
//! Law: a checkpoint is whole: every weight in its logical shape, independent of how many ranks wrote it, in
//! how many replicas, so any mesh can read it: it is made of the first replica's shards, and every replica
//! gets them back. Masters, moments, delayed scales and step count determine everything; the quantized planes
//! of weights that train ride along for whoever serves the model, and are not read back. A frozen weight that is
//! sharded is its planes, which are read back as they are, or a digest of them. Carried buffers are the exception:
//! each rank has its own, so they fit the number of ranks that wrote them, and nothing drops them silently.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use super::UpdatedBy;
use crate::exec::{FrozenDigest, ShardPlanes, Transfer, WeightShard};
use warpweft_base::id::RankId;
use warpweft_format::{
    DelayedState, Format, FormatError, Orientation, PlaneKind, PlaneSpec, Planes, Shape, dequantize,
    expand_scale,
};
use warpweft_plan::layout::{PlaneCut, Region, WeightLayout, Weights};
use warpweft_plan::model::Placement;
use warpweft_plan::plan::{StepPlan, carried};

/// The planes of one stored orientation of a weight, in the padded shapes of its format ([`Format::planes`]).
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
    /// FP32 master, row-major; empty if the weight was frozen and is its planes, or a digest alone: see
    /// [`WeightState::values`].
    pub master: Vec<f32>,
    /// First moment; empty if the weight was frozen. A session in which it is frozen ignores moments. One in
    /// which it trains needs them, unless no optimizer step was taken: see [`Checkpoint::restart_optimizer`]. Of a
    /// rule of the trainer's own it is the first list of state, and empty if it keeps none.
    pub exp_avg: Vec<f32>,
    /// Second moment, there if the first is; or the second list of state.
    pub exp_avg_sq: Vec<f32>,
    /// Quantized planes, one entry per stored orientation; none for a replicated weight. A session in which the weight
    /// is frozen in the same format takes them as they are if there is no master.
    pub planes: Vec<PlanesState>,
    /// What dequantizing needs beside the planes: NVFP4's amax, per-tensor FP8's scale_inv, else 1.
    pub tensor_scale: f32,
    /// Scale in use and amax history, where scaling is delayed. A session with delayed scaling that imports a
    /// weight without begins its history anew; one without delayed scaling ignores it; one whose weight has
    /// another format keeps the history and takes the scale from it.
    pub delayed: Option<DelayedState>,
    /// Of a weight that was frozen, which values it has. A [`FileStore`](super::FileStore) keeps this and not the
    /// values; a session that imports a weight without values must have these.
    pub frozen: Option<FrozenDigest>,
}

impl WeightState {
    /// Its values, row-major: the master, or what the planes of a frozen weight are dequantized to.
    ///
    /// # Errors
    /// [`FormatError::MissingPlanes`] for a frozen weight of a file, which has a digest alone; [`FormatError`] for
    /// planes that are not those of the shape.
    pub fn values(&self) -> Result<Cow<'_, [f32]>, FormatError> {
        if !self.master.is_empty() {
            return Ok(Cow::Borrowed(&self.master));
        }
        let rowwise = self.planes.iter().find(|planes| planes.orientation == Orientation::Rowwise);
        let missing = FormatError::MissingPlanes { orientation: Orientation::Rowwise };
        let planes = &rowwise.ok_or(missing)?.planes;
        let plane = |number: usize| planes.get(number).map_or(&[][..], Vec::as_slice);
        let expected = self.format.planes(Orientation::Rowwise, self.shape);
        if let Some((spec, at)) = expected.iter().zip(0..).find(|(spec, at)| plane(*at).len() != spec.bytes())
        {
            let (what, actual) = ("a plane", plane(at).len());
            return Err(FormatError::Length { what, expected: spec.bytes(), actual });
        }
        let planes = Planes { data: plane(0), scale: plane(1) };
        let mut values = vec![0.0; self.shape.elements()];
        dequantize(self.format, Orientation::Rowwise, self.shape, planes, self.tensor_scale, &mut values)?;
        Ok(Cow::Owned(values))
    }

    /// Are its values here? If not, there is a digest of them alone.
    pub(super) fn has_values(&self) -> bool {
        !self.master.is_empty() || !self.planes.is_empty()
    }

    /// Has it as many values as its shape says, of both moments, of none, or of the first list alone? A frozen weight
    /// need not have a master, and has no moments.
    pub(super) fn is_whole(&self) -> bool {
        let (elements, moments) = (self.shape.elements(), [self.exp_avg.len(), self.exp_avg_sq.len()]);
        let is_whole = self.master.len() == elements;
        match self.frozen {
            Some(_) => (is_whole || self.master.is_empty()) && moments == [0; 2],
            None => is_whole && [[elements; 2], [elements, 0], [0; 2]].contains(&moments),
        }
    }

    /// Lists of state beside the master.
    pub(super) fn lists(&self) -> usize {
        [&self.exp_avg, &self.exp_avg_sq].into_iter().filter(|list| !list.is_empty()).count()
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
    /// What updated the weights in these steps. A session that updates by the other one refuses its state. `None` where
    /// that is not known, as of a file that does not say; then all that is asked is as many lists of state.
    pub updated_by: Option<UpdatedBy>,
    /// The weights, in declaration order. An import finds them by their names, in any order.
    pub weights: Vec<WeightState>,
    /// The carried buffers, in the order of [`crate::plan::carried`].
    pub carried: Carried,
    /// What the trainer keeps beside the weights, under names of its own: the number of its step, its loss scale,
    /// the place in its data. An export has none, an import reads none, and stores keep them with the rest, so that
    /// a file is either of one moment or not there.
    pub notes: BTreeMap<String, String>,
}

impl Checkpoint {
    /// The weight with this name.
    #[must_use]
    pub fn weight(&self, name: &str) -> Option<&WeightState> {
        self.weights.iter().find(|state| state.name == name)
    }

    /// The same weights and carried buffers, with an optimizer that begins anew: no steps taken, and no moments.
    ///
    /// For weights that were frozen and are to train, and for another rule of updates than the one that made the state.
    /// Moments of 0 beside a step count that is not would be
    /// taken for moments that have settled: by the bias correction of that step they make updates several times
    /// too large (6.6 times, of a steady gradient with the default betas).
    #[must_use]
    pub fn restart_optimizer(mut self) -> Self {
        (self.optimizer_step, self.updated_by) = (0, None);
        for weight in &mut self.weights {
            (weight.exp_avg, weight.exp_avg_sq) = (Vec::new(), Vec::new());
        }
        self
    }

    /// Puts together what the ranks copied out, and takes it from them. It goes weight by weight: what is in
    /// memory at once is one checkpoint, in parts or whole, and one weight more.
    pub(super) fn gather(
        programs: &[Arc<StepPlan>],
        ranks: &mut [&mut Transfer],
    ) -> Result<Self, FormatError> {
        let layouts = programs.first().map_or(&[][..], |plan| &plan.weights.layouts);
        let mut weights = Vec::with_capacity(layouts.len());
        for (number, layout) in layouts.iter().enumerate() {
            let taken = ranks.iter_mut().filter_map(|rank| rank.shards.get_mut(number).map(std::mem::take));
            let mut shards: Vec<WeightShard> = taken.collect();
            // Ranks of the first replica come first.
            shards.truncate(layout.shard.ranks as usize);
            weights.push(joined(layout, &shards)?);
        }
        let optimizer_step = ranks.first().map_or(0, |rank| rank.optimizer_step);
        let buffers = carried(programs).into_iter().enumerate().map(|(number, (name, _))| {
            let taken = ranks.iter_mut().filter_map(|rank| rank.carried.get_mut(number).map(std::mem::take));
            CarriedBuffer { name: name.to_owned(), ranks: taken.collect() }
        });
        let carried = Carried::Buffers(buffers.collect());
        let updated_by = programs.first().map(|plan| UpdatedBy::of(plan.weights.state));
        Ok(Self { optimizer_step, updated_by, weights, carried, notes: BTreeMap::new() })
    }

    /// Cuts out what `rank` owns: everything, or the weights in `taken` for an optimizer that begins anew.
    ///
    /// # Errors
    /// [`FormatError`] for planes that are not those of a frozen weight's shape.
    pub(super) fn scatter(
        &self,
        programs: &[Arc<StepPlan>],
        rank: RankId,
        taken: Option<&Taken>,
        transfer: &mut Transfer,
    ) -> Result<(), FormatError> {
        let layouts = programs.first().map_or(&[][..], |plan| &plan.weights.layouts);
        let bytes_of = |(name, region): (&str, Region)| match &self.carried {
            Carried::Zeros => vec![0; region.bytes],
            Carried::Buffers(buffers) => {
                let mut found = buffers.iter().filter(|buffer| buffer.name == name);
                found.find_map(|buffer| buffer.ranks.get(rank.index())).cloned().unwrap_or_default()
            }
        };
        transfer.carried = match taken {
            None => carried(programs).into_iter().map(bytes_of).collect(),
            Some(_) => Vec::new(),
        };
        transfer.optimizer_step = if taken.is_some() { 0 } else { self.optimizer_step };
        let weights = programs.first().map(|plan| &plan.weights);
        let by_name: HashMap<&str, &WeightState> =
            self.weights.iter().map(|state| (state.name.as_str(), state)).collect();
        let shard = |layout: &WeightLayout, state: &WeightState| {
            let lists = weights.map_or(0, |weights| weights.lists_of(layout));
            let rows = layout.shard.rows_of(rank);
            let cols = layout.shard.shape.cols;
            let range: Range<usize> = rows.begin * cols..(rows.begin + rows.rows) * cols;
            let list = |number: usize, of: &[f32]| match of.get(range.clone()) {
                _ if number >= lists => Vec::new(),
                Some(values) if taken.is_none() => values.to_vec(),
                _ => vec![0.0; range.len()],
            };
            if layout.frozen && !state.has_values() {
                return Ok(WeightShard { frozen: state.frozen, stays: true, ..WeightShard::default() });
            }
            if goes_as_planes(state, layout) {
                let (planes, tensor_scale) = (cut(state, layout, rank)?, state.tensor_scale);
                return Ok(WeightShard { planes, tensor_scale, ..WeightShard::default() });
            }
            Ok(WeightShard {
                // A rank refuses rows that are not there.
                master: state.values()?.get(range.clone()).unwrap_or_default().to_vec(),
                exp_avg: list(0, &state.exp_avg),
                exp_avg_sq: list(1, &state.exp_avg_sq),
                delayed: weights.and_then(|weights| {
                    Some(delayed_here(state.delayed.as_ref()?, state.format, layout, weights))
                }),
                ..WeightShard::default()
            })
        };
        let shards = layouts.iter().filter_map(|layout| {
            if taken.is_some_and(|taken| !taken.contains(&layout.name)) {
                let lists = weights.map_or(0, |weights| weights.lists_of(layout));
                return Some(Ok(WeightShard::that_stays(layout, lists, rank)));
            }
            Some(shard(layout, by_name.get(layout.name.as_str())?))
        });
        transfer.shards = shards.collect::<Result<_, FormatError>>()?;
        Ok(())
    }
}

/// The names of weights of a session that an import takes; others stay as they are.
pub(super) type Taken = HashSet<String>;

/// Is it put into the session as planes, bit for bit?
pub(super) fn goes_as_planes(state: &WeightState, layout: &WeightLayout) -> bool {
    layout.is_planes_alone() && state.master.is_empty() && state.format == layout.format
}

/// A rank's planes of a frozen weight.
///
/// # Errors
/// [`FormatError`] for planes that are not there, or not those of its shape.
fn cut(state: &WeightState, layout: &WeightLayout, rank: RankId) -> Result<Vec<ShardPlanes>, FormatError> {
    let stored = layout.format.stored_orientations().iter().map(|orientation| {
        let missing = FormatError::MissingPlanes { orientation: *orientation };
        let found = state.planes.iter().find(|planes| planes.orientation == *orientation);
        let planes = &found.ok_or_else(|| missing.clone())?.planes;
        let read = |spec: &PlaneSpec, range: Range<usize>| {
            let plane = planes.get(usize::from(spec.kind == PlaneKind::Scale));
            plane.and_then(|plane| plane.get(range)).map(<[u8]>::to_vec).ok_or_else(|| missing.clone())
        };
        let cut = PlaneCut::new(layout, *orientation, rank).shard(state.tensor_scale, read)?;
        Ok(ShardPlanes { data: cut.data, scale: cut.scale })
    });
    stored.collect()
}

/// What delayed scaling of the session begins with: a scale is worth nothing in another format, where it may
/// saturate everything, and there follows from the history.
pub(super) fn delayed_here(
    given: &DelayedState,
    format: Format,
    layout: &WeightLayout,
    weights: &Weights,
) -> DelayedState {
    match weights.delayed(layout.bucket) {
        Some((tensor, delayed)) if format != layout.format => {
            given.with_length(delayed.history as usize).for_tensor(tensor, delayed.choice)
        }
        _ => given.clone(),
    }
}

/// A weight of its owners' shards, in their order.
fn joined(layout: &WeightLayout, shards: &[WeightShard]) -> Result<WeightState, FormatError> {
    let values = |of: fn(&WeightShard) -> &[f32]| shards.iter().map(of).collect::<Vec<_>>().concat();
    Ok(WeightState {
        name: layout.name.clone(),
        shape: layout.shard.shape,
        format: layout.format,
        master: values(|shard| &shard.master),
        exp_avg: values(|shard| &shard.exp_avg),
        exp_avg_sq: values(|shard| &shard.exp_avg_sq),
        planes: planes(layout, shards)?,
        tensor_scale: shards.first().map_or(1.0, |shard| shard.tensor_scale),
        delayed: shards.first().and_then(|shard| shard.delayed.clone()),
        frozen: shards.first().and_then(|shard| shard.frozen),
    })
}

/// Shards one after the other, cut or padded to the planes of the whole weight.
fn planes(layout: &WeightLayout, shards: &[WeightShard]) -> Result<Vec<PlanesState>, FormatError> {
    if layout.placement == Placement::Replicated {
        return Ok(Vec::new());
    }
    let stored = layout.format.stored_orientations().iter().enumerate().map(|(number, orientation)| {
        let specs = layout.format.planes(*orientation, layout.shard.shape);
        let planes = specs.iter().map(|spec| {
            let mut whole = Vec::with_capacity(spec.bytes());
            for shard in shards.iter().filter_map(|shard| shard.planes.get(number)) {
                let part = shard.of(spec.kind);
                let room = spec.bytes() - whole.len();
                whole.extend_from_slice(&part[..part.len().min(room)]);
            }
            whole.resize(spec.bytes(), 0);
            if spec.kind == PlaneKind::Scale {
                expand_scale(layout.format, *orientation, layout.shard.shape, &mut whole)?;
            }
            Ok(whole)
        });
        let planes = planes.collect::<Result<_, _>>()?;
        Ok(PlanesState { orientation: *orientation, specs, planes })
    });
    stored.collect()
}
