//! The rank thread: waits for commands, carries them out, replies.
//!
//! Law: one command at a time, one reply each. A thread that ends for any reason but being told to
//! close has left the world: its guard aborts the backend's world and the host's, names the rank,
//! and replies for the command it was at.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::{CaptureMode, Exchange, ExecError, Rank, World};
use crate::backend::{Backend, BackendError};
use crate::compute::ComputeFactory;
use crate::id::RankId;
use crate::plan::StepPlan;
use crate::queue::{Receiver, Sender, bounded};
use crate::trace::HostLane;
use crossbeam::queue::ArrayQueue;
use tokio::sync::Notify;

/// Fills the real rows of a rank's masters: weight name, first row, columns, values row-major.
pub type Initializer = Arc<dyn Fn(&str, usize, usize, &mut [f32]) + Send + Sync>;

/// What a session asks of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// One step of a program.
    Step(usize),
    /// Weights out.
    Export,
    /// Weights in.
    Import,
}

/// What a rank answers.
#[derive(Debug)]
pub struct Reply {
    /// Who.
    pub rank: RankId,
    /// Whether it could.
    pub outcome: Result<(), ExecError>,
}

/// Where all ranks of a session put their replies.
#[derive(Debug)]
pub struct Inbox {
    replies: ArrayQueue<Reply>,
    bell: Notify,
}

impl Inbox {
    /// Room for every reply `ranks` ranks can owe at once.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        Self { replies: ArrayQueue::new(ranks.max(1) * 4), bell: Notify::new() }
    }

    /// The oldest reply, as soon as there is one.
    pub async fn next(&self) -> Reply {
        loop {
            let notified = self.bell.notified();
            if let Some(reply) = self.replies.pop() {
                return reply;
            }
            notified.await;
        }
    }

    fn put(&self, reply: Reply) {
        let _ = self.replies.force_push(reply);
        self.bell.notify_one();
    }
}

/// Everything a rank thread is born with.
pub struct Setup<B: Backend> {
    /// The rank's device.
    pub backend: B,
    /// The ranks' meeting point.
    pub world: Arc<World>,
    /// Quantizes masters as they are.
    pub prologue: Arc<StepPlan>,
    /// One plan per program.
    pub programs: Vec<Arc<StepPlan>>,
    /// Whether steps are recorded.
    pub capture: CaptureMode,
    /// Makes the rank's closures.
    pub closures: ComputeFactory<B::Surface>,
    /// Fills the masters.
    pub initializer: Initializer,
    /// Where the host spans of recorded steps go.
    pub spans: Option<HostLane>,
}

impl<B: Backend> std::fmt::Debug for Setup<B> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Setup").field("rank", &self.backend.rank()).finish_non_exhaustive()
    }
}

/// A session's end of one rank thread. Dropping it closes the thread.
#[derive(Debug)]
pub struct RankThread {
    rank: RankId,
    commands: Option<Sender<Command>>,
    exchange: Arc<Mutex<Exchange>>,
    thread: Option<JoinHandle<()>>,
}

impl RankThread {
    /// Starts the thread. Its first reply says whether the rank could be set up.
    ///
    /// # Errors
    /// [`BackendError::Lane`] when the system gives no thread.
    pub fn start<B: Backend>(
        setup: Setup<B>,
        exchange: Exchange,
        inbox: Arc<Inbox>,
    ) -> Result<Self, ExecError> {
        let rank = setup.backend.rank();
        let (commands, orders) = bounded(1);
        let exchange = Arc::new(Mutex::new(exchange));
        let shared = Arc::clone(&exchange);
        let thread = std::thread::Builder::new()
            .name(format!("warpweft {rank}"))
            .spawn(move || live(setup, &shared, &inbox, &orders))
            .map_err(|error| BackendError::Lane {
                rank,
                lane: crate::id::LaneId::default(),
                reason: format!("the system gave no thread: {error}"),
            })?;
        Ok(Self { rank, commands: Some(commands), exchange, thread: Some(thread) })
    }

    /// Asks something of the rank; it will reply.
    ///
    /// # Errors
    /// [`ExecError::World`] when the thread has ended.
    pub fn command(&self, command: Command) -> Result<(), ExecError> {
        let gone =
            || ExecError::World { rank: self.rank, reason: format!("the thread of {} has ended", self.rank) };
        self.commands.as_ref().ok_or_else(gone)?.send(command).map_err(|_| gone())
    }

    /// The rank's exchange; between a reply and the next command it is the session's.
    pub fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RankThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn live<B: Backend>(setup: Setup<B>, exchange: &Mutex<Exchange>, inbox: &Inbox, orders: &Receiver<Command>) {
    let rank = setup.backend.rank();
    let (world, initializer, spans) = (Arc::clone(&setup.world), Arc::clone(&setup.initializer), setup.spans);
    let mut obituary = Obituary { rank, world: Arc::clone(&world), inbox, owes_reply: true };
    let made =
        Rank::new(setup.backend, setup.world, setup.prologue, setup.programs, setup.capture, &setup.closures);
    let mut owner = match made {
        Ok(owner) => owner,
        Err(error) => {
            world.leave(&error.to_string());
            obituary.owes_reply = false;
            return inbox.put(Reply { rank, outcome: Err(error) });
        }
    };
    let outcome = {
        let mut exchange = exchange.lock().unwrap_or_else(PoisonError::into_inner);
        owner.initialize(&initializer, &mut exchange)
    };
    obituary.settle(outcome);
    while let Some(command) = orders.receive() {
        obituary.owes_reply = true;
        let outcome = {
            let mut exchange = exchange.lock().unwrap_or_else(PoisonError::into_inner);
            match command {
                Command::Step(program) => match spans.as_ref().filter(|_| exchange.recorded) {
                    Some(lane) => lane.within(|| owner.step(program, &mut exchange)),
                    None => owner.step(program, &mut exchange),
                },
                Command::Export => owner.export(&mut exchange),
                Command::Import => owner.import(&exchange),
            }
        };
        if let Err(error) = &outcome {
            owner.give_up(&error.to_string());
        }
        obituary.settle(outcome);
    }
}

/// Speaks for a thread that ends while it owes a reply.
struct Obituary<'a> {
    rank: RankId,
    world: Arc<World>,
    inbox: &'a Inbox,
    owes_reply: bool,
}

impl Obituary<'_> {
    fn settle(&mut self, outcome: Result<(), ExecError>) {
        self.owes_reply = false;
        self.inbox.put(Reply { rank: self.rank, outcome });
    }
}

impl Drop for Obituary<'_> {
    fn drop(&mut self) {
        if self.owes_reply {
            let reason = format!("the thread of {} died", self.rank);
            self.world.leave(&reason);
            self.inbox
                .put(Reply { rank: self.rank, outcome: Err(ExecError::World { rank: self.rank, reason }) });
        }
    }
}
