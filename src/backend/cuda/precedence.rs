//! What a recorded task comes behind: the task before it on its lane, and those whose events its lane waited for since.
//!
//! Law: what is told here is what lanes were told, in the same order; a task that comes behind nothing of its recording has an empty list. Knows
//! no device. Recording is rare, so it may allocate.

use std::collections::HashMap;

use crate::id::{EventId, LaneId, TaskId};

/// One recording, as far as it is made.
#[derive(Debug, Default)]
pub(super) struct Precedence {
    /// The last task of every lane.
    last: HashMap<LaneId, TaskId>,
    /// The task behind which an event was recorded.
    points: HashMap<EventId, TaskId>,
    /// What a lane waited for since its last task.
    waits: HashMap<LaneId, Vec<TaskId>>,
}

impl Precedence {
    /// `event` was recorded behind what is on `lane`.
    pub(super) fn recorded(&mut self, lane: LaneId, event: EventId) {
        if let Some(task) = self.last.get(&lane) {
            self.points.insert(event, *task);
        }
    }

    /// `lane` waits for `event`.
    pub(super) fn waited(&mut self, lane: LaneId, event: EventId) {
        if let Some(task) = self.points.get(&event) {
            self.waits.entry(lane).or_default().push(*task);
        }
    }

    /// `task` is put on `lane`; what it comes behind.
    pub(super) fn behind(&mut self, lane: LaneId, task: TaskId) -> Vec<TaskId> {
        let waits = self.waits.remove(&lane).unwrap_or_default();
        self.last.insert(lane, task).into_iter().chain(waits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: LaneId = LaneId::new(0);
    const OTHER: LaneId = LaneId::new(1);

    fn tasks(numbers: &[u32]) -> Vec<TaskId> {
        numbers.iter().map(|number| TaskId::new(*number)).collect()
    }

    #[test]
    fn a_task_comes_behind_the_one_before_it_on_its_lane_and_those_its_lane_waited_for() {
        let mut recording = Precedence::default();
        let [first, second] = [EventId::new(0), EventId::new(1)];
        assert_eq!(recording.behind(ONE, TaskId::new(0)), []);
        recording.recorded(ONE, first);
        assert_eq!(recording.behind(ONE, TaskId::new(1)), tasks(&[0]));
        recording.recorded(ONE, second);
        recording.waited(OTHER, first);
        recording.waited(OTHER, second);
        assert_eq!(recording.behind(OTHER, TaskId::new(2)), tasks(&[0, 1]));
        // A wait is for the next task alone; those behind it come behind that.
        assert_eq!(recording.behind(OTHER, TaskId::new(3)), tasks(&[2]));
    }

    #[test]
    fn an_event_on_a_lane_without_tasks_or_of_another_recording_is_behind_nothing() {
        let mut recording = Precedence::default();
        recording.recorded(ONE, EventId::new(0));
        recording.waited(OTHER, EventId::new(0));
        recording.waited(OTHER, EventId::new(7));
        assert_eq!(recording.behind(OTHER, TaskId::new(0)), []);
    }
}
