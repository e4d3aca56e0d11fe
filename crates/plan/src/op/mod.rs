//! The closed vocabulary of ops.
//!
//! Law: every task of a plan is one [`Op`], made by one planner pass and executed by one `match` arm of each
//! backend; a new op breaks every backend at compile time. An op says what is done, to which slots, and nothing of how
//! or when: no address, no rank, no lane.
//!
//! One file for each op, or for ops that share their operands: what it names, what it is called, what it touches and
//! what it moves. `operation` is what each of them tells, and [`Op`] asks it through the one `match` here.
//! [`Op::accesses`] is the only statement of what an op touches: planner, verifier and checker all ask here. From
//! `Op::moves` its price is made, and the verifier holds to it the bytes that a pass says are received. `division`
//! says how ranks share an all-reduce.

mod accumulate;
mod adam;
mod add_gradient;
mod all_reduce;
mod clear_fault;
mod collective_call;
mod compute;
mod copy;
mod delayed_scale;
mod dequantize;
mod division;
mod exchange_rows;
mod fused_scale;
mod gather;
mod gather_records;
mod grad_norm;
mod operation;
mod partial_amax;
mod partial_cast;
mod prepare;
mod record_amax;
mod reduce;
mod round_gradient;
mod snapshot;
mod sum_gradient;
mod transform;
mod transpose;
mod update;
mod vote;
mod wire_type;
mod zero_padding;

use serde::Serialize;

pub use accumulate::Accumulate;
pub use adam::{Adam, AdamOperand, AmaxesOperand, MasterOperand};
pub use add_gradient::AddGradient;
pub use all_reduce::{AllReduce, Reduction};
pub use clear_fault::ClearFault;
pub use collective_call::{CollectiveCall, CountSlots};
pub use compute::{Compute, Operand, OperandRole};
pub use copy::Copy;
pub use delayed_scale::DelayedScale;
pub use dequantize::{Dequantize, DequantizePart};
#[doc(hidden)]
pub use division::{Division, collective_given_to_each, given_to_each};
pub use exchange_rows::ExchangeRows;
pub use fused_scale::FusedScale;
pub use gather::{AllGather, Assemble, Chunk, GatherChunk, GatherPart};
pub use gather_records::GatherRecords;
pub use grad_norm::{GradNorm, NormRecord, SQUARED_TOGETHER};
pub(crate) use operation::{Moves, Sizes};
pub use operation::{Named, Part};
pub use partial_amax::PartialAmax;
pub use partial_cast::{PartialCast, ShardOperand};
pub use prepare::{Prepare, PrepareOperand};
pub use record_amax::RecordAmax;
pub use reduce::{ExchangeGradient, ReducePart, ReduceScatter};
pub use round_gradient::RoundGradient;
pub use snapshot::Snapshot;
pub use sum_gradient::{SumGradient, SumPart, SumTarget};
pub use transform::Transform;
pub use transpose::{Transpose, TransposePart};
pub use update::{Update, UpdateOperand};
pub use vote::{CastVote, Vote};
pub use wire_type::WireType;
pub use zero_padding::ZeroPadding;

use crate::model::{Access, Group};
use operation::Operation;
use warpweft_base::id::{CallId, SlotId};

/// One op of a plan. Shapes and lengths follow from the weights' layouts at bind time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Op {
    /// Copies a slot: staging of inputs and outputs.
    Copy(Copy),
    /// Sets the fault word to zero.
    ClearFault(ClearFault),
    /// Zeroes the padding rows of a gradient.
    ZeroPadding(ZeroPadding),
    /// Runs the user's closure for a call.
    Compute(Compute),
    /// Gives other ranks what a buffer holds, in the place of a call.
    CollectiveCall(CollectiveCall),
    /// Amaxes of the masters.
    PartialAmax(PartialAmax),
    /// Combines slots of all ranks of a group.
    AllReduce(AllReduce),
    /// Scales from the amaxes of this step.
    FusedScale(FusedScale),
    /// Scales from the amaxes of earlier steps.
    DelayedScale(DelayedScale),
    /// Remembers amaxes for later steps.
    RecordAmax(RecordAmax),
    /// Casts the masters into the data planes of the shards.
    PartialCast(PartialCast),
    /// Gathers shards from the ranks of a replica.
    AllGather(AllGather),
    /// Derives columnwise planes from gathered rowwise ones.
    Transpose(Transpose),
    /// Dequantizes planes.
    Dequantize(Dequantize),
    /// Sums gradients over the ranks of a replica; each rank keeps its rows.
    ReduceScatter(ReduceScatter),
    /// Brings every rank the others' gradients of its rows.
    ExchangeGradient(ExchangeGradient),
    /// Sums gradients that were exchanged.
    SumGradient(SumGradient),
    /// Rounds a full gradient to bf16.
    RoundGradient(RoundGradient),
    /// Adds a call's full gradient to another call's.
    AddGradient(AddGradient),
    /// Adds a gradient into a sum for the optimizer.
    Accumulate(Accumulate),
    /// Squared norm of the rank's main grads, and its fault word.
    GradNorm(GradNorm),
    /// Gathers the ranks' records.
    GatherRecords(GatherRecords),
    /// Makes a verdict of the ranks' records.
    Vote(CastVote),
    /// Adam on the masters of a bucket.
    Adam(Adam),
    /// The first part of a whole-matrix optimizer.
    Prepare(Prepare),
    /// Brings the rows of matrices together, or back.
    ExchangeRows(ExchangeRows),
    /// The second part of such an optimizer.
    Transform(Transform),
    /// Runs the custom optimizer on masters of a bucket.
    Update(Update),
    /// Gathers some bytes of every rank's shard of one weight.
    GatherChunk(GatherChunk),
    /// Makes gathered planes whole.
    Assemble(Assemble),
    /// Copies state to the host, for a save.
    Snapshot(Snapshot),
}

impl Op {
    /// What the op's file tells: the one `match`.
    fn operation(&self) -> &dyn Operation {
        match self {
            Self::Copy(op) => op,
            Self::ClearFault(op) => op,
            Self::ZeroPadding(op) => op,
            Self::Compute(op) => op,
            Self::CollectiveCall(op) => op,
            Self::PartialAmax(op) => op,
            Self::AllReduce(op) => op,
            Self::FusedScale(op) => op,
            Self::DelayedScale(op) => op,
            Self::RecordAmax(op) => op,
            Self::PartialCast(op) => op,
            Self::AllGather(op) => op,
            Self::Transpose(op) => op,
            Self::Dequantize(op) => op,
            Self::ReduceScatter(op) => op,
            Self::ExchangeGradient(op) => op,
            Self::SumGradient(op) => op,
            Self::RoundGradient(op) => op,
            Self::AddGradient(op) => op,
            Self::Accumulate(op) => op,
            Self::GradNorm(op) => op,
            Self::GatherRecords(op) => op,
            Self::Vote(op) => op,
            Self::Adam(op) => op,
            Self::Prepare(op) => op,
            Self::ExchangeRows(op) => op,
            Self::Transform(op) => op,
            Self::Update(op) => op,
            Self::GatherChunk(op) => op,
            Self::Assemble(op) => op,
            Self::Snapshot(op) => op,
        }
    }

    /// The op's name, as traces and tables show it. No two ops share one.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.operation().name()
    }

    /// The part of a step that the op belongs to.
    #[must_use]
    pub fn part(&self) -> Part {
        self.operation().part()
    }

    /// Every slot the op touches, with what it does to it. No slot appears twice.
    #[must_use]
    pub fn accesses(&self) -> Vec<(SlotId, Access)> {
        self.operation().accesses()
    }

    /// What the op names besides slots, in the order in which it says so.
    #[must_use]
    pub fn named(&self) -> Vec<Named> {
        self.operation().named()
    }

    /// What the op moves, for things of such sizes; `None` where it names what has none.
    #[must_use]
    pub(crate) fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        self.operation().moves(sizes)
    }

    /// Whether the op is a collective, for which every rank of its group must arrive.
    #[must_use]
    pub fn is_collective(&self) -> bool {
        self.group().is_some()
    }

    /// The ranks that a collective brings together; `None` for an op that a rank does alone.
    #[must_use]
    pub fn group(&self) -> Option<Group> {
        match self.part() {
            Part::Collective(group) => Some(group),
            Part::Calls | Part::Planes | Part::Weights | Part::Verdict => None,
        }
    }

    /// The call in whose place the op stands; none for what the planner adds around calls.
    #[must_use]
    pub const fn call(&self) -> Option<CallId> {
        match self {
            Self::Compute(Compute { call, .. }) | Self::CollectiveCall(CollectiveCall { call, .. }) => {
                Some(*call)
            }
            _ => None,
        }
    }

    /// Whether the op runs what the user wrote: a closure, or a part of a custom optimizer.
    #[must_use]
    pub const fn runs_user_code(&self) -> bool {
        matches!(self, Self::Compute(_) | Self::Prepare(_) | Self::Transform(_) | Self::Update(_))
    }

    /// Whether the op gathers planes, or a chunk of them.
    #[must_use]
    pub const fn is_gather(&self) -> bool {
        matches!(self, Self::AllGather(_) | Self::GatherChunk(_))
    }
}
