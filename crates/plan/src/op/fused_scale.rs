//! Scales of a bucket from the amaxes of this step.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use super::partial_cast::ShardOperand;
use crate::model::Access::{self, Read, Update, Write};
use warpweft_base::id::{BucketId, SlotId};

/// Scales of every block from its amax and the tensor's, which is the largest of those that share the
/// tensor's scale ([`Weights::scaled_with`](crate::layout::Weights::scaled_with)): decode scales into the
/// shards' scale planes, encode factors for the cast, the tensor's own scale.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FusedScale {
    /// The bucket.
    pub bucket: BucketId,
    /// Amax of every block.
    pub block_amax: SlotId,
    /// Amax of every weight, over all ranks.
    pub tensor_amax: SlotId,
    /// Factors for the cast.
    pub encode: SlotId,
    /// Tensor scales.
    pub tensor_scale: SlotId,
    /// Shards whose scale planes are written.
    pub shards: Vec<ShardOperand>,
    /// No-op when this vote says fault.
    pub vote: Option<SlotId>,
}

impl Operation for FusedScale {
    fn name(&self) -> &'static str {
        "fused scale"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all = vec![
            (self.block_amax, Read),
            (self.tensor_amax, Read),
            (self.encode, Write),
            (self.tensor_scale, Write),
        ];
        all.extend(self.shards.iter().map(|shard| (shard.slot, Update)));
        all.extend(self.vote.map(|slot| (slot, Read)));
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, self.shards.iter().map(|shard| Named::Weight(shard.weight)))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        ShardOperand::one_plane(&self.shards, 1, self, sizes)
    }
}
