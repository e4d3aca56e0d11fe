//! A step in pieces: segments that can each be captured as one, and the dynamic calls between them.
//!
//! Laws:
//! - Pieces follow from the plan alone. Every task is in exactly one: a dynamic call is a piece of its own,
//!   every other task is in a segment. A plan without dynamic calls is one segment.
//! - Run one after the other, pieces keep happens-before: lane order and fences never point from a later
//!   piece into an earlier one. Each lane keeps its order in T (**AC-2**), so pieces are another topological
//!   order of the plan and no other plan.
//! - *Two-stage drain.* A segment ends where all lanes join, and only then the dynamic call begins. So a task
//!   that nobody before the boundary needs does not stand there if no call of its segment could hide it,
//!   which is when none stands after it in T: it goes to the beginning of the next segment, beside whose
//!   calls it runs. Those are the last reductions before the boundary, what waits for them, and gathers for
//!   later.
//!
//! Deliberately absent: segments without tasks.

use super::{StepPlan, Task};
use crate::op::{Compute, Op};
use warpweft_base::id::{PieceId, TaskId};

/// One piece of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Tasks that are captured as one.
    Segment,
    /// A dynamic call, which is issued anew in every step.
    Call(TaskId),
}

/// The pieces of one plan, in the order in which they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pieces {
    list: Vec<Piece>,
    /// The piece of every task.
    of: Vec<PieceId>,
}

impl Pieces {
    /// Every piece with its number.
    pub fn entries(&self) -> impl Iterator<Item = (PieceId, Piece)> {
        self.list.iter().enumerate().map(|(position, piece)| (PieceId::at(position), *piece))
    }

    /// The piece that `task` is in.
    ///
    /// # Panics
    /// When the task belongs to another plan.
    #[must_use]
    pub fn of(&self, task: TaskId) -> PieceId {
        self.of[task.index()]
    }

    /// How many of the pieces are segments.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.list.iter().filter(|piece| **piece == Piece::Segment).count()
    }
}

impl StepPlan {
    /// The step in pieces.
    #[must_use]
    pub fn pieces(&self) -> Pieces {
        let dynamic: Vec<TaskId> =
            self.entries().map(|(id, _)| id).filter(|task| self.is_dynamic(*task)).collect();
        let mut segment_of = cut(self.tasks.len(), &dynamic);
        // What did not have to stand before the last boundary, in T.
        let mut moved: Vec<usize> = Vec::new();
        let mut after = 0;
        for (boundary, call) in dynamic.iter().enumerate() {
            let hides = |task: &usize| {
                matches!(self.tasks[*task].op, Op::Compute(_)) && !self.is_dynamic(TaskId::at(*task))
            };
            let first = match (after..call.index()).rev().find(hides) {
                Some(last_call) => {
                    moved.clear();
                    last_call + 1
                }
                None => after,
            };
            let needed = self.happens_before(*call, moved.first().copied().unwrap_or(first));
            moved.extend(first..call.index());
            moved.retain(|task| !needed(*task));
            moved.iter().for_each(|task| segment_of[*task] = boundary + 1);
            after = call.index() + 1;
        }
        number(&segment_of, &dynamic)
    }

    fn is_dynamic(&self, task: TaskId) -> bool {
        matches!(self.task(task).op, Op::Compute(Compute { call, .. })
            if self.calls.get(call.index()).is_some_and(|call| call.dynamic))
    }

    /// Which tasks from `first` on surely end before `task` begins.
    fn happens_before(&self, task: TaskId, first: usize) -> impl Fn(usize) -> bool + use<> {
        let mut needed = vec![false; task.index() + 1 - first];
        // The lanes with a needed task further down in T.
        let mut lanes = vec![false; self.lanes.len()];
        lanes[self.task(task).lane.index()] = true;
        for position in (first..=task.index()).rev() {
            let Task { lane, waits, .. } = &self.tasks[position];
            let is_needed = needed[position - first] || lanes[lane.index()];
            if is_needed {
                needed[position - first] = true;
                lanes[lane.index()] = true;
                for wait in waits.iter().filter(|wait| (first..position).contains(&wait.index())) {
                    needed[wait.index() - first] = true;
                }
            }
        }
        move |task| needed[task - first]
    }
}

/// T cut at the dynamic calls: per task, how many of them stand before it.
pub(super) fn cut(tasks: usize, dynamic: &[TaskId]) -> Vec<usize> {
    let mut before = 0;
    let segment = |task: usize| {
        let own = before;
        before += usize::from(dynamic.get(before).is_some_and(|call| call.index() == task));
        own
    };
    (0..tasks).map(segment).collect()
}

/// Numbers segments and dynamic calls in the order in which they run, and leaves out segments without tasks.
pub(super) fn number(segment_of: &[usize], dynamic: &[TaskId]) -> Pieces {
    let mut of = vec![PieceId::default(); segment_of.len()];
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); dynamic.len() + 1];
    for (task, segment) in segment_of.iter().enumerate() {
        if dynamic.binary_search(&TaskId::at(task)).is_err() {
            members[*segment].push(task);
        }
    }
    let mut list = Vec::new();
    for (segment, tasks) in members.iter().enumerate() {
        if !tasks.is_empty() {
            tasks.iter().for_each(|task| of[*task] = PieceId::at(list.len()));
            list.push(Piece::Segment);
        }
        if let Some(call) = dynamic.get(segment) {
            of[call.index()] = PieceId::at(list.len());
            list.push(Piece::Call(*call));
        }
    }
    Pieces { list, of }
}
