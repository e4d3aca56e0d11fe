//! The segments that a plan is cut into.

use warpweft_base::id::TaskId;
use warpweft_format::Format;
use warpweft_plan::op::{Compute, Op};
use warpweft_plan::plan::{Piece, StepPlan};
use warpweft_plan::policy::Reduce;
use warpweft_session::config::Config;
use warpweft_session::session::plan_program;
use warpweft_testing::random_programs::samples;
use warpweft_testing::trainer::{Shaped, Trainer};

use super::trainer;

/// For every task, the tasks that surely end before it begins: lane order and fences, closed.
fn happens_before(plan: &StepPlan) -> Vec<Vec<bool>> {
    let mut before: Vec<Vec<bool>> = Vec::new();
    for (id, task) in plan.entries() {
        let mut own = vec![false; plan.tasks.len()];
        let on_lane = |other: &usize| plan.tasks[*other].lane == task.lane;
        let previous = (0..id.index()).rev().find(on_lane);
        for direct in previous.into_iter().chain(task.waits.iter().map(|wait| wait.index())) {
            own[direct] = true;
            own.iter_mut().zip(&before[direct]).for_each(|(own, earlier)| *own |= earlier);
        }
        before.push(own);
    }
    before
}

fn is_dynamic(plan: &StepPlan, task: usize) -> bool {
    matches!(plan.tasks[task].op, Op::Compute(Compute { call, .. }) if plan.calls[call.index()].dynamic)
}

fn is_captured_call(plan: &StepPlan, task: usize) -> bool {
    matches!(plan.tasks[task].op, Op::Compute(_)) && !is_dynamic(plan, task)
}

/// PL-7, AC-2, PL-5. The laws of pieces, against a search of its own, on random programs.
#[test]
fn pieces_hold_every_task_once_keep_every_order_and_leave_no_boundary_waiting_for_what_it_does_not_need() {
    let (mut plans, mut moved) = (0, 0);
    for (seed, _, _, plan) in samples(17 << 32).take(250) {
        let pieces = plan.pieces();
        let before = happens_before(&plan);
        let of = |task: usize| pieces.of(TaskId::at(task));
        let calls: Vec<(usize, usize)> = pieces
            .entries()
            .filter_map(|(number, piece)| match piece {
                Piece::Call(call) => Some((number.index(), call.index())),
                Piece::Segment => None,
            })
            .collect();
        let dynamic: Vec<usize> = (0..plan.tasks.len()).filter(|task| is_dynamic(&plan, *task)).collect();
        assert_eq!(calls.iter().map(|(_, call)| *call).collect::<Vec<_>>(), dynamic, "seed {seed}");
        for (number, piece) in pieces.entries() {
            let held = (0..plan.tasks.len()).filter(|task| of(*task) == number).count();
            match piece {
                Piece::Segment => assert!(held > 0, "seed {seed}: an empty segment"),
                Piece::Call(_) => assert_eq!(held, 1, "seed {seed}"),
            }
        }
        for (task, before) in before.iter().enumerate() {
            for earlier in (0..task).filter(|earlier| before[*earlier]) {
                assert!(of(earlier) <= of(task), "seed {seed}: {earlier} before {task}");
                assert!(of(earlier) < of(task) || !is_dynamic(&plan, task) && !is_dynamic(&plan, earlier));
            }
        }
        for (number, call) in calls {
            plans += 1;
            for task in (0..call).filter(|task| !before[call][*task]) {
                // A call that hides it, in its own segment.
                let hides = |other: usize| is_captured_call(&plan, other) && of(other) == of(task);
                if of(task).index() < number {
                    assert!((task + 1..call).any(hides), "seed {seed}: {task} holds up {call}");
                } else {
                    moved += 1;
                }
            }
        }
    }
    assert!(plans > 50 && moved > 50, "{plans} dynamic calls, {moved} tasks moved");
}

#[test]
fn a_plan_without_dynamic_calls_is_one_segment() {
    let program = trainer(&[], 2, Format::Bf16).train;
    let pieces = plan_program(&program, &Config::default(), 2).unwrap().pieces();
    assert_eq!((pieces.segments(), pieces.entries().count()), (1, 1));
}

/// The two-stage drain on a plan that can be read: a dynamic call that writes no gradient, so takes no
/// bytes of one that is still to be reduced. Of the reductions that stand before it in T, the last one has no
/// call to hide behind.
#[test]
fn a_reduction_after_the_last_call_of_a_segment_goes_to_the_next_one() {
    let shaped = Shaped { layers: 6, weights: 6, recomputes: true, micro_batches: 1, ..Shaped::default() };
    let program = Trainer::with_dynamic(&["f0 again"], shaped, Format::Bf16, &Config::default()).train;
    // Of an exchange every one has a call: it stands one call before its sum.
    let summing = Config { reduce: Reduce::Nccl, reduce_delay: 2, ..Config::default() };
    let plan = plan_program(&program, &summing, 2).unwrap();
    let pieces = plan.pieces();
    let dynamic = (0..plan.tasks.len()).find(|task| is_dynamic(&plan, *task)).unwrap();
    let boundary = pieces.of(TaskId::at(dynamic));
    let before_in_t = |task: &usize| *task < dynamic && plan.tasks[*task].op.name() == "reduce-scatter";
    let reductions: Vec<usize> = (0..plan.tasks.len()).filter(before_in_t).collect();
    let (kept, moved): (Vec<usize>, Vec<usize>) =
        reductions.iter().partition(|task| pieces.of(TaskId::at(**task)) < boundary);
    assert!(!kept.is_empty() && !moved.is_empty(), "{kept:?} kept, {moved:?} moved");
    assert!(kept.iter().all(|kept| moved.iter().all(|moved| kept < moved)), "{kept:?}, {moved:?}");
}
