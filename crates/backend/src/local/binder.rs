//! Looks up what ops name: slots, weights, buckets.
//!
//! Law: an answer fits. A region returned here lies inside the arena and is as long as was requested;
//! anything else is a refusal that says what does not fit.

use std::sync::Arc;

use super::Refusal;
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::compute::BoundProgram;
use warpweft_plan::layout::{Binding, Bucket, Content, Region, WeightLayout};
use warpweft_plan::model::{Group, Hyperparameters};
use warpweft_plan::op::Vote;

/// Looks things up in a binding.
pub struct Binder<'a> {
    pub(super) binding: &'a Binding<'a>,
    pub(super) program: Arc<BoundProgram>,
    pub(super) arena_bytes: usize,
}

impl Binder<'_> {
    /// Where a slot is.
    pub(super) fn region(&self, slot: SlotId) -> Result<Region, Refusal> {
        let found = self.binding.arena.slots.get(slot.index());
        let found = found.ok_or_else(|| format!("{slot} is not in the layout"))?;
        let end = found.region.offset.checked_add(found.region.bytes);
        if end.is_none_or(|end| end > self.arena_bytes) {
            let (name, bytes) = (&found.name, self.arena_bytes);
            return Err(format!("slot `{name}` lies outside of the arena of {bytes} bytes"));
        }
        Ok(found.region)
    }

    /// The first `bytes` bytes of a slot.
    pub(super) fn bytes(&self, slot: SlotId, bytes: usize) -> Result<Region, Refusal> {
        let region = self.region(slot)?;
        region.part(0, bytes).ok_or_else(|| {
            let name = &self.binding.arena.slot(slot).name;
            format!("slot `{name}` has {} bytes, and the op needs {bytes}", region.bytes)
        })
    }

    /// The first `count` values of type `T` of a slot.
    pub(super) fn elements<T>(&self, slot: SlotId, count: usize) -> Result<Region, Refusal> {
        self.bytes(slot, count.saturating_mul(size_of::<T>()))
    }

    /// The element type of the buffer that a slot is for.
    pub(super) fn element(&self, slot: SlotId) -> Result<ElementType, Refusal> {
        self.region(slot)?;
        let slot = self.binding.arena.slot(slot);
        let buffer = match slot.content {
            Content::Buffer(buffer) | Content::Staging(buffer, _) => self.binding.buffers.get(buffer.index()),
            _ => None,
        };
        let buffer = buffer.ok_or_else(|| format!("slot `{}` is for no buffer", slot.name))?;
        Ok(buffer.element)
    }

    /// The hyperparameters of a weight, in a slot that has those of all.
    pub(super) fn hyperparameters(&self, slot: SlotId, weight: WeightId) -> Result<Region, Refusal> {
        let bytes = size_of::<Hyperparameters>();
        let all = self.elements::<Hyperparameters>(slot, weight.index().saturating_add(1))?;
        let own = all.part(all.bytes.saturating_sub(bytes), bytes);
        own.ok_or_else(|| format!("{weight} has no hyperparameters"))
    }

    /// The vote of a slot, if there is one.
    pub(super) fn vote(&self, slot: Option<SlotId>) -> Result<Option<Region>, Refusal> {
        slot.map(|slot| self.elements::<Vote>(slot, 1)).transpose()
    }

    pub(super) fn weight(&self, weight: WeightId) -> Result<&WeightLayout, Refusal> {
        let found = self.binding.weights.layouts.get(weight.index());
        found.ok_or_else(|| format!("{weight} is not in the model"))
    }

    pub(super) fn bucket(&self, bucket: BucketId) -> Result<&Bucket, Refusal> {
        let found = self.binding.weights.buckets.get(bucket.index());
        found.ok_or_else(|| format!("{bucket} is not in the model"))
    }

    /// Elements of the rows of `weight` that are real on this rank; they come first in its slots.
    pub(super) fn real_elements(&self, weight: &WeightLayout) -> usize {
        weight.shard.rows_of(self.binding.rank).rows * weight.shard.shape.cols
    }

    /// Number of ranks, in all replicas.
    pub(super) fn ranks(&self) -> usize {
        self.binding.weights.mesh.ranks() as usize
    }

    /// Number of ranks of a group that sums gradients, and of slices that each takes from each.
    pub(super) fn of_group(&self, group: Group) -> Result<(usize, usize), Refusal> {
        let mesh = self.binding.weights.mesh;
        self.is_in_mesh()?;
        Ok((mesh.size(group) as usize, mesh.slices(group) as usize))
    }

    /// Which shard of a weight this rank holds, and how many there are.
    pub(super) fn shard_of(&self, weight: &WeightLayout) -> Result<(usize, usize), Refusal> {
        self.is_in_mesh()?;
        Ok((weight.shard.position(self.binding.rank) as usize, weight.shard.ranks as usize))
    }

    /// Which slice of its shard of a weight this rank holds, and how many there are.
    pub(super) fn slice_of(&self, weight: &WeightLayout) -> Result<(usize, usize), Refusal> {
        self.is_in_mesh()?;
        let (slice, slices) = (weight.shard.slice_of(self.binding.rank), weight.shard.slices as usize);
        let mesh = self.binding.weights.mesh;
        let slicers = mesh.size(weight.shard.slicers(mesh)) as usize;
        if slices == slicers {
            return Ok((slice, slices));
        }
        Err(format!("`{}` is in {slices} slices for {slicers} replicas", weight.name))
    }

    /// Whether a slot is for a shard that replicas have slices of.
    pub(super) fn is_published(&self, slot: SlotId) -> bool {
        let slot = self.binding.arena.slots.get(slot.index());
        slot.is_some_and(|slot| matches!(slot.content, Content::Published(..)))
    }

    fn is_in_mesh(&self) -> Result<(), Refusal> {
        let (rank, mesh) = (self.binding.rank, self.binding.weights.mesh);
        if rank.number() < mesh.ranks() { Ok(()) } else { Err(format!("{rank} is not in the mesh")) }
    }
}
