//! What the slots that an op writes are declared for.
//!
//! Law: an op of a plan that a planner made writes only into slots declared for what it writes. This table is
//! made of the vocabulary's documentation alone; it shares nothing with the verifier's, which knows contents
//! by what they hold.

use warpweft_base::id::{CallId, SlotId, WeightId};
use warpweft_format::{ElementType, Orientation};
use warpweft_plan::layout::{Content, RoundStage};
use warpweft_plan::op::{MasterOperand, Op, OperandRole, SumTarget};
use warpweft_plan::plan::StepPlan;

/// Does the op write into a slot that was declared for something else?
pub(crate) fn writes_into_another_s_slot(plan: &StepPlan, op: &Op) -> bool {
    let declared = |slot: SlotId| plan.arena.slot(slot).content;
    written(plan, op, &declared).into_iter().any(|(slot, wanted)| wanted != Some(declared(slot)))
}

/// Every slot the op writes, and the content it belongs to; `None` where the slots it reads tell of no such
/// content.
fn written(plan: &StepPlan, op: &Op, declared: &dyn Fn(SlotId) -> Content) -> Vec<(SlotId, Option<Content>)> {
    let mut all: Vec<(SlotId, Option<Content>)> = Vec::new();
    let mut put = |slot: SlotId, content: Content| all.push((slot, Some(content)));
    match op {
        Op::Copy { from, to } => {
            let wanted = match (declared(*from), declared(*to)) {
                (Content::Staging(buffer, _), _) => Some(Content::Buffer(buffer)),
                (Content::Buffer(buffer), Content::Staging(of, micro_batch)) if of == buffer => {
                    Some(Content::Staging(buffer, micro_batch))
                }
                _ => None,
            };
            all.push((*to, wanted));
        }
        Op::ClearFault { fault } => put(*fault, Content::FaultWord),
        Op::ZeroPadding { weight, gradient } => {
            let content = declared(*gradient);
            let wanted = call_of(content).and_then(|call| {
                let own = [Content::Gradient(*weight, call), Content::WireGradient(*weight, call)];
                own.into_iter().find(|own| *own == content)
            });
            all.push((*gradient, wanted));
        }
        Op::Compute { call, fault, operands } => {
            put(*fault, Content::FaultWord);
            for operand in operands.iter().filter(|operand| operand.access.writes()) {
                let wanted = match operand.role {
                    OperandRole::Gradient(weight) => match plan.calls[call.index()].gradient(weight) {
                        Some(ElementType::Bf16) => Some(Content::WireGradient(weight, *call)),
                        _ => Some(Content::Gradient(weight, *call)),
                    },
                    OperandRole::Buffer(buffer) => Some(Content::Buffer(buffer)),
                    OperandRole::Use(_) | OperandRole::TensorScale(_) => None,
                };
                all.push((operand.slot, wanted));
            }
        }
        Op::ExchangeBuffer { call, to, .. } => {
            let exchange = plan.calls[call.index()].exchange;
            all.push((*to, exchange.map(|exchange| Content::Buffer(exchange.to))));
        }
        Op::PartialAmax { bucket, block_amax, tensor_amax, .. } => {
            put(*block_amax, Content::BlockAmax(*bucket));
            put(*tensor_amax, Content::LocalAmax(*bucket));
        }
        Op::AllReduce { pairs, .. } => {
            for (from, to) in pairs {
                let wanted = match declared(*from) {
                    Content::LocalAmax(bucket) => Some(Content::ReducedAmax(bucket)),
                    Content::LocalGrad(weight) => Some(Content::MainGrad(weight)),
                    Content::ReducedGradient(weight, call) => Some(Content::SummedGradient(weight, call)),
                    _ => None,
                };
                all.push((*to, wanted));
            }
        }
        Op::FusedScale { bucket, encode, tensor_scale, shards, .. } => {
            put(*encode, Content::Encode(*bucket));
            put(*tensor_scale, Content::TensorScale(*bucket));
            shards.iter().for_each(|shard| put(shard.slot, Content::Shard(shard.weight, shard.orientation)));
        }
        Op::DelayedScale { bucket, history, scale, tensor_scale, .. } => {
            if history.is_some() {
                put(*scale, Content::DelayedScale(*bucket));
            }
            put(*tensor_scale, Content::TensorScale(*bucket));
        }
        Op::RecordAmax { bucket, history, .. } => put(*history, Content::AmaxHistory(*bucket)),
        Op::PartialCast { shards, .. } => {
            shards.iter().for_each(|shard| put(shard.slot, Content::Shard(shard.weight, shard.orientation)));
        }
        Op::AllGather { parts } | Op::Assemble { parts } => {
            parts.iter().for_each(|part| put(part.to, Content::Gathered(part.weight, part.orientation)));
        }
        Op::GatherChunk { part, .. } => put(part.to, Content::Gathered(part.weight, part.orientation)),
        Op::Transpose { parts } => {
            parts.iter().for_each(|part| put(part.to, Content::Transposed(part.weight)));
        }
        Op::Dequantize { parts } => {
            for part in parts {
                put(part.to, Content::Dense(part.weight, part.orientation, part.values));
            }
        }
        Op::ReduceScatter { parts, .. } => {
            for part in parts {
                let call = call_of(declared(part.from));
                all.push((part.to, call.map(|call| Content::ReducedGradient(part.weight, call))));
            }
        }
        Op::ExchangeGradient { element, parts } => {
            for part in parts {
                let landed = |call| Content::LandedGradient(part.weight, call, *element);
                all.push((part.to, call_of(declared(part.from)).map(landed)));
            }
        }
        Op::SumGradient { parts, .. } => {
            for part in parts {
                let rows = |call| Content::ReducedGradient(part.weight, call);
                let wanted = match part.target {
                    SumTarget::Rows => call_of(declared(part.own)).map(rows),
                    SumTarget::First | SumTarget::More => Some(Content::MainGrad(part.weight)),
                };
                all.push((part.into, wanted));
            }
        }
        Op::RoundGradient { weight, from, to } => {
            all.push((*to, call_of(declared(*from)).map(|call| Content::WireGradient(*weight, call))));
        }
        Op::AddGradient { weight, into, .. } => {
            all.push((*into, call_of(declared(*into)).map(|call| Content::Gradient(*weight, call))));
        }
        Op::Accumulate { weight, from, into, .. } => {
            let wanted = match declared(*from) {
                Content::ReducedGradient(..) | Content::SummedGradient(..) => {
                    Some(Content::MainGrad(*weight))
                }
                Content::Gradient(..) => Some(Content::LocalGrad(*weight)),
                _ => None,
            };
            all.push((*into, wanted));
        }
        Op::GradNorm { record, .. } => put(*record, Content::NormRecord),
        Op::GatherRecords { to, .. } => put(*to, Content::NormRecords),
        Op::Vote { optimizer_step, vote, .. } => {
            put(*optimizer_step, Content::OptimizerStep);
            put(*vote, Content::Vote);
        }
        Op::Prepare { states, to, .. } => {
            for state in states {
                all.extend(lists(state.weight, &state.kept));
            }
            let first = states.first().map(|state| state.weight);
            all.push((*to, first.map(|first| Content::Round(first, RoundStage::Prepared))));
        }
        Op::ExchangeRows { weights, from, to } => {
            let stage = match declared(*from) {
                Content::Round(_, RoundStage::Prepared) => Some(RoundStage::Gathered),
                Content::Round(_, RoundStage::Transformed) => Some(RoundStage::Returned),
                _ => None,
            };
            all.push((*to, round(weights, stage)));
        }
        // What the rank made whole goes back by an exchange, what it had whole is there.
        Op::Transform { weights, from, to, .. } => {
            let stage = match declared(*from) {
                Content::Round(_, RoundStage::Gathered) => Some(RoundStage::Transformed),
                Content::Round(_, RoundStage::Prepared) => Some(RoundStage::Returned),
                _ => None,
            };
            all.push((*to, round(weights, stage)));
        }
        Op::Update { states, .. } => {
            for state in states {
                all.push((state.master, Some(Content::Master(state.weight))));
                all.extend(lists(state.weight, &state.kept));
            }
        }
        Op::Adam { states, .. } => {
            for state in states {
                let weight = state.weight;
                match state.master {
                    MasterOperand::Whole(master) => put(master, Content::Master(weight)),
                    MasterOperand::Split { shard, remainder } => {
                        put(shard, Content::Shard(weight, Orientation::Rowwise));
                        put(remainder, Content::MasterRemainder(weight));
                    }
                }
                put(state.exp_avg, Content::first_moment(weight));
                put(state.exp_avg_sq, Content::second_moment(weight));
            }
        }
    }
    all
}

/// A round goes by its first weight.
fn round(weights: &[WeightId], stage: Option<RoundStage>) -> Option<Content> {
    weights.first().zip(stage).map(|(first, stage)| Content::Round(*first, stage))
}

/// What a rule keeps of a weight.
fn lists(weight: WeightId, kept: &[SlotId]) -> impl Iterator<Item = (SlotId, Option<Content>)> {
    let wanted = [Content::first_moment(weight), Content::second_moment(weight)].map(Some);
    kept.iter().copied().zip(wanted)
}

/// The call whose gradient, whole, rounded or reduced, a slot is declared for.
fn call_of(content: Content) -> Option<CallId> {
    match content {
        Content::Gradient(_, call) | Content::WireGradient(_, call) | Content::ReducedGradient(_, call) => {
            Some(call)
        }
        _ => None,
    }
}
