//! Whole matrices for a custom optimizer such as Muon: redistributed in rounds.
//!
//! Laws:
//! - A round is at most as many weights as ranks share them, of one bucket and one parameter group, whose shards have
//!   equally many elements. So every rank gets one matrix at most, all parts of an exchange are equal, and what a rank
//!   gets lies there as one matrix. Of what every rank has whole, a round is one weight, and nothing is exchanged.
//! - The rows of a round come together beside the transformation of the round before, and go back beside that of the
//!   round after it: at most three rounds are under way at once.

use std::collections::BTreeMap;

use super::super::draft::{Carrier, Draft, DraftTask, Section};
use super::{of_group, wire_bytes};
use crate::layout::{Content, RoundStage};
use crate::op::{ExchangeRows, Op, Prepare, PrepareOperand, Transform, WireType};
use warpweft_base::id::{BucketId, SlotId, WeightId};

/// Weights that are transformed at once, each on another rank.
pub(super) struct Round {
    pub(super) bucket: BucketId,
    /// It names the round.
    first: WeightId,
    others: Vec<WeightId>,
}

impl Round {
    /// In the order of ranks.
    pub(super) fn weights(&self) -> impl Iterator<Item = WeightId> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// The rounds of weights of one bucket and parameter group.
pub(super) fn rounds(draft: &Draft<'_>, bucket: BucketId, weights: &[WeightId]) -> Vec<Round> {
    let mut by_size: BTreeMap<(u32, usize), Vec<WeightId>> = BTreeMap::new();
    for weight in weights {
        let layout = draft.weights.layout(*weight);
        by_size.entry((layout.shard.ranks, layout.stored_elements())).or_default().push(*weight);
    }
    let of_size = |((ranks, _), alike): ((u32, usize), Vec<WeightId>)| {
        let round = |weights: &[WeightId]| {
            let (first, others) = weights.split_first()?;
            Some(Round { bucket, first: *first, others: others.to_vec() })
        };
        alike.chunks(ranks.max(1) as usize).filter_map(round).collect::<Vec<_>>()
    };
    by_size.into_iter().rev().flat_map(of_size).collect()
}

/// Adds what makes matrices whole, transforms them and brings their rows back, and after each round what `update`
/// makes of it and of the slot where its rows are. The `others`, updates that need no matrix, come while the rows of
/// the first round are on their way.
pub(super) fn by_rounds<'a>(
    draft: &mut Draft<'a>,
    rounds: &[Round],
    mut others: Vec<DraftTask>,
    vote: SlotId,
    update: impl Fn(&Draft<'a>, &Round, SlotId) -> DraftTask,
) {
    let (mut gathered, mut returned) = (Vec::new(), Vec::new());
    for turn in 0..rounds.len() + 2 {
        if let Some(round) = rounds.get(turn) {
            gathered.push(gather(draft, round, vote));
        }
        others.drain(..).for_each(|task| draft.add(draft.tail(), Section::Tail, task));
        if let Some(before) = turn.checked_sub(1)
            && let Some(round) = rounds.get(before)
        {
            returned.push(transform(draft, round, vote, gathered[before]));
        }
        if let Some(before) = turn.checked_sub(2)
            && let Some(round) = rounds.get(before)
        {
            let task = update(draft, round, returned[before]);
            draft.add(draft.tail(), Section::Tail, task);
        }
    }
}

/// Prepares rows and brings them together; returns the slot of the matrix.
fn gather(draft: &mut Draft<'_>, round: &Round, vote: SlotId) -> SlotId {
    let (bucket, to) = (round.bucket, slot(draft, round, RoundStage::Prepared));
    let operand = |weight| PrepareOperand {
        weight,
        kept: Content::kept(draft.weights.state, weight).map(|list| draft.slot(list)).collect(),
        main_grad: draft.slot(Content::MainGrad(weight)),
    };
    let states = round.weights().map(operand).collect();
    let hyperparameters = draft.slot(Content::Hyperparameters);
    let op = Op::Prepare(Prepare { bucket, states, vote, hyperparameters, to });
    let task = DraftTask::local(op, subject(draft, round), Carrier::Compute);
    draft.add(draft.tail(), Section::Tail, task);
    exchanged(draft, round, to, RoundStage::Gathered)
}

/// Transforms matrices and brings their rows back; returns the slot of these.
fn transform(draft: &mut Draft<'_>, round: &Round, vote: SlotId, from: SlotId) -> SlotId {
    let stage = if is_shared(draft, round) { RoundStage::Transformed } else { RoundStage::Returned };
    let (bucket, weights, to) = (round.bucket, round.weights().collect(), slot(draft, round, stage));
    let op = Op::Transform(Transform { bucket, weights, vote, from, to });
    let task = DraftTask::local(op, subject(draft, round), Carrier::Compute);
    draft.add(draft.tail(), Section::Tail, task);
    exchanged(draft, round, to, RoundStage::Returned)
}

/// The slot that `from` gets to by an exchange, or `from` itself where every rank has all of it.
fn exchanged(draft: &mut Draft<'_>, round: &Round, from: SlotId, stage: RoundStage) -> SlotId {
    if !is_shared(draft, round) {
        return from;
    }
    let (weights, to) = (round.weights().collect(), slot(draft, round, stage));
    let part = draft.weights.layout(round.first).stored_elements();
    let group = draft.weights.layout(round.first).shard.group();
    let bytes = wire_bytes(part, WireType::F32, draft.weights.mesh, group);
    // What is measured of a task goes by its name, so the two ways have two.
    let way = if stage == RoundStage::Returned { "back" } else { "whole" };
    let subject = format!("{}, {way}", subject(draft, round));
    let op = Op::ExchangeRows(ExchangeRows { group, weights, from, to });
    draft.add(draft.tail(), Section::Tail, DraftTask::collective(op, subject, Carrier::Reduce, bytes));
    to
}

/// Do several ranks share its weights?
fn is_shared(draft: &Draft<'_>, round: &Round) -> bool {
    draft.weights.layout(round.first).shard.ranks > 1
}

fn slot(draft: &mut Draft<'_>, round: &Round, stage: RoundStage) -> SlotId {
    let state = match stage {
        RoundStage::Prepared => "prepared rows",
        RoundStage::Gathered => "whole matrix",
        RoundStage::Transformed => "transformed matrix",
        RoundStage::Returned => "transformed rows",
    };
    draft.transient(format!("{} {state}", subject(draft, round)), Content::Round(round.first, stage))
}

pub(super) fn subject(draft: &Draft<'_>, round: &Round) -> String {
    of_group(draft.name(round.first), round.weights().count())
}
