//! The content of a slot, as a symbol.
//!
//! Law: a symbol says everything an op may rely on and nothing about numbers. Two slots with equal
//! symbols hold equal bytes, for every run of the plan with a clean vote.

use std::collections::BTreeSet;

use crate::layout::{Content, RoundStage};
use crate::op::WireType;
use crate::plan::StepPlan;
use warpweft_base::id::{
    BucketId, BufferId, CallId, LevelId, MicroBatchId, SlotId, StateId, TaskId, Version, WeightId,
};
use warpweft_format::{ElementType, Orientation};

/// Where the present value of a buffer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferValue {
    /// The user staged it before the step, for this micro-batch.
    Staged(MicroBatchId),
    /// The step before left it; zeros before the first.
    Carried,
    /// This call wrote it.
    Written(CallId),
}

/// The symbolic content of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// No task of the step wrote it.
    Nothing,
    /// Another slot's content lies in some of its bytes now.
    Overwritten { by: Option<TaskId>, through: SlotId },
    /// What some earlier step left.
    Stale,
    /// FP32 master of a weight.
    Master(WeightId, Version),
    /// The lower half of a weight's master; the upper is its shard.
    MasterRemainder(WeightId, Version),
    /// A list of optimizer state of a weight.
    State(WeightId, StateId, Version),
    /// A rank's quantized rows; data and scale plane are written by different ops.
    Shard { weight: WeightId, orientation: Orientation, data: Option<Version>, scale: Option<Version> },
    /// The slices of a shard that the other replicas have; this rank's own is not there.
    Publishing(WeightId, Orientation, Version),
    /// A whole shard, all of its slices.
    Published(WeightId, Orientation, Version),
    /// Tensor scales of a bucket.
    TensorScale(BucketId, Version),
    /// Amaxes of the blocks of a bucket.
    BlockAmax(BucketId, Version),
    /// Amaxes of this rank's rows of a bucket.
    LocalAmax(BucketId, Version),
    /// Amaxes of a bucket over all ranks.
    ReducedAmax(BucketId, Version),
    /// Encode factors of a bucket.
    Encode(BucketId, Version),
    /// Amaxes of a bucket, up to those of the masters of a version.
    AmaxHistory(BucketId, Version),
    /// Factors for the cast of a bucket's masters of a version, where scaling is delayed.
    DelayedScale(BucketId, Version),
    /// Planes of a whole weight, gathered and assembled.
    Gathered(WeightId, Orientation, Version),
    /// Those of which the first bytes of every other rank's shard are there.
    Gathering { weight: WeightId, orientation: Orientation, version: Version, bytes: usize },
    /// Those of which every other rank's whole shard is there; the rank's own, padding and spread scales are not.
    Arrived(WeightId, Orientation, Version),
    /// Columnwise planes derived from rowwise ones.
    Transposed(WeightId, Version),
    /// A dequantized weight, in f32 or bf16.
    Dense(WeightId, Orientation, ElementType, Version),
    /// A gradient slot of which only the padding rows are written, with zeros.
    Padding(WeightId),
    /// The full gradient a call wrote, or the sum of those of several; are its padding rows zero?
    Gradient { weight: WeightId, calls: BTreeSet<CallId>, padded: bool },
    /// That in bf16, its padding rows zero: rounded, or as a call wrote it.
    WireGradient(WeightId, BTreeSet<CallId>),
    /// That in MXFP8, its padding rows zero.
    QuantizedGradient(WeightId, BTreeSet<CallId>),
    /// The other ranks' slices for this rank of what these calls made, in the type that travelled,
    /// its padding rows zero.
    ReceivedGradient(WeightId, BTreeSet<CallId>, WireType),
    /// What a call wrote in bf16, its padding rows not zero yet.
    Unpadded(WeightId, CallId),
    /// What these calls made, summed over this rank's block of a level, in the type in which it travels on.
    PartialGradient(WeightId, BTreeSet<CallId>, LevelId, WireType),
    /// The other ranks' slices for this rank of such sums of the level before, to be summed at this one.
    ReceivedPartial(WeightId, BTreeSet<CallId>, LevelId, WireType),
    /// This rank's rows of that, summed over the ranks of its replica.
    ReducedGradient(WeightId, BTreeSet<CallId>),
    /// Those rows, summed over the replicas too.
    SummedGradient(WeightId, BTreeSet<CallId>),
    /// A rank's own sum of these calls' gradients.
    LocalSum(WeightId, BTreeSet<CallId>),
    /// Those of all ranks of this rank's block of a level, summed.
    BlockSum(WeightId, BTreeSet<CallId>, LevelId),
    /// The main grad: the sum of these calls' gradients over all ranks.
    MainGrad(WeightId, BTreeSet<CallId>),
    /// Squares of the main grad as it was when it was the sum of these.
    Squares(WeightId, BTreeSet<CallId>),
    /// A round of matrices.
    Round { weights: Vec<WeightId>, stage: RoundStage },
    /// The fault word, having seen this many calls since it was cleared.
    FaultWord { calls: usize },
    /// This rank's norm and fault record of the step.
    Record,
    /// All ranks' records of the step.
    Records,
    /// The vote of the step.
    Vote,
    /// What the optimizer goes by in the step.
    Hyperparameters,
    /// The loss scale of the step.
    LossScale,
    /// What main grads are a multiple of at the end of the step.
    GradientScale,
    /// The optimizer's step count, counted on by this many votes.
    OptimizerStep { votes: u32 },
    /// A buffer, in its own slot or in staging.
    Buffer(BufferId, BufferValue),
}

impl Held {
    /// May this be written into a slot declared for `content`?
    pub(super) fn belongs_in(&self, content: Content) -> bool {
        match self {
            Self::Nothing | Self::Overwritten { .. } | Self::Stale => true,
            Self::Master(weight, _) => content == Content::Master(*weight),
            Self::MasterRemainder(weight, _) => content == Content::MasterRemainder(*weight),
            Self::State(weight, list, _) => content == Content::State(*weight, *list),
            Self::Shard { weight, orientation, .. } => content == Content::Shard(*weight, *orientation),
            Self::Publishing(weight, orientation, _) | Self::Published(weight, orientation, _) => {
                content == Content::Published(*weight, *orientation)
            }
            Self::TensorScale(bucket, _) => content == Content::TensorScale(*bucket),
            Self::BlockAmax(bucket, _) => content == Content::BlockAmax(*bucket),
            Self::LocalAmax(bucket, _) => content == Content::LocalAmax(*bucket),
            Self::ReducedAmax(bucket, _) => content == Content::ReducedAmax(*bucket),
            Self::Encode(bucket, _) => content == Content::Encode(*bucket),
            Self::AmaxHistory(bucket, _) => content == Content::AmaxHistory(*bucket),
            Self::DelayedScale(bucket, _) => content == Content::DelayedScale(*bucket),
            Self::Gathered(weight, orientation, _)
            | Self::Gathering { weight, orientation, .. }
            | Self::Arrived(weight, orientation, _) => content == Content::Gathered(*weight, *orientation),
            Self::Transposed(weight, _) => content == Content::Transposed(*weight),
            Self::Dense(weight, orientation, values, _) => {
                content == Content::Dense(*weight, *orientation, *values)
            }
            Self::Padding(weight) => {
                matches!(content, Content::Gradient(other, _) | Content::WireGradient(other, _) if other == *weight)
            }
            Self::Gradient { weight, calls, .. } => {
                matches!(content, Content::Gradient(other, call) if other == *weight && calls.contains(&call))
            }
            Self::WireGradient(weight, calls) => {
                matches!(content, Content::WireGradient(other, call) if other == *weight && calls.contains(&call))
            }
            Self::QuantizedGradient(weight, calls) => {
                matches!(content, Content::QuantizedGradient(other, call) if other == *weight && calls.contains(&call))
            }
            Self::ReceivedGradient(weight, calls, element) => {
                matches!(content, Content::ReceivedGradient(other, call, of) if (other, of) == (*weight, *element) && calls.contains(&call))
            }
            Self::Unpadded(weight, call) => content == Content::WireGradient(*weight, *call),
            Self::PartialGradient(weight, calls, level, element) => {
                matches!(content, Content::PartialGradient(other, call, at, of) if (other, at, of) == (*weight, *level, *element) && calls.contains(&call))
            }
            Self::ReceivedPartial(weight, calls, level, element) => {
                matches!(content, Content::ReceivedPartial(other, call, at, of) if (other, at, of) == (*weight, *level, *element) && calls.contains(&call))
            }
            Self::ReducedGradient(weight, calls) => {
                matches!(content, Content::ReducedGradient(other, call) if other == *weight && calls.contains(&call))
            }
            Self::SummedGradient(weight, calls) => {
                matches!(content, Content::SummedGradient(other, call) if other == *weight && calls.contains(&call))
            }
            Self::LocalSum(weight, _) => content == Content::LocalGrad(*weight),
            Self::BlockSum(weight, _, level) => content == Content::BlockGrad(*weight, *level),
            Self::MainGrad(weight, _) => content == Content::MainGrad(*weight),
            Self::Squares(weight, _) => content == Content::Squares(*weight),
            Self::Round { weights, stage } => {
                weights.first().is_some_and(|first| content == Content::Round(*first, *stage))
            }
            Self::FaultWord { .. } => content == Content::FaultWord,
            Self::Record => content == Content::NormRecord,
            Self::Records => content == Content::NormRecords,
            Self::Vote => content == Content::Vote,
            Self::Hyperparameters => content == Content::Hyperparameters,
            Self::LossScale => content == Content::LossScale,
            Self::GradientScale => content == Content::GradientScale,
            Self::OptimizerStep { .. } => content == Content::OptimizerStep,
            Self::Buffer(buffer, _) => {
                matches!(content, Content::Buffer(other) | Content::Staging(other, _) if other == *buffer)
            }
        }
    }

    /// In words.
    pub(super) fn describe(&self, plan: &StepPlan) -> String {
        let name = |weight: &WeightId| format!("`{}`", plan.weights.layout(*weight).name);
        let call = |call: &CallId| format!("call `{}`", plan.calls[call.index()].label());
        let calls = |calls: &BTreeSet<CallId>| match calls.is_empty() {
            // A sum that a step goes on with begins so.
            true => "no call of this step".to_owned(),
            false => calls.iter().map(call).collect::<Vec<_>>().join(", "),
        };
        match self {
            Self::Nothing => "nothing: no earlier task of the step writes it".into(),
            Self::Overwritten { by, through } => {
                let slot = &plan.arena.slot(*through).name;
                let by = by.map_or("what the step begins with".into(), |task| plan.describe(task));
                format!("nothing any more: {by} overwrote it through slot `{slot}`")
            }
            Self::Stale => "what an earlier step left".into(),
            Self::Gathering { weight, orientation, version, bytes } => {
                let name = name(weight);
                format!(
                    "the first {bytes} bytes of every other rank's {orientation} shard of {name} at {version}"
                )
            }
            Self::Arrived(weight, orientation, version) => {
                let name = name(weight);
                format!(
                    "the other ranks' {orientation} shards of {name} at {version}, not yet assembled with this rank's own"
                )
            }
            Self::Master(weight, version) => format!("the master of {} at {version}", name(weight)),
            Self::MasterRemainder(weight, version) => {
                format!("the master remainder of {} at {version}", name(weight))
            }
            Self::State(weight, list, version) => {
                format!("the {} of {} at {version}", plan.weights.state.in_words(*list), name(weight))
            }
            Self::Shard { weight, orientation, data, scale } => {
                let of = |version: &Option<Version>| {
                    version.map_or("not written yet".into(), |at| format!("at {at}"))
                };
                let planes = match scale {
                    scale if scale == data => of(data),
                    None => of(data),
                    Some(_) => format!("with data {} and scales {}", of(data), of(scale)),
                };
                format!("the {orientation} shard of {} {planes}", name(weight))
            }
            Self::Publishing(weight, orientation, version) => {
                let name = name(weight);
                format!(
                    "the other replicas' slices of the {orientation} shard of {name} at {version}, not yet assembled with this rank's own"
                )
            }
            Self::Published(weight, orientation, version) => {
                format!("the published {orientation} shard of {} at {version}", name(weight))
            }
            Self::TensorScale(bucket, version) => format!("the tensor scales of {bucket} at {version}"),
            Self::BlockAmax(bucket, version) => format!("the block amaxes of {bucket} at {version}"),
            Self::LocalAmax(bucket, version) => format!("this rank's amaxes of {bucket} at {version}"),
            Self::ReducedAmax(bucket, version) => {
                format!("the amaxes of {bucket} over all ranks at {version}")
            }
            Self::Encode(bucket, version) => format!("the encode factors of {bucket} at {version}"),
            Self::AmaxHistory(bucket, version) => format!("the amax history of {bucket} up to {version}"),
            Self::DelayedScale(bucket, version) => {
                format!("the delayed scales of {bucket} for {version}")
            }
            Self::Gathered(weight, orientation, version) => {
                format!("the gathered {orientation} planes of {} at {version}", name(weight))
            }
            Self::Transposed(weight, version) => {
                format!("the derived columnwise planes of {} at {version}", name(weight))
            }
            Self::Dense(weight, orientation, values, version) => {
                let kind = dense_in(*values);
                format!("the {kind} {orientation} values of {} at {version}", name(weight))
            }
            Self::Padding(weight) => {
                format!("zeroed padding rows for a gradient of {}, and no rows", name(weight))
            }
            Self::Gradient { weight, calls: of, padded } => {
                let padding = if *padded { "" } else { ", its padding rows not zeroed" };
                format!("the gradient of {} from {}{padding}", name(weight), calls(of))
            }
            Self::WireGradient(weight, of) => {
                let written = of.iter().any(|call| writes_bf16(plan, *weight, *call));
                let how = if written { "written in bf16" } else { "rounded to bf16" };
                format!("the gradient of {} from {}, {how}", name(weight), calls(of))
            }
            Self::QuantizedGradient(weight, of) => {
                format!("the gradient of {} from {}, rounded to mxfp8", name(weight), calls(of))
            }
            Self::Unpadded(weight, of) => {
                let (name, call) = (name(weight), call(of));
                format!("the gradient of {name} from {call}, written in bf16, its padding rows not zeroed")
            }
            Self::ReceivedGradient(weight, of, element) => {
                format!(
                    "the other ranks' slices in {element} of the gradient of {} from {}",
                    name(weight),
                    calls(of)
                )
            }
            Self::PartialGradient(weight, of, level, element) => {
                let (name, calls) = (name(weight), calls(of));
                format!("the sums of {level} in {element} of the gradient of {name} from {calls}")
            }
            Self::ReceivedPartial(weight, of, level, element) => {
                let (name, calls) = (name(weight), calls(of));
                format!(
                    "the other ranks' sums in {element} of the gradient of {name} from {calls} for {level}"
                )
            }
            Self::ReducedGradient(weight, of) => {
                format!("the reduced gradient of {} from {}", name(weight), calls(of))
            }
            Self::SummedGradient(weight, of) => {
                format!("the gradient of {} from {}, summed over the replicas", name(weight), calls(of))
            }
            Self::LocalSum(weight, of) => {
                format!("this rank's gradient sum of {} over {}", name(weight), calls(of))
            }
            Self::BlockSum(weight, of, level) => {
                format!("the gradient sum of {} over {} of one block of {level}", name(weight), calls(of))
            }
            Self::MainGrad(weight, of) => format!("the main grad of {} over {}", name(weight), calls(of)),
            Self::Squares(weight, of) => {
                format!("the squares of the main grad of {} over {}", name(weight), calls(of))
            }
            Self::Round { weights, stage } => {
                let weights = weights.iter().map(name).collect::<Vec<_>>().join(", ");
                match stage {
                    RoundStage::Prepared => format!("the prepared rows of {weights}"),
                    RoundStage::Gathered => format!("this rank's whole matrix of {weights}"),
                    RoundStage::Transformed => format!("this rank's transformed matrix of {weights}"),
                    RoundStage::Returned => format!("the transformed rows of {weights}"),
                }
            }
            Self::FaultWord { calls } => format!("a fault word that has seen {calls} calls of this step"),
            Self::Record => "this rank's record of the step".into(),
            Self::Records => "all ranks' records of the step".into(),
            Self::Vote => "the vote of the step".into(),
            Self::Hyperparameters => "the hyperparameters".into(),
            Self::LossScale => "the loss scale".into(),
            Self::GradientScale => "the gradient scale".into(),
            Self::OptimizerStep { votes } => {
                format!("the optimizer's step count, after {votes} votes of this step")
            }
            Self::Buffer(buffer, value) => {
                format!("buffer `{}` {}", plan.buffers[buffer.index()].name, value.describe(plan))
            }
        }
    }
}

/// Does the call declare that it writes its gradient of `weight` in bf16?
pub(super) fn writes_bf16(plan: &StepPlan, weight: WeightId, call: CallId) -> bool {
    plan.calls[call.index()].gradient(weight) == Some(ElementType::Bf16)
}

/// Dense values in words.
pub(super) const fn dense_in(values: ElementType) -> &'static str {
    match values {
        ElementType::Bf16 => "dense bf16",
        ElementType::F32 | ElementType::U8 | ElementType::U32 => "dense f32",
    }
}

impl BufferValue {
    /// In words, to stand after the buffer's name.
    pub(super) fn describe(self, plan: &StepPlan) -> String {
        match self {
            Self::Staged(_) if plan.micro_batches == 1 => "as the user staged it".into(),
            Self::Staged(micro_batch) => format!("as the user staged it for {micro_batch}"),
            Self::Carried => "as the step before left it".into(),
            Self::Written(call) => format!("as call `{}` wrote it", plan.calls[call.index()].label()),
        }
    }
}
