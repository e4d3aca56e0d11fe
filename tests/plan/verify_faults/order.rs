//! PL-5: waits, events, lanes, communicators.

use warpweft_base::id::{CommSeq, EventId, LaneId, TaskId};
use warpweft_plan::op::Op;
use warpweft_plan::plan::VerifyError;

use super::edit::{call, position, refused};
use super::programs::{f32_training, nvfp4_training};

/// PL-5
#[test]
fn a_wait_on_a_later_task_is_a_deadlock() {
    let mut plan = f32_training();
    let last = plan.tasks.len() - 1;
    plan.tasks[last].signals = Some(EventId::at(plan.events));
    plan.events += 1;
    plan.tasks[3].waits.push(TaskId::at(last));
    let error =
        refused(&plan, &["PL-5 (", "): task 3 ", &format!("waits for task {last} "), "must point back"]);
    assert!(matches!(error, VerifyError::Order { .. }));
}

/// PL-5
#[test]
fn a_wait_on_a_task_without_an_event_is_no_wait() {
    let mut plan = f32_training();
    let waiting = plan.tasks.iter().position(|task| !task.waits.is_empty()).unwrap();
    let waited = plan.tasks[waiting].waits[0];
    plan.tasks[waited.index()].signals = None;
    refused(&plan, &["PL-5", &format!("waits for {waited} "), "signals no event"]);
}

/// PL-5
#[test]
fn two_tasks_on_one_event_let_a_waiter_pass_too_early() {
    let mut plan = nvfp4_training();
    let mut signalling = plan.tasks.iter_mut().filter(|task| task.signals.is_some());
    let first = signalling.next().unwrap().signals;
    signalling.next().unwrap().signals = first;
    refused(&plan, &["PL-5", "signals event", "signals too"]);
}

/// PL-5. Ranks disagreeing on order: all of them follow one numbering, and it must be T's.
#[test]
fn swapped_collectives_on_one_communicator_are_refused() {
    let mut plan = nvfp4_training();
    let first = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    let second = position(&plan, 1, |op| matches!(op, Op::AllGather(_)));
    let numbers = (plan.tasks[first].collective, plan.tasks[second].collective);
    (plan.tasks[second].collective, plan.tasks[first].collective) = numbers;
    refused(
        &plan,
        &[
            "PL-5 (",
            "): task",
            "is numbered as collective 1",
            "its place in the issue order makes it collective 0",
        ],
    );
}

/// PL-5
#[test]
fn a_collective_without_a_number_and_a_number_without_a_collective_are_refused() {
    let mut plan = nvfp4_training();
    let gather = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    let number = plan.tasks[gather].collective.take();
    refused(&plan, &["PL-5", "is numbered as no collective"]);
    plan.tasks[gather].collective = number;
    let cast = position(&plan, 0, |op| matches!(op, Op::PartialCast(_)));
    plan.tasks[cast].collective = number.map(|(comm, _)| (comm, CommSeq::new(0)));
    refused(&plan, &["PL-5", "makes it no collective"]);
}

/// PL-5
#[test]
fn an_op_on_a_lane_that_cannot_carry_it_is_refused() {
    let quantize = LaneId::new(1);
    let mut plan = nvfp4_training();
    let compute = call(&plan, "head");
    plan.tasks[compute].lane = quantize;
    refused(&plan, &["PL-5", "(compute of head) runs on the quantize lane"]);
    let mut plan = nvfp4_training();
    let gather = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    plan.tasks[gather].lane = quantize;
    refused(&plan, &["PL-5", "runs on the quantize lane", "collectives and only collectives"]);
}

/// PL-5
#[test]
fn lanes_must_be_numbered_by_their_place_and_exist_once() {
    let mut plan = f32_training();
    plan.lanes[1].kind = plan.lanes[0].kind;
    refused(&plan, &["PL-5 (", "): the compute lane", "exists twice, as lane 0 and lane 1"]);
    let mut plan = f32_training();
    plan.lanes.swap(0, 1);
    refused(&plan, &["PL-5 (", "): the quantize lane is numbered lane 1 at place 0"]);
}

/// PL-5. A prefetch that runs further ahead than its depth.
#[test]
fn a_gather_that_may_begin_before_its_release_is_refused() {
    let mut plan = nvfp4_training();
    let gather = plan.tasks.iter().position(|task| task.release.is_some()).unwrap();
    let released_by = plan.tasks[gather].release.unwrap();
    let later = plan.entries().find(|(id, task)| *id > released_by && matches!(task.op, Op::Compute(_)));
    plan.tasks[gather].release = later.map(|(id, _)| id);
    refused(
        &plan,
        &["PL-5", "all-gather of", "may begin before its release, task", "add a fence on the release"],
    );
}
