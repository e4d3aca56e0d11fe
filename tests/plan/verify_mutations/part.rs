//! The judge of accumulation: is a plan the part of a gradient sum that it says it is?
//!
//! Law: a plan's word is judged by running it on terms twice, with two different things in main grads and in what ranks
//! add up by themselves. What goes on with a sum leaves something else each time, in every one of them; what begins
//! one, or is a whole step, leaves the same. This file knows no op that adds and none that overwrites.

use warpweft_base::id::WeightId;
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::{Accumulation, Placement};
use warpweft_plan::op::Op;
use warpweft_plan::plan::StepPlan;

use super::meaning::sums_after;

/// Is it so?
pub(crate) fn keeps_its_word(plan: &StepPlan, order: &[usize]) -> bool {
    let has_optimizer = plan.tasks.iter().any(|task| matches!(task.op, Op::Adam(_) | Op::Update(_)));
    let ends = match plan.accumulation {
        Accumulation::Whole => has_optimizer == plan.updates_weights,
        Accumulation::First | Accumulation::Next => !has_optimizer,
        Accumulation::Last => has_optimizer,
    };
    let (one, other) = (sums_after(plan, order, "one sum"), sums_after(plan, order, "another"));
    let stays = |content: Content| {
        let mut slots = plan.arena.entries().filter(|(_, slot)| slot.residency == Residency::Resident);
        slots.find(|(_, slot)| slot.content == content).map(|(id, _)| id)
    };
    let is_as_said = |content: Content| {
        stays(content).is_some_and(|slot| (one[&slot] != other[&slot]) == plan.accumulation.continues())
    };
    let is_written = |weight: WeightId| plan.calls.iter().any(|call| call.gradient(weight).is_some());
    let layouts =
        plan.weights.layouts.iter().enumerate().map(|(number, layout)| (WeightId::at(number), layout));
    // A whole step need not write all of them.
    let mut summed = layouts.filter(|(weight, layout)| match plan.accumulation {
        Accumulation::Whole => is_written(*weight),
        _ => !layout.frozen,
    });
    let is_sum = |(weight, _): &(WeightId, _)| is_written(*weight) && is_as_said(Content::MainGrad(*weight));
    ends && summed.all(|of| {
        is_sum(&of) && (of.1.placement == Placement::Sharded || is_as_said(Content::LocalGrad(of.0)))
    })
}
