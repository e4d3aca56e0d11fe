//! Sizes of the slots and weights that ops name.
//!
//! Law: sizes of weights follow from their layouts; those of slots are what the caller goes by, their place or their
//! content.

use super::arena::Slot;
use super::content::Content;
use super::weight::WeightLayout;
use super::weights::Weights;
use crate::model::Group;
use crate::op::{GatherPart, Sizes};
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{ElementType, Orientation, PlaneSpec};

/// The sizes of a plan's weights and slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizesOf<'a, Bytes> {
    /// Weights, buckets, mesh.
    pub(crate) weights: &'a Weights,
    /// Slots, in the order of their ids.
    pub(crate) slots: &'a [Slot],
    /// Bytes of one.
    pub(crate) bytes: Bytes,
}

impl<Bytes> SizesOf<'_, Bytes> {
    fn layout(&self, weight: WeightId) -> Option<&WeightLayout> {
        self.weights.layouts.get(weight.index())
    }

    /// Are slices of a shard gathered, and not shards of a weight?
    fn is_published(&self, part: &GatherPart) -> bool {
        let to = self.slots.get(part.to.index()).map(|slot| slot.content);
        matches!(to, Some(Content::Published(..)))
    }
}

impl<Bytes: Fn(&Slot) -> usize> Sizes for SizesOf<'_, Bytes> {
    fn slot(&self, slot: SlotId) -> Option<usize> {
        self.slots.get(slot.index()).map(&self.bytes)
    }

    fn gradient_element(&self, slot: SlotId) -> Option<usize> {
        let content = self.slots.get(slot.index())?.content;
        Some(content.gradient_element().map_or(0, ElementType::bytes))
    }

    fn given(&self, part: &GatherPart) -> Option<usize> {
        let layout = self.layout(part.weight)?;
        Some(match self.is_published(part) {
            true => layout.shard_bytes(part.orientation),
            false => layout.published_bytes(part.orientation),
        })
    }

    fn gathered(&self, part: &GatherPart) -> Option<(usize, usize)> {
        let layout = self.layout(part.weight)?;
        Some(match self.is_published(part) {
            true => (layout.shard.slices as usize, layout.published_bytes(part.orientation)),
            false => (layout.shard.ranks as usize, layout.gathered_bytes(part.orientation)),
        })
    }

    fn plane(&self, weight: WeightId, orientation: Orientation, plane: usize) -> Option<usize> {
        Some(self.layout(weight)?.shard_planes(orientation).get(plane).map_or(0, PlaneSpec::bytes))
    }

    fn rows(&self, weight: WeightId) -> Option<usize> {
        Some(self.layout(weight)?.stored_elements())
    }

    fn summed(&self, weight: WeightId, group: Group) -> Option<usize> {
        let slice = self.layout(weight)?.shard.summed_over(group).elements();
        Some(slice.saturating_mul(self.weights.mesh.slices(group) as usize))
    }

    fn padding(&self, weight: WeightId) -> Option<usize> {
        let shard = self.layout(weight)?.shard;
        Some(shard.padded_rows().saturating_sub(shard.shape.rows).saturating_mul(shard.shape.cols))
    }

    fn ranks(&self, group: Group) -> u32 {
        self.weights.mesh.size(group)
    }
}
