//! The checker: it refuses unordered accesses, whether or not the lanes collide.

use std::sync::Arc;

use warpweft_backend::cpu::{CpuBackend, CpuOptions};
use warpweft_backend::{Backend, BackendError, Checked};
use warpweft_base::id::{BufferId, EventId, LaneId, SlotId, TaskId};
use warpweft_format::Format;
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::Access;
use warpweft_plan::op::{self, GatherRecords, GradNorm, Op, Operand, OperandRole};

use crate::bodies::harness::{COMPUTE, Do, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, sharded};
use crate::device::{closures, on_every_rank};

/// Copies along a chain of slots over two lanes: in → a → b → out.
struct Chain {
    plan: Plan,
    slots: [SlotId; 4],
    tasks: [TaskId; 3],
}

fn chain() -> Chain {
    let mut plan = Plan::new(1, &[]);
    let slots = [
        ("in", Residency::Resident),
        ("a", Residency::Transient),
        ("b", Residency::Transient),
        ("out", Residency::Resident),
    ]
    .map(|(name, residency)| plan.buffer(name, 64, residency).1);
    let first = plan.op(COMPUTE, Op::Copy(op::Copy { from: slots[0], to: slots[1] }));
    plan.fence(COMPUTE, QUANTIZE);
    let second = plan.op(QUANTIZE, Op::Copy(op::Copy { from: slots[1], to: slots[2] }));
    plan.fence(QUANTIZE, COMPUTE);
    let third = plan.op(COMPUTE, Op::Copy(op::Copy { from: slots[2], to: slots[3] }));
    Chain { plan, slots, tasks: [first, second, third] }
}

/// Runs one step under the checker, three times, once of them captured; all must agree.
fn verdict(plan: Plan) -> Result<(), String> {
    let verdicts = on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        let steps = [rank.step(), rank.step(), rank.capture_graph().map(drop)];
        if steps[2].is_err() {
            drop(end_capture(&mut rank));
        }
        steps.map(|step| match step {
            Ok(()) => Ok(()),
            Err(BackendError::Hazard { hazard, .. }) => Err(hazard),
            Err(other) => panic!("{other}"),
        })
    });
    let [first, second, captured] = verdicts.into_iter().next().unwrap();
    assert_eq!(first, second);
    assert_eq!(first, captured);
    first
}

fn end_capture(rank: &mut Rank<Checked<CpuBackend>>) -> Result<Vec<LaneId>, BackendError> {
    let graph = rank.backend.end_capture(&mut rank.streams, &rank.bound)?;
    Ok(graph.unjoined().to_vec())
}

fn assert_parts(verdict: Result<(), String>, parts: &[&str]) {
    let hazard = verdict.expect_err("the checker saw nothing");
    for part in parts {
        assert!(hazard.contains(part), "{hazard:?} does not mention {part:?}");
    }
}

#[test]
fn an_ordered_step_passes_and_does_what_it_does_unchecked() {
    let Chain { plan, slots, .. } = chain();
    on_every_rank(plan.clone(), CpuOptions::default(), move |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        let graph = rank.capture_graph().unwrap();
        for step in 0..3 {
            rank.put(slots[0], &[step as f32; 64]);
            rank.step().unwrap();
            assert_eq!(rank.get::<f32>(slots[3]), [step as f32; 64]);
            rank.put(slots[0], &[10.0 + step as f32; 64]);
            rank.replay(&graph).unwrap();
            assert_eq!(rank.get::<f32>(slots[3]), [10.0 + step as f32; 64]);
        }
    });
    assert_eq!(verdict(plan), Ok(()));
}

/// BK-1. PL-3.
#[test]
fn a_dropped_fence_is_a_hazard_that_names_both_tasks_the_slot_and_the_missing_order() {
    let Chain { mut plan, .. } = chain();
    let waits = |entry: &Do| *entry != Do::Wait(QUANTIZE, EventId::new(0));
    plan.script.retain(waits);
    assert_parts(
        verdict(plan),
        &[
            "task 1 (copy) reads `a` on lane 1",
            "task 0 (copy) writes `a` on lane 0",
            "wait for an event",
            "after task 0",
        ],
    );
}

/// PL-3, write after read.
#[test]
fn a_writer_that_does_not_wait_for_a_reader_is_a_hazard() {
    let Chain { mut plan, slots, .. } = chain();
    // Lane 0 overwrites `a` for the next use while lane 1 may still read it.
    plan.script.truncate(4);
    plan.op(COMPUTE, Op::Copy(op::Copy { from: slots[0], to: slots[1] }));
    assert_parts(verdict(plan), &["task 3 (copy) writes `a` on lane 0", "task 1 (copy) reads `a` on lane 1"]);
}

#[test]
fn order_is_carried_over_a_third_lane() {
    let Chain { mut plan, slots, .. } = chain();
    plan.script.truncate(4);
    plan.fence(QUANTIZE, LINK);
    plan.fence(LINK, COMPUTE);
    let third = plan.op(COMPUTE, Op::Copy(op::Copy { from: slots[0], to: slots[1] }));
    let record = plan.transient("record", Content::NormRecord);
    let records = plan.transient("records", Content::NormRecords);
    let fault = plan.resident("fault", Content::FaultWord);
    assert_eq!(third, TaskId::new(3));
    // The link lane has a task of its own, so that it is a lane of the plan.
    let main_grads = Vec::new();
    plan.op(LINK, Op::GradNorm(GradNorm { main_grads, squares: Vec::new(), fault, record }));
    plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
    assert_eq!(verdict(plan), Ok(()));
}

#[test]
fn a_wait_for_an_event_nothing_recorded_is_a_hazard() {
    let Chain { mut plan, .. } = chain();
    // The executor issues the wait before the record.
    plan.script.swap(1, 2);
    assert_parts(verdict(plan), &["lane 1 waits for event 0", "nothing has recorded in this step"]);
}

#[test]
fn an_event_recorded_twice_is_a_hazard() {
    let Chain { mut plan, .. } = chain();
    plan.script.push(Do::Record(COMPUTE, EventId::new(0)));
    assert_parts(verdict(plan), &["lane 0 records event 0", "recorded before"]);
}

#[test]
fn slots_that_share_bytes_while_both_live_are_a_hazard() {
    let Chain { mut plan, slots, tasks } = chain();
    let (_, alias) = plan.buffer("alias", 64, Residency::Transient);
    plan.arena.slots[alias.index()].region = plan.region(slots[2]);
    // On the lane of the reader, so that nothing but the content is wrong.
    plan.script.pop();
    plan.op(COMPUTE, Op::Copy(op::Copy { from: slots[0], to: alias }));
    let late = TaskId::at(plan.ops.len());
    plan.ops.push(plan.ops[tasks[2].index()].clone());
    plan.script.push(Do::Enqueue(COMPUTE, late));
    assert_parts(
        verdict(plan),
        &["task 4 (copy) reads `b`", "task 3 (copy) has overwritten its bytes with `alias`"],
    );
}

#[test]
fn aliased_slots_on_two_lanes_are_compared_by_their_bytes() {
    let Chain { mut plan, slots, .. } = chain();
    plan.arena.slots[slots[3].index()].region = plan.region(slots[1]);
    plan.script.retain(|entry| *entry != Do::Wait(COMPUTE, EventId::new(1)));
    plan.ops[2].0 = Op::Copy(op::Copy { from: slots[0], to: slots[3] });
    assert_parts(
        verdict(plan),
        &["task 2 (copy) writes `out` on lane 0", "task 1 (copy) reads `a` on lane 1"],
    );
}

#[test]
fn one_task_on_two_slots_that_share_bytes_is_a_hazard() {
    let Chain { mut plan, slots, .. } = chain();
    plan.arena.slots[slots[2].index()].region = plan.region(slots[1]);
    assert_parts(verdict(plan), &["task 1 (copy) reads `a` and writes `b`, which share bytes"]);
}

#[test]
fn a_read_of_a_transient_slot_nothing_wrote_is_a_hazard() {
    let Chain { mut plan, .. } = chain();
    plan.script.retain(|entry| !matches!(entry, Do::Enqueue(COMPUTE, task) if task.index() == 0));
    assert_parts(verdict(plan), &["task 1 (copy) reads `a`, which nothing has written in this step"]);
}

/// AC-2.
#[test]
fn a_lane_that_gets_its_tasks_out_of_order_is_a_hazard() {
    let mut plan = Plan::new(1, &[]);
    let (_, one) = plan.buffer("one", 8, Residency::Resident);
    let (_, two) = plan.buffer("two", 8, Residency::Resident);
    let (_, three) = plan.buffer("three", 8, Residency::Resident);
    plan.op(COMPUTE, Op::Copy(op::Copy { from: one, to: two }));
    plan.op(COMPUTE, Op::Copy(op::Copy { from: one, to: three }));
    plan.script.swap(0, 1);
    assert_parts(verdict(plan), &["task 0 (copy) is enqueued on lane 0 after task 1 (copy)"]);
}

#[test]
fn a_task_on_the_wrong_lane_is_a_hazard() {
    let Chain { mut plan, .. } = chain();
    plan.script[0] = Do::Enqueue(QUANTIZE, TaskId::new(0));
    assert_parts(verdict(plan), &["task 0 (copy) belongs to lane 0, not to lane 1"]);
}

/// CO-1, AC-2: refused on the rank that swaps, before anything waits for it.
#[test]
fn swapped_collectives_are_refused_before_they_are_enqueued() {
    let mut plan = Plan::new(2, &[sharded(8, 4, Format::F32)]);
    let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
    for number in 0..2 {
        let to = plan.transient(&format!("gathered {number}"), Content::Gathered(W, ROWWISE));
        plan.op(LINK, Op::gather(W, ROWWISE, shard, to));
    }
    let outcomes = on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let mut own = Arc::unwrap_or_clone(plan);
        if backend.rank().index() == 1 {
            own.script.swap(0, 1);
        }
        let mut rank = Rank::start(Checked::new(backend), Arc::new(own), None).unwrap();
        let enqueued = rank.begin().and_then(|()| rank.enqueue_all());
        if let Err(error) = &enqueued {
            rank.backend.abort(&error.to_string());
        }
        enqueued.and_then(|()| rank.synchronize())
    });
    let [peer, swapped] = &outcomes[..] else { panic!("two ranks") };
    assert!(
        matches!(swapped, Err(BackendError::Hazard { hazard, .. }) if hazard.contains("all-gather")),
        "{swapped:?}"
    );
    assert!(matches!(peer, Err(BackendError::Poisoned { .. })), "{peer:?}");
}

/// BK-1.
#[test]
fn a_refused_task_never_reaches_the_backend() {
    let Chain { mut plan, slots, .. } = chain();
    plan.script = vec![Do::Enqueue(QUANTIZE, TaskId::new(1))];
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        rank.put(slots[1], &[1.0_f32; 64]);
        assert!(rank.step().is_err());
        rank.synchronize().unwrap();
        assert_eq!(rank.get::<f32>(slots[2]), [0.0; 64]);
    });
}

/// PL-7: what the first lane does not wait for is noted; the backend itself joins it.
#[test]
fn a_capture_notes_the_lanes_the_first_does_not_wait_for() {
    let unjoined = |plan: Plan| {
        let mut lanes = on_every_rank(plan, CpuOptions::default(), |backend, plan| {
            Rank::start(Checked::new(backend), plan, None)
                .unwrap()
                .capture_graph()
                .unwrap()
                .unjoined()
                .to_vec()
        });
        lanes.remove(0)
    };
    let Chain { mut plan, slots, .. } = chain();
    assert!(unjoined(plan.clone()).is_empty());
    plan.op(QUANTIZE, Op::Copy(op::Copy { from: slots[0], to: slots[2] }));
    plan.script.insert(plan.script.len() - 1, Do::Record(COMPUTE, EventId::at(plan.events)));
    plan.script.insert(plan.script.len() - 1, Do::Wait(QUANTIZE, EventId::at(plan.events)));
    plan.events += 1;
    assert_eq!(unjoined(plan), [QUANTIZE]);
}

/// PL-7. *Un-joined fork in a captured step*: the capture ends without a lane it began on.
#[test]
fn an_un_joined_fork_in_a_captured_step_is_refused() {
    on_every_rank(chain().plan, CpuOptions::default(), |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        rank.begin().unwrap();
        rank.backend.begin_capture(&mut rank.streams, &rank.bound).unwrap();
        rank.enqueue_all().unwrap();
        let error = rank.backend.end_capture(&mut rank.streams[..1], &rank.bound).unwrap_err();
        assert_hazard(
            &error,
            &["began on lane 1 too", "a fork that does not join", "on all lanes it began on", "PL-7"],
        );
    });
}

/// PL-7. A capture is the whole plan, or its replays would miss the rest in every step.
#[test]
fn a_capture_that_lacks_a_task_is_refused() {
    let Chain { mut plan, tasks, .. } = chain();
    plan.script.truncate(4);
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let error = Rank::start(Checked::new(backend), plan, None).unwrap().capture_graph().unwrap_err();
        let missing = format!("ends before {} (copy) is enqueued on {COMPUTE}", tasks[2]);
        assert_hazard(&error, &[&missing, "every replay would leave it out"]);
    });
}

/// PL-7. What the host does while a step is captured is in no replay of it.
#[test]
fn what_the_host_does_beside_a_capture_is_refused() {
    let Chain { plan, slots, .. } = chain();
    on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        let region = rank.plan.region(slots[0]);
        rank.begin().unwrap();
        rank.backend.begin_capture(&mut rank.streams, &rank.bound).unwrap();
        rank.enqueue_all().unwrap();
        let error = rank.backend.upload(&rank.memory, region, &vec![1; region.bytes]).unwrap_err();
        assert_hazard(&error, &["the host copies into the arena while a step is captured", "in no replay"]);
        let error = rank.backend.download(&rank.memory, region, &mut vec![0; region.bytes]).unwrap_err();
        assert_hazard(&error, &["copies out of the arena"]);
        assert_hazard(&rank.synchronize().unwrap_err(), &["waits for a lane while a step is captured"]);
        assert_hazard(&rank.begin().unwrap_err(), &["begins a step while a step is captured"]);
        let graph = rank.backend.end_capture(&mut rank.streams, &rank.bound).unwrap();
        rank.replay(&graph).unwrap();
    });
}

/// A chain of three whose middle is a dynamic call: a segment, the call, a segment.
fn dynamic_chain() -> Plan {
    let mut plan = Plan::new(1, &[]);
    let (_, from) = plan.buffer("in", 64, Residency::Resident);
    let (number, a) = plan.buffer("a", 64, Residency::Transient);
    let (_, to) = plan.buffer("out", 64, Residency::Resident);
    let fault = plan.resident("fault", Content::FaultWord);
    plan.op(QUANTIZE, Op::Copy(op::Copy { from, to: a }));
    plan.fence(QUANTIZE, COMPUTE);
    plan.call(
        "decide",
        fault,
        vec![Operand { slot: a, access: Access::Update, role: OperandRole::Buffer(number) }],
    );
    plan.calls[0].dynamic = true;
    plan.fence(COMPUTE, QUANTIZE);
    plan.op(QUANTIZE, Op::Copy(op::Copy { from: a, to }));
    plan
}

/// Tasks of [`dynamic_chain`].
const FILL: Do = Do::Enqueue(QUANTIZE, TaskId::new(0));
const DECIDE: Do = Do::Enqueue(COMPUTE, TaskId::new(1));
const DRAIN: Do = Do::Enqueue(QUANTIZE, TaskId::new(2));

/// What a world of one rank makes of `work` on [`dynamic_chain`].
fn on_the_chain(work: impl Fn(&mut Rank<Checked<CpuBackend>>) + Send + Sync + 'static) {
    on_every_rank(dynamic_chain(), CpuOptions::default(), move |backend, plan| {
        let closures = closures(|_, context| {
            context.write::<f32>(BufferId::new(1))?.iter_mut().for_each(|value| *value += 1.0);
            Ok(())
        });
        let mut rank = Rank::start(Checked::new(backend), plan, closures).unwrap();
        rank.begin().unwrap();
        work(&mut rank);
    });
}

/// PL-7.
#[test]
fn segments_in_the_order_of_the_plan_with_the_dynamic_call_between_them_pass() {
    on_the_chain(|rank| {
        let (first, second) =
            (rank.capture_segment(&[FILL]).unwrap(), rank.capture_segment(&[DRAIN]).unwrap());
        for step in 0..3 {
            rank.put(SlotId::new(0), &[step as f32; 64]);
            rank.begin().unwrap();
            rank.launch(&first).unwrap();
            rank.obey(DECIDE).unwrap();
            rank.launch(&second).unwrap();
            rank.synchronize().unwrap();
            assert_eq!(rank.get::<f32>(SlotId::new(2)), [step as f32 + 1.0; 64]);
        }
    });
}

/// PL-7. What cannot be captured is not, whatever an executor tries.
#[test]
fn a_dynamic_call_is_refused_in_a_capture() {
    on_the_chain(|rank| {
        let error = rank.capture_segment(&[FILL, DECIDE]).map(drop).unwrap_err();
        assert_hazard(&error, &["task 1", "is a dynamic call", "while a segment is captured", "PL-7"]);
        drop(end_capture(rank));
    });
}

/// PL-7. CUDA forbids it, and the end of the other segment has ordered the two already.
#[test]
fn a_segment_that_waits_for_an_event_of_another_is_refused() {
    on_the_chain(|rank| {
        let event = EventId::new(0);
        rank.capture_segment(&[FILL, Do::Record(QUANTIZE, event)]).unwrap();
        let error = rank.capture_segment(&[Do::Wait(QUANTIZE, event), DRAIN]).map(drop).unwrap_err();
        assert_hazard(&error, &["waits for event 0", "in this segment of it"]);
        drop(end_capture(rank));
    });
}

/// PL-7. A capture waits for its first lane and for no other.
#[test]
fn a_segment_launched_beside_work_of_another_lane_is_refused() {
    on_the_chain(|rank| {
        let second = rank.capture_segment(&[DRAIN]).unwrap();
        rank.begin().unwrap();
        rank.obey(FILL).unwrap();
        let error = rank.launch(&second).unwrap_err();
        assert_hazard(
            &error,
            &["lane 1 has work that lane 0 does not wait for", "begin and end on lane 0", "PL-7"],
        );
        rank.synchronize().unwrap();
    });
}

/// PL-7, AC-2. Out of order, twice, or with the call between them left out.
#[test]
fn segments_that_are_not_launched_one_after_the_other_are_refused() {
    on_the_chain(|rank| {
        let second = rank.capture_segment(&[DRAIN]).unwrap();
        rank.begin().unwrap();
        let error = rank.launch(&second).unwrap_err();
        assert_hazard(&error, &["task 2 (copy) is launched on lane 1, where task 0 (copy) comes next"]);
    });
    on_the_chain(|rank| {
        let first = rank.capture_segment(&[FILL]).unwrap();
        rank.begin().unwrap();
        rank.launch(&first).unwrap();
        assert_hazard(&rank.launch(&first).unwrap_err(), &["task 0 (copy) is launched", "each once"]);
    });
    on_the_chain(|rank| {
        let first = rank.capture_segment(&[FILL]).unwrap();
        rank.begin().unwrap();
        let error = rank.obey(DECIDE).unwrap_err();
        assert_hazard(&error, &["updates `a`, which nothing has written in this step"]);
        rank.launch(&first).unwrap();
        rank.obey(DECIDE).unwrap();
        rank.synchronize().unwrap();
        assert_hazard(&rank.begin().unwrap_err(), &["ended before task 2 (copy) reached lane 1", "PL-7"]);
    });
}
#[track_caller]
fn assert_hazard(error: &BackendError, parts: &[&str]) {
    assert!(matches!(error, BackendError::Hazard { .. }), "{error}");
    assert_parts(Err(error.to_string()), parts);
}
