//! `derive_ahead`: planes for a call are derived beside the call before it.

use warpweft_base::id::SlotId;
use warpweft_format::Format;
use warpweft_plan::layout::LaneKind;
use warpweft_plan::model::Mesh;
use warpweft_plan::op::Op;
use warpweft_plan::plan::{Policy, StepPlan};
use warpweft_session::actor::{ActorKind, Roster};

use super::{chain, policy};

fn plan(format: Format, depth: u32, chunk: Option<usize>, derive_ahead: bool) -> StepPlan {
    let policy = Policy { chunk, derive_ahead, ..policy(depth) };
    StepPlan::build(&chain(6, format), &policy, Mesh::new(2).unwrap()).unwrap()
}

fn makes(op: &Op) -> bool {
    matches!(op, Op::Assemble(_) | Op::Dequantize(_))
}

fn is_call(op: &Op) -> bool {
    matches!(op, Op::Compute(_))
}

/// Calls between the making of planes or values and the first call that reads them, for every task that makes
/// some for a call.
fn calls_between(plan: &StepPlan) -> Vec<usize> {
    let touches = |op: &Op, wanted: SlotId, reads: bool| {
        op.accesses().iter().any(|(slot, access)| *slot == wanted && (!reads || access.reads()))
    };
    let mut between = Vec::new();
    for (made, task) in plan.tasks.iter().enumerate().filter(|(_, task)| makes(&task.op)) {
        let written = task.op.accesses().into_iter().filter(|(_, access)| access.writes());
        for slot in written.map(|(slot, _)| slot) {
            let after = &plan.tasks[made + 1..];
            let next = after.iter().position(|task| touches(&task.op, slot, true));
            if let Some(next) = next.filter(|next| is_call(&after[*next].op)) {
                between.push(after[..next].iter().filter(|task| is_call(&task.op)).count());
            }
        }
    }
    between
}

#[test]
fn what_a_call_reads_is_made_on_the_quantize_lane_beside_the_call_before() {
    for format in [Format::F32, Format::NVFP4_2D] {
        for (depth, chunk) in [(1, None), (3, None), (2, Some(1024))] {
            let ahead = plan(format, depth, chunk, true);
            for task in ahead.tasks.iter().filter(|task| makes(&task.op)) {
                let lane = ahead.lanes.iter().find(|lane| lane.id == task.lane).unwrap();
                assert_eq!(lane.kind, LaneKind::Quantize, "{format}, depth {depth}: {}", task.subject);
            }
            let between = calls_between(&ahead);
            assert!(
                between.len() >= 6 && between.iter().all(|calls| *calls == 1),
                "{format}, depth {depth}: {between:?}"
            );
            let beside = calls_between(&plan(format, depth, chunk, false));
            assert!(beside.iter().all(|calls| *calls == 0), "{format}, depth {depth}: {beside:?}");
            assert_eq!(beside.len(), between.len(), "{format}, depth {depth}");
        }
    }
}

/// The law of the roster, of those whose tasks are moved: an actor waits for the turns of one lane.
#[test]
fn whoever_owns_what_is_made_ahead_has_tasks_of_one_lane() {
    let plan = plan(Format::NVFP4_2D, 2, None, true);
    let roster = Roster::new(&plan);
    for (kind, lane) in [(ActorKind::Compute, LaneKind::Compute), (ActorKind::Transpose, LaneKind::Quantize)]
    {
        let own = (plan.tasks.iter().zip(&roster.owners))
            .filter(|(_, owner)| roster.actors[owner.index()] == kind)
            .map(|(task, _)| plan.lanes[task.lane.index()].kind);
        let own: Vec<LaneKind> = own.collect();
        assert!(!own.is_empty() && own.iter().all(|of| *of == lane), "{kind:?}: {own:?}");
    }
}

#[test]
fn gathers_on_demand_come_too_late_for_anything_to_be_made_ahead() {
    for format in [Format::F32, Format::NVFP4_2D] {
        assert_eq!(plan(format, 0, None, true).tasks, plan(format, 0, None, false).tasks);
    }
}

#[test]
fn deriving_ahead_costs_the_dense_values_of_one_more_call() {
    let live = |ahead| plan(Format::NVFP4_2D, 2, None, ahead).bounds.live_bytes;
    let more = live(true) - live(false);
    assert!(more > 0 && more <= 64 * 64 * 4, "{more}");
}
