//! Calls to the backend while a step is captured in segments, and while it is replayed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use warpweft_base::id::TaskId;
use warpweft_format::Format;
use warpweft_plan::op::Op;
use warpweft_plan::plan::{Piece, StepPlan};
use warpweft_session::config::Capture;
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::{Mischief, losses, within_a_minute};
use warpweft_testing::wrapped::{Moment, Request, Wrapped};

use super::{config, trainer_of};

/// The calls that the only rank gets in three steps, and their plan.
fn three_steps(layers: usize, dynamic: &'static [&str]) -> (Arc<StepPlan>, Vec<Request>) {
    within_a_minute(async move {
        let log = Arc::new(Mutex::new(Vec::new()));
        let book = Arc::clone(&log);
        let logged = Wrapped::new(backends(1).remove(0), move |requested| {
            book.lock().unwrap().push(requested);
            Ok(())
        });
        let builder = trainer_of(layers, dynamic, 1, Format::NVFP4_2D)
            .builder(config(2, Capture::Segments), &Mischief::default());
        let mut session = builder.start(vec![logged]).await.unwrap();
        losses(&mut session, 1, 0..3).await;
        let plan = Arc::clone(session.plan("train").unwrap());
        session.close().await.unwrap();
        let log = log.lock().unwrap().clone();
        (plan, log)
    })
}

/// EX-1, PL-7, AC-2. The prologue and the first step are issued; the second is captured piece by piece before
/// it begins, then runs as the third does.
#[test]
fn segments_hold_their_tasks_wait_for_none_of_another_and_are_launched_around_the_dynamic_calls() {
    const DYNAMIC: &[&str] = &["input", "f1", "b2", "b1"];
    let (plan, log) = three_steps(3, DYNAMIC);
    let pieces = plan.pieces();
    let steps: Vec<usize> = (0..log.len()).filter(|at| log[*at].moment == Moment::Step).collect();
    assert_eq!(steps.len(), 4, "a prologue and three steps");
    let last_of_the_first = (0..steps[2]).rev().find(|at| log[*at].moment == Moment::Synchronize).unwrap();
    let capture = &log[last_of_the_first..steps[2]];
    let segments: Vec<&[Request]> = capture.split(|requested| requested.moment == Moment::Captured).collect();
    let numbers: Vec<_> =
        pieces.entries().filter(|(_, piece)| *piece == Piece::Segment).map(|(number, _)| number).collect();
    assert_eq!(segments.len(), numbers.len() + 1, "nothing is captured after the last segment");
    let signaller = |requested: &Request| {
        let found =
            plan.entries().find(|(_, task)| task.signals.is_some() && task.signals == requested.event);
        found.unwrap().0
    };
    for (number, requested) in numbers.iter().zip(&segments) {
        let held: Vec<TaskId> = requested.iter().filter_map(|requested| requested.task).collect();
        let expected: BTreeSet<TaskId> =
            plan.entries().map(|(id, _)| id).filter(|task| pieces.of(*task) == *number).collect();
        assert_eq!((held.len(), held.iter().copied().collect::<BTreeSet<_>>()), (expected.len(), expected));
        for lane in &plan.lanes {
            assert!(held.iter().filter(|task| plan.task(**task).lane == lane.id).is_sorted(), "{held:?}");
        }
        for wait in requested.iter().filter(|requested| requested.moment == Moment::Wait) {
            assert_eq!(pieces.of(signaller(wait)), *number, "a wait for an event of another capture");
        }
    }
    for step in [&log[steps[2]..steps[3]], &log[steps[3]..]] {
        let shown = |requested: &Request| match requested.moment {
            Moment::Launch => Some(None),
            Moment::Enqueue => Some(requested.task),
            _ => None,
        };
        let end = step.iter().position(|requested| requested.moment == Moment::Synchronize).unwrap();
        let ran: Vec<Option<TaskId>> = step[..end].iter().filter_map(shown).collect();
        let expected: Vec<Option<TaskId>> = pieces
            .entries()
            .map(|(_, piece)| match piece {
                Piece::Segment => None,
                Piece::Call(call) => Some(call),
            })
            .collect();
        assert_eq!(ran, expected);
    }
}

/// The two-stage drain: what a boundary did not wait for is the first of what the next segment captures.
#[test]
fn what_was_moved_over_a_boundary_is_captured_before_the_calls_it_runs_beside() {
    let (plan, log) = three_steps(6, &["b1"]);
    let pieces = plan.pieces();
    let dynamic = pieces.entries().find_map(|(_, piece)| match piece {
        Piece::Call(call) => Some(call),
        Piece::Segment => None,
    });
    let dynamic = dynamic.unwrap();
    let is_moved = |task: TaskId| task < dynamic && pieces.of(task) > pieces.of(dynamic);
    let moved = plan.entries().filter(|(id, task)| is_moved(*id) && !matches!(task.op, Op::Compute(_)));
    let moved: Vec<TaskId> = moved.map(|(id, _)| id).collect();
    assert!(!moved.is_empty());
    let captured: Vec<usize> = (0..log.len()).filter(|at| log[*at].moment == Moment::Captured).collect();
    let second = &log[captured[0]..captured[1]];
    let at = |task: TaskId| second.iter().position(|requested| requested.task == Some(task));
    let calls = plan.entries().filter(|(_, task)| matches!(task.op, Op::Compute(_)));
    let first_call = calls.filter_map(|(id, _)| at(id)).min().unwrap();
    assert!(moved.iter().all(|task| at(*task).unwrap() < first_call));
}
