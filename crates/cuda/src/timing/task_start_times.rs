//! Infers task start times from end timestamps.
//!
//! Laws:
//! - A task begins when the last of the tasks it comes after has ended, and no sooner than the host began to
//!   enqueue it, if it was issued. This is an inference, and as exact as the assumption that a lane which may
//!   run does run: a lane that waits for a peer's word is within its task.
//! - A task that comes after nothing that was noted (at the beginning of a step or of a capture, or after a
//!   launch) cannot be inferred: the code that enqueues it notes when its lane came to it.
//! - While a step runs, an end belongs to it only if it is after the step's start; so what a clock still says
//!   of an earlier step is not taken for this one's. When all lanes are over, every task has passed its
//!   clock, and an end before the start was passed a little sooner, on another lane.
//! - This file knows no device. **BK-2** A step that notes what the last one noted allocates nothing.

use super::precedence::Precedence;
use warpweft_backend::TaskInterval;
use warpweft_base::id::{LaneId, TaskId};

/// What is known of the last step, all times in nanoseconds of the world's clock.
#[derive(Debug)]
pub(super) struct TaskStartTimes {
    /// When the step began.
    started: u64,
    pub(super) precedence: Precedence,
    tasks: Vec<Known>,
    /// The first task whose end is not known.
    next: usize,
}

/// What is known of one task.
#[derive(Clone, Debug, Default)]
struct Known {
    after: Vec<TaskId>,
    /// When the host began to enqueue it; 0 if it was captured.
    enqueued: u64,
    end: Option<u64>,
}

impl TaskStartTimes {
    /// For a plan of that many tasks.
    pub(super) fn new(tasks: usize) -> Self {
        let tasks = vec![Known::default(); tasks];
        Self { started: 0, precedence: Precedence::default(), tasks, next: 0 }
    }

    /// A step begins at `now`.
    pub(super) fn begin_step(&mut self, now: u64) {
        self.started = now;
        self.next = 0;
        self.tasks.iter_mut().for_each(|task| task.end = None);
        self.precedence.reset();
    }

    /// Lanes begin anew: a capture begins, or was launched.
    pub(super) fn begin_anew(&mut self) {
        self.precedence.reset();
    }

    /// A task is put on a lane, by a host that began at `enqueued` if it is issued and not captured. Says
    /// whether it comes after nothing.
    pub(super) fn put(&mut self, lane: LaneId, task: TaskId, enqueued: Option<u64>) -> bool {
        let Some(known) = self.tasks.get_mut(task.index()) else { return false };
        known.enqueued = enqueued.unwrap_or(0);
        self.precedence.put(lane, task, &mut known.after);
        known.after.is_empty()
    }

    /// Notes ends in task order, at most `most` of them, as far as `passed` knows how many nanoseconds after
    /// the step's start they were. Says whether there was one.
    pub(super) fn note_ends(&mut self, most: usize, passed: impl Fn(TaskId) -> Option<f64>) -> bool {
        let first = self.next;
        for _ in 0..most {
            let Some(known) = self.tasks.get_mut(self.next) else { break };
            let Some(after) = passed(TaskId::at(self.next)).filter(|after| *after > 0.0) else { break };
            known.end = Some(later(self.started, after));
            self.next += 1;
        }
        self.next > first
    }

    /// Notes the ends that are left. All lanes are over, and every task of the plan was enqueued: a clock
    /// that was not passed in this step would still say something about an earlier one.
    pub(super) fn note_all_ends(&mut self, passed: impl Fn(TaskId) -> Option<f64>) {
        let started = self.started;
        for (position, known) in self.tasks.iter_mut().enumerate().skip(self.next) {
            known.end = passed(TaskId::at(position)).map(|after| later(started, after));
        }
        self.next = self.tasks.len();
    }

    /// The interval of every task whose end is known, zeros for others. `entered` knows how many nanoseconds
    /// after the step's start the lane came to a task that comes after nothing.
    pub(super) fn intervals(&self, entered: impl Fn(TaskId) -> Option<f64>, into: &mut Vec<TaskInterval>) {
        let ended = |task: &TaskId| self.tasks.get(task.index()).and_then(|known| known.end);
        into.extend(self.tasks.iter().enumerate().map(|(position, known)| {
            let begin = if known.after.is_empty() {
                entered(TaskId::at(position)).map(|after| later(self.started, after))
            } else {
                known.after.iter().filter_map(ended).max().map(|begin| begin.max(known.enqueued))
            };
            begin.zip(known.end).map_or_else(TaskInterval::default, |(begin, end)| {
                let begin = begin.min(end);
                TaskInterval::new(begin, begin, end)
            })
        }));
    }
}

/// The instant that many nanoseconds after the step's start. An event that was passed a little sooner, on
/// another lane, is at the start.
fn later(started: u64, after: f64) -> u64 {
    started + after.max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_base::id::EventId;

    const COMPUTE: LaneId = LaneId::new(0);
    const WIRE: LaneId = LaneId::new(1);
    const START: u64 = 1_000;

    fn task(number: u32) -> TaskId {
        TaskId::new(number)
    }

    /// Two lanes: a gather, a product after it, another product after that, each enqueued at the given time.
    fn step(start_times: &mut TaskStartTimes, enqueued: [Option<u64>; 3]) {
        let filled = EventId::new(0);
        assert!(start_times.put(WIRE, task(0), enqueued[0]));
        let _ = start_times.precedence.recorded(WIRE, filled);
        let _ = start_times.precedence.waited(COMPUTE, filled);
        assert!(!start_times.put(COMPUTE, task(1), enqueued[1]));
        assert!(!start_times.put(COMPUTE, task(2), enqueued[2]));
    }

    /// Ends, by task, in nanoseconds after the start.
    fn ends(list: &[f64]) -> impl Fn(TaskId) -> Option<f64> {
        |task| list.get(task.index()).copied().filter(|end| !end.is_nan())
    }

    fn spans(start_times: &TaskStartTimes, entered: f64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        start_times.intervals(|_| Some(entered), &mut all);
        assert!(all.iter().all(|interval| interval.joined == interval.begin));
        all.iter().map(|interval| (interval.begin, interval.end)).collect()
    }

    #[test]
    fn a_captured_task_begins_where_the_last_it_comes_after_ended_and_the_first_where_its_lane_came_to_it() {
        let mut start_times = TaskStartTimes::new(3);
        step(&mut start_times, [None; 3]);
        for (begun, shift) in [(START, 0.0), (50_000, 3.0)] {
            // Replays: what was captured stays.
            start_times.begin_step(begun);
            start_times.begin_anew();
            start_times.note_all_ends(ends(&[10.0 + shift, 30.0, 45.0]));
            let shift = shift as u64;
            let expected = [(2, 10 + shift), (10 + shift, 30), (30, 45)];
            assert_eq!(spans(&start_times, 2.0), expected.map(|(begin, end)| (begun + begin, begun + end)));
        }
    }

    #[test]
    fn an_issued_task_begins_no_sooner_than_the_host_began_to_enqueue_it() {
        let mut start_times = TaskStartTimes::new(3);
        start_times.begin_step(START);
        // The host is late with the last: its lane had nothing to do.
        step(&mut start_times, [Some(START + 1), Some(START + 3), Some(START + 40)]);
        start_times.note_all_ends(ends(&[10.0, 30.0, 45.0]));
        assert_eq!(spans(&start_times, 2.0), [(1_002, 1_010), (1_010, 1_030), (1_040, 1_045)]);
    }

    #[test]
    fn a_task_issued_after_a_launch_comes_after_nothing_that_was_told() {
        let mut start_times = TaskStartTimes::new(3);
        start_times.begin_step(START);
        assert!(start_times.put(COMPUTE, task(0), Some(START)));
        start_times.begin_anew();
        assert!(start_times.put(COMPUTE, task(1), Some(START)));
        assert!(!start_times.put(COMPUTE, task(2), Some(START)));
        start_times.note_all_ends(ends(&[10.0, 30.0, 45.0]));
        assert_eq!(spans(&start_times, 25.0)[1..], [(1_025, 1_030), (1_030, 1_045)]);
    }

    #[test]
    fn ends_are_noted_in_task_order_as_they_pass_and_those_of_an_earlier_step_never() {
        let mut start_times = TaskStartTimes::new(3);
        start_times.begin_step(START);
        step(&mut start_times, [None; 3]);
        let none = f64::NAN;
        assert!(!start_times.note_ends(8, ends(&[none, 5.0, -9.0])), "the first has not ended");
        assert!(!start_times.note_ends(8, ends(&[-4.0, 5.0, -9.0])), "of an earlier step");
        assert!(start_times.note_ends(1, ends(&[4.0, 5.0, -9.0])), "one at a time");
        assert!(start_times.note_ends(8, ends(&[none, 5.0, -9.0])), "a known one is not asked again");
        assert!(!start_times.note_ends(8, ends(&[none, none, -9.0])));
        // What is left at the end is taken: a lane may have passed it just before the start was.
        start_times.note_all_ends(ends(&[none, none, -9.0]));
        assert_eq!(spans(&start_times, 1.0), [(1_001, 1_004), (1_004, 1_005), (1_000, 1_000)]);
        start_times.begin_step(2 * START);
        assert!(!start_times.note_ends(8, ends(&[none; 3])), "all are to be noted anew");
        assert_eq!(spans(&start_times, 1.0), [(0, 0); 3]);
    }

    #[test]
    fn a_task_that_was_not_seen_to_end_is_empty_at_the_origin_and_holds_up_no_other() {
        let mut start_times = TaskStartTimes::new(3);
        start_times.begin_step(START);
        step(&mut start_times, [Some(START), Some(START + 6), Some(START)]);
        start_times.note_all_ends(ends(&[f64::NAN, 30.0, 45.0]));
        assert_eq!(spans(&start_times, 2.0), [(0, 0), (0, 0), (1_030, 1_045)]);
    }
}
