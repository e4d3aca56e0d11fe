//! PL-4: the way of a gradient from the call that wrote it, through sums over ranks. `main_grads` goes on from there.
//!
//! Law: a sharded weight's gradient is reduced, by itself or added to others of the weight, by one collective or in
//! two tasks (`received`), then summed over the replicas where there are several, then accumulated; a replicated
//! weight's is accumulated, then all-reduced over all ranks, in levels over those of each level once and in order.
//! So a contribution passes each sum over ranks exactly once. The first contribution of a step begins the sum and
//! no later one does; none is added twice, on the rank or after the reduction; and they are added in program order,
//! because sums of floats depend on it: so equal programs give equal bits, however they are scheduled. Calls of
//! different micro-batches are different contributions. Padding rows are zero before anything is summed over ranks.
//! What a call declares in bf16 is reduced in bf16 as it lies, or rounded to MXFP8 where gradients travel so;
//! nothing is added to it on the rank, and nothing is rounded twice.

use std::collections::BTreeSet;

use super::{Held, Run, Verdict, VerifyError};
use crate::layout::Content;
use crate::model::{Group, Placement};
use crate::op::{ReducePart, RoundGradient, WireType};
use warpweft_base::id::{CallId, LevelId, SlotId, TaskId, WeightId};
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

    pub(super) fn reduce_scatter(&mut self, task: TaskId, wire: WireType, part: ReducePart) -> Verdict<()> {
        let ReducePart { weight, from, to } = part;
        if wire.element().is_none() {
            let problem = format!(
                "reduces the gradient of `{}` in {wire} by a collective that sums, which adds no codes",
                self.name(weight)
            );
            return self.wrong_accumulation(task, problem, "exchange it, and sum what was received");
        }
        let calls = self.travelling(task, wire, weight, from)?;
        if self.plan.weights.layout(weight).is_in_slices() {
            let problem = format!(
                "reduces the gradient of `{}` by a collective that sums, but of its rows each replica keeps a slice",
                self.name(weight)
            );
            let remedy = "exchange and sum it at every level, over the replicas too";
            return self.wrong_accumulation(task, problem, remedy);
        }
        self.fill(task, to, Held::ReducedGradient(weight, calls))
    }

    /// The calls whose gradients of `weight` are in `slot` as they travel: in `wire`, which is what
    /// [`WireType`] makes of `reduce_dtype`.
    pub(super) fn travelling(
        &self,
        task: TaskId,
        wire: WireType,
        weight: WeightId,
        slot: SlotId,
    ) -> Verdict<BTreeSet<CallId>> {
        let calls = match (wire, self.slots.held(slot)) {
            (WireType::F32, _) => self.padded_gradient(task, weight, slot, "reduce")?,
            (WireType::Bf16, Held::WireGradient(of, calls))
            | (WireType::Mxfp8, Held::QuantizedGradient(of, calls))
                if *of == weight =>
            {
                calls.clone()
            }
            (_, Held::Unpadded(of, _)) if *of == weight => {
                let needs = format!("a gradient of `{}` with zeroed padding rows", self.name(weight));
                let remedy = "zero the padding rows before the gradient is reduced";
                return self.wrong_gradient(task, slot, needs, remedy);
            }
            _ => {
                let needs = format!("a gradient of `{}` rounded to {wire}", self.name(weight));
                return self.wrong_gradient(task, slot, needs, "round the gradient before it is reduced");
            }
        };
        let chosen = self.chosen(weight, &calls);
        if wire != chosen {
            let problem =
                format!("reduces the gradient of `{}` in {wire}, and not in {chosen}", self.name(weight));
            let remedy = "let gradients travel as reduce_dtype, the columns and the call say";
            return self.wrong_accumulation(task, problem, remedy);
        }
        Ok(calls)
    }

    /// In what the gradient of `weight` from these calls is to travel.
    fn chosen(&self, weight: WeightId, calls: &BTreeSet<CallId>) -> WireType {
        let written = match calls.iter().any(|call| self.in_bf16(weight, *call)) {
            true => ElementType::Bf16,
            false => ElementType::F32,
        };
        let columns = self.plan.weights.layout(weight).shard.shape.cols;
        WireType::of_gradient(self.plan.policy.reduce_dtype, columns, written)
    }

    pub(super) fn round_gradient(
        &mut self,
        task: TaskId,
        RoundGradient { weight, element, from, wire, to }: &RoundGradient,
    ) -> Verdict<()> {
        let (weight, from) = (*weight, *from);
        let held = match (element, wire) {
            (ElementType::F32, WireType::Bf16) => {
                Held::WireGradient(weight, self.padded_gradient(task, weight, from, "round")?)
            }
            (ElementType::F32, WireType::Mxfp8) => {
                Held::QuantizedGradient(weight, self.padded_gradient(task, weight, from, "round")?)
            }
            (ElementType::Bf16, WireType::Mxfp8) => match self.slots.held(from) {
                Held::WireGradient(of, calls)
                    if *of == weight && calls.iter().all(|call| self.in_bf16(weight, *call)) =>
                {
                    Held::QuantizedGradient(weight, calls.clone())
                }
                _ => {
                    let needs = format!("a gradient of `{}` that its call wrote in bf16", self.name(weight));
                    let remedy = "round what a call wrote, its padding rows zeroed, once";
                    return self.wrong_gradient(task, from, needs, remedy);
                }
            },
            _ => {
                let problem =
                    format!("rounds the gradient of `{}` from {element} to {wire}", self.name(weight));
                let remedy = "round f32 to bf16 or mxfp8, and bf16 to mxfp8";
                return self.wrong_accumulation(task, problem, remedy);
            }
        };
        self.fill(task, *to, held)
    }

    /// Does the call declare that it writes its gradient of `weight` in bf16?
    fn in_bf16(&self, weight: WeightId, call: CallId) -> bool {
        self.written_in.get(&(weight, call)) == Some(&ElementType::Bf16)
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
                let in_bf16 = match self.slots.held(slot) {
                    Held::WireGradient(of, calls) if *of == weight => Some(self.chosen(weight, calls)),
                    Held::Unpadded(of, call) if *of == weight => Some(self.chosen(weight, &[*call].into())),
                    _ => None,
                };
                let remedy = match in_bf16 {
                    Some(WireType::Mxfp8) => "round what the call wrote, once, to mxfp8".to_owned(),
                    Some(wire) => format!("reduce a gradient in bf16 as it lies, in {wire}"),
                    None => format!("{verb} a gradient between its call and the next writer of its bytes"),
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
    pub(super) fn united(
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

    /// Sums over a group of ranks: of rows that were reduced inside of each replica, or of what each rank of
    /// the world added up of a replicated weight, level after level.
    pub(super) fn reduce_sums(
        &mut self,
        task: TaskId,
        group: Group,
        pairs: &[(SlotId, SlotId)],
    ) -> Verdict<()> {
        let alike = |other| self.plan.weights.mesh.alike(group, other);
        let over_copies = |weight| alike(self.plan.weights.layout(weight).shard.copies());
        let tree = self.plan.policy.tree_of_replicated(self.plan.weights.mesh);
        let is_at = |level: usize| tree.get(level).is_some_and(|of| alike(*of));
        let left = |weight, sum, level: usize| match level + 1 == tree.len() {
            true => Held::MainGrad(weight, sum),
            false => Held::BlockSum(weight, sum, LevelId::at(level)),
        };
        for (from, to) in pairs {
            let held = match self.slots.held(*from).clone() {
                Held::ReducedGradient(weight, calls) if over_copies(weight) => {
                    Held::SummedGradient(weight, calls)
                }
                Held::LocalSum(weight, sum) if is_at(0) => left(weight, sum, 0),
                Held::BlockSum(weight, sum, below) if is_at(below.index() + 1) => {
                    left(weight, sum, below.index() + 1)
                }
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
        let layout = |weight| {
            let layout = self.plan.weights.layout(weight);
            (layout.placement, self.plan.weights.mesh.size(layout.shard.copies()) > 1)
        };
        let some = self.plan.weights.mesh.size(group) > 1;
        let in_slices = |weight| self.plan.weights.layout(weight).is_in_slices();
        let in_levels = self.plan.policy.tree_of_replicated(self.plan.weights.mesh).len() > 1;
        let content = self.plan.arena.slot(slot).content;
        let (placement, replicated) = match content {
            Content::Gradient(weight, _)
            | Content::WireGradient(weight, _)
            | Content::QuantizedGradient(weight, _)
            | Content::ReceivedGradient(weight, ..)
            | Content::PartialGradient(weight, ..)
            | Content::ReceivedPartial(weight, ..)
            | Content::ReducedGradient(weight, _)
            | Content::SummedGradient(weight, _)
            | Content::LocalGrad(weight)
            | Content::BlockGrad(weight, _)
            | Content::MainGrad(weight) => layout(weight),
            // Of no gradient; the group tells which sum was meant.
            _ if some && group.is_of_copies() => (Placement::Sharded, true),
            _ => (Placement::Replicated, self.plan.weights.mesh.replicas() > 1),
        };
        let (needs, remedy) = match (placement, self.slots.held(slot)) {
            (Placement::Replicated, Held::LocalSum(..)) if !in_levels => (
                "all ranks to sum the gradient of a replicated weight with",
                "sum gradients of replicated weights over the world",
            ),
            (Placement::Replicated, Held::LocalSum(..)) => (
                "the ranks of one block to sum the gradient of a replicated weight with",
                "sum gradients of replicated weights over the levels of the world, from the first on",
            ),
            (Placement::Replicated, Held::BlockSum(..)) => (
                "the ranks of the next level to sum the gradient sum of a block with",
                "sum gradients of replicated weights over each level of the world once, in order",
            ),
            (Placement::Replicated, _) if matches!(content, Content::BlockGrad(..)) => (
                "the gradient sum of a block of the level before, since it takes sums of blocks",
                "sum the weight's gradients over the ranks of one block first",
            ),
            (Placement::Replicated, _) => (
                "this rank's gradient sum of a replicated weight, since it takes sums",
                "accumulate the weight's gradients before the all-reduce",
            ),
            (Placement::Sharded, Held::SummedGradient(weight, _)) if in_slices(*weight) => (
                "slices of gradients that were not summed over all replicas before",
                "sum each gradient over the replicas of an optimizer instance once, and once over the instances",
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
            (Placement::Sharded, Held::ReducedGradient(weight, _)) if in_slices(*weight) => (
                "the other optimizer instances to sum slices of gradients with, since replicas of one have different slices",
                "sum slices over the instances group",
            ),
            (Placement::Sharded, Held::ReducedGradient(..)) => (
                "the other replicas to sum reduced gradient rows with, since ranks of one replica hold different rows",
                "sum reduced rows over the replicate group",
            ),
            (
                Placement::Sharded,
                Held::Gradient { .. }
                | Held::WireGradient(..)
                | Held::QuantizedGradient(..)
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

    pub(super) fn wrong_accumulation<T>(&self, task: TaskId, problem: String, remedy: &str) -> Verdict<T> {
        Err(Box::new(VerifyError::Accumulation {
            task: self.plan.describe(task),
            problem,
            remedy: remedy.into(),
        }))
    }
}
