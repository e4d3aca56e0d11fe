//! A rank's part of the norm, and the record that tells it to the others.
//!
//! Law: a record is plain old data whose bytes are the same on the CPU and on a device: fields, order and size are
//! part of every backend's kernels. No byte is padding.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;

use super::operation::{Moves, Named, Operation, Part, Sizes};
use crate::model::Access;
use warpweft_base::id::{SlotId, WeightId};

/// Elements of a main grad in one partial sum of squares.
pub const SQUARED_TOGETHER: usize = 4096;

/// Squared norm of the rank's main grads and the rank's fault word, as one record. Squares have one order of
/// addition, no matter which task takes them: blocks of [`SQUARED_TOGETHER`] elements, then these, weight after weight
/// in the order of ids.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GradNorm {
    /// Main grads with their weights, squared here.
    pub main_grads: Vec<(WeightId, SlotId)>,
    /// What sums took of the main grads of other weights: [`SumPart::squares`](super::SumPart::squares).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub squares: Vec<(WeightId, SlotId)>,
    /// The rank's fault word.
    pub fault: SlotId,
    /// The record.
    pub record: SlotId,
}

/// What each rank tells the others before the vote. 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct NormRecord {
    /// Sum of squares of the rank's main grads. Replicated weights are counted by rank 0 alone, and ranks of
    /// replicas other than the first count nothing. In f64, so that neither small loss scales nor many ranks
    /// cost the norm any precision.
    pub squares: f64,
    /// The rank's fault word: number of the faulted call + 1, or 0.
    pub fault: u32,
    /// Zero; keeps records 16 bytes long.
    pub reserved: u32,
}

impl GradNorm {
    fn read(&self) -> impl Iterator<Item = (WeightId, SlotId)> {
        self.main_grads.iter().chain(&self.squares).copied()
    }
}

impl Operation for GradNorm {
    fn name(&self) -> &'static str {
        "grad norm"
    }

    fn part(&self) -> Part {
        Part::Verdict
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        let mut all: Vec<_> = self.read().map(|(_, slot)| (slot, Access::Read)).collect();
        all.extend([(self.fault, Access::Read), (self.record, Access::Write)]);
        all
    }

    fn named(&self) -> Vec<Named> {
        self.read().map(|(weight, _)| Named::Weight(weight)).collect()
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        Moves::of_slots(self, sizes)
    }
}
