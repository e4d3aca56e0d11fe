//! Classes of harmless plans that the verifier may refuse.
//!
//! Law: a refusal of a harmless plan is of one of these classes, or it is a false alarm and the suite fails.
//! A class is a property of the plan, found here without the verifier: what is odd, and at which task. Of the
//! error only two things count: which law it speaks of, and which task it names; the class must hold there.
//! No plan that the builder makes is of any class, but by chance of where slots lie.

use std::collections::BTreeSet;

use warpweft_base::id::{BufferId, CommId, CommSeq, SlotId, TaskId, WeightId};
use warpweft_plan::layout::{Content, LaneKind};
use warpweft_plan::model::{Counts, Group};
use warpweft_plan::op::{
    AddGradient, AllReduce, CollectiveCall, Compute, CountSlots, Dequantize, FusedScale, Op, OperandRole,
    Reduction, ZeroPadding,
};
use warpweft_plan::plan::{StepPlan, Task, VerifyError};
use warpweft_testing::plan_books::spread;
use warpweft_testing::random_programs::samples;

use super::happens_before::Before;
use super::harm::Original;
use super::meaning::{Memory, remaining, writes_into_another_s_slot};
use super::wanted;

/// A kind of refusal that no harm stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A gather runs further ahead than its prefetch depth.
    AheadOfRelease,
    /// The collectives of a communicator are not numbered 0, 1, 2, … in T.
    Numbers,
    /// A fence points forward in T; lanes and fences still leave an order.
    ForwardFence,
    /// Two tasks signal one event, or a fence names a task that signals none; other fences carry the order.
    Events,
    /// An op on a lane for other kinds of ops.
    Lane,
    /// A task that nobody would miss: what it writes is read by nobody, or lay there already.
    DeadWork,
    /// Content lies in the right bytes, but was put there through another slot, or an earlier tenant left the
    /// same.
    OtherSlot,
    /// An op writes into a slot that was declared for another content, of the same size; or would, had the
    /// format anything to write.
    OtherContent,
    /// A tensor's scale or amax that the format does not read.
    UnusedScale,
    /// Over a single rank, where an all-reduce is a copy: a sum in place of a maximum, or what is reduced in
    /// place of its sum. An exchange of another kind likewise.
    SingleRank,
    /// Calls in another order than the program's, or in another's name, of which one is a collective: whatever depends
    /// on which stays as it is.
    Turn,
    /// A buffer read from the slot of another one, where a collective left the same: ranks gave each other the same
    /// twice, or one rank gave itself what it had.
    OtherBuffer,
}

/// Where a plan is odd: at a task, or at the end of the step.
type Place = Option<usize>;

impl Class {
    pub(crate) const ALL: [Self; 12] = [
        Self::AheadOfRelease,
        Self::Numbers,
        Self::ForwardFence,
        Self::Events,
        Self::Lane,
        Self::DeadWork,
        Self::OtherSlot,
        Self::OtherContent,
        Self::UnusedScale,
        Self::SingleRank,
        Self::Turn,
        Self::OtherBuffer,
    ];

    /// The class of a refusal of a harmless plan; `None` for a false alarm.
    pub(crate) fn of(original: &Original, edited: &StepPlan, error: &VerifyError) -> Option<Self> {
        let (candidates, named): (&[Self], &str) = match error {
            VerifyError::Order { task, .. } => {
                (&[Self::Lane, Self::AheadOfRelease, Self::Numbers, Self::ForwardFence, Self::Events], task)
            }
            VerifyError::Bytes { subject, .. } => (&[Self::OtherContent], subject),
            VerifyError::Accumulation { task, .. } | VerifyError::Coverage { task, .. } => {
                (&[Self::DeadWork], task)
            }
            VerifyError::Use { task, .. } => (&[Self::DeadWork, Self::OtherSlot, Self::UnusedScale], task),
            VerifyError::Edge { subject, .. } => (
                &[Self::DeadWork, Self::OtherContent, Self::OtherSlot, Self::UnusedScale, Self::SingleRank],
                subject,
            ),
            VerifyError::Gradient { task, .. } => {
                (&[Self::DeadWork, Self::OtherSlot, Self::SingleRank], task)
            }
            VerifyError::Program { task, .. } => {
                (&[Self::DeadWork, Self::OtherSlot, Self::SingleRank, Self::Turn, Self::OtherBuffer], task)
            }
            _ => return None,
        };
        let is_named = |place: &Place| match place {
            Some(task) => edited.describe(TaskId::at(*task)) == named,
            None => edited.entries().all(|(task, _)| edited.describe(task) != named),
        };
        candidates.iter().copied().find(|class| class.places(original, edited).iter().any(is_named))
    }

    /// Where `edited`, a plan without harm, is of this class.
    pub(crate) fn places(self, original: &Original, edited: &StepPlan) -> Vec<Place> {
        let at = |wanted: &dyn Fn(usize) -> bool| -> Vec<Place> {
            (0..edited.tasks.len()).filter(|task| wanted(*task)).map(Some).collect()
        };
        let tasks = &edited.tasks;
        match self {
            Self::AheadOfRelease => {
                let before = Before::of(edited);
                at(&|task| tasks[task].release.is_some_and(|release| !before.is(release.index(), task)))
            }
            Self::Numbers => {
                let numbers = numbers(edited);
                at(&|task| numbers[task] != tasks[task].collective)
            }
            Self::ForwardFence => at(&|task| tasks[task].waits.iter().any(|wait| wait.index() >= task)),
            Self::Events => {
                let shared = |task: usize| {
                    let event = tasks[task].signals;
                    event.is_some() && tasks[..task].iter().any(|other| other.signals == event)
                };
                let missing =
                    |task: usize| tasks[task].waits.iter().any(|wait| edited.task(*wait).signals.is_none());
                at(&|task| shared(task) || missing(task))
            }
            Self::Lane => at(&|task| !fits_its_lane(edited, task)),
            Self::DeadWork => {
                let order = Before::of(edited).order();
                at(&|dropped| {
                    let others: Vec<usize> = order.iter().copied().filter(|task| *task != dropped).collect();
                    original.is_meant_by(edited, &others)
                })
            }
            Self::SingleRank => at(&|task| takes_one_rank_for_all(edited, &tasks[task].op)),
            Self::Turn => out_of_turn(edited),
            Self::OtherBuffer => at(&|task| reads_another_buffer(edited, &tasks[task].op)),
            Self::OtherContent => at(&|task| writes_into_another_s_slot(edited, &tasks[task].op)),
            Self::UnusedScale => name_unused_scales(edited),
            Self::OtherSlot => reads_through_other_slots(edited),
        }
    }
}

/// The number that each task has by its place in T.
fn numbers(plan: &StepPlan) -> Vec<Option<(CommId, CommSeq)>> {
    let mut next = vec![0; plan.lanes.len()];
    let mut of = |task: &Task| match plan.lanes[task.lane.index()].kind {
        LaneKind::Communicator(communicator) => {
            let number = &mut next[task.lane.index()];
            *number += 1;
            Some((communicator, CommSeq::new(*number - 1)))
        }
        LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => None,
    };
    plan.tasks.iter().map(&mut of).collect()
}

/// Closures and rules run on the compute lane, collectives and nothing else on a communicator's, snapshots and nothing
/// else on theirs.
fn fits_its_lane(plan: &StepPlan, task: usize) -> bool {
    let (op, kind) = (&plan.tasks[task].op, plan.lanes[plan.tasks[task].lane.index()].kind);
    let (collective, trainers_own) = (op.is_collective(), op.runs_user_code());
    let copies = matches!(op, Op::Snapshot(_));
    match kind {
        LaneKind::Snapshot => copies,
        _ if copies => false,
        LaneKind::Communicator(_) => collective,
        LaneKind::Compute => !collective,
        LaneKind::Quantize | LaneKind::Sum => !collective && !trainers_own,
    }
}

/// Does the op take the sum of amaxes, the maximum of gradients, or a rank's own sum for that of all, over
/// one rank?
fn takes_one_rank_for_all(plan: &StepPlan, op: &Op) -> bool {
    let content = |slot: &SlotId| plan.arena.slot(*slot).content;
    let (odd, group) = match op {
        Op::AllReduce(AllReduce { reduction, group, pairs }) => {
            let odd = |(from, _): &(SlotId, SlotId)| {
                matches!(content(from), Content::LocalAmax(_)) != (*reduction == Reduction::Max)
            };
            (pairs.iter().any(odd), *group)
        }
        // Between the counts that it gives and those that it gets is no difference then either.
        Op::CollectiveCall(CollectiveCall { call, kind, group, counts, .. }) => {
            let declared = plan.calls[call.index()].collective;
            let said = (*kind, counts.map(|counts| counts.declared));
            (declared.is_some_and(|exchange| (exchange.kind, exchange.counts) != said), *group)
        }
        Op::GradNorm(_) | Op::Adam(_) | Op::Prepare(_) | Op::Update(_) => {
            let of_rank = |slot: &SlotId| matches!(content(slot), Content::LocalGrad(_));
            (op.accesses().iter().any(|(slot, _)| of_rank(slot)), Group::World)
        }
        _ => return false,
    };
    odd && plan.weights.mesh.size(group) == 1
}

/// Tasks that stand for another call than their place among all that stand for one says, if collectives are among
/// those.
fn out_of_turn(plan: &StepPlan) -> Vec<Place> {
    let calls = (0..plan.tasks.len()).filter_map(|task| Some((task, plan.tasks[task].op.call()?.index())));
    let others = calls.enumerate().filter(|(turn, (_, call))| turn != call);
    if plan.calls.iter().all(|call| call.collective.is_none()) {
        return Vec::new();
    }
    others.map(|(_, (task, _))| Some(task)).collect()
}

/// Does the op read a buffer from the slot of another one, of which either is a side of a collective?
fn reads_another_buffer(plan: &StepPlan, op: &Op) -> bool {
    let exchanges = || plan.calls.iter().filter_map(|call| call.collective);
    let is_side = |buffer| {
        let of_counts = |counts: Counts| [counts.given, counts.taken].contains(&buffer);
        exchanges().any(|one| [one.from, one.to].contains(&buffer) || one.counts.is_some_and(of_counts))
    };
    let is_of_another = |buffer: BufferId, slot: SlotId| match plan.arena.slot(slot).content {
        Content::Buffer(found) | Content::Staging(found, _) => {
            found != buffer && (is_side(found) || is_side(buffer))
        }
        _ => false,
    };
    match op {
        Op::CollectiveCall(CollectiveCall { call, from, counts, .. }) => {
            let declared = plan.calls[call.index()].collective;
            let of_counts = counts.is_some_and(|CountSlots { given, taken, declared }| {
                is_of_another(declared.given, given)
                    || (declared.known && is_of_another(declared.taken, taken))
            });
            of_counts || declared.is_some_and(|exchange| is_of_another(exchange.from, *from))
        }
        Op::Compute(Compute { operands, .. }) => operands.iter().any(|operand| match operand.role {
            OperandRole::Buffer(buffer) => operand.access.reads() && is_of_another(buffer, operand.slot),
            _ => false,
        }),
        _ => false,
    }
}

/// Where a format has no use for tensor scales: dequantizations that name none, or another one than their
/// weight had when the step began, and scale ops that name other amaxes than their bucket's.
fn name_unused_scales(plan: &StepPlan) -> Vec<Place> {
    let mut memory = Memory::before_the_step(plan);
    let mut places = Vec::new();
    for task in Before::of(plan).order() {
        let op = &plan.tasks[task].op;
        if let Op::FusedScale(FusedScale { bucket, tensor_amax, .. }) = op
            && !plan.weights.bucket(*bucket).format.needs_tensor_amax()
            && plan.arena.slot(*tensor_amax).content != Content::LocalAmax(*bucket)
        {
            places.push(Some(task));
        }
        for part in if let Op::Dequantize(Dequantize { parts }) = op { parts.as_slice() } else { &[] } {
            let layout = plan.weights.layout(part.weight);
            let expected = Content::TensorScale(layout.bucket);
            let is_its_own = part.tensor_scale.is_some_and(|slot| memory.is_untouched(slot, expected));
            let has_scales = plan.weights.bucket(layout.bucket).has_scales();
            if has_scales && !layout.format.needs_tensor_amax() && !is_its_own {
                places.push(Some(task));
            }
        }
        memory.run(op);
    }
    places
}

/// Has a full gradient rows after those of its weight?
fn is_padded(plan: &StepPlan, weight: WeightId) -> bool {
    let shard = &plan.weights.layout(weight).shard;
    shard.padded_rows() != shard.shape.rows
}

/// Readers of bytes that were written last through another slot than the one they are read through.
fn reads_through_other_slots(plan: &StepPlan) -> Vec<Place> {
    let mut memory = Memory::before_the_step(plan);
    let mut places = Vec::new();
    // Gradients of which rows, or zeros after them, were put there through another slot before a part was
    // written through their own.
    let (mut rows, mut padding) = (BTreeSet::new(), BTreeSet::new());
    for task in Before::of(plan).order() {
        let op = &plan.tasks[task].op;
        let accesses = op.accesses();
        // Zeroing some rows of a slot leaves the others as they are, and reads none.
        let uses = !matches!(op, Op::ZeroPadding(_));
        let mut reads = accesses.iter().filter(|(_, access)| uses && access.reads()).map(|(slot, _)| slot);
        if reads.any(|slot| memory.is_foreign(*slot) || rows.contains(slot) || padding.contains(slot)) {
            places.push(Some(task));
        }
        match op {
            Op::ZeroPadding(ZeroPadding { gradient, .. }) => {
                padding.remove(gradient);
                if memory.is_foreign(*gradient) {
                    rows.insert(*gradient);
                }
            }
            Op::AddGradient(AddGradient { from, into, .. })
                if rows.contains(from) || padding.contains(from) =>
            {
                rows.insert(*into);
            }
            Op::AddGradient(_) => {}
            _ => accesses.iter().filter(|(_, access)| access.writes()).for_each(|(slot, _)| {
                rows.remove(slot);
                padding.remove(slot);
            }),
        }
        if let Op::Compute(Compute { operands, .. }) = op {
            let is_padded = |role| matches!(role, OperandRole::Gradient(weight) if is_padded(plan, weight));
            let slots = operands.iter().filter(|operand| is_padded(operand.role)).map(|operand| operand.slot);
            padding.extend(slots.filter(|slot| memory.is_foreign(*slot) && memory.is_zeroed(*slot)));
        }
        memory.run(op);
    }
    if remaining(plan).into_iter().any(|slot| memory.is_foreign(slot)) {
        places.push(None);
    }
    places
}

/// The law of this file: no class is so wide that a plan of the builder's is of it. Two slots that share
/// bytes may happen to hold the same, zeros after a gradient or planes gathered twice, and then the second
/// writer would not be missed; where no bytes are shared none is idle.
#[test]
fn no_plan_that_the_builder_makes_is_of_a_conservative_class() {
    for (seed, _, prologue, step) in samples(6 << 32).take(wanted() / 20) {
        for plan in [prologue, step] {
            let mut apart = plan.clone();
            spread(&mut apart);
            let original = Original::new(&plan);
            for class in Class::ALL {
                let plan = if class == Class::DeadWork { &apart } else { &plan };
                assert_eq!(class.places(&original, plan), [], "seed {seed}: `{}` is {class:?}", plan.name);
            }
        }
    }
}
