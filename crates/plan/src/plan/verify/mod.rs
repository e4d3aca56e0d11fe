//! The verifier: proves a finished plan safe, or names what is not.
//!
//! Law: nothing here knows how a plan was made. *Happens-before* is recomputed from lane order and
//! [`Task::waits`] alone; contents from [`Op::accesses`](crate::op::Op::accesses), the byte regions
//! of the arena and the calls alone. It imports no planner pass, and no session makes or runs a plan
//! that it refuses.
//!
//! | file | law | what holds for an accepted plan |
//! |---|---|---|
//! | `well_formed` | – | every id points into the plan, so nothing below can go astray |
//! | `regions` | PL-6 | every slot is aligned, inside its region and large enough for its content |
//! | `order` | PL-5 | waits point back in T and have events; communicators count 0, 1, 2, … |
//! | `hazards` | PL-3 | accesses to common bytes, of which one writes, are ordered |
//! | `contents` | PL-2, PL-4, PL-9, PL-10 | every operand holds what its op needs, at the right version |
//! | `wire` | PL-6 | every task receives as many bytes as it says |
//! | `live` | PL-6 | the byte counts are exact, and the budget is kept |
//!
//! The order of the checks matters: `contents` executes the plan in T on symbols, and T stands for
//! every real order only because `hazards` holds. What is deliberately absent: time (whether the
//! schedule is good), what a closure does to bytes it was lent, and whether an executor keeps the
//! order it was given, which `Checked` watches at run time.

mod contents;
mod error;
mod hazards;
mod live;
mod order;
mod proof;
mod regions;
mod well_formed;
mod wire;

pub use error::VerifyError;
pub use proof::Proof;

use super::{StepPlan, Task};
use crate::model::Access;
use warpweft_base::id::SlotId;

/// The outcome of one check.
type Verdict<T> = Result<T, Box<VerifyError>>;

/// What every task touches, in T order.
type Accesses = [Vec<(SlotId, Access)>];

/// Proves that `plan` keeps the laws PL-2 to PL-6, PL-9 and PL-10, on every rank and in every
/// order in which its lanes may run.
///
/// The time is near-linear in the number of tasks.
///
/// # Errors
/// The first law the plan breaks, with the tasks, the slot and what is missing.
pub fn verify(plan: &StepPlan) -> Result<Proof, Box<VerifyError>> {
    well_formed::check(plan)?;
    regions::check(plan)?;
    let accesses: Vec<_> = plan.tasks.iter().map(|task: &Task| task.op.accesses()).collect();
    let order = order::check(plan)?;
    let conflicts = hazards::check(plan, &accesses, &order)?;
    let contents = contents::check(plan)?;
    wire::check(plan)?;
    let live_bytes = live::check(plan, &accesses)?;
    Ok(Proof::new(plan, conflicts, contents, live_bytes))
}
