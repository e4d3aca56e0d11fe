//! A lane's thread: it carries out commands in order.
//!
//! Laws:
//! - A lane runs in order. Nothing orders two lanes but record and wait.
//! - A failed task is reported by the next `synchronize`; the commands after it still run, so no peer hangs.
//!   Once the world is poisoned nothing runs any more: commands are only counted, and the lane says so at
//!   every `synchronize`. What was done before stays done.
//! - A panic of the lane itself poisons the world, naming rank and lane; the thread lives on to count
//!   commands, so its host never waits in vain.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::action::Action;
use super::bound::{BoundPlan, BoundTask, Event};
use super::captured::Captured;
use super::context::LaneContext;
use super::op_error::OpError;
use super::ops;
use super::world::Presence;
use crate::bell::{Bell, lock};
use crate::closures::Closures;
use crate::{BackendError, ClosureFault, TaskInterval};
use warpweft_base::panics::kept_words;
use warpweft_base::queue::Receiver;
use warpweft_plan::layout::Lane;

/// A command to a lane.
#[derive(Debug)]
pub(super) enum Command {
    /// One action of an eager step.
    Act { plan: Arc<BoundPlan>, epoch: u64, action: Action },
    /// The part of a capture for its lane number `position`.
    Replay { captured: Arc<Captured>, position: usize, epoch: u64 },
    /// Commands come from a larger queue from now on.
    Continue(Receiver<Command>),
}

/// What a lane and its host share.
#[derive(Debug)]
pub(super) struct LaneState {
    /// Commands done since the lane was opened.
    done: AtomicU64,
    progress: Bell,
    error: Mutex<Option<BackendError>>,
    fault: Mutex<Option<ClosureFault>>,
}

impl LaneState {
    pub(super) fn new() -> Self {
        Self {
            done: AtomicU64::new(0),
            progress: Bell::default(),
            error: Mutex::default(),
            fault: Mutex::default(),
        }
    }

    /// Whether the first `sent` commands are done.
    pub(super) fn is_done(&self, sent: u64) -> bool {
        self.done.load(Ordering::Acquire) >= sent
    }

    /// Waits until the first `sent` commands are done. Poison ends every wait of a lane, so a lane
    /// always gets there, unless a closure never returns.
    pub(super) fn wait(&self, sent: u64) {
        self.progress.wait_for(|| self.is_done(sent).then_some(()));
    }

    /// The first error since it was last taken. Poison stays.
    pub(super) fn take_error(&self) -> Option<BackendError> {
        let mut error = lock(&self.error);
        match &*error {
            Some(BackendError::Poisoned { .. }) => error.clone(),
            _ => error.take(),
        }
    }

    /// The first fault since it was last taken.
    pub(super) fn take_fault(&self) -> Option<ClosureFault> {
        lock(&self.fault).take()
    }

    fn fail(&self, error: BackendError) {
        lock(&self.error).get_or_insert(error);
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Release);
        self.progress.ring();
    }
}

/// The thread of one lane.
pub(super) struct LaneThread {
    pub(super) context: LaneContext,
    pub(super) state: Arc<LaneState>,
}

impl LaneThread {
    /// Obeys until the host drops its end of the queue, then leaves the communicator.
    pub(super) fn obey(mut self, mut queue: Receiver<Command>) {
        while let Some(command) = queue.receive() {
            match command {
                Command::Continue(larger) => queue = larger,
                Command::Act { plan, epoch, action } => self.guarded(|lane| lane.act(&plan, epoch, action)),
                Command::Replay { captured, position, epoch } => {
                    self.guarded(|lane| lane.replay(&captured, position, epoch));
                }
            }
            self.state.count();
        }
        self.guarded(|lane| lane.context.closures = Closures::None);
        if let Some(places) = &self.context.places {
            places.depart(self.context.presence.rank);
        }
    }

    /// Turns a panic into poison.
    fn guarded(&mut self, work: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let Lane { id, kind } = self.context.lane;
            let Presence { world, rank, .. } = &*self.context.presence;
            let error = world.poison.set(format!("{rank}, {id} ({kind}) panicked: {}", kept_words(panic)));
            self.state.fail(error);
        }
    }

    /// Runs its part of a capture, which begins and ends on the first lane.
    pub(super) fn replay(&mut self, captured: &Captured, position: usize, epoch: u64) {
        let Some((first, others)) = captured.lanes.split_first() else { return };
        let is_first = position == 0;
        if is_first {
            captured.begun.record(epoch);
        } else {
            self.wait(&captured.begun, epoch);
        }
        let own = if is_first { first } else { &others[position - 1] };
        for action in &own.actions {
            self.act(&captured.plan, epoch, *action);
        }
        if is_first {
            others.iter().for_each(|other| self.wait(&other.ended, epoch));
        } else {
            own.ended.record(epoch);
        }
    }

    fn wait(&self, event: &Event, epoch: u64) {
        if let Err(error) = event.wait(epoch, &self.context.presence.world.poison) {
            self.state.fail(error);
        }
    }

    fn act(&mut self, plan: &BoundPlan, epoch: u64, action: Action) {
        let poison = &self.context.presence.world.poison;
        if let Err(error) = poison.check() {
            return self.state.fail(error);
        }
        let done = match action {
            Action::Run(task) => plan.task(task).map(|task| self.run(task, epoch)),
            Action::Record(event) => plan.event(event).map(|event| event.record(epoch)),
            Action::Wait(event) => plan.event(event).map(|event| self.wait(event, epoch)),
        };
        if done.is_none() {
            let (rank, lane) = (self.context.presence.rank, self.context.lane.id);
            let reason = format!("the bound plan cannot {action}; bind the plan that is enqueued");
            self.state.fail(BackendError::Lane { rank, lane, reason });
        }
    }

    fn run(&mut self, task: &BoundTask, epoch: u64) {
        let clock = self.context.presence.world.clock;
        let begin = clock.now();
        let outcome = ops::run(task, &mut self.context);
        let joined = outcome.as_ref().ok().and_then(|done| done.joined).unwrap_or(begin);
        task.times.keep(epoch, TaskInterval { begin, joined, end: clock.now() });
        match outcome {
            Ok(done) => {
                if let Some(fault) = done.fault {
                    lock(&self.state.fault).get_or_insert(fault);
                }
            }
            Err(OpError::World(error)) => self.state.fail(error),
            Err(error) => self.state.fail(BackendError::Task {
                rank: self.context.presence.rank,
                task: task.id,
                op: task.name,
                reason: error.to_string(),
            }),
        }
    }
}
