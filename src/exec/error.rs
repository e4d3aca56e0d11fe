//! Why a rank could not do what the session asked.

use crate::backend::BackendError;
use crate::flow::FlowError;
use crate::id::RankId;

/// A failure of one rank.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A fault of flow control.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// The backend failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// Ranks made different plans (PL-1).
    #[error(
        "ranks disagree on the plan of `{program}`: {fingerprints}; every rank must build the same program with the same configuration and mesh"
    )]
    PlansDiffer {
        /// The program.
        program: String,
        /// Fingerprint of every rank.
        fingerprints: String,
    },
    /// A rank died or gave up; what the ranks share can no longer be completed.
    #[error("{rank} cannot go on: {reason}; build a new session and import the last export")]
    World {
        /// The rank that reports.
        rank: RankId,
        /// Who left, and why.
        reason: String,
    },
    /// The actors left another edge than the plan promised (PL-9).
    #[error(
        "{rank}: after `{program}` the weights are at {found}, the plan promised {promised}; please report this with the plan's fingerprint"
    )]
    Edge {
        /// The rank.
        rank: RankId,
        /// The program.
        program: String,
        /// What the actors hold.
        found: String,
        /// What the plan says.
        promised: String,
    },
}
