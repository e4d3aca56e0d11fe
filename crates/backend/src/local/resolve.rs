//! An op as one rank carries it out, and the one `match` that makes it of an [`Op`].
//!
//! Law: what is resolved here is all that a backend looks at; a new op that does what a [`LocalOp`] does already is
//! stated here and in no backend.

use std::sync::Arc;

use super::Refusal;
use super::assemble::Assemble;
use super::binder::Binder;
use super::collective::Collective;
use super::custom_optimizer::CustomOptimizer;
use super::delayed::{DelayedScale, RecordAmax};
use super::filled::WrittenCounts;
use super::gradient::{Accumulate, CastVote, GradNorm, Round, SumGradient};
use super::optimizer::Adam;
use super::planes::{Dequantize, Transpose};
use super::quantize::{FusedScale, PartialAmax, PartialCast};
use crate::BackendError;
use warpweft_base::id::{SlotId, TaskId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::compute::{BoundCall, BoundProgram};
use warpweft_plan::layout::{Binding, Region};
use warpweft_plan::model::Call;
use warpweft_plan::op::{self, Op, OperandRole};

/// One op, for one rank.
#[derive(Debug)]
pub enum LocalOp {
    Copy {
        from: Region,
        to: Region,
    },
    Zero {
        region: Region,
    },
    /// Zeroes the fault word, so that closures run again.
    ClearFault {
        fault: Region,
    },
    Compute(ComputeCall),
    PartialAmax(PartialAmax),
    FusedScale(FusedScale),
    DelayedScale(DelayedScale),
    RecordAmax(RecordAmax),
    PartialCast(PartialCast),
    Assemble(Assemble),
    Transpose(Vec<Transpose>),
    Dequantize(Vec<Dequantize>),
    Round(Round),
    SumGradient(SumGradient),
    Accumulate(Accumulate),
    GradNorm(GradNorm),
    Vote(CastVote),
    Adam(Adam),
    CustomOptimizer(CustomOptimizer),
    Collective(Collective),
    /// Copies to the rank's snapshot; `to` counts from its start. Nothing on a rank that saves nothing of the weight.
    Snapshot {
        from: Region,
        to: Region,
    },
}

/// A call of the plan, and its fault word.
#[derive(Debug)]
pub struct ComputeCall {
    pub call: Arc<BoundCall>,
    pub fault: Region,
    /// Counts that the call writes, by which ranks give each other rows.
    pub counts: Vec<WrittenCounts>,
}

/// What this rank does for every op of a plan, in issue order, for an arena of `arena_bytes` bytes.
///
/// # Errors
/// [`BackendError::Unsupported`] for an op that does not fit its slots.
pub fn resolve(binding: &Binding<'_>, arena_bytes: usize) -> Result<Vec<LocalOp>, BackendError> {
    let weights = binding.weights.layouts.iter().map(|layout| layout.name.clone()).collect();
    let program = Arc::new(BoundProgram::new(binding.program, binding.buffers, weights));
    let binder = Binder { binding, program, arena_bytes };
    let local = |(position, (op, _)): (usize, &(Op, _))| {
        binder.local(op).map_err(|reason| BackendError::Unsupported {
            rank: binding.rank,
            task: TaskId::at(position),
            op: op.name(),
            reason,
        })
    };
    binding.ops.iter().enumerate().map(local).collect()
}

impl Binder<'_> {
    fn local(&self, op: &Op) -> Result<LocalOp, Refusal> {
        let settings = &self.binding.settings;
        Ok(match op {
            Op::Copy(op) => {
                let from = self.region(op.from)?;
                LocalOp::Copy { from, to: self.bytes(op.to, from.bytes)? }
            }
            Op::ClearFault(op) => LocalOp::ClearFault { fault: self.elements::<u32>(op.fault, 1)? },
            Op::ZeroPadding(op) => LocalOp::Zero { region: self.padding(op.weight, op.gradient)? },
            Op::Compute(op) => LocalOp::Compute(self.call(op)?),
            Op::PartialAmax(op) => {
                let (blocks, tensors, vote) = (op.block_amax, op.tensor_amax, self.vote(op.vote)?);
                let amax = PartialAmax::resolve(self, op.bucket, &op.masters, blocks, tensors, vote)?;
                LocalOp::PartialAmax(amax)
            }
            Op::FusedScale(op) => {
                let slots = [op.block_amax, op.tensor_amax, op.encode, op.tensor_scale];
                let vote = self.vote(op.vote)?;
                LocalOp::FusedScale(FusedScale::resolve(self, op.bucket, slots, &op.shards, vote)?)
            }
            Op::DelayedScale(op) => {
                let (vote, scale, tensor_scale) = (self.vote(op.vote)?, op.scale, op.tensor_scale);
                let scale = DelayedScale::resolve(self, op.bucket, op.history, scale, tensor_scale, vote)?;
                LocalOp::DelayedScale(scale)
            }
            Op::RecordAmax(op) => {
                let vote = self.vote(op.vote)?;
                LocalOp::RecordAmax(RecordAmax::resolve(self, op.bucket, op.tensor_amax, op.history, vote)?)
            }
            Op::PartialCast(op) => {
                let vote = self.vote(op.vote)?;
                let cast = PartialCast::resolve(self, op.bucket, &op.masters, op.encode, &op.shards, vote)?;
                LocalOp::PartialCast(cast)
            }
            Op::AllReduce(op) => {
                LocalOp::Collective(Collective::all_reduce(self, op.reduction, op.group, &op.pairs)?)
            }
            Op::CollectiveCall(op) => LocalOp::Collective(Collective::collective_call(self, op)?),
            Op::AllGather(op) => LocalOp::Collective(Collective::all_gather(self, op.group, &op.parts)?),
            Op::GatherChunk(op) => {
                LocalOp::Collective(Collective::gather_chunk(self, op.group, &op.part, op.chunk)?)
            }
            Op::Assemble(op) => LocalOp::Assemble(Assemble::resolve(self, &op.parts)?),
            Op::ReduceScatter(op) => {
                LocalOp::Collective(Collective::reduce_scatter(self, op.group, op.wire, &op.parts)?)
            }
            Op::GatherRecords(op) => LocalOp::Collective(Collective::gather_records(self, op.from, op.to)?),
            Op::Transpose(op) => {
                let parts = op.parts.iter().map(|part| Transpose::resolve(self, part));
                LocalOp::Transpose(parts.collect::<Result<_, _>>()?)
            }
            Op::Dequantize(op) => {
                let mut stretches = Vec::with_capacity(op.parts.len());
                for part in &op.parts {
                    stretches.extend(Dequantize::resolve(self, part)?);
                }
                LocalOp::Dequantize(stretches)
            }
            Op::ExchangeGradient(op) => {
                LocalOp::Collective(Collective::exchange_gradient(self, op.wire, op.group, &op.parts)?)
            }
            Op::SumGradient(op) => {
                LocalOp::SumGradient(SumGradient::resolve(self, op.wire, op.group, &op.parts)?)
            }
            Op::RoundGradient(op) => LocalOp::Round(Round::resolve(self, op)?),
            Op::AddGradient(op) => LocalOp::Accumulate(Accumulate::whole(self, op.weight, op.from, op.into)?),
            Op::Accumulate(op) => LocalOp::Accumulate(Accumulate::resolve(self, op)?),
            Op::GradNorm(op) => LocalOp::GradNorm(GradNorm::resolve(self, op)?),
            Op::Vote(op) => {
                let (records, scale) = (op.records, op.gradient_scale);
                LocalOp::Vote(CastVote::resolve(self, records, op.optimizer_step, scale, op.vote)?)
            }
            Op::Prepare(op) => {
                let by = (op.vote, op.hyperparameters);
                LocalOp::CustomOptimizer(CustomOptimizer::prepare(self, op.bucket, &op.states, by, op.to)?)
            }
            Op::ExchangeRows(op) => {
                LocalOp::Collective(Collective::exchange_rows(self, op.group, &op.weights, op.from, op.to)?)
            }
            Op::Transform(op) => LocalOp::CustomOptimizer(CustomOptimizer::transform(
                self,
                &op.weights,
                op.vote,
                op.from,
                op.to,
            )?),
            Op::Update(op) => {
                let (via, by) = (settings.via, (op.vote, op.hyperparameters));
                LocalOp::CustomOptimizer(CustomOptimizer::update(
                    self,
                    via,
                    op.bucket,
                    &op.states,
                    by,
                    op.transformed,
                )?)
            }
            Op::Adam(op) => LocalOp::Adam(Adam::resolve(self, (settings.optimizer, settings.via), op)?),
            Op::Snapshot(op) => {
                // Ranks of the first replica come first, and save what all replicas hold.
                let saves = self.binding.rank.number() < self.weight(op.weight)?.shard.owners();
                let all = self.region(op.from)?;
                let bytes = if saves { all.bytes } else { 0 };
                LocalOp::Snapshot { from: Region { bytes, ..all }, to: Region { offset: op.to, bytes } }
            }
        })
    }

    /// The rows of a gradient slot beyond the weight's own rows: in f32, unless the slot is for a gradient in
    /// bf16.
    fn padding(&self, weight: WeightId, gradient: SlotId) -> Result<Region, Refusal> {
        let shard = self.weight(weight)?.shard;
        self.region(gradient)?;
        let content = self.binding.arena.slot(gradient).content;
        let element = content.gradient_element().unwrap_or(ElementType::F32);
        let row = shard.shape.cols * element.bytes();
        let all = self.bytes(gradient, shard.padded_rows() * row)?;
        let real = shard.shape.rows * row;
        all.part(real, all.bytes.saturating_sub(real))
            .ok_or_else(|| "the weight has more rows than its slot".into())
    }

    fn call(&self, op: &op::Compute) -> Result<ComputeCall, Refusal> {
        let op::Compute { call: id, fault, operands } = op;
        let call = self.binding.calls.get(id.index()).ok_or_else(|| format!("{id} is not in the program"))?;
        for operand in operands {
            self.region(operand.slot)?;
            match operand.role {
                OperandRole::Gradient(weight) => {
                    self.weight(weight)?;
                }
                OperandRole::Buffer(buffer) if buffer.index() >= self.binding.buffers.len() => {
                    return Err(format!("{buffer} is not in the program"));
                }
                OperandRole::Buffer(_) | OperandRole::Use(_) | OperandRole::TensorScale(_) => {}
            }
        }
        for usage in &call.uses {
            self.weight(usage.weight)?;
        }
        let declared = Call::declared(*id, self.binding.calls.len(), self.binding.micro_batches);
        let Binding { arena, weights, spoiled, .. } = *self.binding;
        let bound = BoundCall::new(&self.program, (*id, declared), call, operands, (arena, weights), spoiled);
        let counts = WrittenCounts::of(self, operands)?;
        Ok(ComputeCall { call: Arc::new(bound), fault: self.elements::<u32>(*fault, 1)?, counts })
    }
}
