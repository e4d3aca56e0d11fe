//! A session: programs over one set of weights, driven step by step.
//!
//! Law: between two awaited steps a session is at a step boundary: all lanes drained, weights at one version on all
//! ranks. A command goes to all ranks at once, after those before it have ended. Once it went, dropping its
//! future takes nothing back: it ends in the background, and the next call awaits it and tells what its
//! caller did not get, how a step ended, that an import was refused or that a save into parts failed. A
//! future that is dropped before has begun nothing. A session owns the ranks of its process; where there are
//! several processes, all call the same methods in the same order, but for those that only look, and get the
//! same outcomes (EX-2). After a closure's error the session goes on. After a step that left a master or a
//! moment that is not finite it waits for an import (`diverged`). After a panic or the death of a rank it is
//! poisoned and says so until it is dropped; after a panic of a closure, of which ranks and weights know
//! nothing, it still exports. Where the configuration requests it, the first steps choose the plan
//! ([`Tuning`]). Nothing here is global: two sessions live side by side.

mod block_on;
mod commands;
mod compiled_here;
mod dropped;
mod error;
mod observe;
mod simulate;
mod start;
mod step;
mod tuning;
mod weights;

pub use block_on::block_on;
pub use error::SessionError;
pub use observe::HostTime;
pub use simulate::columnwise::columnwise_saving;
#[doc(hidden)]
pub use simulate::simulate_each_step;
pub use simulate::{Simulation, plan_program, plan_program_on, simulate_program, simulate_program_with};
pub use start::costs::costs_of;
pub use start::{SessionBuilder, initial};
pub use step::{MadeBy, NonFiniteGradient, NotCaptured, Outcome, StepReport, StrayValue};
pub use tuning::Tuning;
pub use weights::MainGrad;

use std::sync::Arc;

use crate::checkpoint::OptimizerIdentity;
#[doc(inline)]
pub use crate::exec::ExecError;
use crate::exec::{Inbox, RankThread};
use commands::{Pending, Poison};
use compiled_here::CompiledHere;
use dropped::Asks;
use observe::recorder::Recorder;
use step::diverged::Divergence;
use step::gradient_accumulation::{Sum, SumPlan};
use step::hyperparameters::Scheduled;
use step::non_finite::Skips;
use step::report::Unseen;
use warpweft_backend::TaskInterval;
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_base::errors::listed;
use warpweft_base::id::{ProgramId, RankId};
use warpweft_plan::plan::StepPlan;
use weights::background_save::BackgroundSaves;

/// Programs, weights and ranks, ready to step.
///
/// Any executor drives it: its futures wait for its own threads and need no runtime, timer or reactor.
/// Without an executor there is [`block_on`]. A session and its futures are `Send`, so it may move to another
/// thread or live in a task of a runtime of several.
///
/// Between awaits little happens on the caller's thread, but some of it blocks: [`Session::write_input`]
/// copies its values, [`Session::step`] the inputs, [`Session::export`] and [`Session::import`] the weights;
/// starting plans and proves the programs. [`Session::close`], at its end, and dropping wait for threads and
/// write the trace. [`FileStore`](crate::checkpoint::FileStore) reads and writes its file on the thread that polls it.
///
/// Dropping a session ends it as [`Session::close`] does, and blocks until its threads have ended: all ranks
/// get the command to close before any is waited for, and a rank that waits for one that is gone is woken. A closure
/// that never returns holds it up, and so does a save in the background; so do ranks of other processes that are
/// late, for `deadline_s` at most. The trace is then written as well, but nobody gets word whether that failed (it is
/// logged as a warning).
///
/// ```
/// use warpweft::{prelude::*, session::block_on};
///
/// let mut program = StepProgram::builder("sum", &Model::builder().build());
/// let x = program.input("x", 3, ElementType::F32)?;
/// let sum = program.output("sum", 1, ElementType::F32)?;
/// program.call("add", Phase::Forward).reads(x).writes(sum).add()?;
/// let add = on_cpu(move |_, context| {
///     context.write::<f32>(sum)?[0] = context.read::<f32>(x)?.iter().sum();
///     Ok(())
/// });
/// let builder = Session::builder(Config::default(), move |_| add);
/// let mut session = block_on(builder.program(program.build_evaluation()?).start_cpu(1))?;
/// session.write_input("sum", RankId::new(0), "x", &[1.0_f32, 2.0, 3.0])?;
/// assert_eq!(block_on(session.step("sum"))?.mean_output("sum")?, 6.0);
/// block_on(session.close())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session {
    ranks: Vec<RankThread>,
    inbox: Arc<Inbox>,
    programs: Vec<Program>,
    /// Plans of parts of sums, numbered after the programs.
    sum_plans: Vec<SumPlan>,
    /// What updates the weights.
    optimizer_identity: OptimizerIdentity,
    /// Weights whose moments began at zero with the last import, and others' did not.
    thawed: Vec<String>,
    /// Those of an import on its way.
    thawing: Vec<String>,
    scheduled: Scheduled,
    loss_scale: f32,
    steps: u64,
    /// Did the last step that writes gradients leave all of them?
    has_gradients: bool,
    sum: Sum,
    skips: Skips,
    /// How many steps in a row may be skipped without a loss scale; 0 for any number.
    max_skipped: u32,
    pending: Option<Pending>,
    unseen: Unseen,
    /// Why this process refuses the checkpoint of the import that was commanded last, until its caller gets it.
    refused: Option<SessionError>,
    saves: BackgroundSaves,
    poisoned: Option<Poison>,
    diverged: Option<Divergence>,
    recorder: Option<Recorder>,
    device: String,
    receive_buffer_bytes: usize,
    tuning: Option<Tuning>,
    /// Is the host's time of the coming steps split?
    splits: bool,
    /// Is it in virtual time? Then rank 0 alone is driven, and there are no values.
    is_virtual: bool,
    /// Dropped after the ranks, which say good-bye first.
    rendezvous: Arc<Rendezvous>,
}

/// One program with its plan and the inputs of the coming step.
#[derive(Debug)]
struct Program {
    plan: Arc<StepPlan>,
    /// The plans of the first, a next and the last step of a sum, if it accumulates.
    sums: Option<[ProgramId; 3]>,
    /// Per rank of this process, per buffer; empty for buffers that are no inputs.
    inputs: Vec<Vec<Staged>>,
}

/// An input of one rank in the coming step.
#[derive(Debug)]
struct Staged {
    bytes: Vec<u8>,
    /// Was it ever?
    is_written: bool,
}

impl Session {
    /// The plan of a program; while the session tunes itself, that of its last step. Steps that accumulate gradients
    /// have others ([`StepReport::plan`]).
    ///
    /// # Errors
    /// An unknown program.
    pub fn plan(&self, program: &str) -> Result<&Arc<StepPlan>, SessionError> {
        Ok(&self.programs[self.position(program)?.index()].plan)
    }

    /// The trials and the choice of a session whose configuration requests trials (`tune.steps`).
    #[must_use]
    pub const fn tuning(&self) -> Option<&Tuning> {
        self.tuning.as_ref()
    }

    /// Number of ranks of the world, in all processes; in virtual time, of the world that is simulated.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        let of_plan = |program: &Program| program.plan.weights.mesh.ranks();
        self.programs.first().map_or_else(|| self.rendezvous.ranks(), of_plan)
    }

    /// The ranks of this process, in order; in virtual time, rank 0 alone.
    pub fn own_ranks(&self) -> impl ExactSizeIterator<Item = RankId> + use<> {
        self.rendezvous.own()
    }

    /// The device that the session runs on, and whether its link is paced.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Bytes of device memory each rank takes beside the arena that plans speak of: room for small values
    /// until they are combined, and over several hosts for what is passed on. What peers send of gradients is
    /// in the plans' own bytes. 0 where ranks read each other's arenas.
    #[must_use]
    pub const fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// When every task of the last step that was awaited ran on `rank`, in the order of its plan's tasks
    /// ([`StepReport::plan`]);
    /// empty where the backend did not measure (GPUs do for a trace), and from when a command's future was
    /// dropped until the next command, which waits for it.
    ///
    /// # Errors
    /// [`SessionError::NoRank`], [`SessionError::Elsewhere`] for a rank of another process.
    pub fn intervals(&self, rank: RankId) -> Result<Vec<TaskInterval>, SessionError> {
        self.check_own(rank)?;
        let thread = self.ranks.iter().find(|thread| thread.rank() == rank);
        let drained = thread.filter(|_| self.pending.is_none());
        Ok(drained.map_or_else(Vec::new, |thread| thread.handover().times.intervals.clone()))
    }

    /// Ends the session: waits for a step and a save still under way, closes the ranks, writes the trace if
    /// one was requested.
    ///
    /// # Errors
    /// [`SessionError::LastStep`] or [`SessionError::Poisoned`] when a step still under way failed,
    /// [`SessionError::Import`] or [`SessionError::Parts`] when an import still under way was refused or a save failed,
    /// [`SessionError::BackgroundSave`] when one in the background did, or a second copy
    /// ([`PartFiles::copied_into`](crate::checkpoint::PartFiles::copied_into)),
    /// else [`SessionError::Trace`] when the trace cannot be written, or no step of those to trace has run. The session
    /// has ended either way.
    pub async fn close(self) -> Result<(), SessionError> {
        self.close_here().await
    }

    fn close_here(mut self) -> CompiledHere<'static, ()> {
        Box::pin(async move {
            // A step that failed loses no save.
            let settled = self.settle_for(Asks::ToClose).await;
            let saved = self.finish_save_for(Asks::ToClose).await;
            let followed = self.saves.followed().await;
            settled.and(saved).and(followed).and(self.end())
        })
    }

    /// Closes all ranks, waits for their threads and writes the trace; the second time it does nothing.
    fn end(&mut self) -> Result<(), SessionError> {
        self.saves.end();
        self.ranks.iter_mut().for_each(RankThread::hang_up);
        self.ranks.clear();
        self.recorder.take().map_or(Ok(()), |recorder| recorder.write(self.steps))
    }

    fn position(&self, program: &str) -> Result<ProgramId, SessionError> {
        self.programs.iter().position(|other| other.plan.name == program).map(ProgramId::at).ok_or_else(
            || {
                let declared = listed("", self.programs.iter().map(|other| &other.plan.name));
                SessionError::NoProgram { name: program.to_owned(), declared }
            },
        )
    }

    /// Is it a rank of this process?
    fn check_own(&self, rank: RankId) -> Result<(), SessionError> {
        let ranks = self.ranks();
        if self.rendezvous.range().contains(&rank.index()) {
            return Ok(());
        }
        if rank.index() >= ranks as usize {
            return Err(SessionError::NoRank { rank, ranks });
        }
        let own: Vec<String> = self.own_ranks().map(|rank| rank.to_string()).collect();
        Err(SessionError::Elsewhere { rank, own: own.join(", ") })
    }

    /// Do all ranks live, with whole weights that are worth saving?
    fn check_exports(&self) -> Result<(), SessionError> {
        self.check_real("exports or saves")?;
        if !self.poisoned.as_ref().is_some_and(|poison| poison.exports) {
            self.check_usable()?;
        }
        self.check_finite()
    }

    /// Are there weights? Whoever asks `does` something with them.
    const fn check_real(&self, does: &'static str) -> Result<(), SessionError> {
        if self.is_virtual { Err(SessionError::VirtualTime { does }) } else { Ok(()) }
    }

    /// The plans of the programs.
    fn plans(&self) -> Vec<Arc<StepPlan>> {
        self.programs.iter().map(|program| Arc::clone(&program.plan)).collect()
    }
}

/// What it runs and where; neither plans nor values.
impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let programs: Vec<&str> = self.programs.iter().map(|program| program.plan.name.as_str()).collect();
        let mut shown = formatter.debug_struct("Session");
        shown.field("device", &self.device).field("ranks", &self.rendezvous.range());
        shown.field("programs", &programs).field("steps", &self.steps).field("poisoned", &self.poisoned);
        shown.finish_non_exhaustive()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::warn!(%error, "the session was dropped and its trace is lost");
        }
    }
}
