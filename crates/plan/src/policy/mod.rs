//! The planner's vocabulary: what can be chosen of a plan, value by value.
//!
//! Law: plain data, any value of which can be built. A range that a number must be in stands here once; planner and
//! configuration both judge by it. The texts of the values, in snake case, are those of configuration files and of
//! serialized plans. Where a value comes from, and which file says it, is not known here.
//!
//! | file | idea |
//! |---|---|
//! | `optimizer` | types of optimizer state, and who keeps it |
//! | `reduction` | gradient reduction |
//! | `reuse` | planes that are kept or gathered again |
//! | `size` | byte sizes such as `1.2 GiB` |

mod optimizer;
mod reduction;
mod reuse;
mod size;

pub use optimizer::{AdamMode, Masters, Moments, OptimizerShard};
pub use reduction::{Reduce, ReduceDtype, ReduceEvery};
pub use reuse::{AcrossMicroBatches, Backward, Columnwise};
pub use size::{ByteSize, ByteSizeError};

use std::ops::RangeInclusive;

/// How many communicators a rank may have.
#[doc(hidden)]
pub const COMMUNICATORS: RangeInclusive<u32> = 1..=4;

/// How many calls after its own a gradient may be reduced.
#[doc(hidden)]
pub const REDUCE_DELAY: RangeInclusive<u32> = 1..=16;

/// The deepest prefetch, calls.
#[doc(hidden)]
pub const MAX_DEPTH: u32 = 64;

/// How many lists of f32 state a custom optimizer may keep beside every master.
#[doc(hidden)]
pub const CUSTOM_STATES: RangeInclusive<u8> = 0..=8;
