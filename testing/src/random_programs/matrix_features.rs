//! Features of whole-matrix optimizers in random programs and their plans.
//!
//! Law: as of `feature`, which has these rows among its own.

use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::Accumulation;
use warpweft_plan::op::{ExchangeRows, Op, Prepare, Transform, Update};
use warpweft_plan::plan::StepPlan;

use super::Sample;
use super::row::Feature;

pub(super) fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    for lists in 0..=2 {
        let has = move |_: &Sample, plan: &StepPlan| {
            rounds(plan).any(
                |round| matches!(round, Op::Prepare(Prepare { states, .. }) if states[0].kept.len() == lists),
            )
        };
        all.push((format!("matrices prepared from {lists} lists"), Box::new(has)));
    }
    let mut add = |name: &str, has: fn(&StepPlan) -> bool| {
        all.push((name.into(), Box::new(move |_, plan| has(plan))));
    };
    add("a matrix for each rank that shares it", |plan| {
        exchanged(plan).any(|(weights, ranks)| weights > 1 && weights == ranks)
    });
    add("several matrices, and ranks without", |plan| {
        exchanged(plan).any(|(weights, ranks)| weights > 1 && weights < ranks)
    });
    add("one matrix, and ranks without", |plan| exchanged(plan).any(|(weights, _)| weights == 1));
    add("a matrix of which a rank has no rows", |plan| {
        let ranks = plan.weights.mesh.shards() as usize;
        let is_short = |layout: &WeightLayout| {
            ranks > 1 && layout.shard.rows_per_rank * (ranks - 1) >= layout.shard.shape.rows
        };
        rounds(plan).any(|op| match op {
            Op::ExchangeRows(ExchangeRows { weights, .. }) => is_short(plan.weights.layout(weights[0])),
            _ => false,
        })
    });
    add("a matrix that every rank has whole, beside shared ones", |plan| {
        let prepared = rounds(plan).filter(|op| matches!(op, Op::Prepare(_))).count();
        (1..prepared).contains(&(exchanged(plan).count() / 2))
    });
    add("more rounds of matrices than are under way at once", |plan| {
        rounds(plan).filter(|op| matches!(op, Op::Prepare(_))).count() > 3
    });
    add("a second round of matrices of one size", |plan| {
        let first = rounds(plan).filter_map(|op| match op {
            Op::ExchangeRows(ExchangeRows { weights, .. }) => Some(plan.weights.layout(weights[0])),
            _ => None,
        });
        // There and back.
        let of = |layout: &WeightLayout| (layout.bucket, layout.parameters, layout.stored_elements());
        let sizes: Vec<_> = first.map(of).collect();
        sizes.iter().any(|size| sizes.iter().filter(|other| *other == size).count() > 2)
    });
    add("matrices among updates that need none", |plan| {
        let by = |wanted: bool| {
            let is = move |op: &Op| matches!(op, Op::Update(Update { transformed, .. }) if transformed.is_some() == wanted);
            plan.tasks.iter().any(|task| is(&task.op))
        };
        by(true) && by(false)
    });
    add("matrices with padding, at the end of a sum, with replicas", |plan| {
        let is_padded = |op: &Op| match op {
            Op::Transform(Transform { weights, .. }) => weights.iter().any(|weight| {
                let shard = &plan.weights.layout(*weight).shard;
                shard.padded_rows() > shard.shape.rows
            }),
            _ => false,
        };
        let is_last = plan.accumulation == Accumulation::Last && plan.weights.mesh.replicas() > 1;
        is_last && rounds(plan).any(is_padded)
    });
    add("a frozen weight that would be a whole matrix", |plan| {
        let is = |layout: &WeightLayout| layout.frozen && layout.parameters.whole_matrix;
        plan.updates_weights && plan.weights.layouts.iter().any(is)
    });
    all
}

/// What makes matrices whole and transforms them.
fn rounds(plan: &StepPlan) -> impl Iterator<Item = &Op> {
    let is_of_one = |op: &&Op| matches!(op, Op::Prepare(_) | Op::ExchangeRows(_) | Op::Transform(_));
    plan.tasks.iter().map(|task| &task.op).filter(is_of_one)
}

/// Of each exchange of rows, how many matrices and how many ranks there are.
fn exchanged(plan: &StepPlan) -> impl Iterator<Item = (usize, usize)> {
    let ranks = plan.weights.mesh.shards() as usize;
    rounds(plan).filter_map(move |op| match op {
        Op::ExchangeRows(ExchangeRows { weights, .. }) => Some((weights.len(), ranks)),
        _ => None,
    })
}
