//! A stage of a collective: a part of what one rank does in it, as data.
//!
//! Law: all ranks have the same stages, so what a stage says of this rank and its peers fits together (`simulated`).
//! Nothing here is enqueued.

use super::communicator::Transfer;
use crate::device::address::DeviceAddress;
use crate::kernels::{CombineOperand, CopyOperand, GivenOperand, SlotShape};
use warpweft_backend::local::Combination;

/// A part of a collective on one rank. A stage that sends or writes to others is answered by the same stage there.
#[derive(Debug)]
pub(super) enum Stage {
    /// Bytes to another place of this rank's memory.
    Place(Vec<CopyOperand>),
    /// Bytes into the memory of neighbours.
    Push(Carrier, Vec<CopyOperand>),
    /// One group of NCCL.
    Exchange(Vec<Transfer>),
    /// All ranks' values combined into one, in f32 and rank order.
    Combine(Combination, Vec<CombineOperand>),
    /// The filled rows of slots, and their counts, to neighbours and to this rank itself: one launch, since nothing but
    /// a kernel reads counts.
    Dispatch(SlotShape, Vec<GivenOperand>),
    /// Lowers counts to the capacity: those that other ranks sent without a check.
    Lower { counts: DeviceAddress, slots: usize, capacity: usize },
    /// Spoils what lies after the filled rows of this rank's slots from the first on, where the checking layer is on.
    Spoil { first: DeviceAddress, counts: DeviceAddress, shape: SlotShape },
}

/// What carries bytes into the memory of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// One command for operands at even distances, no multiprocessor: for few, large operands.
    Engines,
    /// One launch for all, meetings included: for many, small operands.
    Kernel,
}
