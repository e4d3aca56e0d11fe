//! PL-3, PL-9: a snapshot is the whole state as the step found it, and only that.

use warpweft_plan::layout::{ALIGNMENT, Content, LaneKind, Weights};
use warpweft_plan::model::{Mesh, Model};
use warpweft_plan::op::{Op, Snapshot};
use warpweft_plan::plan::{Policy, ResidentLayout, StepPlan, verify};
use warpweft_session::config::Config;

use super::edit::{position, refused, relocate, remove, repeat, serialize, slot, weight};
use super::programs::{all, f32_training, split_training};

fn copies(op: &Op) -> bool {
    matches!(op, Op::Snapshot(_))
}

/// A plan that takes a snapshot, and the copy of the first moment of `up`.
fn sample() -> (StepPlan, usize) {
    let plan = f32_training().with_snapshot().unwrap();
    let moment = slot(&plan, Content::first_moment(weight(&plan, "up")));
    let copy = position(&plan, 0, |op| matches!(op, Op::Snapshot(Snapshot { from, .. }) if *from == moment));
    (plan, copy)
}

fn snapshot(plan: &mut StepPlan, copy: usize) -> &mut Snapshot {
    let Op::Snapshot(op) = &mut plan.tasks[copy].op else { unreachable!() };
    op
}

/// Copies wait for nothing, and nothing but what overwrites their slots waits for them.
#[test]
fn every_plan_can_take_a_snapshot_and_copies_wait_for_nothing() {
    for (name, plan) in all() {
        let with = plan.with_snapshot().unwrap_or_else(|error| panic!("{name}: {error}"));
        let trained: Vec<_> = plan.weights.layouts.iter().filter(|layout| !layout.frozen).collect();
        let lists: usize = trained.iter().map(|layout| plan.weights.lists_of(layout)).sum();
        let halves = trained.iter().filter(|layout| plan.weights.splits_masters(layout.bucket)).count();
        let count = with.tasks.iter().filter(|task| copies(&task.op)).count();
        assert_eq!(count, trained.len() + lists + halves, "{name}");
        assert!(with.tasks[..count].iter().all(|task| copies(&task.op) && task.waits.is_empty()), "{name}");
        for (before, after) in plan.tasks.iter().zip(&with.tasks[count..]) {
            assert_eq!(
                (&before.op, before.lane, before.wire_bytes),
                (&after.op, after.lane, after.wire_bytes)
            );
            let kept: Vec<_> = before.waits.iter().map(|wait| wait.index() + count).collect();
            let mut own = after.waits.iter().filter(|wait| wait.index() >= count);
            // The fences of one of them are made by hand.
            let is_made = name != "quantize then evaluate";
            assert!(!is_made || own.all(|wait| kept.contains(&wait.index())), "{name}: {}", after.subject);
        }
        assert_eq!(with.bounds.live_bytes, plan.bounds.live_bytes);
        assert_eq!((with.entry, with.exit, &with.arena), (plan.entry, plan.exit, &plan.arena));
        assert_eq!(with.with_snapshot().unwrap(), with);
        assert!(plan.tasks.is_empty() || with.fingerprint() != plan.fingerprint());
    }
}

#[test]
fn a_plan_without_tasks_can_take_a_snapshot() {
    let mut model = Model::builder();
    model.replicated("bias", 1, 8).unwrap();
    let weights = Weights::new(model.build().weights(), Mesh::new(2).unwrap());
    let resident = ResidentLayout::new(&weights, &[]).unwrap();
    let prologue = StepPlan::prologue(&weights, &resident, &Policy::from(&Config::default())).unwrap();
    assert!(prologue.tasks.is_empty());
    let with = prologue.with_snapshot().unwrap();
    assert_eq!((with.tasks.len(), with.snapshot_bytes()), (3, 2 * ALIGNMENT + 32));
}

/// PL-3
#[test]
fn an_update_that_does_not_wait_for_its_copy_is_refused() {
    let (mut plan, copy) = sample();
    let lane = plan.tasks[copy].lane;
    let updates = |op: &Op| matches!(op, Op::Adam(_));
    for task in 0..plan.tasks.len() {
        if updates(&plan.tasks[task].op) {
            let StepPlan { tasks, .. } = &mut plan;
            let of_copies: Vec<_> =
                tasks[task].waits.iter().copied().filter(|wait| tasks[wait.index()].lane == lane).collect();
            tasks[task].waits.retain(|wait| !of_copies.contains(wait));
        }
    }
    refused(&plan, &["PL-3 (a race)", "(snapshot of", "(adam of"]);
}

/// PL-9. The order is one that holds, and too late.
#[test]
fn a_copy_of_a_slot_that_was_updated_is_refused() {
    let (mut plan, copy) = sample();
    let last = plan.tasks.len() - 1;
    relocate(&mut plan, copy, last);
    refused(
        &plan,
        &["PL-9", "(snapshot of up exp_avg)", "at version 0, as the step found it", "of two steps"],
    );
}

/// PL-9
#[test]
fn a_copy_that_is_left_out_or_made_twice_is_refused() {
    let (mut plan, copy) = sample();
    remove(&mut plan, copy);
    refused(&plan, &["PL-9", "a copy of slot `up exp_avg` in its snapshot", "no task makes one"]);

    let (mut plan, copy) = sample();
    repeat(&mut plan, copy);
    refused(&plan, &["PL-9", "to be the one copy of slot `up exp_avg`"]);

    // Half of a master is no master.
    let mut plan = split_training().with_snapshot().unwrap();
    let StepPlan { tasks, arena, .. } = &plan;
    let is_half = |op: &Op| matches!(op, Op::Snapshot(Snapshot { from, .. }) if matches!(arena.slot(*from).content, Content::Shard(..)));
    let half = tasks.iter().position(|task| is_half(&task.op)).unwrap();
    remove(&mut plan, half);
    refused(&plan, &["PL-9", "shard` in its snapshot"]);
}

/// PL-9
#[test]
fn a_copy_of_another_weight_or_of_what_no_checkpoint_has_is_refused() {
    let (mut plan, copy) = sample();
    let other = weight(&plan, "bias");
    snapshot(&mut plan, copy).weight = other;
    refused(&plan, &["PL-9", "a resident slot of which a checkpoint of `bias` is made"]);

    let (mut plan, copy) = sample();
    let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "up")));
    snapshot(&mut plan, copy).from = main_grad;
    serialize(&mut plan);
    refused(&plan, &["PL-9", "a resident slot of which a checkpoint of `up` is made"]);

    let (mut plan, _) = sample();
    plan.takes_snapshot = false;
    refused(&plan, &["PL-9", "a plan that takes a snapshot"]);
}

/// PL-6
#[test]
fn copies_that_share_bytes_of_the_snapshot_or_do_not_fit_are_refused() {
    let (mut plan, copy) = sample();
    let other = position(&plan, usize::from(copy == 0), copies);
    let taken = snapshot(&mut plan, other).to;
    snapshot(&mut plan, copy).to = taken;
    refused(&plan, &["PL-6", "copies into bytes of the snapshot that have slot `"]);

    let (mut plan, copy) = sample();
    let end = plan.snapshot_bytes().next_multiple_of(ALIGNMENT);
    snapshot(&mut plan, copy).to = end + 4;
    refused(&plan, &["PL-6", "aligned bytes of its own"]);

    let (mut plan, copy) = sample();
    snapshot(&mut plan, copy).to = usize::MAX - ALIGNMENT + 1;
    refused(&plan, &["PL-6", "beyond the end of any snapshot"]);
}

/// PL-5. A copy anywhere else would hold up what that lane is for.
#[test]
fn a_copy_on_another_lane_and_another_task_on_the_lane_of_copies_are_refused() {
    let says = ["PL-5", "and so do snapshots on theirs"];
    let (mut plan, copy) = sample();
    plan.tasks[copy].lane = plan.compute_lane();
    refused(&plan, &says);

    let (mut plan, _) = sample();
    let lane = plan.lanes.iter().find(|lane| lane.kind == LaneKind::Snapshot).unwrap().id;
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    plan.tasks[adam].lane = lane;
    refused(&plan, &says);
    assert!(verify(&sample().0).is_ok());
}
