//! The time of a step, as all ranks agree.
//!
//! Law: the median over the ranks, the same numbers on every rank of every process, so that equal decisions
//! follow (TU-1 in [`crate::tune`]). A step is timed by the backend's own clock where it timed the tasks,
//! otherwise by the host's, from the first task issued to the last lane drained. A collective counts from the
//! arrival of its last rank.

use std::time::Duration;

use super::world::{failed, misfit};
use super::{ExecError, World};
use crate::tune::agreed;
use warpweft_backend::TaskInterval;
use warpweft_backend::rendezvous::Topic;
use warpweft_base::id::RankId;

impl World {
    /// Tells all ranks how long a step took on this one, and returns what they agree on, in nanoseconds: the
    /// step, then each task if tasks were timed. `step` is the time on the host.
    pub(super) fn agree_on_times(
        &self,
        rank: RankId,
        intervals: &[TaskInterval],
        step: Duration,
    ) -> Result<Vec<u64>, ExecError> {
        let own = bytemuck::cast_slice(&times(intervals, step)).to_vec();
        let all = self.rendezvous().exchange(rank, Topic::Reports, &own);
        let all = all.map_err(|error| failed(rank, error))?;
        let numbers = |bytes: &std::sync::Arc<[u8]>| {
            let (numbers, rest) = bytes.as_chunks::<8>();
            // A rank that could not time its tasks reports the step alone.
            let fits = bytes.len() == own.len() || numbers.len() == 1 || own.len() == 8;
            if !rest.is_empty() || numbers.is_empty() || !fits {
                return Err(failed(rank, misfit("what a step took")));
            }
            Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
        };
        Ok(agreed(&all.iter().map(numbers).collect::<Result<Vec<_>, _>>()?))
    }
}

/// The times of one rank: the step, then each task.
fn times(intervals: &[TaskInterval], step: Duration) -> Vec<u64> {
    let ran = || intervals.iter().filter(|interval| interval.ran());
    let begin = ran().map(|interval| interval.begin).min();
    let end = ran().map(|interval| interval.end).max();
    let (Some(begin), Some(end)) = (begin, end) else {
        return vec![u64::try_from(step.as_nanos()).unwrap_or(u64::MAX)];
    };
    let task = |interval: &TaskInterval| interval.end.saturating_sub(interval.joined);
    [end.saturating_sub(begin)].into_iter().chain(intervals.iter().map(task)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_lasts_from_its_first_task_to_its_last_and_a_collective_from_its_last_rank_on() {
        let intervals = [
            TaskInterval { begin: 10, joined: 10, end: 20 },
            TaskInterval { begin: 15, joined: 40, end: 45 },
            TaskInterval::default(),
        ];
        assert_eq!(times(&intervals, Duration::from_secs(1)), [35, 10, 5, 0]);
    }

    #[test]
    fn where_no_task_was_timed_the_host_says_how_long_the_step_took() {
        for untimed in [&[][..], &[TaskInterval::default()]] {
            assert_eq!(times(untimed, Duration::from_nanos(7)), [7]);
        }
    }
}
