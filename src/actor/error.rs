//! Faults of flow control. Every one of them is a fault of this crate, not of its user.

use warpweft_backend::BackendError;
use warpweft_base::id::{ActorId, RankId, TaskId};

/// Why a task was not issued.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
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
    /// The backend refused.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

warpweft_base::debug_in_words!(FlowError);
