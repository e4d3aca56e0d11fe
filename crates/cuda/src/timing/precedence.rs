//! The predecessors of a task: the task before it on its lane, and those whose events its lane waited for since.
//!
//! Law: what is noted here is what lanes got, in the same order, since a step or a capture began, or
//! since a capture was launched: after a launch lanes begin anew. This file knows no device. **BK-2** What
//! a step tells is forgotten in place, so telling the same again allocates nothing.

use warpweft_base::id::{EventId, LaneId, TaskId};

/// What lanes got so far.
#[derive(Debug, Default)]
pub(super) struct Precedence {
    /// By number, for every lane that got something.
    lanes: Vec<LaneOrder>,
    /// By number: where each event was recorded.
    points: Vec<Option<Point>>,
}

/// The order of one lane.
#[derive(Debug, Default)]
struct LaneOrder {
    /// Its last task.
    last: Option<TaskId>,
    /// Whether it waited for something since.
    waited: bool,
    /// The tasks it waited for since.
    waits: Vec<TaskId>,
}

/// Where an event is.
#[derive(Clone, Copy, Debug)]
struct Point {
    /// Somewhere after this task, before the next one of its lane.
    task: TaskId,
    /// Whether it is right after it.
    is_right_after: bool,
}

impl Precedence {
    /// Lanes begin anew.
    pub(super) fn reset(&mut self) {
        for lane in &mut self.lanes {
            (lane.last, lane.waited) = (None, false);
            lane.waits.clear();
        }
        self.points.fill(None);
    }

    /// `event` was recorded on `lane`. Returns the task right after which that is, if there is one.
    pub(super) fn recorded(&mut self, lane: LaneId, event: EventId) -> Option<TaskId> {
        let told = place(&mut self.lanes, lane.index());
        let point = told.last.map(|task| Point { task, is_right_after: !told.waited });
        *place(&mut self.points, event.index()) = point;
        right_after(point)
    }

    /// `lane` waits for `event`. Returns the task right after which that was recorded, if there was one.
    pub(super) fn waited(&mut self, lane: LaneId, event: EventId) -> Option<TaskId> {
        let point = self.points.get(event.index()).copied().flatten();
        let told = place(&mut self.lanes, lane.index());
        told.waited = true;
        told.waits.extend(point.map(|point| point.task));
        right_after(point)
    }

    /// `task` is put on `lane`; what it comes after replaces the contents of `after`.
    pub(super) fn put(&mut self, lane: LaneId, task: TaskId, after: &mut Vec<TaskId>) {
        let told = place(&mut self.lanes, lane.index());
        after.clear();
        after.extend(told.last.replace(task));
        after.append(&mut told.waits);
        told.waited = false;
    }
}

fn right_after(point: Option<Point>) -> Option<TaskId> {
    point.filter(|point| point.is_right_after).map(|point| point.task)
}

/// The entry with this number in a list that grows to have it.
fn place<T: Default>(list: &mut Vec<T>, number: usize) -> &mut T {
    if list.len() <= number {
        list.resize_with(number + 1, T::default);
    }
    &mut list[number]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LaneId = LaneId::new(0);
    const OTHER: LaneId = LaneId::new(1);

    fn tasks(numbers: &[u32]) -> Vec<TaskId> {
        numbers.iter().map(|number| TaskId::new(*number)).collect()
    }

    /// Puts a task on a lane and returns what it comes after.
    fn after(precedence: &mut Precedence, lane: LaneId, task: u32) -> Vec<TaskId> {
        let mut after = tasks(&[7, 8, 9]);
        precedence.put(lane, TaskId::new(task), &mut after);
        after
    }

    #[test]
    fn a_task_comes_after_the_one_before_it_on_its_lane_and_those_its_lane_waited_for() {
        let mut capture = Precedence::default();
        let [first, second] = [EventId::new(0), EventId::new(1)];
        assert_eq!(after(&mut capture, ONE, 0), []);
        let _ = capture.recorded(ONE, first);
        assert_eq!(after(&mut capture, ONE, 1), tasks(&[0]));
        let _ = capture.recorded(ONE, second);
        let _ = capture.waited(OTHER, first);
        let _ = capture.waited(OTHER, second);
        assert_eq!(after(&mut capture, OTHER, 2), tasks(&[0, 1]));
        // A wait is for the next task alone; those after it come after that task.
        assert_eq!(after(&mut capture, OTHER, 3), tasks(&[2]));
    }

    #[test]
    fn an_event_on_a_lane_without_tasks_or_of_another_capture_is_after_nothing() {
        let mut capture = Precedence::default();
        assert_eq!(capture.recorded(ONE, EventId::new(0)), None);
        assert_eq!(capture.waited(OTHER, EventId::new(0)), None);
        assert_eq!(capture.waited(OTHER, EventId::new(7)), None);
        assert_eq!(after(&mut capture, OTHER, 0), []);
    }

    #[test]
    fn an_event_stands_right_after_a_task_unless_its_lane_waited_in_between() {
        let mut step = Precedence::default();
        let [first, second, third] = [EventId::new(0), EventId::new(1), EventId::new(2)];
        let _ = after(&mut step, ONE, 0);
        assert_eq!(step.recorded(ONE, first), Some(TaskId::new(0)));
        assert_eq!(step.waited(OTHER, first), Some(TaskId::new(0)));
        let _ = after(&mut step, OTHER, 1);
        // What is waited for is known, whether or not its exact place is.
        let _ = step.waited(ONE, EventId::new(9));
        assert_eq!(step.recorded(ONE, second), None);
        assert_eq!(step.waited(OTHER, second), None);
        assert_eq!(step.recorded(OTHER, third), None, "it waited");
        assert_eq!(after(&mut step, OTHER, 2), tasks(&[1, 0]));
        assert_eq!(step.recorded(OTHER, third), Some(TaskId::new(2)));
    }

    #[test]
    fn lanes_that_begin_anew_come_after_nothing_of_before() {
        let mut step = Precedence::default();
        let event = EventId::new(3);
        let _ = after(&mut step, ONE, 0);
        let _ = step.recorded(ONE, event);
        let _ = step.waited(OTHER, event);
        step.reset();
        assert_eq!(step.waited(OTHER, event), None);
        assert_eq!((after(&mut step, ONE, 1), after(&mut step, OTHER, 2)), (vec![], vec![]));
        assert_eq!(step.recorded(OTHER, event), Some(TaskId::new(2)), "nor did it wait");
    }

    #[test]
    fn bk2_what_is_told_again_allocates_nothing() {
        let mut step = Precedence::default();
        let mut held = Vec::new();
        let mut places = Vec::new();
        for _ in 0..3 {
            step.reset();
            for task in 0..4 {
                let _ = step.recorded(ONE, EventId::new(task));
                let _ = step.waited(OTHER, EventId::new(task));
                step.put(ONE, TaskId::new(task), &mut held);
            }
            step.put(OTHER, TaskId::new(4), &mut held);
            let room = step.lanes.iter().map(|lane| lane.waits.capacity()).collect::<Vec<_>>();
            places.push((held.capacity(), room, step.points.capacity(), step.lanes.capacity()));
        }
        assert_eq!(places[1], places[2]);
        assert_eq!(places[1].1, places[0].1);
    }
}
