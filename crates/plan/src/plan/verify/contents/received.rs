//! PL-4 where ranks sum gradients by themselves: what travels unsummed, and the sum of it.
//!
//! Law: an exchange brings the other ranks' slices of one gradient, of the calls whose sum it is, in the
//! element type that was requested. A sum takes these and the rank's own slice of the very same gradient,
//! which its slot must still hold: so each rank's contribution is in it once, and all of them are of the same
//! calls. Only where a replica is one rank is there nothing that could have landed. What is summed goes on as
//! reduced rows; or, if there are no other replicas to sum it with, into the main grad as any contribution
//! does.

use std::collections::BTreeSet;

use super::{Held, Run, Verdict};
use crate::layout::Content;
use crate::model::Placement;
use crate::op::{ReducePart, SumPart, SumTarget};
use warpweft_base::id::{CallId, SlotId, TaskId, WeightId};
use warpweft_format::ElementType;

impl Run<'_> {
    pub(super) fn exchange_gradient(
        &mut self,
        task: TaskId,
        element: ElementType,
        part: ReducePart,
    ) -> Verdict<()> {
        let ReducePart { weight, from, to } = part;
        let calls = self.travelling(task, element, weight, from)?;
        self.fill(task, to, Held::ReceivedGradient(weight, calls, element))
    }

    pub(super) fn sum_gradient(&mut self, task: TaskId, element: ElementType, part: SumPart) -> Verdict<()> {
        let SumPart { weight, own, received, into, target } = part;
        let calls = self.travelling(task, element, weight, own)?;
        if self.plan.weights.layout(weight).placement == Placement::Replicated {
            let name = self.name(weight);
            let problem =
                format!("sums slices of the gradient of `{name}`, of which every rank has all rows");
            let remedy = "accumulate the gradient of a replicated weight as it is";
            return self.wrong_accumulation(task, problem, remedy);
        }
        self.all_received(task, weight, &calls, element, received)?;
        if target == SumTarget::Rows {
            return self.fill(task, into, Held::ReducedGradient(weight, calls));
        }
        if self.plan.weights.mesh.replicas() > 1 {
            let name = self.name(weight);
            let problem = format!(
                "adds the gradient of `{name}` to the main grad, summed over the ranks of one replica"
            );
            let remedy = "leave the sums as they are and sum them over the replicas first, or each replica goes on with gradients of its own";
            return self.wrong_accumulation(task, problem, remedy);
        }
        self.contribute(task, weight, calls, into, target == SumTarget::First)
    }

    /// The slices of every other rank, of the gradient that `calls` made, must be there.
    fn all_received(
        &self,
        task: TaskId,
        weight: WeightId,
        calls: &BTreeSet<CallId>,
        element: ElementType,
        received: Option<SlotId>,
    ) -> Verdict<()> {
        let Some(slot) = received else {
            if self.plan.weights.mesh.shards() == 1 {
                return Ok(());
            }
            let problem =
                format!("sums the gradient of `{}` without what other ranks give", self.name(weight));
            return self.wrong_accumulation(
                task,
                problem,
                "exchange the gradient, and sum what was received",
            );
        };
        let expected = Held::ReceivedGradient(weight, calls.clone(), element);
        if *self.slots.held(slot) == expected {
            return Ok(());
        }
        let remedy = "exchange the gradient first; until the sum, write neither the gradient nor what was received of it";
        self.wrong_gradient(task, slot, expected.describe(self.plan), remedy)
    }

    /// Where the other ranks' slices of what `call` made have landed, in words; `None` if no task brought them.
    pub(super) fn received(&self, weight: WeightId, call: CallId) -> Option<String> {
        let has = |held: &Held| matches!(held, Held::ReceivedGradient(of, calls, _) if *of == weight && calls.contains(&call));
        if let Some((slot, _)) = self.slots.all().find(|(_, held)| has(held)) {
            return Some(format!("it was exchanged into slot `{}` and not summed", self.slot_name(slot)));
        }
        let was = |slot: SlotId| matches!(self.plan.arena.slot(slot).content, Content::ReceivedGradient(of, by, _) if (of, by) == (weight, call));
        let lost = |held: &Held| matches!(held, Held::Overwritten { .. });
        let (slot, _) = self.slots.all().find(|(slot, held)| lost(held) && was(*slot))?;
        let (name, holds) = (self.slot_name(slot), self.slots.describe(slot));
        Some(format!("it was exchanged into slot `{name}`, which holds {holds}"))
    }
}
