//! What may come up in a random program and its plan of updates that make more than masters.
//!
//! Law: as of `feature`, which has these rows among its own.

use warpweft_plan::layout::Bucket;
use warpweft_plan::op::{Adam, MasterOperand, Op};
use warpweft_plan::plan::StepPlan;

use super::row::Feature;

pub(super) fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    let mut add = |name: &str, has: fn(&StepPlan) -> bool| {
        all.push((name.into(), Box::new(move |_, plan| has(plan))));
    };
    add("masters cast by their update, without scales", |plan| {
        updates(plan).any(|adam| is_cast(adam) && adam.tensor_scale.is_none())
    });
    add("masters cast by their update, with scales", |plan| {
        updates(plan).any(|adam| is_cast(adam) && adam.tensor_scale.is_some())
    });
    add("amaxes taken by an update", |plan| updates(plan).any(|adam| adam.amaxes.is_some()));
    add("scales of several parameter groups, made after their updates", |plan| {
        let apart = |bucket: &Bucket| bucket.format.casts_by_blocks() && bucket.has_scales();
        let of_bucket = |adam: &Adam| apart(plan.weights.bucket(adam.bucket));
        updates(plan).any(|adam| of_bucket(adam) && !is_cast(adam))
    });
    all
}

fn updates(plan: &StepPlan) -> impl Iterator<Item = &Adam> {
    plan.tasks.iter().filter_map(|task| match &task.op {
        Op::Adam(adam) => Some(adam),
        _ => None,
    })
}

fn is_cast(adam: &Adam) -> bool {
    adam.states.iter().any(|state| matches!(state.master, MasterOperand::Cast { .. }))
}
