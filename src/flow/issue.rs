//! Issuing: the one place where a task reaches a lane.
//!
//! Law: a task is issued in its lane's turn, with all its rights in hand, behind the plan's
//! fences and nothing else. Issuing makes the task's point, and only issuing does (FL-1). The
//! issuer keeps, per lane, how far every lane is known to have come, from lane order and fences
//! alone; a right whose point lies beyond that is refused.

use std::sync::Arc;

use super::{Credit, FlowError, Message, Point, Poison, Post, ReadLease, Registers, Right, Wiring};
use crate::backend::Backend;
use crate::id::{LaneId, TaskId};
use crate::plan::{EdgeKind, StepPlan};

/// Issues the tasks of one bound plan on one rank.
#[derive(Debug)]
pub struct Issuer {
    rank: crate::id::RankId,
    plan: Arc<StepPlan>,
    wiring: Arc<Wiring>,
    registers: Registers,
    poison: Poison,
    /// Next task of every lane.
    turn: Vec<Option<TaskId>>,
    /// Per lane: tasks of every lane known to precede what is issued there next; position + 1.
    known: Vec<u32>,
    /// The same, as it was when each signalling task was issued.
    signalled: Vec<u32>,
    lanes: usize,
    issued: usize,
}

impl Issuer {
    /// An issuer for `plan`, wired as `wiring`.
    #[must_use]
    pub fn new(rank: crate::id::RankId, plan: Arc<StepPlan>, wiring: Arc<Wiring>, poison: Poison) -> Self {
        let lanes = plan.lanes.len();
        Self {
            rank,
            registers: Registers::new(plan.arena.slots.len()),
            poison,
            turn: vec![None; lanes],
            known: vec![0; lanes * lanes],
            signalled: vec![0; lanes * plan.tasks.len()],
            lanes,
            issued: 0,
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
    /// [`FlowError::Poisoned`] after a right was lost, [`FlowError::MailboxFull`].
    pub fn begin(&mut self, post: &Post) -> Result<(), FlowError> {
        if let Some(reason) = self.poison.reason() {
            return Err(FlowError::Poisoned { rank: self.rank, what: reason.to_owned() });
        }
        self.registers.reset();
        self.known.fill(0);
        self.turn.fill(None);
        self.issued = 0;
        for task in &self.wiring.first {
            self.turn[self.plan.task(*task).lane.index()] = Some(*task);
            post.send(Message::Turn(*task))?;
        }
        Ok(())
    }

    /// Have all tasks of the step been issued?
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.issued == self.plan.tasks.len()
    }

    /// Issues `task` with its `rights`, grants what it must grant and passes the turn on.
    ///
    /// # Errors
    /// A right or turn that is missing or not covered, a slot with open leases, a full mailbox, or
    /// the backend's refusal. Nothing of this step may be issued afterwards.
    pub fn issue<B: Backend>(
        &mut self,
        task: TaskId,
        rights: impl Iterator<Item = Right>,
        post: &Post,
        backend: &B,
        streams: &mut [B::Stream],
        bound: &B::Bound,
    ) -> Result<Point, FlowError> {
        let plan = Arc::clone(&self.plan);
        let wiring = Arc::clone(&self.wiring);
        let (planned, wired) = (plan.task(task), &wiring.tasks[task.index()]);
        let lane = planned.lane;
        if self.turn[lane.index()] != Some(task) {
            return Err(FlowError::OutOfTurn { rank: self.rank, task: plan.describe(task) });
        }
        self.learn(task, lane, &planned.waits);
        let mut received = 0;
        for right in rights {
            received += 1;
            if matches!(right, Right::Lease(_)) {
                self.registers.spend(right.slot());
            }
            self.check_covered(right.spend(), task, lane)?;
        }
        if received != wired.incoming {
            return Err(FlowError::OutOfTurn { rank: self.rank, task: plan.describe(task) });
        }
        for slot in &wired.writes {
            let open = self.registers.open(*slot);
            if open > 0 {
                let slot = plan.arena.slot(*slot).name.clone();
                return Err(FlowError::Occupied { rank: self.rank, task: plan.describe(task), slot, open });
            }
        }
        let stream = &mut streams[lane.index()];
        for wait in &planned.waits {
            if let Some(event) = plan.task(*wait).signals {
                backend.wait(stream, bound, event)?;
            }
        }
        backend.enqueue(stream, bound, task)?;
        if let Some(event) = planned.signals {
            backend.record(stream, bound, event)?;
        }
        let point = Point::behind(task, lane);
        self.issued += 1;
        self.grant(point, wired.grants.clone(), post)?;
        self.turn[lane.index()] = wired.next;
        wired.next.map_or(Ok(()), |next| post.send(Message::Turn(next)))?;
        Ok(point)
    }

    /// Joins what the fences of `task` teach its lane, and remembers it for those who wait for it.
    fn learn(&mut self, task: TaskId, lane: LaneId, waits: &[TaskId]) {
        let own = lane.index() * self.lanes;
        for wait in waits {
            let theirs = wait.index() * self.lanes;
            for other in 0..self.lanes {
                self.known[own + other] = self.known[own + other].max(self.signalled[theirs + other]);
            }
        }
        self.known[own + lane.index()] = task.number() + 1;
        let mine = task.index() * self.lanes;
        self.signalled[mine..mine + self.lanes].copy_from_slice(&self.known[own..own + self.lanes]);
    }

    fn check_covered(&self, point: Point, task: TaskId, lane: LaneId) -> Result<(), FlowError> {
        if self.known[lane.index() * self.lanes + point.lane().index()] > point.task().number() {
            return Ok(());
        }
        Err(FlowError::Uncovered {
            rank: self.rank,
            first: self.plan.describe(point.task()),
            second: self.plan.describe(task),
        })
    }

    fn grant(&mut self, point: Point, range: std::ops::Range<usize>, post: &Post) -> Result<(), FlowError> {
        for edge in &self.wiring.grants[range] {
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
        Ok(())
    }
}
