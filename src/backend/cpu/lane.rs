//! The far end of a lane: a thread that obeys commands in order.
//!
//! Laws:
//! - A lane runs in order. Nothing orders two lanes but record and wait.
//! - A failed task is reported by the next `synchronize`; the commands behind it still run, so no
//!   peer hangs. Once the world is poisoned nothing runs any more: commands are only counted.
//! - A panic of the lane itself poisons the world, naming rank and lane; the thread lives on to
//!   count commands, so its host never waits in vain.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam::channel::Receiver;

use super::bell::{Bell, Wake, lock};
use super::bound::{BoundPlan, BoundTask};
use super::closures::{Closures, words};
use super::memory::Arena;
use super::ops::OpError;
use super::rendezvous::Rendezvous;
use super::world::Presence;
use crate::backend::{BackendError, ClosureFault, TaskInterval};
use crate::id::{EventId, TaskId};
use crate::layout::Lane;

/// What a lane is told.
#[derive(Debug)]
pub(super) enum Command {
    /// One action of an eager step.
    Act { plan: Arc<BoundPlan>, epoch: u64, action: Action },
    /// All actions of a recorded step.
    Replay { plan: Arc<BoundPlan>, epoch: u64, actions: Arc<[Action]> },
    /// Commands come from a larger queue from now on.
    Continue(Receiver<Command>),
}

/// One thing a lane does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Runs a task.
    Run(TaskId),
    /// Records an event.
    Record(EventId),
    /// Waits for an event.
    Wait(EventId),
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

    /// Are the first `sent` commands done?
    pub(super) fn is_done(&self, sent: u64) -> bool {
        self.done.load(Ordering::Acquire) >= sent
    }

    /// Waits until the first `sent` commands are done or `gives_up` says so.
    pub(super) fn wait(&self, sent: u64, gives_up: impl Fn() -> bool) {
        self.progress.wait_for(|| (self.is_done(sent) || gives_up()).then_some(()));
    }

    /// The first error since it was last taken.
    pub(super) fn take_error(&self) -> Option<BackendError> {
        lock(&self.error).take()
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

impl Wake for LaneState {
    fn wake(&self) {
        self.progress.ring();
    }
}

/// What a lane runs its tasks with.
pub(super) struct LaneContext {
    pub(super) lane: Lane,
    pub(super) presence: Arc<Presence>,
    pub(super) arena: Arc<Arena>,
    pub(super) communicator: Option<Arc<Rendezvous>>,
    pub(super) closures: Closures,
}

/// The thread of one lane.
pub(super) struct LaneThread {
    pub(super) context: LaneContext,
    pub(super) state: Arc<LaneState>,
}

impl LaneThread {
    /// Obeys until the host drops its end of the queue, then takes leave of the communicator.
    pub(super) fn obey(mut self, mut queue: Receiver<Command>) {
        while let Ok(command) = queue.recv() {
            match command {
                Command::Continue(larger) => queue = larger,
                Command::Act { plan, epoch, action } => self.guarded(|lane| lane.act(&plan, epoch, action)),
                Command::Replay { plan, epoch, actions } => self.guarded(|lane| {
                    for action in actions.iter() {
                        lane.act(&plan, epoch, *action);
                    }
                }),
            }
            self.state.count();
        }
        self.guarded(|lane| lane.context.closures = Closures::None);
        if let Some(communicator) = &self.context.communicator {
            communicator.depart(self.context.presence.rank);
        }
    }

    /// Turns a panic into poison.
    fn guarded(&mut self, work: impl FnOnce(&mut Self)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(self))) {
            let Lane { id, kind } = self.context.lane;
            let Presence { world, rank } = &*self.context.presence;
            world.poison.set(format!("{rank}, {id} ({kind}) panicked: {}", words(panic.as_ref())));
        }
    }

    fn act(&mut self, plan: &BoundPlan, epoch: u64, action: Action) {
        let poison = &self.context.presence.world.poison;
        if poison.is_set() {
            return;
        }
        match action {
            Action::Run(task) => match plan.task(task) {
                Some(task) => self.run(task, epoch),
                None => self.state.fail(self.context.unknown(format!("{task} is not in the bound plan"))),
            },
            Action::Record(event) => match plan.event(event) {
                Some(event) => event.record(epoch),
                None => self.state.fail(self.context.unknown(format!("{event} is not in the bound plan"))),
            },
            Action::Wait(event) => match plan.event(event) {
                Some(event) => {
                    if let Err(error) = event.wait(epoch, poison) {
                        self.state.fail(error);
                    }
                }
                None => self.state.fail(self.context.unknown(format!("{event} is not in the bound plan"))),
            },
        }
    }

    fn run(&mut self, task: &BoundTask, epoch: u64) {
        let clock = self.context.presence.world.clock;
        let begin = clock.now();
        let outcome = task.launch.run(task, &mut self.context);
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
                op: task.op,
                reason: error.to_string(),
            }),
        }
    }
}

impl LaneContext {
    fn unknown(&self, reason: String) -> BackendError {
        BackendError::Lane { rank: self.presence.rank, lane: self.lane.id, reason }
    }
}
