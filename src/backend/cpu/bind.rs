//! From a plan's ops to launches of one rank: the one `match` on [`Op`].
//!
//! Law: a rank's share of every slot is worked out here, once, from the shard layout. Whatever a
//! launch will index was measured against its slot here, so running it finds nothing missing; an
//! op that does not fit its slots is refused with the reason.

use std::sync::Arc;

use super::bound::{BoundPlan, BoundTask, Event, Times};
use super::closures::ComputeCall;
use super::collective::Collective;
use super::gradient::{Accumulate, CastVote, GradNorm};
use super::ops::Launch;
use super::optimizer::Adam;
use super::planes::{Dequantize, Transpose};
use super::quantize::{FusedScale, PartialAmax, PartialCast};
use crate::backend::BackendError;
use crate::compute::BoundCall;
use crate::id::{BucketId, LaneId, SlotId, TaskId, WeightId};
use crate::layout::{Binding, Bucket, Region, WeightLayout};
use crate::op::{Op, OperandRole, Vote};

/// Why an op cannot be bound.
pub(super) type Refusal = String;

/// Binds every op of a plan.
pub(super) fn bind(binding: &Binding<'_>, arena_bytes: usize) -> Result<BoundPlan, BackendError> {
    let binder = Binder { binding, arena_bytes };
    let tasks: Result<Vec<_>, _> = binding
        .ops
        .iter()
        .enumerate()
        .map(|(position, (op, _))| {
            let (id, name) = (TaskId::at(position), op.name());
            let unsupported =
                |reason| BackendError::Unsupported { rank: binding.rank, task: id, op: name, reason };
            let launch = binder.launch(op).map_err(unsupported)?;
            Ok(BoundTask { id, op: name, launch, times: Times::default() })
        })
        .collect();
    let events = (0..binding.events).map(|_| Event::default()).collect();
    Ok(BoundPlan { tasks: tasks?, events, commands: commands(binding) })
}

/// Commands one step puts on each lane, at most: every task, its record, and a wait for each
/// foreign lane.
fn commands(binding: &Binding<'_>) -> Vec<(LaneId, usize)> {
    let mut tasks: Vec<(LaneId, usize)> = Vec::new();
    for (_, lane) in binding.ops {
        match tasks.iter_mut().find(|(other, _)| other == lane) {
            Some((_, count)) => *count += 1,
            None => tasks.push((*lane, 1)),
        }
    }
    let each = tasks.len() + 1;
    tasks.iter().map(|(lane, count)| (*lane, count * each)).collect()
}

/// Looks things up in a binding.
pub(super) struct Binder<'a> {
    pub(super) binding: &'a Binding<'a>,
    arena_bytes: usize,
}

impl Binder<'_> {
    /// Where a slot lies.
    pub(super) fn region(&self, slot: SlotId) -> Result<Region, Refusal> {
        let found = self.binding.arena.slots.get(slot.index());
        let found = found.ok_or_else(|| format!("{slot} is not in the layout"))?;
        let end = found.region.offset.checked_add(found.region.bytes);
        if end.is_none_or(|end| end > self.arena_bytes) {
            let (name, bytes) = (&found.name, self.arena_bytes);
            return Err(format!("slot `{name}` lies outside of the arena of {bytes} bytes"));
        }
        Ok(found.region)
    }

    /// The first `bytes` bytes of a slot.
    pub(super) fn bytes(&self, slot: SlotId, bytes: usize) -> Result<Region, Refusal> {
        let region = self.region(slot)?;
        region.part(0, bytes).ok_or_else(|| {
            let name = &self.binding.arena.slot(slot).name;
            format!("slot `{name}` has {} bytes, and the op needs {bytes}", region.bytes)
        })
    }

    /// The first `count` values of type `T` of a slot.
    pub(super) fn elements<T>(&self, slot: SlotId, count: usize) -> Result<Region, Refusal> {
        self.bytes(slot, count.saturating_mul(size_of::<T>()))
    }

    /// The vote of a slot, if there is one.
    pub(super) fn vote(&self, slot: Option<SlotId>) -> Result<Option<Region>, Refusal> {
        slot.map(|slot| self.elements::<Vote>(slot, 1)).transpose()
    }

    pub(super) fn weight(&self, weight: WeightId) -> Result<&WeightLayout, Refusal> {
        let found = self.binding.weights.layouts.get(weight.index());
        found.ok_or_else(|| format!("{weight} is not in the model"))
    }

    pub(super) fn bucket(&self, bucket: BucketId) -> Result<&Bucket, Refusal> {
        let found = self.binding.weights.buckets.get(bucket.index());
        found.ok_or_else(|| format!("{bucket} is not in the model"))
    }

    /// Elements of the rows of `weight` that are real on this rank; they come first in its slots.
    pub(super) fn real_elements(&self, weight: &WeightLayout) -> usize {
        weight.shard.rows_of(self.binding.rank).rows * weight.shard.shape.cols
    }

    /// Number of ranks.
    pub(super) fn ranks(&self) -> usize {
        self.binding.weights.mesh.ranks() as usize
    }

    fn launch(&self, op: &Op) -> Result<Launch, Refusal> {
        let settings = &self.binding.settings;
        Ok(match op {
            Op::Copy { from, to } => {
                let from = self.region(*from)?;
                Launch::Copy { from, to: self.bytes(*to, from.bytes)? }
            }
            Op::ClearFault { fault } => Launch::Zero { region: self.elements::<u32>(*fault, 1)? },
            Op::ZeroPadding { weight, gradient } => {
                Launch::Zero { region: self.padding(*weight, *gradient)? }
            }
            Op::Compute { .. } => Launch::Compute(self.call(op)?),
            Op::PartialAmax { bucket, masters, block_amax, tensor_amax, vote } => Launch::PartialAmax(
                PartialAmax::bind(self, *bucket, masters, *block_amax, *tensor_amax, self.vote(*vote)?)?,
            ),
            Op::FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards, vote } => {
                let slots = [*block_amax, *tensor_amax, *encode, *tensor_scale];
                Launch::FusedScale(FusedScale::bind(self, *bucket, slots, shards, self.vote(*vote)?)?)
            }
            Op::PartialCast { bucket, masters, encode, shards, vote } => Launch::PartialCast(
                PartialCast::bind(self, *bucket, masters, *encode, shards, self.vote(*vote)?)?,
            ),
            Op::AllReduce { reduction, pairs } => {
                Launch::Collective(Collective::all_reduce(self, *reduction, pairs)?)
            }
            Op::AllGather { weight, orientation, from, to } => {
                Launch::Collective(Collective::all_gather(self, *weight, *orientation, *from, *to)?)
            }
            Op::ReduceScatter { weight, from, to } => {
                Launch::Collective(Collective::reduce_scatter(self, *weight, *from, *to)?)
            }
            Op::GatherRecords { from, to } => {
                Launch::Collective(Collective::gather_records(self, *from, *to)?)
            }
            Op::Transpose { weight, from, to } => {
                Launch::Transpose(Transpose::bind(self, *weight, *from, *to)?)
            }
            Op::Dequantize { weight, orientation, from, tensor_scale, to } => {
                Launch::Dequantize(Dequantize::bind(self, *weight, *orientation, *from, *tensor_scale, *to)?)
            }
            Op::Accumulate { weight, from, into, first } => {
                Launch::Accumulate(Accumulate::bind(self, *weight, *from, *into, *first)?)
            }
            Op::GradNorm { main_grads, fault, record } => {
                Launch::GradNorm(GradNorm::bind(self, main_grads, *fault, *record)?)
            }
            Op::Vote { records, optimizer_step, loss_scale, vote } => {
                Launch::Vote(CastVote::bind(self, *records, *optimizer_step, *loss_scale, *vote)?)
            }
            Op::Adam { states, vote, learning_rate, .. } => {
                Launch::Adam(Adam::bind(self, settings.optimizer, states, *vote, *learning_rate)?)
            }
        })
    }

    /// The rows of a gradient slot beyond the weight's own.
    fn padding(&self, weight: WeightId, gradient: SlotId) -> Result<Region, Refusal> {
        let shard = self.weight(weight)?.shard;
        let row = shard.shape.cols * size_of::<f32>();
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
            if let OperandRole::Gradient(weight) = operand.role {
                self.weight(weight)?;
            }
        }
        for usage in &call.uses {
            self.weight(usage.weight)?;
        }
        let bound = BoundCall::new(*id, call, operands, self.binding.arena, self.binding.weights);
        Ok(ComputeCall { call: Arc::new(bound), fault: self.elements::<u32>(*fault, 1)? })
    }
}
