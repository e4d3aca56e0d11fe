//! Norm, vote, and the optimizer: Adam or a custom one.
//!
//! Law: nothing after the vote changes a weight unless every rank voted clean. The norm counts every main grad once, by
//! the squares that its last sum took or else by itself; frozen weights have none and stay as they are; the vote sees
//! the record of every rank of all replicas, in rank order, so that all of them skip a step together. Weights of one
//! bucket and one parameter group are one task, or one for each round of matrices that a custom optimizer needs whole.
//! Adam casts what it makes where each block says by itself how, or takes its amaxes; all else is quantized after it.

use std::collections::BTreeMap;

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::matrices::{self, Round};
use super::quantize::amaxes;
use super::{of_group, peers};
use crate::layout::Content;
use crate::model::{Group, ParameterGroup};
use crate::op::{
    Adam, AdamOperand, CastVote, GatherRecords, GradNorm, MasterOperand, NormRecord, Op, Update,
    UpdateOperand,
};
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::Orientation;

/// Adds the optimizer and returns the slot of the vote.
pub(in super::super) fn optimize(draft: &mut Draft<'_>) -> SlotId {
    let tail = draft.tail();
    let record = draft.transient("norm record".into(), Content::NormRecord);
    let records = draft.transient("norm records".into(), Content::NormRecords);
    let vote = draft.transient("vote".into(), Content::Vote);
    let (mut main_grads, mut squares) = (Vec::new(), Vec::new());
    let weights = (0..draft.weights.layouts.len()).map(WeightId::at);
    for weight in weights.filter(|weight| !draft.weights.layout(*weight).frozen) {
        match draft.known(Content::Squares(weight)) {
            Some(taken) => squares.push((weight, taken)),
            None => main_grads.push((weight, draft.slot(Content::MainGrad(weight)))),
        }
    }
    let fault = draft.slot(Content::FaultWord);
    let norm = Op::GradNorm(GradNorm { main_grads, squares, fault, record });
    draft.add(tail, Section::Tail, DraftTask::local(norm, "main grads", Carrier::Quantize));
    let bytes = size_of::<NormRecord>() * peers(draft.weights.mesh, Group::World);
    let gathered = Op::GatherRecords(GatherRecords { from: record, to: records });
    draft.add(tail, Section::Tail, DraftTask::collective(gathered, "norm records", Carrier::Reduce, bytes));
    let optimizer_step = draft.slot(Content::OptimizerStep);
    let gradient_scale = draft.slot(Content::GradientScale);
    let cast = Op::Vote(CastVote { records, optimizer_step, gradient_scale, vote });
    draft.add(tail, Section::Tail, DraftTask::local(cast, "step", Carrier::Quantize));
    update(draft, vote);
    vote
}

/// One task for the weights of a bucket and parameter group: Adam, or the custom optimizer, which runs where its
/// calls do.
fn update(draft: &mut Draft<'_>, vote: SlotId) {
    let hyperparameters = draft.slot(Content::Hyperparameters);
    let (mut others, mut rounds) = (Vec::new(), Vec::<Round>::new());
    for (bucket, members) in draft.weights.entries().filter(|(_, members)| !members.frozen) {
        let mut groups: BTreeMap<ParameterGroup, Vec<WeightId>> = BTreeMap::new();
        for weight in &members.weights {
            groups.entry(draft.weights.layout(*weight).parameters).or_default().push(*weight);
        }
        let alone = groups.len() == 1;
        for (group, weights) in groups {
            if group.whole_matrix {
                rounds.extend(matrices::rounds(draft, bucket, &weights));
                continue;
            }
            // What is measured of a task goes by its name, so no two groups have one.
            let subject = match weights.first().filter(|_| !alone) {
                Some(first) => of_group(draft.name(*first), weights.len()),
                None => bucket.to_string(),
            };
            let (op, carrier) = if draft.weights.state.custom_states.is_some() {
                let states = weights.into_iter().map(|weight| own(draft, weight)).collect();
                (
                    Op::Update(Update { bucket, states, vote, hyperparameters, transformed: None }),
                    Carrier::Compute,
                )
            } else {
                let states = weights.into_iter().map(|weight| adam(draft, bucket, weight)).collect();
                let scales = draft.weights.casts_in_update(bucket) && members.has_scales();
                let tensor_scale = scales.then(|| draft.slot(Content::TensorScale(bucket)));
                let takes_amaxes = draft.weights.amaxes_in_update(bucket);
                let amaxes = takes_amaxes.then(|| amaxes(draft, bucket));
                let op = Adam { bucket, states, vote, hyperparameters, tensor_scale, amaxes };
                (Op::Adam(op), Carrier::Quantize)
            };
            others.push(DraftTask::local(op, subject, carrier));
        }
    }
    matrices::by_rounds(draft, &rounds, others, vote, |draft, round, transformed| {
        let (bucket, transformed) = (round.bucket, Some(transformed));
        let states = round.weights().map(|weight| own(draft, weight)).collect();
        let op = Op::Update(Update { bucket, states, vote, hyperparameters, transformed });
        DraftTask::local(op, matrices::subject(draft, round), Carrier::Compute)
    });
}

fn adam(draft: &Draft<'_>, bucket: BucketId, weight: WeightId) -> AdamOperand {
    AdamOperand {
        weight,
        master: master(draft, bucket, weight),
        exp_avg: draft.slot(Content::first_moment(weight)),
        exp_avg_sq: draft.slot(Content::second_moment(weight)),
        main_grad: draft.slot(Content::MainGrad(weight)),
    }
}

fn own(draft: &Draft<'_>, weight: WeightId) -> UpdateOperand {
    UpdateOperand {
        weight,
        master: draft.slot(Content::Master(weight)),
        kept: Content::kept(draft.weights.state, weight).map(|list| draft.slot(list)).collect(),
        main_grad: draft.slot(Content::MainGrad(weight)),
    }
}

fn master(draft: &Draft<'_>, bucket: BucketId, weight: WeightId) -> MasterOperand {
    let shard = || draft.slot(Content::Shard(weight, Orientation::Rowwise));
    if draft.weights.splits_masters(bucket) {
        MasterOperand::Split { shard: shard(), remainder: draft.slot(Content::MasterRemainder(weight)) }
    } else if draft.weights.casts_in_update(bucket) {
        MasterOperand::Cast { master: draft.slot(Content::Master(weight)), shard: shard() }
    } else {
        MasterOperand::Whole(draft.slot(Content::Master(weight)))
    }
}
