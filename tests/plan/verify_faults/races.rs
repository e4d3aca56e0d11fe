//! PL-3: two tasks that touch the same bytes without an order.

use warpweft_base::id::SlotId;
use warpweft_plan::layout::{Region, Residency};
use warpweft_plan::op::{AllGather, Compute, Op};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{call, is_reduction, position, refused};
use super::programs::{all, f32_training, nvfp4_training};

/// PL-3, PL-5. The planner draws no fence too many, so each one is missed. Covers *buffer freed for
/// a stream that still uses it* and *un-joined fork*: whatever a lane still does is fenced.
#[test]
fn every_single_fence_is_missed_when_it_is_dropped() {
    let mut dropped = 0;
    for (name, plan) in all().into_iter().filter(|(name, _)| *name != "quantize then evaluate") {
        for (task, position) in fences(&plan) {
            let mut plan = plan.clone();
            let wait = plan.tasks[task].waits.remove(position);
            let error = *verify(&plan).expect_err(name);
            let text = error.to_string();
            match error {
                VerifyError::Race { .. } => {
                    assert!(text.contains(&format!("nothing makes task {task} ")), "{text}");
                    assert!(text.contains("wait for task"), "{text}");
                }
                VerifyError::Order { .. } => {
                    assert!(text.contains(&format!("before its release, {wait} ")), "{text}");
                }
                _ => panic!("{name}: {text}"),
            }
            dropped += 1;
        }
    }
    assert!(dropped > 40, "{dropped}");
}

/// PL-3. A fence that points one task too early on the same lane is as bad as none.
#[test]
fn a_fence_redirected_to_the_lane_s_task_before_is_a_race() {
    let plan = nvfp4_training();
    let mut redirected = 0;
    for (task, position) in fences(&plan) {
        let mut plan = plan.clone();
        let wait = plan.tasks[task].waits[position];
        let lane = plan.task(wait).lane;
        let before = plan.entries().take(wait.index()).filter(|(_, other)| other.lane == lane).last();
        let Some((before, _)) = before else { continue };
        if plan.task(before).signals.is_none() {
            plan.tasks[before.index()].signals = Some(warpweft_base::id::EventId::at(plan.events));
            plan.events += 1;
        }
        plan.tasks[task].waits[position] = before;
        assert!(verify(&plan).is_err(), "task {task} may wait for {before} instead of {wait}");
        redirected += 1;
    }
    assert!(redirected > 5, "{redirected}");
}

/// PL-3. *Neighbours sharing a gather buffer*.
#[test]
fn neighbours_sharing_a_gather_buffer_are_refused() {
    let mut plan = nvfp4_training();
    let targets: Vec<SlotId> = plan
        .tasks
        .iter()
        .filter_map(|task| match &task.op {
            Op::AllGather(AllGather { parts, .. }) => Some(parts[0].to),
            _ => None,
        })
        .collect();
    let region = plan.arena.region(targets[1]);
    plan.arena.slots[targets[0].index()].region.offset = region.offset;
    let error = refused(&plan, &["PL-3", "which shares bytes", "but nothing makes", "add a fence"]);
    assert!(matches!(error, VerifyError::Race { .. }));
}

/// PL-3, PL-2, PL-4, PL-10. Any two transient slots whose lives overlap.
#[test]
fn any_two_slots_alive_together_are_found_when_they_are_given_the_same_bytes() {
    let mut aliased = 0;
    for (name, plan) in all() {
        for (one, other) in neighbours(&plan) {
            let mut plan = plan.clone();
            plan.arena.slots[one.index()].region.offset = plan.arena.region(other).offset;
            let inside = plan.arena.region(one).end() <= plan.arena.bytes();
            let error = *verify(&plan).expect_err(name);
            assert!(!inside || !matches!(error, VerifyError::Bytes { .. }), "{name}: {error}");
            aliased += 1;
        }
    }
    assert!(aliased > 100, "{aliased}");
}

/// PL-3. *Gradient overwritten while its reduction reads it*.
#[test]
fn a_gradient_overwritten_while_its_reduction_reads_it_is_refused() {
    let mut plan = nvfp4_training();
    let reduced = position(&plan, 0, is_reduction);
    let from = super::edit::reduced(&mut plan, reduced).from;
    let next = call(&plan, "block.1.backward");
    assert!(next > reduced || plan.tasks[next].lane != plan.tasks[reduced].lane);
    let Op::Compute(Compute { operands, .. }) = &plan.tasks[next].op else { unreachable!() };
    let gradient =
        operands.iter().find(|operand| operand.access == warpweft_plan::model::Access::Write).unwrap().slot;
    plan.arena.slots[gradient.index()].region.offset = plan.arena.region(from).offset;
    refused(&plan, &["PL-3", "exchange gradient of embedding", "block.1.backward", "nothing makes"]);
}

/// PL-3. Slots conflict in bytes even where they are not the same: one byte is enough.
#[test]
fn slots_that_share_only_their_last_bytes_still_race() {
    let mut plan = nvfp4_training();
    let (one, other) = neighbours(&plan).into_iter().next().unwrap();
    let Region { offset, bytes } = plan.arena.region(other);
    let size = plan.arena.region(one).bytes;
    let begin = (offset + bytes - 1) / 256 * 256;
    plan.arena.slots[one.index()].region.offset = begin;
    plan.arena.transient_bytes = plan.arena.transient_bytes.max(begin + size - plan.arena.resident_bytes);
    refused(&plan, &["PL-3", &format!("bytes {begin}..{}", (offset + bytes).min(begin + size))]);
}

/// PL-3
#[test]
fn an_op_whose_own_operands_overlap_is_refused() {
    let mut plan = f32_training();
    let reduced = position(&plan, 0, is_reduction);
    let part = super::edit::reduced(&mut plan, reduced);
    part.to = part.from;
    let error = refused(&plan, &["PL-3 (", "): task", "must lie apart"]);
    assert!(matches!(error, VerifyError::Overlap { .. }));
}

/// Every fence: task and place among its waits.
fn fences(plan: &StepPlan) -> Vec<(usize, usize)> {
    let of = |(task, found): (usize, &warpweft_plan::plan::Task)| {
        (0..found.waits.len()).map(move |wait| (task, wait))
    };
    plan.tasks.iter().enumerate().flat_map(of).collect()
}

/// Pairs of transient slots alive at the same time. Those that are read only where the other one's
/// content is dead already would not show a fault, so both must be read after the other's birth.
fn neighbours(plan: &StepPlan) -> Vec<(SlotId, SlotId)> {
    let lives: Vec<(SlotId, usize, usize)> = plan
        .arena
        .entries()
        .filter(|(_, slot)| slot.residency == Residency::Transient && slot.region.bytes > 0)
        .filter_map(|(id, _)| {
            let mut touching =
                plan.entries().filter(|(_, task)| task.op.accesses().iter().any(|(slot, _)| *slot == id));
            let first = touching.next()?.0.index();
            Some((id, first, touching.last().map_or(first, |(last, _)| last.index())))
        })
        .collect();
    let mut pairs = Vec::new();
    for (one, first, last) in &lives {
        for (other, begin, end) in &lives {
            if one != other && first < end && begin < last {
                pairs.push((*one, *other));
            }
        }
    }
    pairs
}
