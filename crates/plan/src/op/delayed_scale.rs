//! Scales of a bucket from the amaxes of earlier steps.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access::{self, Read, Update, Write};
use warpweft_base::id::{BucketId, SlotId};

/// Scales of a bucket whose scaling is delayed: factors for the cast, and their reciprocals. Weights that
/// share a scale ([`Weights::scaled_with`](crate::layout::Weights::scaled_with)) have one that follows from
/// all of their histories.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DelayedScale {
    /// The bucket.
    pub bucket: BucketId,
    /// The amaxes recorded so far, from which the next factors follow. Absent when the masters are the
    /// ones that the factors in use were made for, and are only cast again.
    pub history: Option<SlotId>,
    /// Factors in use; updated if there is a history, otherwise read.
    pub scale: SlotId,
    /// Tensor scales: one over the factors.
    pub tensor_scale: SlotId,
    /// No-op when this vote says fault.
    pub vote: Option<SlotId>,
}

impl Operation for DelayedScale {
    fn name(&self) -> &'static str {
        "delayed scale"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let scale = if self.history.is_some() { Update } else { Read };
        let mut all = vec![(self.scale, scale), (self.tensor_scale, Write)];
        all.extend(self.history.map(|slot| (slot, Read)));
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
