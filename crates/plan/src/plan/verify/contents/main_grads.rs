//! PL-4: main grads: what is added to them, and that none lacks the gradient of a call.
//!
//! Law: the first contribution of a step begins a sum and no later one does. Squares of a main grad are those of the
//! calls that were in it when they were taken. Where a gradient that a sum lacks was lost
//! is found in what slots hold, the furthest that it came first.

use std::collections::BTreeSet;

use super::held::writes_bf16;
use super::{Held, Run, Verdict, VerifyError};
use crate::layout::Content;
use crate::model::Placement;
use crate::op::Accumulate;
use warpweft_base::id::{CallId, SlotId, TaskId, WeightId};

impl Run<'_> {
    pub(super) fn accumulate(&mut self, task: TaskId, op: &Accumulate) -> Verdict<()> {
        let Accumulate { weight, from, into, first, squares } = *op;
        let placement = self.plan.weights.layout(weight).placement;
        let added = self.addend(task, weight, placement, from)?;
        self.contribute(task, weight, added, into, first)?;
        squares.map_or(Ok(()), |squares| self.take_squares(task, weight, into, squares))
    }

    /// Adds what these calls made to the sum in `into`, or begins it.
    pub(super) fn contribute(
        &mut self,
        task: TaskId,
        weight: WeightId,
        added: BTreeSet<CallId>,
        into: SlotId,
        first: bool,
    ) -> Verdict<()> {
        let placement = self.plan.weights.layout(weight).placement;
        let contributions = added.len();
        let sum = self.sum(task, weight, placement, into, first)?;
        let sum = self.united(task, weight, sum, added)?;
        let held = match placement {
            Placement::Sharded => Held::MainGrad(weight, sum),
            Placement::Replicated => Held::LocalSum(weight, sum),
        };
        self.fill(task, into, held)?;
        self.proven.gradients += contributions;
        Ok(())
    }

    /// The squares of the main grad in `from` as it is now, if there is one.
    pub(super) fn take_squares(
        &mut self,
        task: TaskId,
        weight: WeightId,
        from: SlotId,
        to: SlotId,
    ) -> Verdict<()> {
        let Held::MainGrad(_, sum) = self.slots.held(from) else {
            let name = self.name(weight);
            let problem =
                format!("takes squares of this rank's gradient sum of `{name}`, which is no main grad");
            let remedy = "let the norm square what is summed over the ranks";
            return self.wrong_accumulation(task, problem, remedy);
        };
        self.fill(task, to, Held::Squares(weight, sum.clone()))
    }

    /// PL-4: `slot` must hold the squares of the main grad of `weight` with every call's gradient in it. If the main
    /// grad lacks one too, it is said where that is.
    pub(super) fn squared(&self, task: TaskId, weight: WeightId, slot: SlotId) -> Verdict<()> {
        let all = &self.contributors[weight.index()];
        if let Held::Squares(of, sum) = self.slots.held(slot)
            && *of == weight
            && all.iter().all(|call| sum.contains(call))
        {
            return Ok(());
        }
        if let Some(main_grad) = self.plan.arena.find(Content::MainGrad(weight)) {
            self.complete(task, weight, main_grad)?;
        }
        let needs = format!("squares of the main grad of `{}` with all contributions", self.name(weight));
        let remedy = "take squares with the last contribution, or let the norm read the main grad";
        self.wrong_gradient(task, slot, needs, remedy)
    }

    /// What is added: the calls it comes from.
    fn addend(
        &self,
        task: TaskId,
        weight: WeightId,
        placement: Placement,
        from: SlotId,
    ) -> Verdict<BTreeSet<CallId>> {
        let layout = self.plan.weights.layout(weight);
        let replicated = self.plan.weights.mesh.size(layout.shard.copies()) > 1;
        let (what, remedy) = match (placement, self.slots.held(from)) {
            (Placement::Sharded, Held::ReducedGradient(of, calls)) if *of == weight && !replicated => {
                return Ok(calls.clone());
            }
            (Placement::Sharded, Held::SummedGradient(of, calls)) if *of == weight => {
                return Ok(calls.clone());
            }
            (Placement::Replicated, Held::Gradient { weight: of, calls, .. }) if *of == weight => {
                return Ok(calls.clone());
            }
            (Placement::Sharded, Held::ReducedGradient(..)) if replicated && layout.is_in_slices() => (
                "a gradient summed over all optimizer instances",
                "sum slices over the instances, or each instance goes on with gradients of its own",
            ),
            (Placement::Sharded, Held::ReducedGradient(..)) if replicated => (
                "a gradient summed over all replicas",
                "sum reduced rows over the replicas, or each replica goes on with gradients of its own",
            ),
            (Placement::Sharded, _) => {
                ("a reduced gradient", "exchange and sum the gradient, or reduce-scatter it, first")
            }
            (Placement::Replicated, _) => {
                ("a call's gradient", "accumulate between the call and the next writer of its bytes")
            }
        };
        let needs = format!("{what} of `{}`", self.name(weight));
        self.wrong_gradient(task, from, needs, remedy)
    }

    /// The sum so far, taken out of its slot; empty for the first contribution.
    fn sum(
        &mut self,
        task: TaskId,
        weight: WeightId,
        placement: Placement,
        into: SlotId,
        first: bool,
    ) -> Verdict<BTreeSet<CallId>> {
        let begun = match (placement, self.slots.held(into)) {
            (Placement::Sharded, Held::MainGrad(of, _)) | (Placement::Replicated, Held::LocalSum(of, _)) => {
                *of == weight
            }
            _ => false,
        };
        if first && self.plan.accumulation.continues() {
            return self.wrong_accumulation(
                task,
                format!(
                    "begins the sum of `{}` anew and loses what earlier steps added up",
                    self.name(weight)
                ),
                "in a step that continues an accumulation let no contribution overwrite",
            );
        }
        match (begun, first) {
            (false, true) => Ok(BTreeSet::new()),
            (true, false) => Ok(self.slots.take_sum(into)),
            (true, true) => self.wrong_accumulation(
                task,
                format!(
                    "begins the sum of `{}` again and loses {}",
                    self.name(weight),
                    self.slots.describe(into)
                ),
                "only the first contribution of a step overwrites",
            ),
            (false, false) => {
                let needs = format!(
                    "the sum of `{}` that an earlier contribution of this step began",
                    self.name(weight)
                );
                self.wrong_gradient(task, into, needs, "the first contribution of a step must overwrite")
            }
        }
    }

    /// PL-4: `slot` must hold the main grad of `weight` with every call's gradient in it.
    pub(super) fn complete(&self, task: TaskId, weight: WeightId, slot: SlotId) -> Verdict<()> {
        let sum = match self.slots.held(slot) {
            Held::MainGrad(of, sum) if *of == weight => sum,
            _ => {
                let needs = format!("the main grad of `{}` from this step", self.name(weight));
                return self.wrong_gradient(
                    task,
                    slot,
                    needs,
                    "reduce and accumulate the weight's gradients first",
                );
            }
        };
        // The sum holds contributors alone, each once: only calls that declare a gradient write one.
        match self.contributors[weight.index()].iter().find(|call| !sum.contains(call)) {
            None => Ok(()),
            Some(call) => Err(Box::new(VerifyError::LostGradient {
                task: self.plan.describe(task),
                weight: self.name(weight).into(),
                call: self.call_name(*call),
                whereabouts: self.whereabouts(weight, *call),
            })),
        }
    }

    /// Where a gradient that a sum lacks is instead: the furthest it came.
    pub(super) fn whereabouts(&self, weight: WeightId, call: CallId) -> String {
        let content = |slot: SlotId| self.plan.arena.slot(slot).content;
        let find = |wanted: &dyn Fn(SlotId, &Held) -> bool| {
            self.slots.all().find(|(slot, held)| wanted(*slot, held)).map(|(slot, _)| slot)
        };
        let lost = |held: &Held| matches!(held, Held::Overwritten { .. });
        if let Some(slot) =
            find(&|_, held| matches!(held, Held::MainGrad(w, sum) if *w == weight && sum.contains(&call)))
        {
            return format!("it was added up in slot `{}`", self.slot_name(slot));
        }
        let block = |slot, held: &Held| match held {
            Held::BlockSum(of, sum, level) if *of == weight && sum.contains(&call) => Some((*level, slot)),
            _ => None,
        };
        if let Some((level, slot)) = self.slots.all().filter_map(|(slot, held)| block(slot, held)).max() {
            let slot = self.slot_name(slot);
            return format!(
                "it was summed over one block of {level} into slot `{slot}` and not summed further"
            );
        }
        if let Some(slot) =
            find(&|_, held| matches!(held, Held::LocalSum(w, sum) if *w == weight && sum.contains(&call)))
        {
            let slot = self.slot_name(slot);
            return format!("it was added to slot `{slot}`, and no all-reduce after that brings it further");
        }
        let summed = |held: &Held| matches!(held, Held::SummedGradient(w, calls) if *w == weight && calls.contains(&call));
        if let Some(slot) = find(&|_, held| summed(held)) {
            let slot = self.slot_name(slot);
            return format!("it was summed over the replicas into slot `{slot}` and not accumulated");
        }
        if let Some(slot) =
            find(&|slot, held| lost(held) && content(slot) == Content::SummedGradient(weight, call))
        {
            let (name, holds) = (self.slot_name(slot), self.slots.describe(slot));
            return format!("it was summed over the replicas into slot `{name}`, which holds {holds}");
        }
        let reduced = |held: &Held| matches!(held, Held::ReducedGradient(w, calls) if *w == weight && calls.contains(&call));
        if let Some(slot) = find(&|_, held| reduced(held)) {
            return format!("it was reduced into slot `{}` and not accumulated", self.slot_name(slot));
        }
        if let Some(slot) =
            find(&|slot, held| lost(held) && content(slot) == Content::ReducedGradient(weight, call))
        {
            let holds = self.slots.describe(slot);
            return format!("it was reduced into slot `{}`, which holds {holds}", self.slot_name(slot));
        }
        if let Some(whereabouts) = self.received(weight, call) {
            return whereabouts;
        }
        let rounded = |held: &Held| {
            let (of, calls, as_written) = match held {
                Held::WireGradient(of, calls) => (of, calls, writes_bf16(self.plan, weight, call)),
                Held::QuantizedGradient(of, calls) => (of, calls, false),
                _ => return false,
            };
            *of == weight && calls.contains(&call) && !as_written
        };
        if let Some(slot) = find(&|_, held| rounded(held)) {
            return format!("it was rounded into slot `{}` and not reduced", self.slot_name(slot));
        }
        let written = |held: &Held| match held {
            Held::Gradient { weight: of, calls, .. } | Held::WireGradient(of, calls) => {
                *of == weight && calls.contains(&call)
            }
            Held::Unpadded(of, by) => (*of, *by) == (weight, call),
            _ => false,
        };
        if let Some(slot) = find(&|_, held| written(held)) {
            return format!("it still lies in slot `{}` as the call wrote it", self.slot_name(slot));
        }
        let its_own = |content| matches!(content, Content::Gradient(of, by) | Content::WireGradient(of, by) if (of, by) == (weight, call));
        match find(&|slot, held| lost(held) && its_own(content(slot))) {
            Some(slot) => format!("its slot `{}` holds {}", self.slot_name(slot), self.slots.describe(slot)),
            None => "no task wrote or carries it".into(),
        }
    }
}
