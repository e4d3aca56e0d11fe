//! The judge of an edited plan: harmful or not, decided without the verifier. Decided without the verifier.
//!
//! Law: a plan is harmful if on some machine it does something else than the plan it was made from: a rank
//! stands still, two tasks meet on a byte in no order, a slot is too small for what is written, or a call, an
//! output, a main grad or what the step leaves has another content; or if it is not what it says it is of a sum of
//! gradients. Everything else is harmless, however odd.

use warpweft_plan::layout::Content;
use warpweft_plan::model::Accumulation;
use warpweft_plan::plan::StepPlan;

use super::happens_before::Before;
use super::meaning::{Meaning, meaning};
use super::part::keeps_its_word;

/// What is wrong with an edited plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Harm {
    /// A slot has fewer bytes than its content, or lies outside of the arena.
    Space,
    /// Some task waits for itself.
    Deadlock,
    /// Two accesses to a byte in no order.
    Race,
    /// Other contents.
    Content,
}

/// What a valid plan means: the measure for its edits.
pub(crate) struct Original {
    meaning: Meaning,
    part: Accumulation,
}

impl Original {
    pub(crate) fn new(plan: &StepPlan) -> Self {
        let order: Vec<usize> = (0..plan.tasks.len()).collect();
        Self { meaning: meaning(plan, &order), part: plan.accumulation }
    }

    /// What `edited` does wrong.
    pub(crate) fn harm(&self, edited: &StepPlan) -> Option<Harm> {
        if !has_room(edited) {
            return Some(Harm::Space);
        }
        let before = Before::of(edited);
        if before.stands_still() {
            return Some(Harm::Deadlock);
        }
        if before.conflict(edited).is_some() {
            return Some(Harm::Race);
        }
        let order = before.order();
        // Where the terms are the same ones, the word is as good as the original's.
        let is_another = edited.accumulation != self.part;
        (!self.is_meant_by(edited, &order) || is_another && !keeps_its_word(edited, &order))
            .then_some(Harm::Content)
    }

    /// Do these tasks of `edited` do in this order what the plan it was made from does?
    pub(crate) fn is_meant_by(&self, edited: &StepPlan, order: &[usize]) -> bool {
        meaning(edited, order).is(&self.meaning, edited.accumulation.stays_open())
    }
}

fn has_room(plan: &StepPlan) -> bool {
    let needed =
        |content: Content| content.bytes(&plan.weights, |buffer| plan.buffers[buffer.index()].bytes());
    plan.arena
        .slots
        .iter()
        .all(|slot| slot.region.bytes >= needed(slot.content) && slot.region.end() <= plan.arena.bytes())
}
