//! Session errors.

use super::dropped::closure_failed;
use super::step::diverged::{StrayValue, described};
use super::step::non_finite::{NonFiniteGradient, why};
use crate::checkpoint::{CheckpointError, StatePart};
use crate::config::ConfigError;
use crate::exec::ExecError;
use warpweft_backend::BackendError;
use warpweft_base::errors::{listed, shown, shown_path, shown_text};
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, FormatError};
use warpweft_plan::model::{DeclareError, Mesh};
use warpweft_plan::plan::PlanError;

/// An error of a session.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A value of the configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A declaration is wrong.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// No plan could be made.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Planes that are not what their format says.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A file of weights, such as a frozen base that is not in the format and shape of the session's weights.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// A world cannot be made: its link or cluster, or its ranks.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The GPUs could not be made ready.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] warpweft_cuda::CudaFailure),
    /// The ranks could not be set up.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// Programs over a model that the rules of the configuration were not applied to.
    #[error(
        "weight `{weight}` is declared otherwise than the rules under `weights` say: {rules}; declare programs over `config.apply_weight_rules(&model)?`, or start without these rules"
    )]
    WeightRules {
        /// The first weight concerned.
        weight: String,
        /// Every rule that matches its name: what it sets, and where it stands.
        rules: String,
    },
    /// There are no main grads to hand out.
    #[error(
        "there are no main grads: no step with gradients has run yet, or the last one failed; run one, then ask again"
    )]
    NoGradients,
    /// A step that is to be captured whole, and cannot.
    #[error(
        "`{program}` cannot be captured whole: its call `{call}` is declared dynamic, to be issued anew in every step; set capture = \"segments\" to capture what lies between such calls, or capture = \"off\""
    )]
    Dynamic {
        /// The program.
        program: String,
        /// Its first dynamic call.
        call: String,
    },
    /// Backends that are not all ranks of one world, in rank order.
    #[error(
        "cannot start a session: {reason}; pass the backend of every rank of this process, in rank order"
    )]
    Backends {
        /// Which one, or how many.
        reason: String,
    },
    /// Backends of a world with another mesh than the configuration requests.
    #[error(
        "the configuration's mesh is {configured} that sum in levels of {:?}, but the backends were made for {of_backends} that sum in levels of {:?} ({device}); make them for Config::mesh_of, or set mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp, mesh.ep, mesh.ep_shard, mesh.optimizer_instances and mesh.levels to theirs",
        configured.levels().blocks(),
        of_backends.levels().blocks()
    )]
    Mesh {
        /// What the configuration requests.
        configured: Mesh,
        /// Of the backends.
        of_backends: Mesh,
        /// What they run on.
        device: String,
    },
    /// The host has no memory for the bytes that go into or come out of a buffer.
    #[error(
        "the host has no {bytes} bytes for `{buffer}` of program `{program}`; use smaller inputs and outputs, or fewer ranks in one process"
    )]
    HostMemory {
        /// The program.
        program: String,
        /// The buffer.
        buffer: String,
        /// Its size.
        bytes: usize,
    },
    /// A choice of the configuration that the backend cannot carry out.
    #[error("{key} is \"{value}\": {reason}")]
    Unsupported {
        /// The configuration key.
        key: &'static str,
        /// Its value.
        value: &'static str,
        /// Why not, and what to use.
        reason: &'static str,
    },
    /// A session without programs or backends, or with a program twice.
    #[error("cannot start a session: {reason}")]
    Start {
        /// What is missing.
        reason: String,
    },
    /// A model with weights, and no word on what their masters begin with.
    #[error(
        "nothing says what `{weight}` and the other weights begin with; choose by SessionBuilder::initialize: initial::normal or a closure for new ones, PretrainedFiles::initializer (to try_initialize) for those of files, or initial::zeros where zeros are meant or a checkpoint is imported before the first step"
    )]
    NotInitialized {
        /// The first weight.
        weight: String,
    },
    /// A learning rate, a weight decay or a beta that is none.
    #[error("{given} is no {name}; it must be {range}")]
    Hyperparameter {
        /// Which it was to be.
        name: &'static str,
        /// The value given.
        given: f32,
        /// What it may be.
        range: &'static str,
    },
    /// A pattern that matches no weight that trains.
    #[error(
        "`{pattern}` matches no weight that trains, which are {trains}; name some of them, with `*` for any characters"
    )]
    NoWeight {
        /// The pattern.
        pattern: String,
        /// The first weights that train.
        trains: String,
    },
    /// A loss scale that cannot be undone.
    #[error(
        "{given} is no loss scale; it must be above 0 and so far from the ends of 32-bit floating point that one over it can be represented"
    )]
    LossScale {
        /// The value given.
        given: f32,
    },
    /// Gradients are accumulated, and what was requested would lose them, make the sum wrong or leave it without an
    /// end.
    #[error("gradients of {steps} steps are accumulated: {refused}")]
    Accumulating {
        /// Of how many steps.
        steps: u32,
        /// What would go wrong, and what to do.
        refused: &'static str,
    },
    /// Gradients of a program are to be accumulated that was not declared for it.
    #[error(
        "program `{program}` was not declared to accumulate gradients over several steps; declare it by `StepProgram::accumulating`, so that the session plans for it"
    )]
    NotAccumulating {
        /// The program.
        program: String,
    },
    /// No such program.
    #[error("no program is named `{}`; the session has: {declared}", shown(name))]
    NoProgram {
        /// The name requested.
        name: String,
        /// The names that exist.
        declared: String,
    },
    /// No such input.
    #[error(
        "program `{program}` has no input `{}`; {}, or declare it by `ProgramBuilder::input`",
        shown(buffer),
        named("its inputs are", declared)
    )]
    NoInput {
        /// The program.
        program: String,
        /// The name requested.
        buffer: String,
        /// The names that exist.
        declared: Vec<String>,
    },
    /// An input that nobody has written yet.
    #[error(
        "program `{program}` reads input `{buffer}`, which was never written on {rank}; write it by Session::write_input before its first step (zeros, if that is what it is to hold); where there are other processes, they wait in that step until their deadline_s"
    )]
    InputNotWritten {
        /// The program.
        program: String,
        /// The rank.
        rank: RankId,
        /// The input.
        buffer: String,
    },
    /// A rank that the world does not have.
    #[error("there is no {rank}; the session has {ranks} ranks, counted from 0")]
    NoRank {
        /// The rank requested.
        rank: RankId,
        /// Ranks of the world.
        ranks: u32,
    },
    /// A rank of another process, or in virtual time any but rank 0.
    #[error(
        "{rank} is not of this process, which owns {own}: in each process, write the inputs of its own ranks and ask about them; in virtual time, rank 0 stands for all"
    )]
    Elsewhere {
        /// The rank.
        rank: RankId,
        /// The ranks of this process.
        own: String,
    },
    /// A whole checkpoint was requested, and this process has a part of the ranks.
    #[error(
        "this process owns a part of the ranks; call `Session::export_to_first` in every process, which gives the checkpoint to that of rank 0, or `Session::save_parts`, by which each writes its own part"
    )]
    Partial,
    /// Weights of a session in virtual time, which has none.
    #[error(
        "a session in virtual time {does} no weights: one rank is driven for all, and nothing is computed; ask a session that runs on the CPU or on GPUs"
    )]
    VirtualTime {
        /// What it does not do with them.
        does: &'static str,
    },
    /// The processes could not meet.
    #[error(transparent)]
    Rendezvous(#[from] warpweft_backend::rendezvous::RendezvousError),
    /// No such output.
    #[error(
        "program `{program}` has no output `{}`; {}, or declare it by `ProgramBuilder::output`",
        shown(buffer),
        named("its outputs are", declared)
    )]
    NoOutput {
        /// The program.
        program: String,
        /// The name requested.
        buffer: String,
        /// The names that exist.
        declared: Vec<String>,
    },
    /// Another element type than declared.
    #[error(
        "`{buffer}` of program `{program}` is declared in {declared}, not in {requested}; pass or request {declared}, declare it in {requested}, or take its bytes as they are by Session::write_input_bytes or StepReport::output_bytes"
    )]
    Element {
        /// The program.
        program: String,
        /// The buffer.
        buffer: String,
        /// What the program declares.
        declared: ElementType,
        /// What the user passed or requested.
        requested: ElementType,
    },
    /// The mean of an output that is more than one value.
    #[error(
        "output `{buffer}` of program `{program}` has {elements} elements, and a mean is taken of one f32 per micro-batch; take StepReport::output of every rank and reduce it as it is meant"
    )]
    NoMean {
        /// The program.
        program: String,
        /// The buffer.
        buffer: String,
        /// Its elements in one micro-batch.
        elements: usize,
    },
    /// Another number of bytes than declared.
    #[error(
        "input `{buffer}` of program `{program}` was given {given} bytes for {rank} and holds {expected}: {elements} element{} of {element}{}",
        if *elements == 1 { "" } else { "s" },
        if *micro_batches > 1 {
            format!(" for each of {micro_batches} micro-batches; pass the values of all micro-batches")
        } else {
            String::new()
        }
    )]
    InputSize {
        /// The program.
        program: String,
        /// The rank.
        rank: RankId,
        /// The buffer.
        buffer: String,
        /// Bytes given.
        given: usize,
        /// Bytes declared.
        expected: usize,
        /// Elements of one micro-batch.
        elements: usize,
        /// Their type.
        element: ElementType,
        /// Micro-batches of the program.
        micro_batches: u32,
    },
    /// A closure failed; the step changed no weight on any rank.
    #[error(
        "{}{}",
        closure_failed(*step, *rank, call, message, *panicked),
        if panicked.is_some() { "; the session is poisoned and runs no more steps, but `Session::export` still gives the weights" } else { "" }
    )]
    Closure {
        /// The step.
        step: u64,
        /// The rank whose closure failed first.
        rank: RankId,
        /// The call it was carrying out.
        call: String,
        /// What it said.
        message: String,
        /// The rank whose closure panicked first, if any did, in this call or a later one of the step: the session is
        /// poisoned then, and gives its weights.
        panicked: Option<RankId>,
    },
    /// A step left a master or a moment that is not finite, as it is kept or, of a master, as it is cast: no training
    /// goes on from it. No later step runs and nothing is exported until an import has put other weights in place.
    #[error(
        "{}; no training goes on from that, so the session runs no step and exports nothing until `Session::import` brings the last good checkpoint, or `Session::import_parts` one in parts; then lower the learning rate or let it warm up, clip gradients (optimizer.max_norm), and look at optimizer.weight_decay and optimizer.eps",
        described(*step, *rank, value.as_ref())
    )]
    Diverged {
        /// The step.
        step: u64,
        /// The first rank that holds such a value; without `value`, the first that noticed.
        rank: RankId,
        /// The first of its values; `None` if no rank found one among its own, or would have looked too long.
        value: Option<StrayValue>,
    },
    /// As many steps in a row were skipped as `optimizer.max_skipped` says, none of them under a loss scale: nothing is
    /// learned any more. No weight was changed, and the session can go on; every further step that is skipped is an
    /// error too.
    #[error(
        "step {step} was skipped{}: {}; no weight was changed on any rank. {}",
        if *steps == 1 { String::new() } else { format!(", as were the {} before it", steps - 1) },
        why(*norm, gradient.as_ref()),
        NOTHING_LEARNED
    )]
    Skipped {
        /// The step.
        step: u64,
        /// How many steps were skipped one after the other, with this one.
        steps: u32,
        /// The norm as computed.
        norm: f32,
        /// The gradient because of which this step was skipped, where one is not finite.
        gradient: Option<NonFiniteGradient>,
    },
    /// Two ranks hold other values of the same rows. Nothing was changed, and the session can go on.
    #[error(
        "after {steps} step{}, {rank} and {other} hold different {list}s of the same rows of `{weight}`: ranks no longer train one model. Import a checkpoint that was saved while they did, and look for what may differ between ranks: a custom optimizer that adds up in no fixed order or goes by the rank, or memory that fails",
        if *steps == 1 { "" } else { "s" }
    )]
    ReplicasDiffer {
        /// Steps of this session so far.
        steps: u64,
        /// The weight's name.
        weight: String,
        /// Which values.
        part: StatePart,
        /// In a word: a master, a moment, or a state of a custom optimizer.
        list: &'static str,
        /// One of them.
        rank: RankId,
        /// The other.
        other: RankId,
    },
    /// A step whose future was dropped ended in an error that nobody saw. The call that reports it
    /// did nothing else.
    #[error(
        "what was asked now was not done{}, because the step whose future was dropped failed: {}",
        .0.advice_to_ask(),
        .0
    )]
    DroppedStep(#[source] Box<SessionError>),
    /// A step whose future was dropped ended in an error that nobody saw before the session was closed, which it is.
    #[error(
        "the session is closed; its last step, whose future was dropped, had failed: {}",
        .0.of_a_closed_session()
    )]
    LastStep(#[source] Box<SessionError>),
    /// The session can run no further steps.
    #[error(
        "the session is poisoned and runs no more: {reason}; start a new one, and import {}",
        if *exports { "what `Session::export` still gives" } else { "the last checkpoint if there is one" }
    )]
    Poisoned {
        /// What happened.
        reason: String,
        /// Does it still give its weights? A closure panicked then, and nothing else happened.
        exports: bool,
    },
    /// A checkpoint that does not fit.
    #[error("cannot import: {}; nothing was changed", shown_text(reason))]
    Import {
        /// What differs.
        reason: String,
        /// Of a sharded checkpoint, what its first rank that refuses says; `reason` has its words. `None` of a whole
        /// checkpoint, and where processes read different ones.
        source: Option<CheckpointError>,
    },
    /// A sharded checkpoint that was not saved.
    #[error(
        "the checkpoint was not saved, because {rank} could not: {source}{}",
        dropped.map(|now| format!(" (this is said of the save whose future was dropped; {now})")).unwrap_or_default()
    )]
    Parts {
        /// The first rank that could not.
        rank: RankId,
        /// Why, and what to do. It is [`CheckpointError::OtherRank`] if the rank is of another process.
        source: CheckpointError,
        /// Of a save whose future was dropped: what became of what was asked now. `None` of the save that was awaited.
        dropped: Option<&'static str>,
    },
    /// A save in the background failed; the session may go on. Nothing of it is left, but where its reason is that it
    /// is [in doubt](CheckpointError::InDoubt).
    #[error(
        "the save in the background {what} failed: {source}{}",
        now.map(|now| format!(" ({now})")).unwrap_or_default()
    )]
    BackgroundSave {
        /// Where it went.
        what: String,
        /// Why, and what to do.
        source: Box<CheckpointError>,
        /// What became of what was asked when this was said.
        now: Option<&'static str>,
    },
    /// The trace could not be made or written.
    #[error("trace `{}`: {}", shown_path(path.as_ref()), shown_text(reason))]
    Trace {
        /// Where it should go.
        path: String,
        /// What went wrong.
        reason: String,
    },
}

warpweft_base::debug_in_words!(SessionError);

/// What to do where steps are skipped one after the other.
const NOTHING_LEARNED: &str = "Look at what that call computes and at its inputs; lower the learning rate or let it warm \
                               up; or, if gradients are meant to overflow at times, set a loss scale \
                               (`Session::set_loss_scale`) or raise optimizer.max_skipped";

/// A list of names for a message, after its opening words.
fn named(opening: &str, names: &[String]) -> String {
    match names {
        [] => "it has none".to_owned(),
        names => format!("{opening} {}", listed("`", names)),
    }
}
