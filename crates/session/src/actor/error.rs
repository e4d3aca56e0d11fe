//! Errors of a rank, from its flow control up to agreement between ranks.
//!
//! Law: what ended a rank is said here, and what to do about an ended session by whoever owns it, once.

use warpweft_backend::BackendError;
use warpweft_base::id::{ActorId, ProgramId, RankId, TaskId};
use warpweft_format::FormatError;
use warpweft_plan::plan::BoundaryState;

/// A failure of one rank.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// Replicas would begin with different weights.
    #[error(
        "{rank} and {other} hold the same rows in two replicas, and the initializer gave them different values; let what it fills in depend on name, rows and columns alone"
    )]
    ReplicasDiffer {
        /// One of them.
        rank: RankId,
        /// The other.
        other: RankId,
    },
    /// Ranks would begin with different values of a weight that all of them hold.
    #[error(
        "{rank} and {other} both hold the whole of the replicated weight `{weight}`, and the initializer gave them different values; let what it fills in depend on name, rows and columns alone"
    )]
    ReplicatedDiffers {
        /// The weight's name.
        weight: String,
        /// One of them.
        rank: RankId,
        /// The other.
        other: RankId,
    },
    /// Ranks would begin with rows of different frozen bases.
    #[error(
        "{rank} and {other} begin with different bases of the frozen weight `{weight}`: planes of other tensor scales, or one with planes and one with values; pass the same frozen base in every process, or none in any"
    )]
    BasesDiffer {
        /// The weight's name.
        weight: String,
        /// One of them.
        rank: RankId,
        /// The other.
        other: RankId,
    },
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A weight cannot be quantized.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Ranks made different plans (PL-1).
    #[error(
        "ranks disagree on the plan of `{program}`: {fingerprints}; their collectives would not match, so nothing was run. Every rank must build the same program with the same configuration and mesh; print the plans of two ranks and compare"
    )]
    PlansDiffer {
        /// The program.
        program: String,
        /// Fingerprint of every rank.
        fingerprints: String,
    },
    /// Processes would update slices of one weight by different optimizers.
    #[error(
        "{rank} updates weights by {optimizer}, and {other} by {others}: slices of one weight would be updated by two rules, so nothing was run. Pass the same optimizer in every process"
    )]
    OptimizersDiffer {
        /// The rank that reports.
        rank: RankId,
        /// Name and states of its optimizer.
        optimizer: String,
        /// The first rank that has another.
        other: RankId,
        /// Name and states of that one.
        others: String,
    },
    /// A rank died or gave up; what the ranks share can no longer be completed.
    #[error("{rank} cannot go on: {reason}")]
    World {
        /// The rank that reports.
        rank: RankId,
        /// Who left, and why.
        reason: String,
    },
    /// A rank's weights are not what a plan needs at its entry (PL-9).
    #[error(
        "{rank}: `{program}` needs {needed}, counted from the masters, but the rank holds {held}; please report this with the plan's fingerprint"
    )]
    Entry {
        /// The rank.
        rank: RankId,
        /// The program.
        program: String,
        /// What the plan needs.
        needed: BoundaryState,
        /// What the plans before it left.
        held: BoundaryState,
    },
    /// The actors left another state than the plan's exit state (PL-9).
    #[error(
        "{rank}: after `{program}` some weights have {found}, the plan promised {promised}; please report this with the plan's fingerprint"
    )]
    Exit {
        /// The rank.
        rank: RankId,
        /// The program.
        program: String,
        /// What an actor holds.
        found: BoundaryState,
        /// What the plan says.
        promised: BoundaryState,
    },
    /// A plan that continues a sum of gradients, where none is open (PL-9).
    #[error(
        "{rank}: `{program}` continues a sum of gradients, and main grads hold none that is open; run the first step of an accumulation before it"
    )]
    NoSum {
        /// The rank.
        rank: RankId,
        /// The program.
        program: String,
    },
    /// Processes were asked for different steps at one time.
    #[error(
        "{other} was asked for {unlike} than {rank} in the step of `{program}`; their weights may be different ones now: end all processes, import the last checkpoint, and call the same methods of the session with the same values in each (`step`, `accumulate`, `discard_gradients`, `set_learning_rate`, `set_hyperparameters`, `set_hyperparameters_of`, `set_loss_scale`), under the same configuration"
    )]
    StepsDiffer {
        /// A rank of this process.
        rank: RankId,
        /// The program whose step it ran.
        program: String,
        /// A rank of the other process.
        other: RankId,
        /// What is different.
        unlike: &'static str,
    },
    /// The optimizer counts a different number of steps than the rank issued (PL-7).
    #[error(
        "{rank}: the optimizer counts {counted} steps after `{program}`, but {issued} were issued; some step ran that nobody requested, such as a warm-up of a capture, so weights and main grads are not those of this training: import the last export, and issue or launch every step through the rank"
    )]
    Steps {
        /// The rank.
        rank: RankId,
        /// The program.
        program: String,
        /// Steps the arena counts, including the last one if it is kept.
        counted: u32,
        /// Steps the rank issued or imported, counted in the same way.
        issued: u32,
    },
    /// A plan that a rank cannot run in place of a program's own.
    #[error(
        "{rank}: `{program}` cannot go on by another plan: {reason}; name every plan it may run when the rank is made, over the same resident layout"
    )]
    Adoption {
        /// The rank.
        rank: RankId,
        /// The program.
        program: String,
        /// What does not fit.
        reason: String,
    },
    /// A rank's thread panicked: in the user's initializer, in a backend, or in this crate.
    #[error("the thread of {rank} panicked: {words}")]
    Panicked {
        /// The rank.
        rank: RankId,
        /// What the panic said.
        words: String,
    },
    /// The system gave no thread for a rank.
    #[error("{rank}: the system gave no thread: {reason}; use fewer ranks or raise the limit of threads")]
    Thread {
        /// The rank.
        rank: RankId,
        /// The system's words.
        reason: String,
    },
    /// The number of values is not the number the rank has a place for.
    #[error(
        "{rank}: there are {found} {what}, and place for {expected}; give every rank the rows that its shard layout says"
    )]
    Misfit {
        /// The rank.
        rank: RankId,
        /// What there are too many or too few of.
        what: String,
        /// How many there are.
        found: usize,
        /// How many there must be.
        expected: usize,
    },
    /// The initializer could not give the masters of a weight.
    #[error(
        "{rank}: the initializer has no masters for `{weight}`: {reason}; mend that, or give its masters another way"
    )]
    Initializer {
        /// The rank.
        rank: RankId,
        /// The weight.
        weight: String,
        /// What the initializer says.
        reason: String,
    },
    /// The initializer gave a master from which no training can go on.
    #[error(
        "{rank}: the initializer gave `{weight}` the master {value:?} in row {row}, column {column}, which is not finite as it is kept or cast; give finite values, below 3.39e38 where they are rounded to bf16"
    )]
    Master {
        /// The rank.
        rank: RankId,
        /// The weight.
        weight: String,
        /// The row of the whole weight, counted from 0.
        row: usize,
        /// The column, counted from 0.
        column: usize,
        /// The value.
        value: f32,
    },
    /// Nobody was named that keeps parts of checkpoints.
    #[error(
        "{rank} was asked for a part of a checkpoint and has no {what} of parts; put one into its handover first"
    )]
    NoParts {
        /// The rank.
        rank: RankId,
        /// Who is missing.
        what: &'static str,
    },
    /// No program with this number.
    #[error("{rank} was asked for {program} and has {programs}; count them from 0")]
    NoProgram {
        /// The rank.
        rank: RankId,
        /// The number requested.
        program: ProgramId,
        /// Programs there are.
        programs: usize,
    },

    // Flow control. Each of these is a fault of this crate, not of its user.
    /// A point that neither lane order nor a fence covers.
    #[error(
        "{rank}: {second} would run without waiting for {first}: no lane order and no fence covers it; the plan and its wiring disagree, please report this with the plan's fingerprint"
    )]
    Uncovered {
        /// The rank.
        rank: RankId,
        /// The task that must come first.
        first: String,
        /// The task about to be issued.
        second: String,
    },
    /// A slot was about to be written while leases on it are open (FL-2).
    #[error(
        "{rank}: {task} would overwrite `{slot}`, on which {open} leases are open; please report this with the plan's fingerprint"
    )]
    Occupied {
        /// The rank.
        rank: RankId,
        /// The task about to be issued.
        task: String,
        /// The slot.
        slot: String,
        /// Leases not yet spent.
        open: u32,
    },
    /// A lease was spent on a slot on which none was open (FL-3).
    #[error(
        "{rank}: {task} has a lease on `{slot}` that was not granted in this step; please report this with the plan's fingerprint"
    )]
    Unleased {
        /// The rank.
        rank: RankId,
        /// The task about to be issued.
        task: String,
        /// The slot.
        slot: String,
    },
    /// A task was issued out of its lane's order (AC-2) or without all its rights.
    #[error("{rank}: {task} is not next on its lane; please report this with the plan's fingerprint")]
    OutOfTurn {
        /// The rank.
        rank: RankId,
        /// The task.
        task: String,
    },
    /// A collective out of its communicator's order (CO-1).
    #[error(
        "{rank}: {task} is not the next collective of its communicator; please report this with the plan's fingerprint"
    )]
    OutOfSequence {
        /// The rank.
        rank: RankId,
        /// The task.
        task: String,
    },
    /// A mailbox whose capacity the wiring computed was full.
    #[error(
        "{rank}: the mailbox of {actor} is full at {capacity} messages; please report this with the plan's fingerprint"
    )]
    MailboxFull {
        /// The rank.
        rank: RankId,
        /// The addressee.
        actor: ActorId,
        /// Its capacity.
        capacity: usize,
    },
    /// A message for a task its actor does not have.
    #[error(
        "{rank}: {actor} got a message for {task}, which it does not own; please report this with the plan's fingerprint"
    )]
    Misdelivered {
        /// The rank.
        rank: RankId,
        /// The addressee.
        actor: ActorId,
        /// The task.
        task: TaskId,
    },
    /// No actor can go on although the step is not over.
    #[error(
        "{rank}: no actor can go on; the step stands before {heads}; please report this with the plan's fingerprint"
    )]
    Stuck {
        /// The rank.
        rank: RankId,
        /// The first unissued task of every actor.
        heads: String,
    },
    /// A right was dropped unspent (FL-4).
    #[error("{rank}: {what}; please report this with the plan's fingerprint")]
    Poisoned {
        /// The rank.
        rank: RankId,
        /// Which right.
        what: String,
    },
}

warpweft_base::debug_in_words!(ExecError);

impl ExecError {
    /// Whether it is only the echo of another rank's end, in which case some other rank has the cause.
    #[must_use]
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::World { .. } => true,
            Self::Backend(error) => {
                matches!(error, BackendError::Poisoned { .. })
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_world_is_a_consequence_wherever_it_is_met() {
        let rank = RankId::new(0);
        let poisoned = BackendError::Poisoned { reason: "rank 1 died".into() };
        for echo in [ExecError::World { rank, reason: "rank 1 died".into() }, poisoned.into()] {
            assert!(echo.is_consequence(), "{echo}");
        }
        let host = BackendError::Host { rank, bytes: 4, reason: "the region has 8 bytes".into() };
        for cause in [
            ExecError::Panicked { rank, words: "oh".into() },
            host.into(),
            ExecError::Poisoned { rank, what: "a right was dropped".into() },
        ] {
            assert!(!cause.is_consequence(), "{cause}");
        }
    }
}
