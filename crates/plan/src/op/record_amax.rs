//! The op that records amaxes for the scales of later steps.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access::{self, Read, Update};
use warpweft_base::id::{BucketId, SlotId};

/// Puts the amaxes of masters just cast into the history of a bucket whose scaling is delayed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct RecordAmax {
    /// The bucket.
    pub bucket: BucketId,
    /// Amax of every weight, over all ranks.
    pub tensor_amax: SlotId,
    /// The history, updated.
    pub history: SlotId,
    /// No-op when this vote says fault.
    pub vote: Option<SlotId>,
}

impl Operation for RecordAmax {
    fn name(&self) -> &'static str {
        "record amax"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all = vec![(self.tensor_amax, Read), (self.history, Update)];
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
