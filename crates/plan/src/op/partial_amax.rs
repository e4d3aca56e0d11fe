//! Amaxes of masters, from which scales are made.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access::{self, Read, Write};
use warpweft_base::id::{BucketId, SlotId};

/// Amaxes of the masters, per block and per tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct PartialAmax {
    /// The bucket.
    pub bucket: BucketId,
    /// Masters of its weights, in bucket order.
    pub masters: Vec<SlotId>,
    /// Amax of every block.
    pub block_amax: SlotId,
    /// Amax of every weight's rows on this rank.
    pub tensor_amax: SlotId,
    /// No-op when this vote says fault.
    pub vote: Option<SlotId>,
}

impl Operation for PartialAmax {
    fn name(&self) -> &'static str {
        "partial amax"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all: Vec<_> = self.masters.iter().map(|slot| (*slot, Read)).collect();
        all.extend([(self.block_amax, Write), (self.tensor_amax, Write)]);
        all.extend(self.vote.map(|slot| (slot, Read)));
        all
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Bucket(self.bucket)]
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
