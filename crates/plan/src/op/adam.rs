//! Adam on the masters of a bucket.

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access::{self, Read, Update};
use warpweft_base::id::{BucketId, SlotId, WeightId};

/// Adam on the masters of a bucket, decoupled or with L2 decay; a no-op when the vote says fault.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Adam {
    /// The bucket.
    pub bucket: BucketId,
    /// State of its weights.
    pub states: Vec<AdamOperand>,
    /// The vote, which carries clip factor and step count.
    pub vote: SlotId,
    /// What the optimizer goes by, of every weight.
    pub hyperparameters: SlotId,
}

/// Optimizer state of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AdamOperand {
    /// The weight.
    pub weight: WeightId,
    /// Master, updated.
    pub master: MasterOperand,
    /// First moment, updated.
    pub exp_avg: SlotId,
    /// Second moment, updated.
    pub exp_avg_sq: SlotId,
    /// Main grad, read.
    pub main_grad: SlotId,
}

/// Where the master of a weight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum MasterOperand {
    /// f32, in a slot of its own.
    Whole(SlotId),
    /// In two halves: see [`warpweft_format::split_master`].
    Split {
        /// The weight's bf16 shard, the upper half.
        shard: SlotId,
        /// The 16 bits it lacks.
        remainder: SlotId,
    },
}

impl MasterOperand {
    /// Every slot the master occupies.
    fn slots(self) -> impl Iterator<Item = SlotId> {
        let (first, second) = match self {
            Self::Whole(master) => (master, None),
            Self::Split { shard, remainder } => (shard, Some(remainder)),
        };
        std::iter::once(first).chain(second)
    }
}

impl Operation for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn part(&self) -> Part {
        Part::Weights
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all = vec![(self.vote, Read), (self.hyperparameters, Read)];
        for state in &self.states {
            all.extend(state.master.slots().map(|slot| (slot, Update)));
            all.extend([(state.exp_avg, Update), (state.exp_avg_sq, Update), (state.main_grad, Read)]);
        }
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, self.states.iter().map(|state| Named::Weight(state.weight)))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
