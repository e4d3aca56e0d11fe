//! Weights and carried buffers between a rank's arena and its handover.
//!
//! Law: host copies at a step boundary, of the rank's real rows. Masters and moments travel as f32 however they are
//! stored; masters that were set are quantized before anything reads them. Frozen weights that are sharded have no
//! master and travel as planes (`frozen.rs`). What a session begins with goes another way (`initialize.rs`).

use bytemuck::Pod;
use half::bf16;

use super::barrier::{Barrier, Work};
use super::stored_state::StoredState;
use super::{ExecError, Handover, Rank, Transfer};
use crate::checkpoint::ranks::{RankPart, WeightShard};
use crate::checkpoint::{FrozenDigest, StatePart};
use crate::config::Moments;
use warpweft_backend::Backend;
use warpweft_base::id::{CarriedId, RankId, WeightId};
use warpweft_format::{DelayedState, Orientation, OwnedPlanes, PlaneKind, PlaneSpec, split_master};
use warpweft_plan::layout::{Content, PlaneRegions, Region, Weights};
use warpweft_plan::model::Placement;
use warpweft_plan::plan::BoundaryState;

impl<B: Backend> StoredState for Rank<B> {
    fn owner(&self) -> RankId {
        self.id()
    }

    fn weights(&self) -> &Weights {
        &self.prologue.plan.weights
    }

    fn copy_stored(&self, content: Content, bytes: &mut [u8]) -> Result<(), ExecError> {
        Ok(self.backend.download(&self.memory, self.place(content, bytes.len())?, bytes)?)
    }
}

impl<B: Backend> Rank<B> {
    /// Copies masters, moments, step count and planes of the rank's rows into `handover`, and the rank's
    /// carried buffers. Rows that several ranks have are copied by the first of them; the others have empty
    /// shards of that weight. Where a world has several processes, rank 0 then has what all ranks copied out,
    /// and the others have nothing.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn export(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        self.quantize_new_masters()?;
        let frozen = self.frozen_digests()?;
        let plan = &self.prologue.plan;
        // Ranks that have little to copy would wait for the others, where all bring it to one process.
        let spread = !self.world.rendezvous().is_whole();
        let barrier = spread.then(|| Barrier::new(&self.world, self.id(), Work::CopiesItsState));
        let mut own = RankPart { optimizer_step: self.steps_taken()?, ..RankPart::default() };
        for (number, frozen) in frozen.into_iter().enumerate() {
            let weight = WeightId::at(number);
            barrier.iter().try_for_each(Barrier::alive)?;
            // Ranks of the first replica come first.
            if self.id().number() >= plan.weights.layout(weight).shard.owners() {
                own.shards.push(WeightShard::default());
                continue;
            }
            own.shards.push(WeightShard {
                master: self.rows(weight, StatePart::Master)?,
                states: self.lists(weight).map(|list| self.moment(list, weight)).collect::<Result<_, _>>()?,
                planes: self.planes(weight)?,
                tensor_scale: self.tensor_scale(weight)?,
                delayed: self.delayed(weight)?,
                frozen,
                stays: false,
            });
        }
        for place in 0..self.carried.len() {
            barrier.iter().try_for_each(Barrier::alive)?;
            own.carried.push(self.carried_bytes(CarriedId::at(place))?);
        }
        handover.transfer.own = own;
        if let Some(barrier) = barrier {
            barrier.agree(Ok(0))?.map_err(|(other, reason)| ExecError::World {
                rank: self.id(),
                reason: format!("{other} does not export a checkpoint: {reason}"),
            })?;
        }
        self.world.gather_weights(self.id(), handover)
    }

    /// Copies the main grads of the rank's rows into `handover`.
    ///
    /// # Errors
    /// What the backend refuses.
    pub fn main_grads(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        let weights = (0..self.prologue.plan.weights.layouts.len()).map(WeightId::at);
        let trained = weights.filter(|weight| !self.is_frozen(*weight));
        let main_grad = |weight| Ok((weight, self.values(Content::MainGrad(weight), weight)?));
        handover.transfer.main_grads = trained.map(main_grad).collect::<Result<_, ExecError>>()?;
        Ok(())
    }

    /// Like [`Rank::import`], if all processes of the world agree on the checkpoint; otherwise `handover`
    /// says why not, and nothing is changed.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn import_agreed(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        self.world.agree_on_import(self.id(), handover)?;
        if handover.transfer.refused.is_some() { Ok(()) } else { self.import(handover) }
    }

    /// Puts masters, moments, delayed scales, step count and carried buffers from `handover` in place; the
    /// planes follow from the masters before the next step, but those of frozen weights are written at once. Carried
    /// buffers that `handover` does not have stay as they are, and so do weights that [stay](WeightShard::stays). Where
    /// such a weight is frozen and is not the one of the checkpoint, nothing is changed, and `handover` says why.
    ///
    /// # Errors
    /// [`ExecError::Misfit`] for other weights, rows or carried buffers than the rank's, before anything is changed;
    /// what the backend refuses.
    pub fn import(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        let Transfer { own, refused, .. } = &mut handover.transfer;
        self.check_shards(&own.shards)?;
        self.check_carried(&own.carried)?;
        *refused = self.other_base(&own.shards)?;
        if refused.is_some() {
            return Ok(());
        }
        for (number, shard) in own.shards.iter_mut().enumerate() {
            let weight = WeightId::at(number);
            for (list, values) in self.lists(weight).zip(&shard.states) {
                self.write_moment(list, values)?;
            }
            if shard.stays {
                continue;
            }
            if self.is_frozen(weight) {
                self.frozen = None;
            }
            self.set_values(weight, std::mem::take(&mut shard.master), &shard.planes, shard.tensor_scale)?;
            self.write_delayed(weight, shard.delayed.as_ref())?;
        }
        self.write(Content::OptimizerStep, &own.optimizer_step.to_le_bytes())?;
        self.optimizer_steps = own.optimizer_step;
        for (region, bytes) in self.carried.iter().zip(&own.carried) {
            self.backend.upload(&self.memory, *region, bytes)?;
        }
        self.edge = BoundaryState::NEW_MASTERS;
        self.sum_is_open = false;
        Ok(())
    }

    /// The rank's rows of a weight: masters, or what a frozen weight has in their place, which is quantized unless
    /// it is given as planes.
    pub(super) fn set_values(
        &self,
        weight: WeightId,
        values: Vec<f32>,
        planes: &[OwnedPlanes],
        tensor_scale: f32,
    ) -> Result<(), ExecError> {
        match self.prologue.plan.weights.layout(weight).is_planes_alone() {
            false => self.write_master(weight, &values),
            true if planes.is_empty() => self.quantize_frozen(weight, values),
            true => self.write_planes(weight, planes, tensor_scale),
        }
    }

    /// Why a checkpoint does not go on from the weights that are here and were frozen there, if it does not.
    fn other_base(&mut self, shards: &[WeightShard]) -> Result<Option<String>, ExecError> {
        // The same on every rank, as the checkpoint is.
        if !shards.iter().any(|shard| shard.frozen.is_some()) {
            return Ok(None);
        }
        let mut here = self.frozen_digests()?;
        for (number, (shard, here)) in shards.iter().zip(&mut here).enumerate() {
            let weight = WeightId::at(number);
            if shard.frozen.is_some() && !self.is_frozen(weight) {
                self.quantize_new_masters()?;
                *here = Some(self.digest_of_planes(weight)?);
            }
        }
        let layouts = &self.prologue.plan.weights.layouts;
        let differs = |(shard, here): &(&WeightShard, &Option<FrozenDigest>)| {
            shard.frozen.is_some_and(|there| **here != Some(there))
        };
        let first = shards.iter().zip(&here).zip(layouts).find(|(pair, _)| differs(pair));
        Ok(first.map(|(_, layout)| {
            format!(
                "the weight `{}` has other values here than where the checkpoint was saved, where it was frozen, so that \
                 there is a digest of it and not its values; begin with the same base in the same format ({} here), or take the other \
                 weights by `Session::import_weights`",
                layout.name, layout.format
            )
        }))
    }

    /// Optimizer steps taken, as the arena counts them.
    pub(super) fn steps_taken(&self) -> Result<u32, ExecError> {
        let step = self.fetch(self.place(Content::OptimizerStep, size_of::<u32>())?)?;
        Ok(step.first().copied().unwrap_or_default())
    }

    /// A carried buffer; of one that is not there it is empty.
    pub(super) fn carried_bytes(&self, buffer: CarriedId) -> Result<Vec<u8>, ExecError> {
        self.carried.get(buffer.index()).map_or_else(|| Ok(Vec::new()), |region| self.fetch(*region))
    }

    fn write_master(&self, weight: WeightId, values: &[f32]) -> Result<(), ExecError> {
        if !self.splits_master(weight) {
            return self.write(Content::Master(weight), bytemuck::cast_slice(values));
        }
        let (high, low): (Vec<u16>, Vec<i16>) = values.iter().copied().map(split_master).unzip();
        self.write(Content::Shard(weight, Orientation::Rowwise), bytemuck::cast_slice(&high))?;
        self.write(Content::MasterRemainder(weight), bytemuck::cast_slice(&low))
    }

    fn splits_master(&self, weight: WeightId) -> bool {
        let weights = &self.prologue.plan.weights;
        weights.splits_masters(weights.layout(weight).bucket)
    }

    pub(super) fn is_frozen(&self, weight: WeightId) -> bool {
        self.prologue.plan.weights.layout(weight).frozen
    }

    fn write_moment(&self, content: Content, values: &[f32]) -> Result<(), ExecError> {
        match self.prologue.plan.weights.state.moments {
            Moments::F32 => self.write(content, bytemuck::cast_slice(values)),
            Moments::Bf16 => {
                let rounded: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
                self.write(content, bytemuck::cast_slice(&rounded))
            }
        }
    }

    pub(super) fn planes(&self, weight: WeightId) -> Result<Vec<OwnedPlanes>, ExecError> {
        let layout = self.prologue.plan.weights.layout(weight);
        if layout.placement == Placement::Replicated {
            return Ok(Vec::new());
        }
        let planes = |orientation: &Orientation| {
            let PlaneRegions { data, scale } = self.regions_of(weight, *orientation)?;
            Ok(OwnedPlanes { data: self.fetch(data)?, scale: self.fetch(scale)? })
        };
        layout.format.stored_orientations().iter().map(planes).collect()
    }

    /// Where the rank's planes of a weight are.
    pub(super) fn regions_of(
        &self,
        weight: WeightId,
        orientation: Orientation,
    ) -> Result<PlaneRegions, ExecError> {
        let specs = self.prologue.plan.weights.layout(weight).shard_planes(orientation);
        let slot = self.place(Content::Shard(weight, orientation), PlaneRegions::bytes(&specs))?;
        Ok(PlaneRegions::within(slot, &specs))
    }

    pub(super) fn tensor_scale(&self, weight: WeightId) -> Result<f32, ExecError> {
        let bucket = self.prologue.plan.weights.layout(weight).bucket;
        let place = self.own_values(Content::TensorScale(bucket), weight, 1);
        let scale = place.map_or_else(|| Ok(Vec::new()), |place| self.fetch(place))?;
        Ok(scale.first().copied().unwrap_or(1.0))
    }

    pub(super) fn delayed(&self, weight: WeightId) -> Result<Option<DelayedState>, ExecError> {
        let Some((scale, history, _)) = self.delayed_places(weight) else { return Ok(None) };
        let (scale, history) = (self.fetch(scale)?, self.fetch(history)?);
        Ok(scale.first().map(|scale| DelayedState { scale: *scale, history }))
    }

    pub(super) fn write_delayed(
        &self,
        weight: WeightId,
        state: Option<&DelayedState>,
    ) -> Result<(), ExecError> {
        let Some((scale, history, length)) = self.delayed_places(weight) else { return Ok(()) };
        let state = state.map_or_else(|| DelayedState::new(length), |state| state.with_length(length));
        self.backend.upload(&self.memory, scale, bytemuck::bytes_of(&state.scale))?;
        Ok(self.backend.upload(&self.memory, history, bytemuck::cast_slice(&state.history))?)
    }

    /// Where the weight's scale in use and its amax history are, and how long the history is.
    fn delayed_places(&self, weight: WeightId) -> Option<(Region, Region, usize)> {
        let weights = &self.prologue.plan.weights;
        let bucket = weights.layout(weight).bucket;
        let length = weights.delayed(bucket)?.1.history as usize;
        let scale = self.own_values(Content::DelayedScale(bucket), weight, 1)?;
        Some((scale, self.own_values(Content::AmaxHistory(bucket), weight, length)?, length))
    }

    /// The weight's `count` f32 values in a slot that holds the same number for every weight of its bucket.
    pub(super) fn own_values(&self, content: Content, weight: WeightId, count: usize) -> Option<Region> {
        let plan = &self.prologue.plan;
        let bytes = count * size_of::<f32>();
        self.places.get(&content)?.part(plan.weights.layout(weight).position * bytes, bytes)
    }

    /// What a region holds.
    fn fetch<T: Pod>(&self, region: Region) -> Result<Vec<T>, ExecError> {
        let mut values = vec![T::zeroed(); region.bytes / size_of::<T>()];
        self.backend.download(&self.memory, region, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    pub(super) fn write(&self, content: Content, bytes: &[u8]) -> Result<(), ExecError> {
        Ok(self.backend.upload(&self.memory, self.place(content, bytes.len())?, bytes)?)
    }

    /// The first `bytes` bytes of a common resident slot.
    pub(super) fn place(&self, content: Content, bytes: usize) -> Result<Region, ExecError> {
        let slot = self.places.get(&content);
        slot.and_then(|region| region.part(0, bytes)).ok_or_else(|| ExecError::Misfit {
            rank: self.id(),
            what: format!("bytes of {content:?}"),
            found: bytes,
            expected: slot.map_or(0, |region| region.bytes),
        })
    }

    /// Checks that carried buffers, if there are any, are as long as the rank's.
    fn check_carried(&self, carried: &[Vec<u8>]) -> Result<(), ExecError> {
        let known = self.carried.len();
        self.fits("carried buffers", carried.len().max(known), known)?;
        let mut all = self.carried.iter().zip(carried);
        all.try_for_each(|(region, bytes)| self.fits("bytes of a carried buffer", bytes.len(), region.bytes))
    }

    fn fits(&self, what: impl Into<String>, found: usize, expected: usize) -> Result<(), ExecError> {
        let misfit = || ExecError::Misfit { rank: self.id(), what: what.into(), found, expected };
        if found == expected { Ok(()) } else { Err(misfit()) }
    }

    /// Checks that `handover` has of every weight master and whatever is kept beside it, of the rank's rows; or planes
    /// in place of a master, for a frozen weight; or no values of a weight that stays.
    fn check_shards(&self, shards: &[WeightShard]) -> Result<(), ExecError> {
        let weights = &self.prologue.plan.weights;
        self.fits("weights of a checkpoint", shards.len(), weights.layouts.len())?;
        for (shard, layout) in shards.iter().zip(&weights.layouts) {
            let elements = layout.shard.rows_of(self.id()).rows * layout.shard.shape.cols;
            // Planes of others ride along.
            let has_planes = layout.is_planes_alone() && !shard.planes.is_empty();
            let has_values = !shard.stays && !has_planes;
            let expected = if has_values { elements } else { 0 };
            self.fits(format!("elements of the master of `{}`", layout.name), shard.master.len(), expected)?;
            let lists = weights.lists_of(layout);
            self.fits(format!("lists of state of `{}`", layout.name), shard.states.len(), lists)?;
            for (list, values) in weights.state.states().zip(&shard.states) {
                let what = format!("elements of the {} of `{}`", weights.state.in_words(list), layout.name);
                self.fits(what, values.len(), elements)?;
            }
            if has_values || shard.stays {
                continue;
            }
            let stored = if has_planes { layout.format.stored_orientations() } else { &[] };
            self.fits(format!("stored orientations of `{}`", layout.name), shard.planes.len(), stored.len())?;
            for (side, found) in stored.iter().zip(&shard.planes) {
                let specs = layout.shard_planes(*side);
                for kind in [PlaneKind::Data, PlaneKind::Scale] {
                    let expected = specs.iter().filter(|spec| spec.kind == kind).map(PlaneSpec::bytes).sum();
                    let what = format!("bytes of the {side} {kind:?} plane of `{}`", layout.name);
                    self.fits(what, found.of(kind).len(), expected)?;
                }
            }
        }
        Ok(())
    }
}
