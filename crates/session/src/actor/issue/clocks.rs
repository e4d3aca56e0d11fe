//! Vector clocks of the step being issued: the tasks that each lane is known to run after.
//!
//! Law: they advance by lane order, fences and joins of all lanes alone. A point is covered for a lane if
//! these already make what is issued there next run after it.

use super::super::Fence;
use super::Point;
use warpweft_base::id::{LaneId, TaskId};

/// Vector clocks; an entry is a position in T plus one, 0 for nothing.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    lanes: usize,
    /// Per lane: tasks of every lane known to precede what is issued there next.
    known: Vec<u32>,
    /// The same, as it was when each task was issued.
    signalled: Vec<u32>,
    /// Per lane: its tasks that all lanes were made to wait for when they joined last.
    joined: Vec<u32>,
}

impl Clocks {
    /// Clocks for `tasks` tasks on `lanes` lanes, nothing issued.
    pub(super) fn new(lanes: usize, tasks: usize) -> Self {
        Self {
            lanes,
            known: vec![0; lanes * lanes],
            signalled: vec![0; lanes * tasks],
            joined: vec![0; lanes],
        }
    }

    /// Forgets what was issued, for the next step.
    pub(super) fn reset(&mut self) {
        self.known.fill(0);
        self.joined.fill(0);
    }

    /// All lanes join: whatever is issued next, on any of them, runs after all that was issued so far.
    pub(super) fn join(&mut self) {
        for lane in 0..self.lanes {
            self.joined[lane] = self.known[lane * self.lanes + lane];
        }
        for known in self.known.chunks_exact_mut(self.lanes.max(1)) {
            known.copy_from_slice(&self.joined);
        }
    }

    /// Whether all lanes joined after `task` of `lane`.
    pub(super) fn is_joined(&self, task: TaskId, lane: LaneId) -> bool {
        self.joined[lane.index()] > task.number()
    }

    /// Joins what the `fences` of `task` teach its lane, and remembers it for the tasks that wait for it.
    pub(super) fn advance(&mut self, task: TaskId, lane: LaneId, fences: &[Fence]) {
        let own = lane.index() * self.lanes;
        let known = &mut self.known[own..own + self.lanes];
        for fence in fences {
            let theirs = fence.task.index() * self.lanes;
            for (mine, theirs) in known.iter_mut().zip(&self.signalled[theirs..theirs + self.lanes]) {
                *mine = (*mine).max(*theirs);
            }
        }
        known[lane.index()] = task.number() + 1;
        let mine = task.index() * self.lanes;
        self.signalled[mine..mine + self.lanes].copy_from_slice(known);
    }

    /// Whether what was last issued on `lane` runs after `point`.
    pub(super) fn covers(&self, point: Point, lane: LaneId) -> bool {
        self.known[lane.index() * self.lanes + point.lane().index()] > point.task().number()
    }
}
