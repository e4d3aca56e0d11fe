//! What an op is called, and which ranks meet for it.
//!
//! Law: every op has one name, the same in traces, tables and messages; no two ops share one. Only this file
//! says which ranks a collective brings together: backends, prices and simulations ask [`Op::group`].

use super::vocabulary::Op;
use crate::model::Group;
use warpweft_base::id::CallId;

impl Op {
    /// Whether the op is a collective, for which every rank of its group must arrive.
    #[must_use]
    pub const fn is_collective(&self) -> bool {
        self.group().is_some()
    }

    /// The ranks that a collective brings together; `None` for an op that a rank does alone.
    #[must_use]
    pub const fn group(&self) -> Option<Group> {
        match self {
            Self::AllReduce { group, .. } | Self::ExchangeBuffer { group, .. } => Some(*group),
            Self::AllGather { .. }
            | Self::GatherChunk { .. }
            | Self::ReduceScatter { .. }
            | Self::ExchangeGradient { .. }
            | Self::ExchangeRows { .. } => Some(Group::Shard),
            Self::GatherRecords { .. } => Some(Group::World),
            _ => None,
        }
    }

    /// The call in whose place the op stands; none for what the planner adds around calls.
    #[must_use]
    pub const fn call(&self) -> Option<CallId> {
        match self {
            Self::Compute { call, .. } | Self::ExchangeBuffer { call, .. } => Some(*call),
            _ => None,
        }
    }

    /// Whether the op runs what the trainer wrote: a closure, or a part of a custom optimizer.
    #[must_use]
    pub const fn runs_trainers_code(&self) -> bool {
        matches!(
            self,
            Self::Compute { .. } | Self::Prepare { .. } | Self::Transform { .. } | Self::Update { .. }
        )
    }

    /// Whether the op gathers planes, or a chunk of them.
    #[must_use]
    pub const fn is_gather(&self) -> bool {
        matches!(self, Self::AllGather { .. } | Self::GatherChunk { .. })
    }

    /// The op's name, as traces and tables show it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Copy { .. } => "copy",
            Self::ClearFault { .. } => "clear fault",
            Self::ZeroPadding { .. } => "zero padding",
            Self::Compute { .. } => "compute",
            Self::ExchangeBuffer { .. } => "exchange buffer",
            Self::PartialAmax { .. } => "partial amax",
            Self::AllReduce { .. } => "all-reduce",
            Self::FusedScale { .. } => "fused scale",
            Self::DelayedScale { .. } => "delayed scale",
            Self::RecordAmax { .. } => "record amax",
            Self::PartialCast { .. } => "partial cast",
            Self::AllGather { .. } => "all-gather",
            Self::GatherChunk { .. } => "all-gather chunk",
            Self::Assemble { .. } => "assemble",
            Self::Transpose { .. } => "transpose",
            Self::Dequantize { .. } => "dequantize",
            Self::ReduceScatter { .. } => "reduce-scatter",
            Self::ExchangeGradient { .. } => "exchange gradient",
            Self::SumGradient { .. } => "sum gradient",
            Self::RoundGradient { .. } => "round gradient",
            Self::AddGradient { .. } => "add gradient",
            Self::Accumulate { .. } => "accumulate",
            Self::GradNorm { .. } => "grad norm",
            Self::GatherRecords { .. } => "gather records",
            Self::Vote { .. } => "vote",
            Self::Adam { .. } => "adam",
            Self::Prepare { .. } => "prepare",
            Self::ExchangeRows { .. } => "exchange rows",
            Self::Transform { .. } => "transform",
            Self::Update { .. } => "update",
        }
    }
}
