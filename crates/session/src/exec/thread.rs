//! The thread of a rank: waits for commands, carries them out, replies.
//!
//! Law: one command at a time, with one reply each. A panic is no exception: its words are the reply. A rank
//! that fails a command aborts the backend's world and ends the host's before it replies, so no peer waits
//! for it. After a panic its thread ends, because what the panic left is not trusted. A thread that gets the command
//! to close leaves the host's world on its way out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::agreement::agree_on_optimizer;
use super::{CaptureMode, ExecError, FirstPlanes, Handover, Initializer, Rank, World};
use crate::checkpoint::OptimizerIdentity;
use crate::trace::HostLane;
use crossbeam::queue::ArrayQueue;
use tokio::sync::Notify;
use warpweft_backend::Backend;
use warpweft_base::id::{ProgramId, RankId};
use warpweft_base::panics::kept_words;
use warpweft_base::queue::{Receiver, Sender, bounded};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::plan::StepPlan;

/// A command of a session to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// One step of a program.
    Step(ProgramId),
    /// Weights out.
    Export,
    /// Weights in.
    Import,
    /// Main grads out.
    MainGrads,
    /// The rank's part of a checkpoint out.
    SavePart,
    /// A save that goes on in the background begins.
    BeginSave,
    /// Makes a checkpoint of parts that threads write.
    CompleteSave,
    /// Copies its state where no step did.
    TakeSnapshot,
    /// What the rank owns of a sharded checkpoint in.
    ImportPart,
    /// Compares replicas.
    CompareReplicas,
}

/// The reply of a rank to a command.
#[derive(Debug)]
pub struct Reply {
    /// The rank that answers.
    pub rank: RankId,
    /// Whether it could carry out the command.
    pub outcome: Result<(), ExecError>,
}

/// The replies of all ranks of a session.
#[derive(Debug)]
pub struct Inbox {
    replies: ArrayQueue<Reply>,
    bell: Notify,
}

impl Inbox {
    /// Room for every reply that `ranks` ranks can owe at once.
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

/// Everything a rank thread starts with.
pub struct Setup<B: Backend> {
    /// The rank's device.
    pub backend: B,
    /// The ranks' meeting point.
    pub world: Arc<World>,
    /// Quantizes masters as they are.
    pub prologue: Arc<StepPlan>,
    /// One plan per program.
    pub programs: Vec<Arc<StepPlan>>,
    /// Plans that programs may run later in place of their own; there must be room for them.
    pub foreseen: Vec<Arc<StepPlan>>,
    /// Whether steps are captured.
    pub capture: CaptureMode,
    /// Makes the rank's closures.
    pub closures: ComputeFactory<B::Surface>,
    /// Which optimizer updates the weights, from when the closures are made; a custom one need not be named.
    pub optimizer_identity: Arc<OnceLock<OptimizerIdentity>>,
    /// Fills the masters.
    pub initializer: Initializer,
    /// Gives planes of frozen weights in place of it.
    pub base: Option<FirstPlanes>,
    /// How long the rank polls for its next command before it sleeps; nothing for a rank without a core of
    /// its own.
    pub patience: Duration,
    /// Where the host spans of traced steps go.
    pub spans: Option<HostLane>,
}

impl<B: Backend> std::fmt::Debug for Setup<B> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Setup").field("rank", &self.backend.rank()).finish_non_exhaustive()
    }
}

/// A session's end of one rank thread. Dropping it closes the thread and waits for its end. A holder of
/// several hangs up on all of them first ([`RankThread::hang_up`]), because a rank may be waiting for a peer.
#[derive(Debug)]
pub struct RankThread {
    rank: RankId,
    commands: Option<Sender<Command>>,
    handover: Arc<Mutex<Handover>>,
    thread: Option<JoinHandle<()>>,
}

impl RankThread {
    /// Starts the thread. Its first reply says whether the rank could be set up.
    ///
    /// # Errors
    /// [`ExecError::Thread`] when the system gives no thread.
    // Never inlined, so that for its own backends every crate takes what is compiled in this library.
    #[inline(never)]
    pub fn start<B: Backend>(
        setup: Setup<B>,
        handover: Handover,
        inbox: Arc<Inbox>,
    ) -> Result<Self, ExecError> {
        let rank = setup.backend.rank();
        let (commands, orders) = bounded(1);
        let handover = Arc::new(Mutex::new(handover));
        let shared = Arc::clone(&handover);
        let thread = std::thread::Builder::new()
            .name(format!("warpweft {rank}"))
            .spawn(move || live(setup, &shared, &inbox, &orders))
            .map_err(|error| ExecError::Thread { rank, reason: error.to_string() })?;
        Ok(Self { rank, commands: Some(commands), handover, thread: Some(thread) })
    }

    /// Which rank it is.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// Asks something of the rank, which will reply.
    ///
    /// # Errors
    /// [`ExecError::World`] when the thread has ended.
    pub fn command(&self, command: Command) -> Result<(), ExecError> {
        let gone =
            || ExecError::World { rank: self.rank, reason: format!("the thread of {} has ended", self.rank) };
        self.commands.as_ref().ok_or_else(gone)?.send(command).map_err(|_| gone())
    }

    /// Tells the thread to end after its current command; does not wait.
    pub fn hang_up(&mut self) {
        self.commands = None;
    }

    /// The rank's handover, which belongs to the session between a reply and the next command.
    pub fn handover(&self) -> MutexGuard<'_, Handover> {
        self.handover.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RankThread {
    fn drop(&mut self) {
        self.hang_up();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a rank says it is doing while it initializes, for those that wait for it.
const FILLS_MASTERS: &str =
    "it fills its masters; let the initializer take less time on every rank, or raise deadline_s";

fn live<B: Backend>(setup: Setup<B>, handover: &Mutex<Handover>, inbox: &Inbox, orders: &Receiver<Command>) {
    let Setup {
        backend,
        world,
        prologue,
        programs,
        foreseen,
        capture,
        closures,
        optimizer_identity,
        initializer,
        base,
        patience,
        spans,
    } = setup;
    let (rank, met) = (backend.rank(), Arc::clone(&world));
    let reply = |outcome| inbox.put(Reply { rank, outcome });
    let mut owner = match guarded(rank, || {
        Rank::with_room(backend, met, prologue, programs, &foreseen, capture, &closures)
    }) {
        Ok(owner) => owner,
        Err(error) => {
            world.end(&error.to_string());
            return reply(Err(error));
        }
    };
    drop(foreseen);
    let mut next = None;
    loop {
        let outcome = guarded(rank, || {
            let mut handover = handover.lock().unwrap_or_else(PoisonError::into_inner);
            match next {
                None => {
                    let optimizer = optimizer_identity.get().unwrap_or(&OptimizerIdentity::Unnamed);
                    agree_on_optimizer(&world, rank, optimizer)?;
                    world.stand(rank, FILLS_MASTERS);
                    let initialized = owner.initialize(&initializer, base.as_ref());
                    world.stand(rank, "");
                    initialized
                }
                Some(Command::Step(program)) => match spans.as_ref().filter(|_| handover.coming.traced) {
                    Some(lane) => lane.within(|| owner.step(program, &mut handover)),
                    None => owner.step(program, &mut handover),
                },
                Some(Command::Export) => owner.export(&mut handover),
                Some(Command::Import) => owner.import_agreed(&mut handover),
                Some(Command::MainGrads) => owner.main_grads(&mut handover),
                Some(Command::SavePart) => owner.save_part(&mut handover),
                Some(Command::BeginSave) => owner.begin_save(&mut handover),
                Some(Command::CompleteSave) => owner.complete_save(&mut handover),
                Some(Command::TakeSnapshot) => owner.take_snapshot(&mut handover),
                Some(Command::ImportPart) => owner.import_part(&mut handover),
                Some(Command::CompareReplicas) => owner.compare_replicas(&mut handover),
            }
        });
        if let Err(error) = &outcome {
            // A panic in there must prevent neither the reply nor waking the others.
            let _ = guarded(rank, || {
                owner.give_up(&error.to_string());
                Ok(())
            });
            world.end(&error.to_string());
        }
        let panicked = matches!(outcome, Err(ExecError::Panicked { .. }));
        reply(outcome);
        next = if panicked { None } else { orders.receive_eagerly(patience) };
        if next.is_none() {
            break;
        }
    }
    world.leave(rank, &format!("{rank} was closed"));
}

/// Turns a panic into an error that keeps its words.
fn guarded<T>(rank: RankId, work: impl FnOnce() -> Result<T, ExecError>) -> Result<T, ExecError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(ExecError::Panicked { rank, words: kept_words(panic) }))
}
