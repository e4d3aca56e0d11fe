//! The cast of masters into the data planes of shards.

use std::collections::HashSet;

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use crate::model::Access::{self, Read, Update};
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::Orientation;

/// Casts the masters into the data planes of the shards.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PartialCast {
    /// The bucket.
    pub bucket: BucketId,
    /// Masters of its weights, in bucket order.
    pub masters: Vec<SlotId>,
    /// Factors from [`Op::FusedScale`](super::Op::FusedScale) or [`Op::DelayedScale`](super::Op::DelayedScale);
    /// absent for formats without scales.
    pub encode: Option<SlotId>,
    /// Shards whose data planes are written.
    pub shards: Vec<ShardOperand>,
    /// No-op when this vote says fault.
    pub vote: Option<SlotId>,
}

/// One quantized shard of a bucket op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ShardOperand {
    /// The weight.
    pub weight: WeightId,
    /// Which stored orientation.
    pub orientation: Orientation,
    /// Its planes.
    pub slot: SlotId,
}

impl ShardOperand {
    /// What a kernel moves that writes one plane of every shard, and touches the other slots once.
    pub(super) fn one_plane(
        shards: &[Self],
        plane: usize,
        op: &dyn Operation,
        sizes: &dyn Sizes,
    ) -> Option<Moves> {
        let of_shards: HashSet<SlotId> = shards.iter().map(|shard| shard.slot).collect();
        let others = op.accesses().into_iter().filter(|(slot, _)| !of_shards.contains(slot));
        let written = shards.iter().map(|shard| sizes.plane(shard.weight, shard.orientation, plane));
        sum(others.map(|(slot, _)| sizes.slot(slot)).chain(written)).map(Moves::memory)
    }
}

impl Operation for PartialCast {
    fn name(&self) -> &'static str {
        "partial cast"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all: Vec<_> = self.masters.iter().map(|slot| (*slot, Read)).collect();
        all.extend(self.encode.map(|slot| (slot, Read)));
        all.extend(self.shards.iter().map(|shard| (shard.slot, Update)));
        all.extend(self.vote.map(|slot| (slot, Read)));
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, self.shards.iter().map(|shard| Named::Weight(shard.weight)))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        ShardOperand::one_plane(&self.shards, 0, self, sizes)
    }
}
