//! The closed vocabulary of ops.
//!
//! Law: every task of a plan is one `Op`, made by one planner pass and executed by one `match` arm
//! of each backend; a new op breaks every backend at compile time. An op names slots, never
//! addresses and never a rank. [`Op::accesses`] is the only statement of what an op touches:
//! planner, verifier and checker all read it there.

use bytemuck::{Pod, Zeroable};
use serde::Serialize;

use crate::format::{ElementType, Orientation};
use crate::id::{BucketId, BufferId, CallId, SlotId, WeightId};
use crate::model::Access;

/// How ranks' values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Reduction {
    /// Sum in rank order, in f32.
    Sum,
    /// Maximum.
    Max,
}

/// What a compute call's operand is to the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum OperandRole {
    /// The weight of the n-th entry of [`crate::model::Call::uses`].
    Use(usize),
    /// What dequantizing the planes of the n-th use needs beside them.
    TensorScale(usize),
    /// The gradient of a weight.
    Gradient(WeightId),
    /// A declared buffer.
    Buffer(BufferId),
}

/// One operand of a compute call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Operand {
    /// Where it lies.
    pub slot: SlotId,
    /// What the call does to it.
    pub access: Access,
    /// What it is to the call.
    pub role: OperandRole,
}

/// One quantized shard of a bucket op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ShardOperand {
    /// The weight.
    pub weight: WeightId,
    /// Which stored orientation.
    pub orientation: Orientation,
    /// Its planes.
    pub slot: SlotId,
}

/// One weight of a gather.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GatherPart {
    /// The weight.
    pub weight: WeightId,
    /// Which stored orientation travels.
    pub orientation: Orientation,
    /// The rank's shard.
    pub from: SlotId,
    /// The gathered planes.
    pub to: SlotId,
}

/// One weight of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ReducePart {
    /// The weight.
    pub weight: WeightId,
    /// The rank's full gradient, in the element type that travels.
    pub from: SlotId,
    /// The summed rows of this rank, f32.
    pub to: SlotId,
}

/// Where the master of a weight lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum MasterOperand {
    /// f32, in a slot of its own.
    Whole(SlotId),
    /// In two halves: see [`crate::format::split_master`].
    Split {
        /// The weight's bf16 shard, the upper half.
        shard: SlotId,
        /// The 16 bits it lacks.
        remainder: SlotId,
    },
}

impl MasterOperand {
    fn slots(self) -> impl Iterator<Item = SlotId> {
        let (first, second) = match self {
            Self::Whole(master) => (master, None),
            Self::Split { shard, remainder } => (shard, Some(remainder)),
        };
        std::iter::once(first).chain(second)
    }
}

/// Optimizer state of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AdamOperand {
    /// The weight.
    pub weight: WeightId,
    /// Master, updated.
    pub master: MasterOperand,
    /// First moment, updated.
    pub exp_avg: SlotId,
    /// Second moment, updated.
    pub exp_avg_sq: SlotId,
    /// Main grad, read.
    pub main_grad: SlotId,
}

/// One op of a plan. Shapes and lengths follow from the weights' layouts at bind time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub enum Op {
    /// Copies a slot to another of the same size: staging of inputs and outputs.
    Copy {
        /// Source.
        from: SlotId,
        /// Target.
        to: SlotId,
    },
    /// Sets the fault word to zero at the start of a step.
    ClearFault {
        /// The fault word.
        fault: SlotId,
    },
    /// Zeroes the rows of a gradient slot beyond the weight's real rows.
    ZeroPadding {
        /// The weight.
        weight: WeightId,
        /// Its gradient slot.
        gradient: SlotId,
    },
    /// Runs the embedder's closure for a call. A closure that fails leaves its call in the fault
    /// word; while the fault word is set no closure runs.
    Compute {
        /// Which call.
        call: CallId,
        /// The rank's fault word.
        fault: SlotId,
        /// Everything else the call accesses.
        operands: Vec<Operand>,
    },
    /// Amaxes of the masters, per block and per tensor.
    PartialAmax {
        /// The bucket.
        bucket: BucketId,
        /// Masters of its weights, in bucket order.
        masters: Vec<SlotId>,
        /// Amax of every block.
        block_amax: SlotId,
        /// Amax of every weight's rows on this rank.
        tensor_amax: SlotId,
        /// No-op when this vote says fault.
        vote: Option<SlotId>,
    },
    /// Combines f32 slots of all ranks, element by element, into a slot of every rank.
    AllReduce {
        /// Sum or maximum.
        reduction: Reduction,
        /// Pairs of source and target; all travel as one collective.
        pairs: Vec<(SlotId, SlotId)>,
    },
    /// Scales of every block from its amax and the tensor's: decode scales into the shards'
    /// scale planes, encode factors for the cast, the tensor's own scale.
    FusedScale {
        /// The bucket.
        bucket: BucketId,
        /// Amax of every block.
        block_amax: SlotId,
        /// Amax of every weight, over all ranks.
        tensor_amax: SlotId,
        /// Factors for the cast.
        encode: SlotId,
        /// Tensor scales.
        tensor_scale: SlotId,
        /// Shards whose scale planes are written.
        shards: Vec<ShardOperand>,
        /// No-op when this vote says fault.
        vote: Option<SlotId>,
    },
    /// Scales of a bucket whose scaling is delayed: factors for the cast, and their reciprocals.
    DelayedScale {
        /// The bucket.
        bucket: BucketId,
        /// The amaxes recorded so far, from which the next factors follow. Absent when the masters are those the
        /// factors in use were made for, and are only cast again.
        history: Option<SlotId>,
        /// Factors in use; updated if there is a history, else read.
        scale: SlotId,
        /// Tensor scales: one over the factors.
        tensor_scale: SlotId,
        /// No-op when this vote says fault.
        vote: Option<SlotId>,
    },
    /// Puts the amaxes of masters just cast into the history of a bucket whose scaling is delayed.
    RecordAmax {
        /// The bucket.
        bucket: BucketId,
        /// Amax of every weight, over all ranks.
        tensor_amax: SlotId,
        /// The history, updated.
        history: SlotId,
        /// No-op when this vote says fault.
        vote: Option<SlotId>,
    },
    /// Casts the masters into the data planes of the shards.
    PartialCast {
        /// The bucket.
        bucket: BucketId,
        /// Masters of its weights, in bucket order.
        masters: Vec<SlotId>,
        /// Factors from [`Op::FusedScale`] or [`Op::DelayedScale`]; absent for formats without scales.
        encode: Option<SlotId>,
        /// Shards whose data planes are written.
        shards: Vec<ShardOperand>,
        /// No-op when this vote says fault.
        vote: Option<SlotId>,
    },
    /// Gathers the shards of one weight, or of several of a group as one collective, each into the first rows of padded
    /// planes whose rest is zeroed.
    AllGather {
        /// What is gathered; at least one.
        parts: Vec<GatherPart>,
    },
    /// Derives columnwise planes from gathered rowwise ones.
    Transpose {
        /// The weight.
        weight: WeightId,
        /// Gathered rowwise planes.
        from: SlotId,
        /// Columnwise planes.
        to: SlotId,
    },
    /// Dequantizes planes to f32, or to bf16.
    Dequantize {
        /// The weight.
        weight: WeightId,
        /// Orientation of planes and result.
        orientation: Orientation,
        /// Gathered or transposed planes.
        from: SlotId,
        /// Tensor scales of the weight's bucket; absent for formats without.
        tensor_scale: Option<SlotId>,
        /// Element type of the result, [`ElementType::F32`] or [`ElementType::Bf16`].
        values: ElementType,
        /// The values.
        to: SlotId,
    },
    /// Sums the gradient of one weight, or those of several of a group as one collective, over the ranks, in rank order
    /// in f32, each rank keeping its rows.
    ReduceScatter {
        /// In what the gradients travel: f32 or bf16.
        element: ElementType,
        /// What is reduced; at least one.
        parts: Vec<ReducePart>,
    },
    /// Rounds a full gradient to bf16, to nearest even, to be reduced.
    RoundGradient {
        /// The weight.
        weight: WeightId,
        /// The f32 gradient.
        from: SlotId,
        /// The same in bf16.
        to: SlotId,
    },
    /// Adds a call's full gradient to another call's, or to a sum of several, on this rank and undivided: what is reduced
    /// together. Padding rows are added like all others.
    AddGradient {
        /// The weight.
        weight: WeightId,
        /// What is added.
        from: SlotId,
        /// The gradient it is added to.
        into: SlotId,
    },
    /// Adds a gradient into a sum, divided by the number of ranks and of micro-batches.
    Accumulate {
        /// The weight.
        weight: WeightId,
        /// What is added: reduced rows, or a replicated weight's full gradient.
        from: SlotId,
        /// Main grad, or a replicated weight's local sum.
        into: SlotId,
        /// The first contribution of a step overwrites instead of adding.
        first: bool,
    },
    /// Squared norm of the rank's main grads and the rank's fault word, as one record.
    GradNorm {
        /// Main grads with their weights.
        main_grads: Vec<(WeightId, SlotId)>,
        /// The rank's fault word.
        fault: SlotId,
        /// The record.
        record: SlotId,
    },
    /// Gathers the ranks' records.
    GatherRecords {
        /// This rank's record.
        from: SlotId,
        /// All ranks' records, in rank order.
        to: SlotId,
    },
    /// Sums the records in rank order into clip factor and verdict, and counts the step if it
    /// stands.
    Vote {
        /// All ranks' records.
        records: SlotId,
        /// Step count of the optimizer.
        optimizer_step: SlotId,
        /// Loss scale.
        loss_scale: SlotId,
        /// The vote.
        vote: SlotId,
    },
    /// Adam on the masters of a bucket, decoupled or with L2 decay; a no-op when the vote says fault.
    Adam {
        /// The bucket.
        bucket: BucketId,
        /// State of its weights.
        states: Vec<AdamOperand>,
        /// The vote, which carries clip factor and step count.
        vote: SlotId,
        /// Learning rate.
        learning_rate: SlotId,
    },
}

impl Op {
    /// The gather of one weight.
    #[must_use]
    pub fn gather(weight: WeightId, orientation: Orientation, from: SlotId, to: SlotId) -> Self {
        Self::AllGather { parts: vec![GatherPart { weight, orientation, from, to }] }
    }

    /// The reduction of one gradient, in f32.
    #[must_use]
    pub fn reduce_scatter(weight: WeightId, from: SlotId, to: SlotId) -> Self {
        Self::ReduceScatter { element: ElementType::F32, parts: vec![ReducePart { weight, from, to }] }
    }

    /// Every slot the op touches, with what it does to it. No slot appears twice.
    #[must_use]
    pub fn accesses(&self) -> Vec<(SlotId, Access)> {
        use Access::{Read, Update, Write};
        let vote = |slot: &Option<SlotId>| slot.map(|slot| (slot, Read));
        match self {
            Self::Copy { from, to }
            | Self::Transpose { from, to, .. }
            | Self::RoundGradient { from, to, .. }
            | Self::GatherRecords { from, to } => {
                vec![(*from, Read), (*to, Write)]
            }
            Self::AllGather { parts } => {
                parts.iter().flat_map(|part| [(part.from, Read), (part.to, Write)]).collect()
            }
            Self::ReduceScatter { parts, .. } => {
                parts.iter().flat_map(|part| [(part.from, Read), (part.to, Write)]).collect()
            }
            Self::ClearFault { fault } => vec![(*fault, Write)],
            Self::ZeroPadding { gradient, .. } => vec![(*gradient, Update)],
            Self::Compute { fault, operands, .. } => {
                let operands = operands.iter().map(|operand| (operand.slot, operand.access));
                merged(std::iter::once((*fault, Update)).chain(operands))
            }
            Self::PartialAmax { masters, block_amax, tensor_amax, vote: skip, .. } => {
                let mut all: Vec<_> = masters.iter().map(|slot| (*slot, Read)).collect();
                all.extend([(*block_amax, Write), (*tensor_amax, Write)]);
                all.extend(vote(skip));
                all
            }
            Self::AllReduce { pairs, .. } => {
                pairs.iter().flat_map(|(from, to)| [(*from, Read), (*to, Write)]).collect()
            }
            Self::FusedScale {
                block_amax, tensor_amax, encode, tensor_scale, shards, vote: skip, ..
            } => {
                let mut all =
                    vec![(*block_amax, Read), (*tensor_amax, Read), (*encode, Write), (*tensor_scale, Write)];
                all.extend(shards.iter().map(|shard| (shard.slot, Update)));
                all.extend(vote(skip));
                all
            }
            Self::DelayedScale { history, scale, tensor_scale, vote: skip, .. } => {
                let mut all =
                    vec![(*scale, if history.is_some() { Update } else { Read }), (*tensor_scale, Write)];
                all.extend(history.map(|slot| (slot, Read)));
                all.extend(vote(skip));
                all
            }
            Self::RecordAmax { tensor_amax, history, vote: skip, .. } => {
                let mut all = vec![(*tensor_amax, Read), (*history, Update)];
                all.extend(vote(skip));
                all
            }
            Self::PartialCast { masters, encode, shards, vote: skip, .. } => {
                let mut all: Vec<_> = masters.iter().map(|slot| (*slot, Read)).collect();
                all.extend(encode.map(|slot| (slot, Read)));
                all.extend(shards.iter().map(|shard| (shard.slot, Update)));
                all.extend(vote(skip));
                all
            }
            Self::Dequantize { from, tensor_scale, to, .. } => {
                let mut all = vec![(*from, Read), (*to, Write)];
                all.extend(tensor_scale.map(|slot| (slot, Read)));
                all
            }
            Self::AddGradient { from, into, .. } => vec![(*from, Read), (*into, Update)],
            Self::Accumulate { from, into, first, .. } => {
                vec![(*from, Read), (*into, if *first { Write } else { Update })]
            }
            Self::GradNorm { main_grads, fault, record } => {
                let mut all: Vec<_> = main_grads.iter().map(|(_, slot)| (*slot, Read)).collect();
                all.extend([(*fault, Read), (*record, Write)]);
                all
            }
            Self::Vote { records, optimizer_step, loss_scale, vote } => {
                vec![(*records, Read), (*optimizer_step, Update), (*loss_scale, Read), (*vote, Write)]
            }
            Self::Adam { states, vote, learning_rate, .. } => {
                let mut all = vec![(*vote, Read), (*learning_rate, Read)];
                for state in states {
                    all.extend(state.master.slots().map(|slot| (slot, Update)));
                    all.extend([
                        (state.exp_avg, Update),
                        (state.exp_avg_sq, Update),
                        (state.main_grad, Read),
                    ]);
                }
                all
            }
        }
    }

    /// Is the op a collective, for which every rank must arrive?
    #[must_use]
    pub const fn is_collective(&self) -> bool {
        matches!(
            self,
            Self::AllReduce { .. }
                | Self::AllGather { .. }
                | Self::ReduceScatter { .. }
                | Self::GatherRecords { .. }
        )
    }

    /// The op's name, as traces and tables show it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Copy { .. } => "copy",
            Self::ClearFault { .. } => "clear fault",
            Self::ZeroPadding { .. } => "zero padding",
            Self::Compute { .. } => "compute",
            Self::PartialAmax { .. } => "partial amax",
            Self::AllReduce { .. } => "all-reduce",
            Self::FusedScale { .. } => "fused scale",
            Self::DelayedScale { .. } => "delayed scale",
            Self::RecordAmax { .. } => "record amax",
            Self::PartialCast { .. } => "partial cast",
            Self::AllGather { .. } => "all-gather",
            Self::Transpose { .. } => "transpose",
            Self::Dequantize { .. } => "dequantize",
            Self::ReduceScatter { .. } => "reduce-scatter",
            Self::RoundGradient { .. } => "round gradient",
            Self::AddGradient { .. } => "add gradient",
            Self::Accumulate { .. } => "accumulate",
            Self::GradNorm { .. } => "grad norm",
            Self::GatherRecords { .. } => "gather records",
            Self::Vote { .. } => "vote",
            Self::Adam { .. } => "adam",
        }
    }
}

/// Joins repeated accesses to one slot into the strongest: a call may use a weight twice.
fn merged(all: impl Iterator<Item = (SlotId, Access)>) -> Vec<(SlotId, Access)> {
    let mut list: Vec<(SlotId, Access)> = Vec::new();
    for (slot, access) in all {
        match list.iter_mut().find(|(other, _)| *other == slot) {
            None => list.push((slot, access)),
            Some((_, known)) if *known == access => {}
            Some((_, known)) => *known = Access::Update,
        }
    }
    list
}

/// What each rank tells the others before the vote. 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct NormRecord {
    /// Sum of squares of the rank's main grads; replicated weights are counted by rank 0 alone.
    pub squares: f32,
    /// The rank's fault word: number of the faulted call + 1, or 0.
    pub fault: u32,
    /// Zero; keeps records 16 bytes long.
    pub reserved: [u32; 2],
}

/// The verdict over a step, equal on all ranks. 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Vote {
    /// One of [`Vote::CLEAN`], [`Vote::NON_FINITE`], [`Vote::CLOSURE`].
    pub verdict: u32,
    /// Factor on every unscaled gradient: `min(max_norm / (norm + 1e-6), 1)`, or 1 without clipping.
    pub clip: f32,
    /// Global norm of the unscaled gradient.
    pub norm: f32,
    /// Optimizer steps taken, this one included if it stands.
    pub step: u32,
    /// First rank with a fault, if any.
    pub fault_rank: u32,
    /// That rank's faulted call.
    pub fault_call: u32,
    /// One over the loss scale: what takes a main grad to the unscaled gradient.
    pub unscale: f32,
    /// Zero; keeps votes 32 bytes long.
    pub reserved: u32,
}

impl Vote {
    /// The step stands.
    pub const CLEAN: u32 = 0;
    /// A gradient was infinite or not a number; the step is skipped.
    pub const NON_FINITE: u32 = 1;
    /// A closure failed; the step is skipped.
    pub const CLOSURE: u32 = 2;

    /// Must everything behind the vote leave the weights alone?
    #[must_use]
    pub const fn skips(&self) -> bool {
        self.verdict != Self::CLEAN
    }
}
