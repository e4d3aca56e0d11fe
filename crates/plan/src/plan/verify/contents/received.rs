//! PL-4 where ranks sum gradients by themselves: what travels unsummed, and the sum of it.
//!
//! Law: an exchange brings the other ranks' slices of one gradient, of the calls whose sum it is, in the
//! type that was requested. A sum takes these and the rank's own slices of the very same gradient,
//! which its slot must still hold: so each rank's contribution is in it once, and all of them are of the same
//! calls. Only where one rank has all rows is there nothing that could have landed. Where sums have levels, both
//! are of one level, and each level takes what the one before left: no block is added up before it is complete, none
//! is left out or counted twice. What is summed over a whole replica goes on as reduced rows; or, if there are no
//! other replicas to sum it with, into the main grad as any contribution does. Squares are of the main grad that the
//! sum leaves, and of no later one.

use std::collections::BTreeSet;

use super::{Held, Run, Verdict};
use crate::layout::Content;
use crate::model::{Group, Placement};
use crate::op::{ReducePart, SumPart, SumTarget, WireType};
use warpweft_base::id::{CallId, LevelId, SlotId, TaskId, WeightId};

impl Run<'_> {
    pub(super) fn exchange_gradient(
        &mut self,
        task: TaskId,
        wire: WireType,
        group: Group,
        part: ReducePart,
    ) -> Verdict<()> {
        let ReducePart { weight, from, to } = part;
        let level = self.level(task, weight, group)?;
        let calls = self.given(task, wire, level, weight, from)?;
        self.fill(task, to, brought(weight, calls, wire, level))
    }

    pub(super) fn sum_gradient(
        &mut self,
        task: TaskId,
        wire: WireType,
        group: Group,
        part: SumPart,
    ) -> Verdict<()> {
        let SumPart { weight, own, received, into, target, squares } = part;
        let level = self.level(task, weight, group)?;
        let calls = self.given(task, wire, level, weight, own)?;
        if self.plan.weights.layout(weight).placement == Placement::Replicated {
            let name = self.name(weight);
            let problem =
                format!("sums slices of the gradient of `{name}`, of which every rank has all rows");
            let remedy = "accumulate the gradient of a replicated weight as it is";
            return self.wrong_accumulation(task, problem, remedy);
        }
        let expected = brought(weight, calls.clone(), wire, level);
        self.all_received(task, weight, group, (expected, received))?;
        let (mesh, layout) = (self.plan.weights.mesh, self.plan.weights.layout(weight));
        let is_last = level.index() + 1 == layout.shard.depth(mesh);
        if !target.accumulates() {
            if squares.is_some() {
                let problem = format!(
                    "takes squares of rows of the gradient of `{}`, which are no main grad",
                    self.name(weight)
                );
                return self.wrong_accumulation(task, problem, "take the squares of what is accumulated");
            }
            let left = target.wire();
            self.travels_on(task, weight, (left, is_last))?;
            let is_over_all = layout.is_in_slices() && mesh.size(layout.shard.copies()) == 1;
            let held = match (is_last, is_over_all) {
                (true, false) => Held::ReducedGradient(weight, calls),
                (true, true) => Held::SummedGradient(weight, calls),
                (false, _) => Held::PartialGradient(weight, calls, level, left),
            };
            return self.fill(task, into, held);
        }
        if !is_last {
            let problem = format!(
                "adds the gradient of `{}` to the main grad, summed over the ranks of one block of {level}",
                self.name(weight)
            );
            let remedy = "leave the sums as they are and sum them at the next level first";
            return self.wrong_accumulation(task, problem, remedy);
        }
        if mesh.size(layout.shard.copies()) > 1 {
            let name = self.name(weight);
            let of = if layout.is_in_slices() { "optimizer instance" } else { "replica" };
            let problem =
                format!("adds the gradient of `{name}` to the main grad, summed over the ranks of one {of}");
            let remedy = format!(
                "leave the sums as they are and sum them over the {of}s first, or each {of} goes on with gradients of its own"
            );
            return self.wrong_accumulation(task, problem, &remedy);
        }
        self.contribute(task, weight, calls, into, target == SumTarget::First)?;
        squares.map_or(Ok(()), |squares| self.take_squares(task, weight, into, squares))
    }

    /// What one task turns into means is divided by one number.
    pub(super) fn count_tokens_alike(&self, task: TaskId, parts: &[SumPart]) -> Verdict<()> {
        let counted = |part: &SumPart| self.plan.weights.layout(part.weight).shard.counts_tokens();
        let Some([first, other]) =
            parts.array_windows().find(|[first, other]| counted(first) != counted(other))
        else {
            return Ok(());
        };
        let problem = format!(
            "sums gradients of `{}` and `{}`, of which the one counts each token once and the other once for each tensor-parallel rank",
            self.name(first.weight),
            self.name(other.weight)
        );
        self.wrong_accumulation(task, problem, "sum them by two tasks")
    }

    /// The level at which the ranks of `group` sum a gradient of `weight`; where there are no levels, the only one.
    fn level(&self, task: TaskId, weight: WeightId, group: Group) -> Verdict<LevelId> {
        let (mesh, shard) = (self.plan.weights.mesh, self.plan.weights.layout(weight).shard);
        // By what the ranks are called it is said whether they sum slices of replicas, and how many of a block.
        let sums = |of: Group| (shard.summed_over(of), mesh.slices(of));
        let is_it = |of: Group| mesh.alike(of, group) && sums(of) == sums(group);
        if let Some(level) = shard.tree(mesh).position(is_it) {
            return Ok(LevelId::at(level));
        }
        let groups: Vec<String> = shard.tree(mesh).map(|of| of.to_string()).collect();
        let problem = format!(
            "reduces the gradient of `{}` over the {group} group, but {mesh} sum over: {}",
            self.name(weight),
            groups.join(", then ")
        );
        self.wrong_accumulation(
            task,
            problem,
            "reduce over the groups of the mesh's tree, one after the other",
        )
    }

    /// The calls whose gradient of `weight` is in `slot` as it is exchanged and summed at `level`.
    fn given(
        &self,
        task: TaskId,
        wire: WireType,
        level: LevelId,
        weight: WeightId,
        slot: SlotId,
    ) -> Verdict<BTreeSet<CallId>> {
        let Some(below) = level.index().checked_sub(1).map(LevelId::at) else {
            return self.travelling(task, wire, weight, slot);
        };
        match self.slots.held(slot) {
            Held::PartialGradient(of, calls, left_by, left) if (*of, *left_by) == (weight, below) => {
                if wire == *left {
                    return Ok(calls.clone());
                }
                let problem = format!(
                    "reduces sums of the gradient of `{}` in {}, which are in {}",
                    self.name(weight),
                    wire,
                    left
                );
                self.wrong_accumulation(task, problem, "let sums of blocks travel as they were left")
            }
            _ => {
                let needs = format!("the sums of {below} of a gradient of `{}`", self.name(weight));
                let remedy = "exchange and sum the gradient at the level before, and write no other sums there until this level is done";
                self.wrong_gradient(task, slot, needs, remedy)
            }
        }
    }

    /// Sums that travel on are left in what the plan was requested; those of all ranks stay in f32.
    fn travels_on(&self, task: TaskId, weight: WeightId, (left, is_last): (WireType, bool)) -> Verdict<()> {
        let columns = self.plan.weights.layout(weight).shard.shape.cols;
        let chosen = match is_last {
            true => WireType::F32,
            false => WireType::of_sums(self.plan.policy.reduce_dtype, columns),
        };
        if left == chosen {
            return Ok(());
        }
        let problem = format!(
            "leaves sums of the gradient of `{}` in {}, and not in {}",
            self.name(weight),
            left,
            chosen
        );
        let remedy = "round the sums of a block as reduce_dtype and the columns say, and none of all ranks";
        self.wrong_accumulation(task, problem, remedy)
    }

    /// What every other rank gives must be there: `expected`.
    fn all_received(
        &self,
        task: TaskId,
        weight: WeightId,
        group: Group,
        (expected, received): (Held, Option<SlotId>),
    ) -> Verdict<()> {
        let Some(slot) = received else {
            if self.plan.weights.mesh.size(group) == 1 {
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
        if *self.slots.held(slot) == expected {
            return Ok(());
        }
        let remedy = "exchange the gradient first; until the sum, write neither the gradient nor what was received of it";
        self.wrong_gradient(task, slot, expected.describe(self.plan), remedy)
    }

    /// Where the other ranks' slices of what `call` made have landed, in words; `None` if no task brought them.
    pub(super) fn received(&self, weight: WeightId, call: CallId) -> Option<String> {
        if let Some(whereabouts) = self.part_of_the_way(weight, call) {
            return Some(whereabouts);
        }
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

    /// The furthest level at which it is, in words; `None` if it came to none.
    fn part_of_the_way(&self, weight: WeightId, call: CallId) -> Option<String> {
        let mut furthest = None;
        for (slot, held) in self.slots.all() {
            let (of, calls, level, how) = match held {
                Held::PartialGradient(of, calls, level, _) => (of, calls, level, "summed into"),
                Held::ReceivedPartial(of, calls, level, _) => (of, calls, level, "exchanged into"),
                _ => continue,
            };
            if *of == weight && calls.contains(&call) {
                furthest = furthest.max(Some((*level, how, slot)));
            }
        }
        let (level, how, slot) = furthest?;
        Some(format!("it was {how} slot `{}` at {level} and not summed further", self.slot_name(slot)))
    }
}

/// What an exchange at `level` brings.
fn brought(weight: WeightId, calls: BTreeSet<CallId>, wire: WireType, level: LevelId) -> Held {
    match level.index() {
        0 => Held::ReceivedGradient(weight, calls, wire),
        _ => Held::ReceivedPartial(weight, calls, level, wire),
    }
}
