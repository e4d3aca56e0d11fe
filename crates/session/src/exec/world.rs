//! Agreement of the ranks of a world, on the host.
//!
//! Law: every rank contributes and gets what all contributed. No rank waits past the deadline, but for one of its
//! process that waits for its lanes, and a rank that fails wakes all others with its reason, in whatever process they
//! are (RV-2, RV-3 in [`warpweft_backend::rendezvous`]). Steps of a world in one process never come here once
//! their plan is warm, unless one is skipped; building, capturing and trials do.

use std::sync::Arc;
use std::time::Duration;

use super::ExecError;
use warpweft_backend::rendezvous::{Rendezvous, RendezvousError, Topic};
use warpweft_base::id::RankId;

/// Meeting point of a fixed number of ranks.
#[derive(Clone, Debug)]
pub struct World {
    rendezvous: Arc<Rendezvous>,
}

impl World {
    /// A world of `ranks` ranks of this process that meet within `deadline` of each other.
    #[must_use]
    pub fn new(ranks: u32, deadline: Duration) -> Self {
        Self::over(Arc::new(Rendezvous::of_threads(ranks, deadline)))
    }

    /// The world whose ranks meet at `rendezvous`.
    #[must_use]
    pub fn over(rendezvous: Arc<Rendezvous>) -> Self {
        Self { rendezvous }
    }

    /// Where the ranks meet.
    #[must_use]
    pub fn rendezvous(&self) -> &Arc<Rendezvous> {
        &self.rendezvous
    }

    /// Contributes `value` and returns every rank's, in rank order.
    ///
    /// # Errors
    /// [`ExecError::World`] when a rank left or did not come in time, or is not of this world.
    pub fn exchange(&self, rank: RankId, value: u64) -> Result<Vec<u64>, ExecError> {
        let all = self.rendezvous.exchange(rank, Topic::Agreement, &value.to_le_bytes());
        let all = all.map_err(|error| failed(rank, error))?;
        let number = |bytes: &Arc<[u8]>| {
            let bytes = bytes.as_ref().try_into().map_err(|_| failed(rank, misfit("an agreement")))?;
            Ok(u64::from_le_bytes(bytes))
        };
        all.iter().map(number).collect()
    }

    /// A rank says what it is doing, for the errors of ranks that wait for it; an empty text takes it back.
    pub(super) fn stand(&self, rank: RankId, doing: &str) {
        self.rendezvous.stand(rank, doing);
    }

    /// A rank leaves in good order; ranks that wait for it here get `reason`.
    pub fn leave(&self, rank: RankId, reason: &str) {
        self.rendezvous.leave(rank, reason);
    }

    /// A rank cannot go on; all others get `reason`.
    pub fn end(&self, reason: &str) {
        self.rendezvous.end(reason);
    }
}

/// What a rank reports when a meeting failed.
pub(super) fn failed(rank: RankId, error: RendezvousError) -> ExecError {
    let reason = match error {
        RendezvousError::Ended { reason } | RendezvousError::Absent { reason } => reason,
        other => other.to_string(),
    };
    ExecError::World { rank, reason }
}

/// Another rank said something that this build does not understand.
pub(super) fn misfit(what: &str) -> RendezvousError {
    RendezvousError::Contradiction {
        reason: format!("{what} does not have the form it has here; run the same build everywhere"),
    }
}
