//! PL-4: the way of a gradient from the call that wrote it to its main grad.
//!
//! Law: a sharded weight's gradient is reduced, by itself or added to others of the weight, by one collective
//! or in two tasks (`received`), then summed over the replicas where there are several, then accumulated; a
//! replicated weight's is accumulated, then all-reduced over all ranks. So a contribution passes each sum
//! over ranks exactly once. The first contribution of a step begins the sum and no later one does; none is
//! added twice, on the rank or after the reduction; and they are added in program order, because sums of
//! floats depend on it: so equal programs give equal bits, however they are scheduled. Calls of different
//! micro-batches are different contributions. Padding rows are zero before anything is summed over ranks.
//! What a call declares in bf16 is reduced in bf16 as it lies: nothing rounds it, and nothing is added to it
//! on the rank.

use std::collections::BTreeSet;

use super::held::{in_words, writes_bf16};
use super::{Held, Run, Verdict, VerifyError};
use crate::layout::Content;
use crate::model::{Group, Placement};
use crate::op::ReducePart;
use warpweft_base::id::{CallId, SlotId, TaskId, WeightId};
use warpweft_format::ElementType;

impl Run<'_> {
    pub(super) fn zero_padding(&mut self, task: TaskId, weight: WeightId, gradient: SlotId) -> Verdict<()> {
        let held = match self.slots.held(gradient) {
            Held::Gradient { weight: of, calls, .. } if *of == weight => {
                Held::Gradient { weight, calls: calls.clone(), padded: true }
            }
            Held::Unpadded(of, call) if *of == weight => Held::WireGradient(weight, [*call].into()),
            Held::WireGradient(of, calls) if *of == weight => Held::WireGradient(weight, calls.clone()),
            Held::Gradient { .. } | Held::Unpadded(..) | Held::WireGradient(..) => {
                let needs = format!("a gradient of `{}`", self.name(weight));
                return self.wrong_gradient(
                    task,
                    gradient,
                    needs,
                    "zero the padding of the weight's own gradient",
                );
            }
            _ => Held::Padding(weight),
        };
        self.fill(task, gradient, held)
    }

    pub(super) fn reduce_scatter(
        &mut self,
        task: TaskId,
        element: ElementType,
        part: ReducePart,
    ) -> Verdict<()> {
        let ReducePart { weight, from, to } = part;
        let calls = self.travelling(task, element, weight, from)?;
        self.fill(task, to, Held::ReducedGradient(weight, calls))
    }

    /// The calls whose gradients of `weight` are in `slot` as they travel: in `element`, which is what the
    /// plan was requested.
    pub(super) fn travelling(
        &self,
        task: TaskId,
        element: ElementType,
        weight: WeightId,
        slot: SlotId,
    ) -> Verdict<BTreeSet<CallId>> {
        let calls = match (element, self.slots.held(slot)) {
            (ElementType::F32, _) => self.padded_gradient(task, weight, slot, "reduce")?,
            (ElementType::Bf16, Held::WireGradient(of, calls)) if *of == weight => calls.clone(),
            (_, Held::Unpadded(of, _)) if *of == weight => {
                let needs = format!("a gradient of `{}` with zeroed padding rows", self.name(weight));
                let remedy = "zero the padding rows before the gradient is reduced";
                return self.wrong_gradient(task, slot, needs, remedy);
            }
            _ => {
                let needs = format!("a gradient of `{}` rounded to {}", self.name(weight), in_words(element));
                return self.wrong_gradient(task, slot, needs, "round the gradient before it is reduced");
            }
        };
        let in_bf16 = |call: &CallId| self.written_in.get(&(weight, *call)) == Some(&ElementType::Bf16);
        let chosen = match calls.iter().any(in_bf16) {
            true => ElementType::Bf16,
            false => self.plan.policy.reduce_dtype.element(),
        };
        if element != chosen {
            let problem = format!(
                "reduces the gradient of `{}` in {}, but the plan was asked for {}",
                self.name(weight),
                in_words(element),
                in_words(chosen)
            );
            return self.wrong_accumulation(task, problem, "let gradients travel as reduce_dtype says");
        }
        Ok(calls)
    }

    pub(super) fn round_gradient(
        &mut self,
        task: TaskId,
        weight: WeightId,
        from: SlotId,
        to: SlotId,
    ) -> Verdict<()> {
        let calls = self.padded_gradient(task, weight, from, "round")?;
        self.fill(task, to, Held::WireGradient(weight, calls))
    }

    /// The calls whose gradients of `weight` are in `slot`, whose padding rows must be zero.
    fn padded_gradient(
        &self,
        task: TaskId,
        weight: WeightId,
        slot: SlotId,
        verb: &str,
    ) -> Verdict<BTreeSet<CallId>> {
        let shard = &self.plan.weights.layout(weight).shard;
        let has_padding = shard.padded_rows() > shard.shape.rows;
        match self.slots.held(slot) {
            Held::Gradient { weight: of, calls, padded } if *of == weight && (*padded || !has_padding) => {
                Ok(calls.clone())
            }
            _ => {
                let zeros = if has_padding { " with zeroed padding rows" } else { "" };
                let needs = format!("a call's gradient of `{}`{zeros}", self.name(weight));
                let remedy = match self.slots.held(slot) {
                    Held::WireGradient(of, _) | Held::Unpadded(of, _) if *of == weight => {
                        "reduce a gradient in bf16 as it lies, in bf16".to_owned()
                    }
                    _ => format!("{verb} a gradient between its call and the next writer of its bytes"),
                };
                self.wrong_gradient(task, slot, needs, &remedy)
            }
        }
    }

    pub(super) fn add_gradient(
        &mut self,
        task: TaskId,
        weight: WeightId,
        from: SlotId,
        into: SlotId,
    ) -> Verdict<()> {
        let (added, padding) = self.gradient(task, weight, from)?;
        let added = added.clone();
        let (_, padded) = self.gradient(task, weight, into)?;
        // Taken and put back: a copy for each of many micro-batches would be quadratic.
        let sum = self.slots.take_sum(into);
        let both = self.united(task, weight, sum, added)?;
        self.fill(task, into, Held::Gradient { weight, calls: both, padded: padded && padding })
    }

    /// The calls whose gradients of `weight` are in `slot`, and whether the padding rows are zero.
    fn gradient(&self, task: TaskId, weight: WeightId, slot: SlotId) -> Verdict<(&BTreeSet<CallId>, bool)> {
        match self.slots.held(slot) {
            Held::Gradient { weight: of, calls, padded } if *of == weight => Ok((calls, *padded)),
            _ => {
                let needs = format!("a call's gradient of `{}`", self.name(weight));
                let remedy =
                    "add gradients after the calls that write them, before their bytes are written again";
                self.wrong_gradient(task, slot, needs, remedy)
            }
        }
    }

    /// Both sets of calls, of which all added ones must come later in program order.
    fn united(
        &self,
        task: TaskId,
        weight: WeightId,
        mut sum: BTreeSet<CallId>,
        added: BTreeSet<CallId>,
    ) -> Verdict<BTreeSet<CallId>> {
        if let Some(call) = added.iter().find(|call| sum.contains(call)) {
            return self.wrong_accumulation(
                task,
                format!(
                    "adds the gradient of `{}` from call `{}` a second time",
                    self.name(weight),
                    self.call_name(*call)
                ),
                "add each gradient once, or it counts twice",
            );
        }
        if let (Some(last), Some(first)) = (sum.last(), added.first())
            && last > first
        {
            return self.wrong_accumulation(
                task,
                format!(
                    "adds the gradient of `{}` from call `{}` after that of the later call `{}`",
                    self.name(weight),
                    self.call_name(*first),
                    self.call_name(*last)
                ),
                "add gradients in program order, or the sum rounds to other bits than under another schedule",
            );
        }
        sum.extend(added);
        Ok(sum)
    }

    pub(super) fn accumulate(
        &mut self,
        task: TaskId,
        weight: WeightId,
        from: SlotId,
        into: SlotId,
        first: bool,
    ) -> Verdict<()> {
        let placement = self.plan.weights.layout(weight).placement;
        let added = self.addend(task, weight, placement, from)?;
        self.contribute(task, weight, added, into, first)
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

    /// Sums over a group of ranks: of rows that were reduced inside of each replica, or of what each rank of
    /// the world added up of a replicated weight.
    pub(super) fn reduce_sums(
        &mut self,
        task: TaskId,
        group: Group,
        pairs: &[(SlotId, SlotId)],
    ) -> Verdict<()> {
        let alike = |other| self.plan.weights.mesh.alike(group, other);
        let (over_replicas, over_all) = (alike(Group::Replicate), alike(Group::World));
        for (from, to) in pairs {
            let held = match self.slots.held(*from).clone() {
                Held::ReducedGradient(weight, calls) if over_replicas => Held::SummedGradient(weight, calls),
                Held::LocalSum(weight, sum) if over_all => Held::MainGrad(weight, sum),
                _ => return self.wrong_sum(task, group, *from),
            };
            self.fill(task, *to, held)?;
        }
        Ok(())
    }

    /// What a sum over `group` finds in `slot` is not what such a sum is taken of. What should be there
    /// follows from the placement of the weight whose gradient the slot was declared for, and from whether
    /// there are replicas to sum over.
    fn wrong_sum(&self, task: TaskId, group: Group, slot: SlotId) -> Verdict<()> {
        let replicated = self.plan.weights.mesh.replicas() > 1;
        let placement = match self.plan.arena.slot(slot).content {
            Content::Gradient(weight, _)
            | Content::WireGradient(weight, _)
            | Content::ReceivedGradient(weight, ..)
            | Content::PartialGradient(weight, ..)
            | Content::ReceivedPartial(weight, ..)
            | Content::ReducedGradient(weight, _)
            | Content::SummedGradient(weight, _)
            | Content::LocalGrad(weight)
            | Content::MainGrad(weight) => self.plan.weights.layout(weight).placement,
            // Of no gradient; the group tells which sum was meant.
            _ if replicated && group == Group::Replicate => Placement::Sharded,
            _ => Placement::Replicated,
        };
        let (needs, remedy) = match (placement, self.slots.held(slot)) {
            (Placement::Replicated, Held::LocalSum(..)) => (
                "all ranks to sum the gradient of a replicated weight with",
                "sum gradients of replicated weights over the world",
            ),
            (Placement::Replicated, _) => (
                "this rank's gradient sum of a replicated weight, since it takes sums",
                "accumulate the weight's gradients before the all-reduce",
            ),
            (Placement::Sharded, Held::ReducedGradient(..) | Held::SummedGradient(..)) if !replicated => (
                "this rank's gradient sum of a replicated weight, since every rank holds other rows of a sharded one",
                "accumulate reduced rows as they are: with one replica they are summed over all ranks",
            ),
            (Placement::Sharded, _) if !replicated => (
                "this rank's gradient sum of a replicated weight, since it takes sums",
                "exchange and sum the gradient of a sharded weight, or reduce-scatter it: with one replica that sums it over all ranks",
            ),
            (Placement::Sharded, Held::SummedGradient(..)) => (
                "gradient rows that were not summed over the replicas before",
                "sum each gradient over the replicas once, or it counts as often as there are replicas",
            ),
            (Placement::Sharded, Held::ReducedGradient(..)) => (
                "the other replicas to sum reduced gradient rows with, since ranks of one replica hold different rows",
                "sum reduced rows over the replicate group",
            ),
            (
                Placement::Sharded,
                Held::Gradient { .. }
                | Held::WireGradient(..)
                | Held::Unpadded(..)
                | Held::ReceivedGradient(..)
                | Held::PartialGradient(..)
                | Held::ReceivedPartial(..),
            ) => (
                "gradient rows that were reduced inside of each replica",
                "exchange and sum the gradient, or reduce-scatter it, before it is summed over the replicas",
            ),
            (Placement::Sharded, _) => (
                "reduced gradient rows of a sharded weight, since it sums over the replicas",
                "exchange and sum the weight's gradient, or reduce-scatter it, first",
            ),
        };
        self.wrong_gradient(task, slot, needs.into(), remedy)
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

    /// What is added: the calls it comes from.
    fn addend(
        &self,
        task: TaskId,
        weight: WeightId,
        placement: Placement,
        from: SlotId,
    ) -> Verdict<BTreeSet<CallId>> {
        let replicated = self.plan.weights.mesh.replicas() > 1;
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
            matches!(held, Held::WireGradient(w, calls) if *w == weight && calls.contains(&call))
                && !writes_bf16(self.plan, weight, call)
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

    pub(super) fn wrong_accumulation<T>(&self, task: TaskId, problem: String, remedy: &str) -> Verdict<T> {
        Err(Box::new(VerifyError::Accumulation {
            task: self.plan.describe(task),
            problem,
            remedy: remedy.into(),
        }))
    }
}
