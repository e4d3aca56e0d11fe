//! What the ranks of one process agree on, on the host.
//!
//! Law: every rank contributes one number and gets all of them; nobody waits past the deadline,
//! and a rank that leaves wakes everyone with its reason. Steps never come here; building and
//! recording do.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::ExecError;
use crate::id::RankId;

/// Meeting point of a fixed number of ranks.
#[derive(Debug)]
pub struct World {
    state: Mutex<State>,
    bell: Condvar,
    deadline: Duration,
}

#[derive(Debug)]
struct State {
    round: u64,
    values: Vec<Option<u64>>,
    agreed: Vec<u64>,
    left: Option<String>,
}

impl World {
    /// A world of `ranks` ranks that meet within `deadline` of each other.
    #[must_use]
    pub fn new(ranks: u32, deadline: Duration) -> Self {
        let values = vec![None; ranks as usize];
        let state = State { round: 0, values, agreed: Vec::new(), left: None };
        Self { state: Mutex::new(state), bell: Condvar::new(), deadline }
    }

    /// Contributes `value` and returns every rank's, in rank order.
    ///
    /// # Errors
    /// [`ExecError::World`] when a rank left or did not come in time, or is not of this world.
    pub fn exchange(&self, rank: RankId, value: u64) -> Result<Vec<u64>, ExecError> {
        let until = Instant::now() + self.deadline;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (round, ranks) = (state.round, state.values.len());
        match state.values.get_mut(rank.index()) {
            Some(place) => *place = Some(value),
            None => {
                let reason = format!("it is not one of the {ranks} ranks that meet here");
                return Err(ExecError::World { rank, reason });
            }
        }
        if state.values.iter().all(Option::is_some) {
            state.agreed = state.values.iter_mut().filter_map(Option::take).collect();
            state.round += 1;
            self.bell.notify_all();
        }
        loop {
            if let Some(reason) = &state.left {
                return Err(ExecError::World { rank, reason: reason.clone() });
            }
            if state.round > round {
                return Ok(state.agreed.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let missing: Vec<String> = (state.values.iter().enumerate())
                    .filter(|(_, value)| value.is_none())
                    .map(|(rank, _)| RankId::at(rank).to_string())
                    .collect();
                let reason = format!("{} did not come within {:?}", missing.join(", "), self.deadline);
                state.left = Some(reason.clone());
                self.bell.notify_all();
                return Err(ExecError::World { rank, reason });
            }
            state = self.bell.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A rank leaves for good; everyone waiting here wakes with its reason.
    pub fn leave(&self, reason: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.left.get_or_insert_with(|| reason.to_owned());
        self.bell.notify_all();
    }
}
