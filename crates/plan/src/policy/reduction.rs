//! Gradient reduction: how often, in what type, in which order of sums.

use serde::{Deserialize, Serialize};

/// How many gradients of a weight are added on each rank before the ranks reduce them. Sums on the rank take
/// one more full gradient in f32 for as long as they are open. The grouping changes the order of f32
/// additions, and so the last bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceEvery {
    /// Every call's gradient is reduced by itself: least memory, most traffic.
    #[default]
    Call,
    /// Those of one micro-batch: a weight that several calls of it give a gradient is reduced once.
    MicroBatch,
    /// Those of the whole step: every weight is reduced once.
    Step,
}

/// In what gradients of sharded weights travel to be reduced that calls write in f32, and sums of blocks of ranks to be
/// summed further. Sums are made, and main grads kept, in f32 either way. Gradients written in bf16 travel in bf16
/// where f32 is asked for, and those of weights whose rows are not whole blocks of 32 where MXFP8 is
/// ([`WireType`](crate::op::WireType)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceDtype {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16, to nearest even, before they leave the rank, once a level: half the bytes.
    Bf16,
    /// Rounded to MXFP8 before they leave the rank, once a level: 33 bytes for 32 elements, whatever they were written
    /// in.
    Mxfp8,
}

/// As the configuration spells it.
impl std::fmt::Display for ReduceDtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// How gradients are summed over the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduce {
    /// Ranks 0 to R-1 in f32, by a task of every rank after an exchange: the same bits in every mode and
    /// layout of ranks.
    #[default]
    Ordered,
    /// In the order of the collective library: the same bits only for the same layout and mode. Gradients
    /// that travel in bf16 are summed in order all the same, because the library would sum them in bf16. It cannot sum
    /// MXFP8.
    Nccl,
}
