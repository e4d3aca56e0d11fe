//! Errors of a declaration.

use crate::model::{CollectiveKind, Segments, TensorParallel, WeightSpec};
use warpweft_base::errors::{LONGEST_NAME, shown, shown_text};
use warpweft_format::{ElementType, FormatError};

/// A declaration that cannot be planned. Nothing was added to the model or program.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum DeclareError {
    /// Two weights, buffers or calls share a name.
    #[error("{kind} `{name}` is declared twice; give each {kind} its own name")]
    Duplicate {
        /// `weight`, `buffer` or `call`.
        kind: &'static str,
        /// The name in question.
        name: String,
    },
    /// A name without a letter.
    #[error("a {kind} has an empty name; give it one, by which errors, traces and checkpoints can name it")]
    Unnamed {
        /// `weight`, `group`, `buffer`, `call` or `program`.
        kind: &'static str,
    },
    /// A name that no message could show as it is: too long, or with characters that steer a terminal.
    #[error(
        "a {kind} is named `{name}`; give it a name of at most {LONGEST_NAME} characters, all of them printable"
    )]
    Name {
        /// `weight`, `group`, `buffer`, `call` or `program`.
        kind: &'static str,
        /// Its name, escaped and cut.
        name: String,
    },
    /// A call, import or input names something nobody declared.
    #[error("no {kind} is named `{}`; declared are: {declared}", shown(name))]
    Unknown {
        /// `weight`, `buffer`, `call`, `dispatch` or `program`.
        kind: &'static str,
        /// The name requested.
        name: String,
        /// The names that exist, the first of them.
        declared: String,
    },
    /// The id of a weight or group of another model, or of a buffer of another program, whose number one here has.
    #[error(
        "{} names {id} of another {owner}; in this one that is `{named}`. Take the id that the builder of this {owner} gave",
        shown_text(by)
    )]
    OtherOwner {
        /// Where it is named: a call with its program, a group, or a function.
        by: String,
        /// The kind and number of the id.
        id: String,
        /// `model` or `program`.
        owner: &'static str,
        /// What has that number here.
        named: String,
    },
    /// A dimension or element count is zero.
    #[error("{kind} `{name}` has no elements; every dimension must be at least 1")]
    Empty {
        /// `weight` or `buffer`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// A buffer of more bytes than can be addressed.
    #[error(
        "buffer `{buffer}` has {elements} elements, more than can be addressed; check how its size is computed"
    )]
    TooLarge {
        /// Its name.
        buffer: String,
        /// Elements requested.
        elements: usize,
    },
    /// A size of a [`Decoder`](super::Decoder) that its other sizes do not allow.
    #[error("`{size}` of decoder `{}` is {is}; set it to {needs}", shown(decoder))]
    Size {
        /// The decoder's name.
        decoder: String,
        /// The field in question.
        size: &'static str,
        /// What it is.
        is: usize,
        /// What would fit.
        needs: String,
    },
    /// The format cannot hold this weight.
    #[error("weight `{weight}`: {reason}")]
    Format {
        /// The weight's name.
        weight: String,
        /// What the format needs.
        reason: FormatError,
    },
    /// A replicated weight in a quantized format.
    #[error(
        "weight `{weight}` is replicated, and replicated weights are kept in f32, not {format}; declare it as f32 or shard it"
    )]
    ReplicatedFormat {
        /// The weight's name.
        weight: String,
        /// The format requested.
        format: String,
    },
    /// Segments of a fused weight that are not its rows, or of a weight that is not column parallel.
    #[error(
        "weight `{weight}` has {rows} rows{}, and segments of {given:?}; give the rows of the 1 to {most} matrices that a column-parallel weight stacks, which add up to {rows}",
        if *is_column_parallel { "" } else { " and is not column parallel (tensor_parallel = \"column\")" }
    )]
    Segments {
        /// The weight's name.
        weight: String,
        /// Its rows.
        rows: usize,
        /// The rows of the segments.
        given: Vec<usize>,
        /// Whether tensor parallelism cuts rows of it.
        is_column_parallel: bool,
        /// [`Segments::MOST`](super::Segments::MOST).
        most: usize,
    },
    /// A replicated weight in a group.
    #[error(
        "weight `{weight}` is replicated and never gathered, so it cannot be a member of group `{group}`; shard it or leave it out"
    )]
    ReplicatedGroup {
        /// The weight's name.
        weight: String,
        /// The group's name.
        group: String,
    },
    /// A group of no weights.
    #[error("group `{group}` has no members; name the weights that travel together, or leave the group out")]
    NoMembers {
        /// The group's name.
        group: String,
    },
    /// A weight in two groups, or twice in one.
    #[error(
        "weight `{weight}` is named as a member of group `{first}` and again of `{second}`; a weight has one group at most"
    )]
    TwoGroups {
        /// The weight's name.
        weight: String,
        /// The group it is in.
        first: String,
        /// The group it was to join.
        second: String,
    },
    /// A use of a replicated weight that would need a transposed or quantized copy.
    #[error(
        "call `{call}` requests {what} of the replicated weight `{weight}`; replicated weights are read rowwise and dense, where they lie: use it so, or shard it (if the code shards it, a rule under `weights` of the configuration with placement = \"replicated\" matches it: leave `{weight}` out of that rule)"
    )]
    ReplicatedUse {
        /// The call's name.
        call: String,
        /// The weight's name.
        weight: String,
        /// What was requested.
        what: &'static str,
    },
    /// A reuse that was decided before a use was named.
    #[error(
        "call `{call}` says `reuse` before it names a use; say it after the use whose planes it is about"
    )]
    ReuseOfNothing {
        /// The call's name.
        call: String,
    },
    /// A gradient in an element type that gradients are not written in.
    #[error(
        "call `{call}` writes the gradient of `{weight}` in {element}; gradients are written in f32 or bf16"
    )]
    GradientElement {
        /// The call's name.
        call: String,
        /// The weight's name.
        weight: String,
        /// The element type requested.
        element: ElementType,
    },
    /// A gradient of a replicated weight that is not in f32.
    #[error(
        "call `{call}` writes the gradient of the replicated weight `{weight}` in bf16; gradients of replicated weights are added on each rank and never rounded, so declare it in f32 or shard the weight (which a rule under `weights` of the configuration may have made replicated)"
    )]
    ReplicatedGradient {
        /// The call's name.
        call: String,
        /// The weight's name.
        weight: String,
    },
    /// A gradient of a weight that does not train.
    #[error(
        "call `{call}` writes the gradient of `{weight}`, which is frozen; leave the gradient out (CallBuilder::gradient_if_trained does), or let the weight train: the code or a rule under `weights` of the configuration freezes it"
    )]
    FrozenGradient {
        /// The call's name.
        call: String,
        /// The weight's name.
        weight: String,
    },
    /// A columnwise use of a format whose columnwise planes cannot be made.
    #[error("call `{call}` uses `{weight}` columnwise: {reason}")]
    Columnwise {
        /// The call's name.
        call: String,
        /// The weight's name.
        weight: String,
        /// Why the format refuses.
        reason: FormatError,
    },
    /// A call reads a buffer before any call or input wrote it.
    #[error(
        "call `{call}` reads buffer `{buffer}`, which no earlier call writes and which is neither an input nor carried; write it first or declare it as an input"
    )]
    ReadBeforeWrite {
        /// The call's name.
        call: String,
        /// The buffer's name.
        buffer: String,
    },
    /// A call writes an input buffer.
    #[error(
        "call `{call}` writes buffer `{buffer}`, which is an input; inputs are written by the user between steps"
    )]
    WritesInput {
        /// The call's name.
        call: String,
        /// The buffer's name.
        buffer: String,
    },
    /// A call names one buffer or gradient twice.
    #[error("call `{call}` names {kind} `{name}` twice; one access of the strongest kind is enough")]
    RepeatedAccess {
        /// The call's name.
        call: String,
        /// `buffer` or `gradient`.
        kind: &'static str,
        /// The name in question.
        name: String,
    },
    /// A collective from a buffer to itself, which other ranks may still read when it is overwritten.
    #[error("collective `{call}` reads and overwrites buffer `{buffer}`; let it write another one")]
    CollectiveInPlace {
        /// The collective's name.
        call: String,
        /// The buffer's name.
        buffer: String,
    },
    /// Rows and their counts do not belong together ([`Counts`](crate::model::Counts)).
    #[error("call `{call}` {problem}; {advice}")]
    Counts {
        /// The call's name.
        call: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        advice: &'static str,
    },
    /// A collective between buffers of two element types, or of values that are not combined.
    #[error(
        "`{call}` is a collective ({kind}) from buffer `{from}` of {from_type} to `{to}` of {to_type}; {}",
        if kind.combines() { "values of ranks are combined in f32: declare both as f32, or both as bf16" } else { "declare both with one element type" }
    )]
    CollectiveElement {
        /// The collective's name.
        call: String,
        /// What it does.
        kind: CollectiveKind,
        /// The buffer that ranks give.
        from: String,
        /// Its element type.
        from_type: ElementType,
        /// The buffer that ranks get.
        to: String,
        /// Its element type.
        to_type: ElementType,
    },
    /// An input nobody reads.
    #[error(
        "input `{buffer}` of program `{program}` is read by no call; read it or drop it, for its steps would ask the user to write it"
    )]
    InputNeverRead {
        /// The program's name.
        program: String,
        /// The buffer's name.
        buffer: String,
    },
    /// An activation that no call of a training program reads: what forward calls alone access, and only write.
    #[error(
        "buffer `{buffer}` of program `{program}` is read by no call; read it, declare it as an output (ProgramBuilder::output) if the loop around the steps is to have it, or with Lifetime::Call if it is scratch of one call, or drop it"
    )]
    NeverRead {
        /// The program's name.
        program: String,
        /// The buffer's name.
        buffer: String,
    },
    /// An output nobody writes.
    #[error("output buffer `{buffer}` is written by no call; write it or drop it")]
    OutputNeverWritten {
        /// The buffer's name.
        buffer: String,
    },
    /// A call-lifetime buffer that two calls share.
    #[error(
        "buffer `{buffer}` lives for one call, but `{first}` and `{second}` both access it; declare its lifetime as a step"
    )]
    CallLifetime {
        /// The buffer's name.
        buffer: String,
        /// The first call.
        first: String,
        /// The other call.
        second: String,
    },
    /// A program without calls.
    #[error("program `{program}` has no calls; add at least one")]
    NoCalls {
        /// The program's name.
        program: String,
    },
    /// A program that trains but gives some weight no gradient.
    #[error(
        "program `{program}` updates the weights, but no call writes a gradient of `{weight}`; add one, or build the program without the optimizer"
    )]
    NoGradient {
        /// The program's name.
        program: String,
        /// The weight's name.
        weight: String,
    },
    /// A program that would train, over weights that are all frozen, or over none.
    #[error(
        "program `{program}` sums gradients, but no weight of its model trains; declare one or leave one to train, or build the program as an evaluation"
    )]
    NothingTrains {
        /// The program's name.
        program: String,
    },
    /// A program that writes gradients but has no optimizer to consume them.
    #[error(
        "program `{program}` has no optimizer, but call `{call}` writes a gradient; gradients of such a program would be lost, so leave them out of its calls, or build it by build_training or build_gradients"
    )]
    LostGradient {
        /// The program's name.
        program: String,
        /// The call's name.
        call: String,
    },
    /// A program without an optimizer, for which gradients of several steps would be added up.
    #[error(
        "program `{program}` does not end in an optimizer step, so nothing would use gradients accumulated over several of its steps; build it by build_training"
    )]
    NothingAccumulates {
        /// The program's name.
        program: String,
    },
    /// A step of no micro-batches, or of more than there may be.
    #[error("a step of {count} micro-batches is none; take 1 to {most}")]
    MicroBatches {
        /// Micro-batches requested.
        count: u32,
        /// The most there may be.
        most: u32,
    },
    /// More calls in a step than there may be.
    #[error(
        "program `{program}` runs {calls} calls for each of {micro_batches} micro-batches, more than the {most} a step may have in all; take fewer micro-batches, or fewer and larger calls"
    )]
    TooManyRuns {
        /// The program.
        program: String,
        /// Calls as they were declared.
        calls: usize,
        /// How often a step repeats them.
        micro_batches: u32,
        /// The most there may be ([`StepProgram::MAX_RUNS`](super::StepProgram::MAX_RUNS)).
        most: usize,
    },
    /// A mesh without ranks.
    #[error(
        "there are no ranks to run on; start at least one (start_cpu(1), or on GPUs one device, for each of which there is a rank)"
    )]
    NoRanks,
    /// A mesh of more ranks than [`Mesh::MAX_RANKS`](super::Mesh::MAX_RANKS).
    #[error(
        "a mesh of {ranks} ranks is larger than the {most} there may be; check how the number is computed"
    )]
    TooManyRanks {
        /// Ranks requested.
        ranks: u32,
        /// [`Mesh::MAX_RANKS`](super::Mesh::MAX_RANKS).
        most: u32,
    },
    /// Ranks that cannot be divided among the replicas.
    #[error(
        "{ranks} ranks cannot hold {replicas} replicas of equally many ranks; set mesh.dp_replicate to a divisor of {ranks}, or change the number of ranks"
    )]
    Replicas {
        /// Ranks of the mesh.
        ranks: u32,
        /// Replicas requested.
        replicas: u32,
    },
    /// Axes of a mesh that do not multiply to its ranks.
    #[error(
        "{}dp_shard {dp_shard} × cp {cp} × tp {tp} do not make {ranks} ranks; leave mesh.dp_shard out, which is then what the other axes leave, or change the number of ranks or an axis (mesh.dp_replicate, mesh.dp_shard, mesh.cp, mesh.tp)",
        dp_replicate.map_or_else(String::new, |replicas| format!("dp_replicate {replicas} × "))
    )]
    Axes {
        /// Ranks of the mesh.
        ranks: u32,
        /// Replicas, if they were said.
        dp_replicate: Option<u32>,
        /// Ranks with texts of their own.
        dp_shard: u32,
        /// Ranks of a text.
        cp: u32,
        /// Ranks of a layer.
        tp: u32,
    },
    /// Tensor-parallel groups into which the ranks of a replica cannot be divided.
    #[error(
        "{of_replica} ranks of a replica cannot be divided into tensor-parallel groups of {tensor}; set mesh.tp to a divisor of {of_replica}, or change the number of ranks or mesh.dp_replicate"
    )]
    Tensor {
        /// Ranks of a group.
        tensor: u32,
        /// Ranks of a replica.
        of_replica: u32,
    },
    /// Context-parallel groups into which the shards of a replica cannot be divided.
    #[error(
        "{shards} shards cannot be divided into context-parallel groups of {context}; set mesh.cp to a divisor of {shards}, or change the number of ranks, mesh.dp_replicate or mesh.tp"
    )]
    Context {
        /// Ranks of a group.
        context: u32,
        /// Shards of a replica.
        shards: u32,
    },
    /// Optimizer instances into which replicas cannot be divided.
    #[error(
        "{replicas} replica{}{} cannot be divided into {instances} optimizer instances; set mesh.optimizer_instances to {fewer}, or change mesh.dp_replicate or the number of ranks",
        if *replicas == 1 { "" } else { "s" },
        copies.map_or_else(String::new, |copies| format!(" and {copies} copies of experts"))
    )]
    Instances {
        /// How many there would be.
        instances: u32,
        /// Replicas of the mesh.
        replicas: u32,
        /// Copies of the experts, where these have axes of their own.
        copies: Option<u32>,
        /// What would do.
        fewer: u32,
    },
    /// Axes of experts that do not divide the ranks.
    #[error(
        "{ranks} ranks, {of_replica} of a replica, cannot be divided into expert-parallel groups of {ep}{}; set mesh.{key} to {number}, or change the number of ranks",
        ep_shard.map_or_else(String::new, |shards| format!(" with experts sharded over {shards}"))
    )]
    Experts {
        /// Ranks that share the experts.
        ep: u32,
        /// Ranks that one expert is sharded over, if they were said.
        ep_shard: Option<u32>,
        /// Ranks of the mesh.
        ranks: u32,
        /// Ranks of a replica.
        of_replica: u32,
        /// The axis to change.
        key: &'static str,
        /// What would do.
        number: u32,
    },
    /// Levels that are not made of each other.
    #[error(
        "{given:?} are no levels of a mesh; set mesh.levels to at most {most} numbers of ranks from 2 up, each a multiple of the one before, such as [8] or [8, 128], or to [] for none"
    )]
    LevelsList {
        /// The levels.
        given: Vec<u32>,
        /// [`Levels::MOST`](super::Levels::MOST).
        most: usize,
    },
    /// A level that cuts some group of ranks in pieces of unequal size.
    #[error(
        "blocks of {level} ranks cut {ranks} ranks in {replicas} replicas with tp = {tensor}, ep = {} and ep_shard = {} unevenly; set mesh.levels to numbers that divide the ranks of a replica or are multiples of it, and are multiples or divisors of mesh.tp, of mesh.ep and of ep · ep_shard: the next after {level} is {next}",
        experts.0, experts.1
    )]
    Level {
        /// Ranks of a block.
        level: u32,
        /// Ranks of the mesh.
        ranks: u32,
        /// Replicas of it.
        replicas: u32,
        /// Ranks of a tensor-parallel group.
        tensor: u32,
        /// Ranks that share the experts, and those that one expert is sharded over.
        experts: (u32, u32),
        /// The next number that would do.
        next: u32,
    },
}

impl DeclareError {
    /// [`DeclareError::Segments`] of a weight.
    pub(super) fn segments(spec: &WeightSpec, given: Vec<usize>, how: Option<TensorParallel>) -> Self {
        Self::Segments {
            weight: spec.name.clone(),
            rows: spec.shape.rows,
            given,
            is_column_parallel: how == Some(TensorParallel::ColumnParallel),
            most: Segments::MOST,
        }
    }
}

warpweft_base::debug_in_words!(DeclareError);
