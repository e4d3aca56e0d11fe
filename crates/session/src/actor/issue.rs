//! Issuing: the one place where a task reaches a lane.
//!
//! Law: a task is issued in its lane's turn, with all its rights in hand, after the plan's fences and nothing
//! else. Issuing makes the task's point and the rights that carry it, and only issuing does (FL-1). A right
//! whose point is not covered by lane order, fences and joins of all lanes is refused.
//!
//! A fence to a task from before the last join is covered by that join and is not waited for again. This is
//! decided here and nowhere else. Devices need this: an event recorded in one capture cannot be waited for
//! in another.

mod clocks;
mod point;
mod rights;

pub use point::Point;
pub use rights::{Credit, ReadLease, Right};

use std::sync::Arc;

use self::clocks::Clocks;
use super::{ExecError, Message, Poison, Post, Registers, Wiring};
use warpweft_backend::Backend;
use warpweft_base::id::TaskId;
use warpweft_plan::plan::{EdgeKind, StepPlan};

/// Issues the tasks of one bound plan on one rank.
#[derive(Debug)]
pub struct Issuer {
    rank: warpweft_base::id::RankId,
    plan: Arc<StepPlan>,
    wiring: Arc<Wiring>,
    registers: Registers,
    poison: Poison,
    /// Next task of every lane.
    turn: Vec<Option<TaskId>>,
    clocks: Clocks,
    issued: usize,
    /// The caller enqueues what is issued now.
    stands_back: bool,
}

impl Issuer {
    /// An issuer for `plan`, wired as `wiring`.
    #[must_use]
    pub fn new(
        rank: warpweft_base::id::RankId,
        plan: Arc<StepPlan>,
        wiring: Arc<Wiring>,
        poison: Poison,
    ) -> Self {
        Self {
            rank,
            registers: Registers::new(plan.arena.slots.len()),
            poison,
            turn: vec![None; plan.lanes.len()],
            clocks: Clocks::new(plan.lanes.len(), plan.tasks.len()),
            issued: 0,
            stands_back: false,
            plan,
            wiring,
        }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Arc<StepPlan> {
        &self.plan
    }

    /// Opens a step: every lane's turn goes to its first task.
    ///
    /// # Errors
    /// [`ExecError::Poisoned`] after a right was lost, [`ExecError::MailboxFull`].
    pub fn begin(&mut self, post: &Post) -> Result<(), ExecError> {
        self.poison.check(self.rank)?;
        self.registers.reset();
        self.clocks.reset();
        self.turn.fill(None);
        self.issued = 0;
        self.stands_back = false;
        for task in &self.wiring.first {
            self.turn[self.plan.task(*task).lane.index()] = Some(*task);
            post.send(Message::Turn(*task))?;
        }
        Ok(())
    }

    /// All lanes have joined: whatever is issued next, on any of them, runs after all that was issued so far.
    /// The code that drives the lanes says so, and makes it true.
    pub fn join(&mut self) {
        self.clocks.join();
    }

    /// From now on issuing grants and spends rights and takes turns but, if `stands_back`, puts nothing on
    /// the lanes: the caller then enqueues these tasks.
    pub fn stand_back(&mut self, stands_back: bool) {
        self.stands_back = stands_back;
    }

    /// Closes a step whose tasks have all been issued.
    ///
    /// # Errors
    /// [`ExecError::Poisoned`] when a right was lost on the way.
    pub fn end(&self) -> Result<(), ExecError> {
        self.poison.check(self.rank)
    }

    /// Whether all tasks of the step have been issued.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.issued == self.plan.tasks.len()
    }

    /// Issues `task` with its `rights`, grants what it must grant and passes the turn on.
    ///
    /// # Errors
    /// A right or turn that is missing or not covered, a slot with open leases, a full mailbox, or
    /// the backend's refusal. Nothing of this step may be issued afterwards.
    ///
    /// # Panics
    /// When the task, the streams or the post belong to another plan.
    pub fn issue<B: Backend>(
        &mut self,
        task: TaskId,
        rights: impl Iterator<Item = Right>,
        post: &Post,
        backend: &B,
        streams: &mut [B::Stream],
        bound: &B::Bound,
    ) -> Result<Point, ExecError> {
        let (plan, wiring) = (&self.plan, &self.wiring);
        let wired = &wiring.tasks[task.index()];
        let (lane, fences) = (wired.lane, &wiring.fences[wired.fences.clone()]);
        if self.turn[lane.index()] != Some(task) {
            return Err(ExecError::OutOfTurn { rank: self.rank, task: plan.describe(task) });
        }
        self.clocks.advance(task, lane, fences);
        let mut received = 0;
        for right in rights {
            received += 1;
            let (slot, is_lease) = (right.slot(), matches!(right, Right::Lease(_)));
            let point = right.spend();
            if is_lease && !self.registers.spend(slot) {
                let (task, slot) = (plan.describe(task), plan.arena.slot(slot).name.clone());
                return Err(ExecError::Unleased { rank: self.rank, task, slot });
            }
            if !self.clocks.covers(point, lane) {
                let (first, second) = (plan.describe(point.task()), plan.describe(task));
                return Err(ExecError::Uncovered { rank: self.rank, first, second });
            }
        }
        if received != wired.incoming {
            return Err(ExecError::OutOfTurn { rank: self.rank, task: plan.describe(task) });
        }
        for slot in &wiring.writes[wired.writes.clone()] {
            let open = self.registers.open(*slot);
            if open > 0 {
                let slot = plan.arena.slot(*slot).name.clone();
                return Err(ExecError::Occupied { rank: self.rank, task: plan.describe(task), slot, open });
            }
        }
        if !self.stands_back {
            let stream = &mut streams[lane.index()];
            for fence in fences {
                if let Some(event) = fence.event
                    && !self.clocks.is_joined(fence.task, fence.lane)
                {
                    backend.wait(stream, bound, event)?;
                }
            }
            backend.enqueue(stream, bound, task)?;
            if let Some(event) = wired.signals {
                backend.record(stream, bound, event)?;
            }
        }
        let point = Point::after(task, lane);
        self.issued += 1;
        for edge in &wiring.grants[wired.grants.clone()] {
            let poison = self.poison.clone();
            let right = match edge.kind {
                EdgeKind::Lease => {
                    self.registers.grant(edge.slot);
                    Right::Lease(ReadLease::new(edge.slot, edge.to, point, poison))
                }
                EdgeKind::Credit | EdgeKind::Release => {
                    Right::Credit(Credit::new(edge.slot, edge.to, point, poison))
                }
            };
            post.send(Message::Right(right))?;
        }
        self.turn[lane.index()] = wired.next;
        wired.next.map_or(Ok(()), |next| post.send(Message::Turn(next)))?;
        Ok(point)
    }
}
