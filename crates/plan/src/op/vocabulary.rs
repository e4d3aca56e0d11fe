//! The ops themselves.
//!
//! Law: a variant says what is done, to which slots, and nothing of how or when: no address, no rank, no
//! lane. [`Op::accesses`] says what it does to its slots, [`Op::name`] what it is called.

use serde::Serialize;

use super::operands::{
    AdamOperand, Chunk, DequantizePart, GatherPart, Operand, PrepareOperand, ReducePart, ShardOperand,
    SumPart, TransposePart, UpdateOperand,
};
use crate::model::{ExchangeKind, Group};
use warpweft_base::id::{BucketId, CallId, SlotId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// How ranks' values are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Reduction {
    /// Sum in rank order, in f32.
    Sum,
    /// Maximum.
    Max,
}

/// One op of a plan. Shapes and lengths follow from the weights' layouts at bind time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
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
    /// Runs the user's closure for a call. A closure that fails leaves its call in the fault
    /// word; while the fault word is set no closure runs.
    Compute {
        /// Which call.
        call: CallId,
        /// The rank's fault word.
        fault: SlotId,
        /// Everything else the call accesses.
        operands: Vec<Operand>,
    },
    /// Gives other ranks what a buffer holds, in the place of a call ([`Exchange`](crate::model::Exchange)). It
    /// takes place whatever the fault word says (CO-2).
    ExchangeBuffer {
        /// Which call.
        call: CallId,
        /// What is done.
        kind: ExchangeKind,
        /// Among which ranks.
        #[serde(skip_serializing_if = "Group::is_world")]
        group: Group,
        /// What the rank gives.
        from: SlotId,
        /// What it gets.
        to: SlotId,
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
    /// Combines f32 slots of all ranks of a group, element by element, into a slot of each of them. A sum of
    /// reduced gradients over replicas is one of these, in f32 whatever the gradients travelled in before. Each element
    /// is combined in rank order, by every rank or, where that saves enough bytes, by one for all.
    AllReduce {
        /// Sum or maximum.
        reduction: Reduction,
        /// Whose slots.
        #[serde(skip_serializing_if = "Group::is_world")]
        group: Group,
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
        /// The amaxes recorded so far, from which the next factors follow. Absent when the masters are the
        /// ones that the factors in use were made for, and are only cast again.
        history: Option<SlotId>,
        /// Factors in use; updated if there is a history, otherwise read.
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
    /// Gathers the shards of one weight from the ranks of a replica, or of several of a group as one
    /// collective, each to its rows of padded planes. It brings only what the *other* ranks hold. The rank's
    /// own rows and everything after the last rank's are undefined until [`Op::Assemble`], and stay so
    /// without one.
    AllGather {
        /// What is gathered; at least one.
        parts: Vec<GatherPart>,
    },
    /// Derives columnwise planes from gathered rowwise ones, for one weight or for several that one gather
    /// brought.
    Transpose {
        /// What is derived; at least one.
        parts: Vec<TransposePart>,
    },
    /// Dequantizes planes to f32 or to bf16, of one weight or of several that one gather brought: whole
    /// planes, or what arrived of them together with the rank's own shard, if no other reader needs them
    /// whole.
    Dequantize {
        /// What is dequantized; at least one.
        parts: Vec<DequantizePart>,
    },
    /// Sums the gradient of one weight, or those of several of a group as one collective, over the ranks of a
    /// replica, in rank order in f32; each rank keeps its rows. For a collective library that sums by itself:
    /// it does what [`Op::ExchangeGradient`] and [`Op::SumGradient`] do in two tasks.
    ReduceScatter {
        /// The type in which the gradients travel: f32 or bf16.
        element: ElementType,
        /// What is reduced; at least one.
        parts: Vec<ReducePart>,
    },
    /// Gives every rank of a replica its slices of the others' gradients of one weight, or of several of a
    /// group as one collective. They are not summed; the peers' slices come one after the other in rank
    /// order. A rank's slice of its own gradient stays where it is. Nothing is computed.
    ExchangeGradient {
        /// The type in which the gradients travel: f32 or bf16.
        element: ElementType,
        /// What is exchanged; at least one.
        parts: Vec<ReducePart>,
    },
    /// Sums a rank's slices of gradients, its own and those that were exchanged, in rank order in f32. If
    /// nothing is to be done in between, the same pass over memory accumulates the sums as [`Op::Accumulate`]
    /// does.
    SumGradient {
        /// The type in which the gradients travelled: f32 or bf16.
        element: ElementType,
        /// What is summed; at least one.
        parts: Vec<SumPart>,
    },
    /// Rounds a full gradient to bf16, to nearest even, so that it can be reduced.
    RoundGradient {
        /// The weight.
        weight: WeightId,
        /// The f32 gradient.
        from: SlotId,
        /// The same in bf16.
        to: SlotId,
    },
    /// Adds a call's full gradient to another call's, or to a sum of several, on this rank and undivided, so
    /// that they are reduced together. Padding rows are added like all others.
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
        /// What is added: reduced rows, summed over the replicas where there are several, or a replicated
        /// weight's full gradient.
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
    /// Sums the records in rank order into clip factor and verdict, and counts the step if it is kept.
    Vote {
        /// All ranks' records.
        records: SlotId,
        /// Step count of the optimizer.
        optimizer_step: SlotId,
        /// What main grads are a multiple of.
        gradient_scale: SlotId,
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
        /// What the optimizer goes by, of every weight.
        hyperparameters: SlotId,
    },
    /// Runs the first part of a rule that needs whole matrices: of every weight of a round, the rank's rows of what
    /// the matrix is made of, from main grads and what the rule keeps. It has no effect when the vote says fault; on a
    /// GPU the rule's kernels see to that.
    Prepare {
        /// The bucket.
        bucket: BucketId,
        /// The weights of the round, at most one for each rank of a replica, of one size.
        states: Vec<PrepareOperand>,
        /// The vote, which carries clip factor and step count.
        vote: SlotId,
        /// What the optimizer goes by, of every weight.
        hyperparameters: SlotId,
        /// Where the rows go: those of one weight behind those of the one before.
        to: SlotId,
    },
    /// Brings the rows of a round's matrices together, so that the first rank of a replica gets the first matrix
    /// whole, the second the second, and so on; or brings the rows back in the same way. Ranks for which there is no
    /// matrix take part.
    ExchangeRows {
        /// The weights of the round.
        weights: Vec<WeightId>,
        /// What the rank gives: one part for each rank.
        from: SlotId,
        /// What it gets: one part of each rank.
        to: SlotId,
    },
    /// Runs the second part of such a rule on the matrix that the rank has whole, if there is one. When the vote says
    /// fault nothing reads what it makes.
    Transform {
        /// The bucket.
        bucket: BucketId,
        /// The weights of the round.
        weights: Vec<WeightId>,
        /// The vote.
        vote: SlotId,
        /// The matrix, `[padded rows, columns]`.
        from: SlotId,
        /// What the rule makes of it.
        to: SlotId,
    },
    /// Runs the custom optimizer on masters of a bucket. It has no effect when the vote says fault; on a
    /// GPU the rule's kernels see to that.
    Update {
        /// The bucket.
        bucket: BucketId,
        /// State of its weights.
        states: Vec<UpdateOperand>,
        /// The vote, which carries clip factor and step count.
        vote: SlotId,
        /// What the optimizer goes by, of every weight.
        hyperparameters: SlotId,
        /// Where the weights are a round of matrices: the rank's rows of what [`Op::Transform`] made of them, one
        /// weight's behind those of the one before.
        #[serde(skip_serializing_if = "Option::is_none")]
        transformed: Option<SlotId>,
    },
    /// Gathers some bytes of every rank's shard of one weight, each to where a whole gather would put them.
    /// Chunks come in the order of their bytes: each follows those before it, so the last one leaves what
    /// [`Op::AllGather`] leaves.
    GatherChunk {
        /// The weight.
        part: GatherPart,
        /// The bytes.
        chunk: Chunk,
    },
    /// Makes gathered planes whole, on the rank alone: puts its own shards into their rows, zeroes the
    /// padding after the last rank's, and spreads scale rows that travel once and appear several times. It
    /// needs what a gather, or the last chunk of one, has brought of the other ranks, and makes planes whole
    /// once.
    Assemble {
        /// What was gathered, as the gather names it; at least one.
        parts: Vec<GatherPart>,
    },
}

impl Op {
    /// The gather of one weight.
    #[must_use]
    pub fn gather(weight: WeightId, orientation: Orientation, from: SlotId, to: SlotId) -> Self {
        Self::AllGather { parts: vec![GatherPart { weight, orientation, from, to }] }
    }

    /// What makes the planes of that gather whole.
    #[must_use]
    pub fn assemble(weight: WeightId, orientation: Orientation, from: SlotId, to: SlotId) -> Self {
        Self::Assemble { parts: vec![GatherPart { weight, orientation, from, to }] }
    }

    /// Columnwise planes of one weight.
    #[must_use]
    pub fn transpose(weight: WeightId, from: SlotId, to: SlotId) -> Self {
        Self::Transpose { parts: vec![TransposePart { weight, from, to }] }
    }

    /// The reduction of one gradient, in f32.
    #[must_use]
    pub fn reduce_scatter(weight: WeightId, from: SlotId, to: SlotId) -> Self {
        Self::ReduceScatter { element: ElementType::F32, parts: vec![ReducePart { weight, from, to }] }
    }
}
