//! Host time of a step.
//!
//! Law: measured, on the rank of this process that took longest to issue; parts add up to the time of that
//! rank's thread (HT-1 in [`warpweft_backend`]). What a step of a session costs beside its ranks' threads is
//! distinguished: the caller's thread, and handing over.

use std::fmt;
use std::time::Duration;

use crate::exec::Handover;
use warpweft_backend::HostSplit;
use warpweft_base::id::RankId;

/// The host time of one step, by kind of work ([`Session::split_host_time`](crate::session::Session::split_host_time)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostTime {
    /// The rank, of those of this process, that took longest to issue the step.
    pub rank: RankId,
    /// Tasks of the step.
    pub tasks: usize,
    /// Captures launched for it; 0 if its tasks were issued.
    pub segments: usize,
    /// From the first task to the last on its lane, or the launches of the captures: all parts together are
    /// [`StepReport::issue`](crate::session::StepReport::issue).
    pub issue: HostSplit,
    /// The rest of the step on the rank's thread: inputs and scalars copied in, waiting for the lanes, vote
    /// and outputs copied out. Without capturing the step, in the one step that does.
    pub edges: HostSplit,
    /// The caller's thread, before the ranks got the command and after their last reply.
    pub caller: Duration,
    /// From the command to the last reply, without the time of the rank's thread: threads that are woken, and
    /// ranks that took longer.
    pub handing_over: Duration,
}

impl HostTime {
    /// Of what the ranks of this process left in their handovers; `duration` is from the command to the last
    /// reply.
    pub(in crate::session) fn of<'a>(
        handovers: impl Iterator<Item = (RankId, &'a Handover)>,
        tasks: usize,
        duration: Duration,
    ) -> Option<Self> {
        let (rank, slowest) = handovers
            .filter(|(_, handover)| handover.coming.splits)
            .max_by_key(|(_, handover)| handover.times.issue)?;
        Some(Self {
            rank,
            tasks,
            segments: slowest.last.segments,
            issue: slowest.times.issued,
            edges: slowest.times.edges,
            caller: Duration::ZERO,
            handing_over: duration.saturating_sub(slowest.times.took),
        })
    }

    /// This library's own time to issue one task, the messages between actors included; to launch a captured
    /// step, all of it.
    #[must_use]
    pub fn own_each(&self) -> Duration {
        let parts = if self.segments > 0 { 1 } else { self.tasks };
        self.issue.own / u32::try_from(parts.max(1)).unwrap_or(u32::MAX)
    }
}

/// Milliseconds with as many digits as tell microseconds apart.
fn milliseconds(time: Duration) -> String {
    format!("{:.3}", time.as_secs_f64() * 1e3)
}

impl fmt::Display for HostTime {
    /// `9.100 ms to issue 1234 tasks: driver 7.900 in 3456 calls, closures 0.600, own 0.600 = 0.49 µs per task;
    /// splitting it took 0.200 more; …`; without a driver there is nothing to split: `0.230 ms to issue 138 tasks,
    /// 1.67 µs each`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tasks, segments, issue, edges, caller, handing_over, .. } = self;
        let what = match segments {
            0 => format!("issue {tasks} tasks"),
            1 => "launch a captured step".to_owned(),
            segments => format!("launch a step captured in {segments} segments"),
        };
        if issue.calls == 0 && edges.calls == 0 {
            write!(formatter, "{} ms to {what}", milliseconds(issue.busy()))?;
            let each = issue.busy().as_secs_f64() * 1e6 / (*tasks).max(1) as f64;
            return if *segments == 0 { write!(formatter, ", {each:.2} µs each") } else { Ok(()) };
        }
        write!(
            formatter,
            "{} ms to {what}: driver {} in {} calls, closures {}, own {}",
            milliseconds(issue.busy()),
            milliseconds(issue.driver),
            issue.calls,
            milliseconds(issue.closures),
            milliseconds(issue.own),
        )?;
        if *segments == 0 {
            write!(formatter, " = {:.2} µs per task", self.own_each().as_secs_f64() * 1e6)?;
        }
        write!(formatter, "; splitting it took {} more", milliseconds(issue.metering + edges.metering))?;
        if !issue.waiting.is_zero() {
            write!(formatter, "; waited {} for other ranks meanwhile", milliseconds(issue.waiting))?;
        }
        write!(
            formatter,
            "; before and after that {} ms: driver {} in {} calls, own {}; the caller's thread {}, handing over {}",
            milliseconds(edges.busy()),
            milliseconds(edges.driver),
            edges.calls,
            milliseconds(edges.own),
            milliseconds(*caller),
            milliseconds(*handing_over),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::{ComingStep, StepTimes};

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    fn handover(issue: u64, took: u64) -> Handover {
        let issued = HostSplit {
            own: micros(issue / 10),
            driver: micros(issue / 2),
            closures: micros(issue - issue / 10 - issue / 2),
            waiting: Duration::ZERO,
            metering: Duration::ZERO,
            calls: issue,
        };
        let edges = HostSplit {
            own: micros(3),
            driver: micros(20),
            metering: micros(2),
            calls: 5,
            ..HostSplit::default()
        };
        Handover {
            coming: ComingStep { splits: true, ..ComingStep::default() },
            times: StepTimes {
                issue: micros(issue),
                issued,
                edges,
                took: micros(took),
                ..StepTimes::default()
            },
            ..Handover::default()
        }
    }

    #[test]
    fn the_rank_that_took_longest_to_issue_is_told_of() {
        let all = [handover(1000, 5000), handover(2000, 4000), handover(10, 10)];
        let numbered = || all.iter().enumerate().map(|(rank, handover)| (RankId::at(rank), handover));
        let host = HostTime::of(numbered(), 400, micros(5100)).unwrap();
        assert_eq!((host.rank, host.issue), (RankId::new(1), all[1].times.issued));
        assert_eq!(host.issue.busy(), all[1].times.issue, "parts add up");
        assert_eq!(host.handing_over, micros(1100));
        assert_eq!(host.own_each(), Duration::from_nanos(500));
        assert_eq!(HostTime { segments: 1, ..host }.own_each(), micros(200));
        assert_eq!(
            HostTime { tasks: 0, ..host }.own_each(),
            micros(200),
            "a step of no task is no division by 0"
        );
    }

    #[test]
    fn steps_that_were_not_split_say_nothing() {
        let quiet = Handover { coming: ComingStep::default(), ..handover(1000, 5000) };
        assert_eq!(HostTime::of([(RankId::new(0), &quiet)].into_iter(), 1, micros(1)), None);
        assert_eq!(HostTime::of(std::iter::empty(), 1, micros(1)), None);
    }

    #[test]
    fn the_words_are_those_of_the_step_that_was_run() {
        let host =
            HostTime::of([(RankId::new(0), &handover(9100, 10_000))].into_iter(), 1234, micros(10_040))
                .unwrap();
        assert_eq!(
            host.to_string(),
            "9.100 ms to issue 1234 tasks: driver 4.550 in 9100 calls, closures 3.640, own 0.910 = 0.74 µs per task; \
             splitting it took 0.002 more; before and after that 0.023 ms: driver 0.020 in 5 calls, own 0.003; the caller's thread 0.000, handing over \
             0.040"
        );
        let captured = HostTime { segments: 1, ..host }.to_string();
        assert!(captured.starts_with("9.100 ms to launch a captured step: driver"), "{captured}");
        assert!(!captured.contains("per task"), "{captured}");
        let without_driver = HostTime {
            issue: HostSplit { driver: Duration::ZERO, calls: 0, ..host.issue },
            edges: HostSplit::default(),
            ..host
        };
        assert_eq!(without_driver.to_string(), "4.550 ms to issue 1234 tasks, 3.69 µs each");
        let waiting = HostSplit { waiting: micros(7), ..host.issue };
        let waited = HostTime { segments: 3, issue: waiting, ..host }.to_string();
        assert!(waited.contains("captured in 3 segments") && waited.contains("waited 0.007 for"), "{waited}");
    }
}
