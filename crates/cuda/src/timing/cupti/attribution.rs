//! Records to tasks, and tasks to intervals. This file knows no device and no library.
//!
//! Laws: **CU-1**, **CU-2** of the module. An activity that was over before the step, or whose begin or end is
//! unknown, does not belong to the step. A lane is serial: a task begins no sooner than the one before it on
//! its lane ended, whatever clocks say of the last nanoseconds.

use std::collections::HashMap;

use super::place::Place;
use super::record::{Activity, Record};
use warpweft_backend::TaskInterval;
use warpweft_base::id::{LaneId, TaskId};

/// What ran, by book, in nanoseconds of CUPTI's clock.
#[derive(Debug, Default)]
pub(super) struct Attributed {
    ran: HashMap<u32, Vec<(TaskId, u64, u64)>>,
    /// Activities that belong to no task.
    pub(super) of_nobody: usize,
    /// Activities whose begin or end is unknown.
    pub(super) unfinished: usize,
}

impl Attributed {
    /// Sorts `records` by book; `nodes` are those of all recordings.
    pub(super) fn of(records: &[Record], nodes: &HashMap<u64, Place>) -> Self {
        let calls: HashMap<u32, Place> = records
            .iter()
            .filter_map(|record| match record {
                Record::Call { correlation, place } => Some((*correlation, *place)),
                Record::Activity(_) => None,
            })
            .collect();
        let mut attributed = Self::default();
        for record in records {
            let Record::Activity(Activity { node, correlation, begin, end }) = *record else { continue };
            let place = if node == 0 { calls.get(&correlation) } else { nodes.get(&node) };
            match place {
                _ if begin == 0 || end < begin => attributed.unfinished += 1,
                None => attributed.of_nobody += 1,
                Some(place) => attributed.ran.entry(place.book).or_default().push((place.task, begin, end)),
            }
        }
        attributed
    }

    /// The interval of every task of a book, in nanoseconds of the world's clock. `lanes` has the lane of
    /// every task, `ahead` is by how much CUPTI's clock is ahead of the world's, and the step began at
    /// `begun` on the world's clock.
    pub(super) fn intervals(
        &self,
        book: u32,
        lanes: &[LaneId],
        ahead: i128,
        begun: u64,
    ) -> impl Iterator<Item = TaskInterval> {
        let mut tasks: Vec<Option<(u64, u64)>> = vec![None; lanes.len()];
        let world = |time: u64| u64::try_from(i128::from(time) - ahead).unwrap_or(0);
        for (task, begin, end) in self.ran.get(&book).map_or(&[][..], Vec::as_slice) {
            let (begin, end) = (world(*begin), world(*end));
            let Some(task) = tasks.get_mut(task.index()).filter(|_| end >= begun) else { continue };
            *task = Some(match *task {
                None => (begin, end),
                Some((first, last)) => (first.min(begin), last.max(end)),
            });
        }
        let first = tasks.iter().flatten().map(|(begin, _)| *begin).min().unwrap_or(0);
        let mut over: HashMap<LaneId, u64> = HashMap::new();
        let settled: Vec<_> = tasks
            .into_iter()
            .zip(lanes)
            .map(|(ran, lane)| {
                let over = over.entry(*lane).or_insert(first);
                let (begin, end) = ran.unwrap_or((*over, *over));
                let (begin, end) = (begin.max(*over), end.max(*over));
                *over = end;
                TaskInterval::new(begin, begin, end)
            })
            .collect();
        settled.into_iter()
    }
}

/// By how much CUPTI's clock is ahead of the world's, from samples of the world's, CUPTI's and the world's
/// again: the tightest sample decides.
pub(super) fn ahead(samples: &[(u64, u64, u64)]) -> i128 {
    let tightest = samples.iter().min_by_key(|(before, _, after)| after.saturating_sub(*before));
    tightest.map_or(0, |(before, theirs, after)| {
        i128::from(*theirs) - (i128::from(*before) + i128::from(*after)) / 2
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOK: u32 = 2;

    fn place(book: u32, task: u32) -> Place {
        Place { book, task: TaskId::new(task) }
    }

    fn issued(correlation: u32, begin: u64, end: u64) -> Record {
        Record::Activity(Activity { node: 0, correlation, begin, end })
    }

    fn replayed(node: u64, begin: u64, end: u64) -> Record {
        // All activities of a launch share its correlation.
        Record::Activity(Activity { node, correlation: 1, begin, end })
    }

    fn call(correlation: u32, task: u32) -> Record {
        Record::Call { correlation, place: place(BOOK, task) }
    }

    fn lanes(numbers: &[u32]) -> Vec<LaneId> {
        numbers.iter().map(|number| LaneId::new(*number)).collect()
    }

    fn spans(attributed: &Attributed, lanes: &[LaneId]) -> Vec<(u64, u64)> {
        let intervals = attributed.intervals(BOOK, lanes, 0, 0);
        intervals.map(|interval| (interval.begin, interval.end)).collect()
    }

    #[test]
    fn cu1_an_issued_activity_belongs_to_the_call_that_enqueued_it_in_whatever_order_they_are_told() {
        let records = [issued(11, 100, 110), call(10, 0), issued(10, 90, 95), call(11, 1), issued(12, 1, 2)];
        let attributed = Attributed::of(&records, &HashMap::new());
        assert_eq!(spans(&attributed, &lanes(&[0, 0])), [(90, 95), (100, 110)]);
        assert_eq!((attributed.of_nobody, attributed.unfinished), (1, 0));
    }

    #[test]
    fn cu1_a_replayed_activity_belongs_to_the_task_of_its_node_and_never_to_a_call() {
        let nodes = HashMap::from([(70, place(BOOK, 1)), (71, place(BOOK, 0)), (72, place(9, 0))]);
        // The launch itself was made for no task, and even if it were, its activities would still be those of
        // their nodes.
        let records =
            [call(1, 2), replayed(71, 5, 8), replayed(70, 8, 9), replayed(72, 6, 7), replayed(73, 1, 2)];
        let attributed = Attributed::of(&records, &nodes);
        assert_eq!(spans(&attributed, &lanes(&[0, 0])), [(5, 8), (8, 9)]);
        assert_eq!(attributed.of_nobody, 1);
        assert_eq!(attributed.intervals(9, &lanes(&[0]), 0, 0).next().map(|interval| interval.end), Some(7));
    }

    #[test]
    fn cu2_a_task_lasts_from_its_first_activity_to_the_end_of_its_last() {
        let records = [call(1, 0), call(2, 0), issued(2, 50, 60), issued(1, 20, 80), issued(1, 30, 40)];
        assert_eq!(spans(&Attributed::of(&records, &HashMap::new()), &lanes(&[0])), [(20, 80)]);
    }

    #[test]
    fn cu2_a_task_without_activities_is_empty_after_the_one_before_it_on_its_lane() {
        let records = [call(1, 1), issued(1, 20, 30), call(2, 2), issued(2, 40, 50)];
        let attributed = Attributed::of(&records, &HashMap::new());
        // Task 0 has nothing before it, task 3 follows task 1, task 4 task 2.
        assert_eq!(
            spans(&attributed, &lanes(&[1, 0, 1, 0, 1])),
            [(20, 20), (20, 30), (40, 50), (30, 30), (50, 50)]
        );
    }

    #[test]
    fn a_task_begins_no_sooner_than_the_one_before_it_on_its_lane_ended() {
        let records =
            [call(1, 0), issued(1, 20, 30), call(2, 1), issued(2, 29, 40), call(3, 2), issued(3, 25, 28)];
        let attributed = Attributed::of(&records, &HashMap::new());
        assert_eq!(spans(&attributed, &lanes(&[0, 0, 1])), [(20, 30), (30, 40), (25, 28)]);
    }

    #[test]
    fn a_step_that_was_not_seen_is_empty_at_the_origin() {
        assert_eq!(spans(&Attributed::default(), &lanes(&[0, 1])), [(0, 0), (0, 0)]);
    }

    #[test]
    fn what_began_and_did_not_end_and_what_has_no_begin_is_counted_and_left_out() {
        let records = [call(1, 0), issued(1, 0, 0), issued(1, 20, 0), issued(1, 30, 31)];
        let attributed = Attributed::of(&records, &HashMap::new());
        assert_eq!(spans(&attributed, &lanes(&[0])), [(30, 31)]);
        assert_eq!((attributed.of_nobody, attributed.unfinished), (0, 2));
    }

    #[test]
    fn times_are_on_the_clock_of_the_world_and_of_this_step() {
        let records =
            [call(1, 0), issued(1, 1_000_500, 1_000_700), call(2, 0), issued(2, 1_000_100, 1_000_200)];
        let attributed = Attributed::of(&records, &HashMap::new());
        let interval = |begun| attributed.intervals(BOOK, &lanes(&[0]), 1_000_000, begun).next().unwrap();
        assert_eq!(interval(0), TaskInterval::new(100, 100, 700));
        // What was over when the step began belongs to the previous step.
        assert_eq!(interval(300), TaskInterval::new(500, 500, 700));
    }

    #[test]
    fn a_task_of_another_plan_than_the_book_is_of_is_left_out() {
        let records = [call(1, 7), issued(1, 20, 30)];
        assert_eq!(spans(&Attributed::of(&records, &HashMap::new()), &lanes(&[0])), [(0, 0)]);
    }

    #[test]
    fn of_several_samples_of_two_clocks_the_tightest_counts() {
        assert_eq!(ahead(&[(100, 5_000, 300), (400, 5_410, 420), (500, 5_600, 900)]), 5_000);
        // The world's clock may be the one ahead.
        assert_eq!(ahead(&[(1_000, 10, 1_002)]), -991);
        assert_eq!(ahead(&[]), 0);
    }
}
