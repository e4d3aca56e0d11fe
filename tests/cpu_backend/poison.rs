//! Poisoned worlds: nothing hangs, and every waiting rank gets the reason.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use warpweft_backend::cpu::{CpuOptions, CpuSurface, CpuWorld, Pace};
use warpweft_backend::{Backend, BackendError};
use warpweft_base::id::{EventId, RankId, TaskId};
use warpweft_format::Format;
use warpweft_plan::compute::{ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::{Call, Group, Mesh};
use warpweft_plan::op::{self, AllReduce, GatherRecords, NormRecord, Op, Reduction};

use crate::bodies::harness::{
    COMPUTE, Do, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, run, sharded, within_limit,
};
use crate::device::{closures, on_every_rank};

/// Two collectives on one communicator.
fn two_collectives(ranks: u32) -> Plan {
    two_collectives_over(Mesh::new(ranks).unwrap())
}

/// The same of a mesh: the first over the shard group, the second over the world.
fn two_collectives_over(mesh: Mesh) -> Plan {
    let mut plan = Plan::over(mesh, &[sharded(8, 4, Format::F32)]);
    let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
    let gathered = plan.transient("gathered", Content::Gathered(W, ROWWISE));
    let record = plan.resident("record", Content::NormRecord);
    let records = plan.transient("records", Content::NormRecords);
    plan.op(LINK, Op::gather(W, ROWWISE, shard, gathered));
    plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
    plan
}

fn poison_of<T: std::fmt::Debug>(result: Result<T, BackendError>) -> String {
    match result {
        Err(BackendError::Poisoned { reason }) => reason,
        other => panic!("expected poison, got {other:?}"),
    }
}

#[test]
fn an_abort_wakes_every_kind_of_wait_on_every_rank() {
    let mut plan = two_collectives(3);
    plan.events = 1;
    let all_wait = Barrier::new(3);
    let reasons = on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
        let mut rank = Rank::start(backend, plan, None).unwrap();
        rank.begin().unwrap();
        match rank.number() {
            0 => {
                // Nothing records the event: the lane waits, and the host with it.
                rank.obey(Do::Wait(COMPUTE, EventId::new(0))).unwrap();
            }
            // Rank 0 never joins.
            _ => rank.obey(Do::Enqueue(LINK, TaskId::new(0))).unwrap(),
        }
        all_wait.wait();
        if rank.number() == 2 {
            std::thread::sleep(Duration::from_millis(20));
            rank.backend.abort("rank 2 found its disk full");
        }
        poison_of(rank.synchronize())
    });
    assert_eq!(reasons, ["rank 2 found its disk full"; 3]);
}

#[test]
fn an_abort_wakes_a_paced_link() {
    // An hour at least.
    let link = Some(Pace { bytes_per_s: 1e9, latency: Duration::from_secs(3600) });
    let begin = Instant::now();
    let all_wait = Barrier::new(2);
    on_every_rank(two_collectives(2), CpuOptions { link }, move |backend, plan| {
        let mut rank = Rank::start(backend, plan, None).unwrap();
        rank.begin().unwrap();
        rank.enqueue_all().unwrap();
        all_wait.wait();
        std::thread::sleep(Duration::from_millis(20));
        rank.backend.abort("enough");
        assert_eq!(poison_of(rank.synchronize()), "enough");
    });
    assert!(begin.elapsed() < Duration::from_secs(600));
}

#[test]
fn a_poisoned_world_stays_poisoned_and_keeps_the_first_reason() {
    run(two_collectives(1), |rank| {
        rank.begin().unwrap();
        rank.obey(Do::Enqueue(LINK, TaskId::new(0))).unwrap();
        rank.synchronize().unwrap();
        rank.backend.abort("first");
        rank.backend.abort("second");
        rank.synchronize().expect("what was done before the abort stays done");
        for _ in 0..2 {
            assert_eq!(poison_of(rank.begin()), "first");
            assert_eq!(poison_of(rank.obey(Do::Enqueue(LINK, TaskId::new(0)))), "first");
        }
    });
}

/// CO-1: collectives swapped on one rank. With several replicas the two are of different groups, which meet
/// at places of their own, and each rank waits at one of them.
#[test]
fn ranks_that_disagree_on_the_next_collective_all_learn_both() {
    for mesh in [Mesh::new(3), Mesh::hybrid(4, 2), Mesh::hybrid(6, 3)].map(Result::unwrap) {
        for swaps in mesh.iter().map(RankId::index) {
            let all_begun = Barrier::new(mesh.ranks() as usize);
            let plan = two_collectives_over(mesh);
            let reasons = on_every_rank(plan, CpuOptions::default(), move |backend, plan| {
                let mut rank = Rank::start(backend, plan, None).unwrap();
                rank.begin().unwrap();
                all_begun.wait();
                let order = if rank.number() == swaps { [1, 0] } else { [0, 1] };
                // A rank may learn of the disagreement before it has enqueued everything.
                let enqueued =
                    order.iter().try_for_each(|task| rank.obey(Do::Enqueue(LINK, TaskId::new(*task))));
                poison_of(enqueued.and_then(|()| rank.synchronize()))
            });
            let swapped = format!("rank {swaps} brings task 1 (gather records");
            // Its peers may be in the next collective before it comes to its first.
            for reason in &reasons {
                for part in [&swapped, "the ranks disagree on collective 0 of communicator 0", "(CO-1)"] {
                    assert!(reason.contains(part), "{mesh}: {reason}");
                }
                assert_eq!(reason, &reasons[0]);
            }
        }
    }
}

/// The same task number in plans that differ: the op gives it away.
#[test]
fn plans_that_differ_between_ranks_are_found_at_the_first_collective() {
    let reasons = on_every_rank(two_collectives(2), CpuOptions::default(), |backend, plan| {
        let own = Arc::unwrap_or_clone(plan.clone());
        let own = if backend.rank().index() == 1 {
            own.with_swapped_ops(TaskId::new(0), TaskId::new(1))
        } else {
            own
        };
        let mut rank = Rank::start(backend, Arc::new(own), None).unwrap();
        rank.begin().unwrap();
        rank.obey(Do::Enqueue(LINK, TaskId::new(0))).unwrap();
        poison_of(rank.synchronize())
    });
    for reason in reasons {
        assert!(reason.contains("all-gather") && reason.contains("gather records"), "{reason}");
    }
}

#[test]
fn a_rank_that_is_dropped_poisons_the_peers_that_need_it() {
    let reasons = on_every_rank(two_collectives(3), CpuOptions::default(), |backend, plan| {
        let mut rank = Rank::start(backend, plan, None).unwrap();
        rank.step().unwrap();
        if rank.number() == 2 {
            return None;
        }
        Some(poison_of(rank.step()))
    });
    for reason in reasons.into_iter().flatten() {
        assert!(reason.contains("rank 2 has gone") && reason.contains("task 0 (all-gather"), "{reason}");
    }
}

#[test]
fn a_rank_thread_that_panics_poisons_its_peers() {
    let outcome = within_limit(|| {
        let plan = Arc::new(two_collectives(2));
        let world = CpuWorld::new(plan.weights.mesh, CpuOptions::default()).unwrap();
        let [first, second] = [0, 1].map(|rank| world.backend(RankId::new(rank)).unwrap());
        let other = Arc::clone(&plan);
        let dies = std::thread::spawn(move || {
            let mut rank = Rank::start(second, other, None).unwrap();
            rank.step().unwrap();
            panic!("the rank thread dies");
        });
        let mut rank = Rank::start(first, plan, None).unwrap();
        rank.step().unwrap();
        let reason = poison_of(rank.step());
        assert!(dies.join().is_err());
        reason
    });
    assert!(outcome.contains("rank 1 has gone"), "{outcome}");
}

#[test]
fn a_rank_nobody_took_is_gone_once_the_world_is_closed() {
    let reason = within_limit(|| {
        let plan = Arc::new(two_collectives(2));
        let world = CpuWorld::new(plan.weights.mesh, CpuOptions::default()).unwrap();
        let mut rank = Rank::start(world.backend(RankId::new(0)).unwrap(), plan, None).unwrap();
        rank.begin().unwrap();
        rank.enqueue_all().unwrap();
        drop(world);
        poison_of(rank.synchronize())
    });
    assert!(reason.contains("rank 1 has gone"), "{reason}");
}

#[test]
fn a_stream_dropped_with_work_to_do_poisons_the_world() {
    let mut plan = Plan::new(1, &[]);
    plan.events = 1;
    run(plan, |rank| {
        rank.begin().unwrap();
        rank.obey(Do::Wait(QUANTIZE, EventId::new(0))).unwrap();
        drop(rank.streams.remove(QUANTIZE.index()));
        let reason = poison_of(rank.begin());
        assert!(reason.contains("rank 0 dropped lane 1 (quantize) before its work was done"), "{reason}");
    });
}

#[test]
fn ranks_may_end_in_any_order() {
    for last in 0..3_u64 {
        on_every_rank(two_collectives(3), CpuOptions::default(), move |backend, plan| {
            let mut rank = Rank::start(backend, plan, None).unwrap();
            rank.step().unwrap();
            let delay = (rank.number() as u64 + last) % 3;
            std::thread::sleep(Duration::from_millis(5 * delay));
            rank.begin().unwrap();
            rank.synchronize().unwrap();
        });
    }
}

#[test]
fn a_full_queue_is_an_error_and_not_a_wait() {
    let mut plan = two_collectives(1);
    plan.events = 1;
    run(plan, |rank| {
        rank.begin().unwrap();
        rank.obey(Do::Wait(LINK, EventId::new(0))).unwrap();
        let refused = (0..100_000).find_map(|_| rank.obey(Do::Enqueue(LINK, TaskId::new(0))).err()).unwrap();
        assert!(refused.to_string().contains("its queue is full"), "{refused}");
        rank.obey(Do::Record(COMPUTE, EventId::new(0))).unwrap();
        rank.synchronize().unwrap();
    });
}

/// A value that panics when it is dropped, and nowhere else.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

#[test]
fn a_lane_that_panics_poisons_the_world_and_is_named() {
    let mut plan = Plan::new(1, &[]);
    let fault = plan.resident("fault", Content::FaultWord);
    plan.call("boom", fault, Vec::new());
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        // The closure's panic is caught; what it held panics again while the lane puts the closure away.
        let throws: ComputeFactory<CpuSurface> = Arc::new(|_| {
            let held = Grenade;
            let boom = move |_: &Call, _: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
                let _held = &held;
                panic!("boom")
            };
            Ok(Box::new(boom))
        });
        let mut rank = Rank::start(backend, plan, Some(throws)).unwrap();
        let reason = poison_of(rank.step());
        assert!(reason.contains("rank 0, lane 0 (compute) panicked: dropped"), "{reason}");
    });
}

/// What a closure throws is never dropped, because that might throw again.
#[test]
fn a_closure_that_throws_what_panics_when_dropped_faults_like_any_other() {
    let mut plan = Plan::new(1, &[]);
    let fault = plan.resident("fault", Content::FaultWord);
    plan.call("boom", fault, Vec::new());
    on_every_rank(plan, CpuOptions::default(), |backend, plan| {
        let throws = closures(|_, _| std::panic::panic_any(Grenade));
        let mut rank = Rank::start(backend, plan, throws).unwrap();
        rank.step().unwrap();
        let fault = rank.backend.take_fault(&mut rank.streams[0]).unwrap();
        assert!(fault.panicked && fault.message == "a panic without words", "{fault:?}");
    });
}

/// PL-3 at run time: whatever a plan does wrong, memory stays sound and the task says so.
#[test]
fn a_plan_that_races_gets_an_error_instead_of_a_data_race() {
    let mut plan = Plan::new(1, &[]);
    let (_, from) = plan.buffer("from", 64, Residency::Resident);
    let (_, to) = plan.buffer("to", 64, Residency::Resident);
    plan.arena.slots[to.index()].region = plan.region(from);
    let copy = plan.op(COMPUTE, Op::Copy(op::Copy { from, to }));
    run(plan, move |rank| match rank.step().unwrap_err() {
        BackendError::Task { task, op: "copy", reason, .. } => {
            assert_eq!(task, copy);
            assert!(reason.contains("race"), "{reason}");
        }
        other => panic!("{other}"),
    });
}

#[test]
fn a_failed_task_lets_its_collectives_go_on() {
    let mut plan = Plan::new(2, &[]);
    let (_, from) = plan.buffer("from", 4, Residency::Resident);
    let (_, to) = plan.buffer("to", 4, Residency::Resident);
    // Bad memory on both ranks, in the middle of a collective.
    plan.arena.slots[to.index()].region = plan.region(from);
    plan.op(
        LINK,
        Op::AllReduce(AllReduce { reduction: Reduction::Sum, group: Group::World, pairs: vec![(from, to)] }),
    );
    let record = plan.transient("record", Content::NormRecord);
    let records = plan.transient("records", Content::NormRecords);
    plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
    let gathered = run(plan, move |rank| {
        rank.put(record, &[NormRecord { squares: 1.0, fault: 0, reserved: 0 }]);
        assert!(matches!(rank.step(), Err(BackendError::Task { op: "all-reduce", .. })));
        rank.get::<NormRecord>(records)
    });
    assert!(gathered.iter().all(|records| records.iter().all(|record| record.squares == 1.0)));
}

#[test]
fn an_arena_is_reserved_once_and_an_op_must_fit_its_slots() {
    within_limit(|| {
        let mut plan = Plan::new(1, &[sharded(4, 4, Format::F32)]);
        let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
        let (_, small) = plan.buffer("small", 3, Residency::Resident);
        plan.op(LINK, Op::gather(W, ROWWISE, shard, small));
        let world = CpuWorld::new(Mesh::new(1).unwrap(), CpuOptions::default()).unwrap();
        let Err(BackendError::Unsupported { task, op: "all-gather", reason, .. }) =
            Rank::start(world.backend(RankId::new(0)).unwrap(), Arc::new(plan), None).map(drop)
        else {
            panic!("bound an op that does not fit");
        };
        assert_eq!(task, TaskId::new(0));
        assert!(reason.contains("`small` has 12 bytes") && reason.contains("needs 256"), "{reason}");

        let world = CpuWorld::new(Mesh::new(1).unwrap(), CpuOptions::default()).unwrap();
        let backend = world.backend(RankId::new(0)).unwrap();
        let _memory = backend.reserve(64, 0).unwrap();
        assert!(matches!(backend.reserve(64, 0), Err(BackendError::Memory { .. })));
    });
}
