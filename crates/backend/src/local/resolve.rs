//! From an op to what one rank does for it: the one `match` on [`Op`].

use std::sync::Arc;

use super::Refusal;
use super::assemble::Assemble;
use super::binder::Binder;
use super::collective::Collective;
use super::delayed::{DelayedScale, RecordAmax};
use super::gradient::{Accumulate, CastVote, GradNorm, Round, SumGradient};
use super::optimizer::Adam;
use super::planes::{Dequantize, Transpose};
use super::quantize::{FusedScale, PartialAmax, PartialCast};
use super::rule::Rule;
use super::{ComputeCall, LocalOp};
use crate::BackendError;
use warpweft_base::id::{SlotId, TaskId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::compute::{BoundCall, BoundProgram};
use warpweft_plan::layout::{Binding, Region};
use warpweft_plan::model::Call;
use warpweft_plan::op::{Op, OperandRole};

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
            Op::Copy { from, to } => {
                let from = self.region(*from)?;
                LocalOp::Copy { from, to: self.bytes(*to, from.bytes)? }
            }
            Op::ClearFault { fault } => LocalOp::ClearFault { fault: self.elements::<u32>(*fault, 1)? },
            Op::ZeroPadding { weight, gradient } => {
                LocalOp::Zero { region: self.padding(*weight, *gradient)? }
            }
            Op::Compute { .. } => LocalOp::Compute(self.call(op)?),
            Op::PartialAmax { bucket, masters, block_amax, tensor_amax, vote } => LocalOp::PartialAmax(
                PartialAmax::resolve(self, *bucket, masters, *block_amax, *tensor_amax, self.vote(*vote)?)?,
            ),
            Op::FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards, vote } => {
                let slots = [*block_amax, *tensor_amax, *encode, *tensor_scale];
                LocalOp::FusedScale(FusedScale::resolve(self, *bucket, slots, shards, self.vote(*vote)?)?)
            }
            Op::DelayedScale { bucket, history, scale, tensor_scale, vote } => LocalOp::DelayedScale(
                DelayedScale::resolve(self, *bucket, *history, *scale, *tensor_scale, self.vote(*vote)?)?,
            ),
            Op::RecordAmax { bucket, tensor_amax, history, vote } => LocalOp::RecordAmax(
                RecordAmax::resolve(self, *bucket, *tensor_amax, *history, self.vote(*vote)?)?,
            ),
            Op::PartialCast { bucket, masters, encode, shards, vote } => LocalOp::PartialCast(
                PartialCast::resolve(self, *bucket, masters, *encode, shards, self.vote(*vote)?)?,
            ),
            Op::AllReduce { reduction, group, pairs } => {
                LocalOp::Collective(Collective::all_reduce(self, *reduction, *group, pairs)?)
            }
            Op::ExchangeBuffer { kind, group, from, to, .. } => {
                LocalOp::Collective(Collective::exchange_buffer(self, (*kind, *group), *from, *to)?)
            }
            Op::AllGather { parts } => LocalOp::Collective(Collective::all_gather(self, parts)?),
            Op::GatherChunk { part, chunk } => {
                LocalOp::Collective(Collective::gather_chunk(self, part, *chunk)?)
            }
            Op::Assemble { parts } => LocalOp::Assemble(Assemble::resolve(self, parts)?),
            Op::ReduceScatter { element, parts } => {
                LocalOp::Collective(Collective::reduce_scatter(self, *element, parts)?)
            }
            Op::GatherRecords { from, to } => {
                LocalOp::Collective(Collective::gather_records(self, *from, *to)?)
            }
            Op::Transpose { parts } => {
                let parts = parts.iter().map(|part| Transpose::resolve(self, part));
                LocalOp::Transpose(parts.collect::<Result<_, _>>()?)
            }
            Op::Dequantize { parts } => {
                let mut stretches = Vec::with_capacity(parts.len());
                for part in parts {
                    stretches.extend(Dequantize::resolve(self, part)?);
                }
                LocalOp::Dequantize(stretches)
            }
            Op::ExchangeGradient { element, parts } => {
                LocalOp::Collective(Collective::exchange_gradient(self, *element, parts)?)
            }
            Op::SumGradient { element, parts } => {
                LocalOp::SumGradient(SumGradient::resolve(self, *element, parts)?)
            }
            Op::RoundGradient { weight, from, to } => {
                LocalOp::Round(Round::resolve(self, *weight, *from, *to)?)
            }
            Op::AddGradient { weight, from, into } => {
                LocalOp::Accumulate(Accumulate::whole(self, *weight, *from, *into)?)
            }
            Op::Accumulate { weight, from, into, first } => {
                LocalOp::Accumulate(Accumulate::resolve(self, *weight, *from, *into, *first)?)
            }
            Op::GradNorm { main_grads, fault, record } => {
                LocalOp::GradNorm(GradNorm::resolve(self, main_grads, *fault, *record)?)
            }
            Op::Vote { records, optimizer_step, gradient_scale, vote } => {
                LocalOp::Vote(CastVote::resolve(self, *records, *optimizer_step, *gradient_scale, *vote)?)
            }
            Op::Prepare { bucket, states, vote, hyperparameters, to } => {
                LocalOp::Rule(Rule::prepare(self, *bucket, states, (*vote, *hyperparameters), *to)?)
            }
            Op::ExchangeRows { weights, from, to } => {
                LocalOp::Collective(Collective::exchange_rows(self, weights, *from, *to)?)
            }
            Op::Transform { weights, vote, from, to, .. } => {
                LocalOp::Rule(Rule::transform(self, weights, *vote, *from, *to)?)
            }
            Op::Update { bucket, states, vote, hyperparameters, transformed } => LocalOp::Rule(Rule::update(
                self,
                settings.via,
                *bucket,
                states,
                (*vote, *hyperparameters),
                *transformed,
            )?),
            Op::Adam { states, vote, hyperparameters, .. } => LocalOp::Adam(Adam::resolve(
                self,
                (settings.optimizer, settings.via),
                states,
                *vote,
                *hyperparameters,
            )?),
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

    fn call(&self, op: &Op) -> Result<ComputeCall, Refusal> {
        let Op::Compute { call: id, fault, operands } = op else {
            return Err("not a call".to_owned());
        };
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
        Ok(ComputeCall { call: Arc::new(bound), fault: self.elements::<u32>(*fault, 1)? })
    }
}
