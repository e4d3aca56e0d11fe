//! Planning errors.

use super::VerifyError;
use crate::model::{BufferSpec, CollectiveKind};
use crate::policy::ByteSize;
use warpweft_format::ElementType;

/// A program that cannot be planned as asked. Nothing was reserved or run.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The transient bytes do not fit the budget.
    #[error(
        "program `{program}`: {} {} of transient memory per rank, but memory.budget is {}; the fullest moment is {fullest}; {}set memory.budget to \"{}\" or more",
        prefetch.as_ref().map_or_else(|| "it needs".to_owned(), |prefetch| format!("{prefetch} needs")),
        ByteSize::of(*needed).in_full(),
        ByteSize::of(*budget).in_full(),
        if *can_prefetch_less { "prefetch less or " } else { "" },
        ByteSize::of(*needed).rounded_up()
    )]
    Budget {
        /// The program.
        program: String,
        /// When gathers were to start; none where nothing is gathered, as in the prologue.
        prefetch: Option<String>,
        /// Would later gathers need less? Not of the policy that is "auto": with too little memory it takes the
        /// timetable of fewest bytes.
        can_prefetch_less: bool,
        /// Bytes the plan gets along with, if tasks wait for memory: as a budget they are enough.
        needed: usize,
        /// Bytes allowed.
        budget: usize,
        /// The task at which most bytes are live, and the largest slots that are live then.
        fullest: String,
    },
    /// Too few bytes to gather anything ahead, or for what must be there at once.
    #[error(
        "prefetch.bytes is {}, but {needs} {} of gathered planes at once; set prefetch.bytes to at least {needed}, or prefetch.depth = 0 to gather on demand",
        ByteSize::of(*limit).in_full(),
        ByteSize::of(*needed).in_full()
    )]
    Prefetch {
        /// What takes the bytes, with its verb: a call, its weights, and what is kept for later calls or
        /// gathered for the next.
        needs: String,
        /// The bytes it takes.
        needed: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// A hand schedule that does not go with the program.
    #[error("the hand schedule of program `{program}` {problem}")]
    Schedule {
        /// The program.
        program: String,
        /// What is wrong with it, and what is expected.
        problem: String,
    },
    /// More bytes than an arena can have, by themselves or together with what was placed before.
    #[error(
        "{what} would take the arena beyond {}, which no memory can hold; use smaller weights or buffers, or check how their sizes are computed",
        ByteSize::of(*limit).in_full()
    )]
    TooLarge {
        /// The slot, with whose bytes the limit was passed.
        what: String,
        /// The most bytes an arena can have.
        limit: usize,
    },
    /// Two programs disagree on a carried buffer.
    #[error(
        "buffer `{buffer}` is carried by `{first}` with {first_elements} elements of {first_type} and by `{second}` with {second_elements} of {second_type}; carried buffers of one name are one buffer, so give them one size and type"
    )]
    Carried {
        /// The buffer's name.
        buffer: String,
        /// A program.
        first: String,
        /// Its elements there.
        first_elements: usize,
        /// Their type.
        first_type: ElementType,
        /// Another program.
        second: String,
        /// Its elements there.
        second_elements: usize,
        /// Their type.
        second_type: ElementType,
    },
    /// Masters are to be split into bf16 weight and remainder, but a sharded weight is not bf16.
    #[error(
        "optimizer.masters is \"bf16_remainder\", but `{weight}` is sharded as {format}, and only a bf16 shard can be the upper half of its master; give the weight the format bf16, or set optimizer.masters to \"f32\""
    )]
    Masters {
        /// The weight's name.
        weight: String,
        /// Its format.
        format: String,
    },
    /// Adam is to update a weight whose matrix a custom optimizer is to get whole.
    #[error(
        "`{weight}` is to be updated as a whole matrix (whole_matrix), which Adam does not do; give the session a custom optimizer that does (SessionBuilder::optimizer), or take whole_matrix from the weight"
    )]
    WholeMatrix {
        /// The weight's name.
        weight: String,
    },
    /// Tensor parallelism and a weight do not fit each other.
    #[error("with mesh.tp = {tp}, `{weight}` {problem}")]
    TensorParallel {
        /// The weight's name.
        weight: String,
        /// Ranks of a tensor-parallel group.
        tp: u32,
        /// What does not fit, and what would.
        problem: String,
    },
    /// Expert parallelism and a weight do not fit each other.
    #[error("with mesh.ep = {ep}, `{weight}` {problem}")]
    ExpertParallel {
        /// The weight's name.
        weight: String,
        /// Ranks of an expert-parallel group.
        ep: u32,
        /// What does not fit, and what would.
        problem: String,
    },
    /// Weights of a scale group cannot have one scale of the tensor.
    #[error("scale group `{group}`: {problem}")]
    ScaleGroup {
        /// Its name.
        group: String,
        /// Which weights do not fit each other, and what would.
        problem: String,
    },
    /// Scales are to be delayed, but no weight that trains has one scale for the whole tensor.
    #[error(
        "quantize.scaling is \"delayed\", but no weight that trains has a per-tensor FP8 format (of weights that train: {formats}); give one the format fp8_tensor_e4m3, or set quantize.scaling to \"current\""
    )]
    Scaling {
        /// The formats of weights that train.
        formats: String,
    },
    /// A gradient written in bf16 would be added to others on its rank.
    #[error(
        "program `{program}`: call `{call}` writes the gradient of `{weight}` in bf16, and with reduce_every = \"{reduce_every}\" it would be added to others on the rank, which is done in f32; set reduce_every to \"call\", or let the call write the gradient in f32"
    )]
    GradientSum {
        /// The program.
        program: String,
        /// The call.
        call: String,
        /// The weight's name.
        weight: String,
        /// What is configured.
        reduce_every: &'static str,
    },
    /// The buffers of a collective are not of the sizes that its ranks need.
    #[error(
        "program `{program}`: collective `{call}` ({kind}) among {ranks} ranks gives `{}` of {} elements and gets `{}` of {}; {}",
        from.name, from.elements, to.name, to.elements,
        match kind.received(from.elements, *ranks) {
            Some(wanted) => format!("declare `{}` with {wanted}", to.name),
            None if *kind == CollectiveKind::AllToAll => format!("declare both with a multiple of {ranks}"),
            None if kind.has_parts() => format!("declare `{}` with a multiple of {ranks}", from.name),
            None => "these are too many elements to count; declare fewer".to_owned(),
        }
    )]
    Collective {
        /// The program.
        program: String,
        /// The collective's name.
        call: String,
        /// What it does.
        kind: CollectiveKind,
        /// Ranks of its group.
        ranks: u32,
        /// The buffer that ranks give.
        from: Box<BufferSpec>,
        /// The buffer that ranks get.
        to: Box<BufferSpec>,
    },
    /// The buffers of a dispatch are not of the sizes that its ranks need.
    #[error(
        "program `{program}`: dispatch `{call}` among {ranks} ranks has slots of {capacity} rows, but `{}` has {} elements; declare it with {wanted}",
        buffer.name, buffer.elements
    )]
    Counts {
        /// The program.
        program: String,
        /// The collective's name.
        call: String,
        /// Ranks of its group.
        ranks: u32,
        /// Rows for which a slot has room.
        capacity: usize,
        /// The buffer that does not fit.
        buffer: Box<BufferSpec>,
        /// How many elements it should have, in words.
        wanted: Box<str>,
    },
    /// A policy value out of range.
    #[error("{key} is {value}; {advice}")]
    Policy {
        /// The configuration key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        advice: &'static str,
    },
    /// A program whose weights are not those the layout was made for.
    #[error(
        "program `{program}` was declared over other weights than the session's: {difference}; declare all programs over one model, and apply the rules of the configuration to it once"
    )]
    OtherModel {
        /// The program.
        program: String,
        /// The first weight that differs, and in what.
        difference: String,
    },
    /// The finished plan broke a law: a fault of a planner pass.
    #[error("the planner made an unsafe plan and it was refused: {0}; please report it with the program")]
    Unsafe(#[from] Box<VerifyError>),
}

warpweft_base::debug_in_words!(PlanError);
