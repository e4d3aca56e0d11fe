//! Adam on the masters of a bucket, and amaxes or the cast of what it makes of them.

use std::collections::HashSet;

use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use crate::model::Access::{self, Read, Update, Write};
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
    /// Tensor scales of the bucket, written: where masters are cast in this pass to a format with scales.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor_scale: Option<SlotId>,
    /// Amaxes of the new masters, in the place of [`Op::PartialAmax`](super::Op::PartialAmax):
    /// [`Weights::amaxes_in_update`](crate::layout::Weights::amaxes_in_update).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amaxes: Option<AmaxesOperand>,
}

/// Amaxes of all masters of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AmaxesOperand {
    /// Amax of every block, written.
    pub block_amax: SlotId,
    /// Amax of every weight's rows on this rank, written.
    pub tensor_amax: SlotId,
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
    /// The same, and cast by the pass that updates it:
    /// [`Weights::casts_in_update`](crate::layout::Weights::casts_in_update).
    Cast {
        /// f32.
        master: SlotId,
        /// The weight's rowwise shard: codes and scales are written.
        shard: SlotId,
    },
    /// In two halves: see [`warpweft_format::split_master`].
    Split {
        /// The weight's bf16 shard, the upper half.
        shard: SlotId,
        /// The 16 bits it lacks.
        remainder: SlotId,
    },
}

impl MasterOperand {
    /// Every slot that the master occupies or is cast into.
    fn slots(self) -> impl Iterator<Item = SlotId> {
        let (first, second) = match self {
            Self::Whole(master) => (master, None),
            Self::Cast { master, shard } => (master, Some(shard)),
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
        all.extend(self.tensor_scale.map(|slot| (slot, Write)));
        let amaxes = self.amaxes.iter().flat_map(|amaxes| [amaxes.block_amax, amaxes.tensor_amax]);
        all.extend(amaxes.map(|slot| (slot, Write)));
        all
    }

    fn named(&self) -> Vec<Named> {
        Named::bucket(self.bucket, self.states.iter().map(|state| Named::Weight(state.weight)))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // What a master is cast into is written, and read by nobody.
        let cast = self.states.iter().filter_map(|state| match state.master {
            MasterOperand::Cast { shard, .. } => Some(shard),
            MasterOperand::Whole(_) | MasterOperand::Split { .. } => None,
        });
        let cast: HashSet<SlotId> = cast.collect();
        let touched = self.accesses().into_iter().map(|(slot, access)| {
            let times = if access == Update && !cast.contains(&slot) { 2 } else { 1 };
            Some(sizes.slot(slot)?.saturating_mul(times))
        });
        sum(touched).map(Moves::memory)
    }
}
