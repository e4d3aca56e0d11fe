//! Simulated worlds: many ranks, late ranks, and worlds that are refused.

use std::time::Instant;

use warpweft_backend::sim::SimWorld;
use warpweft_backend::{Backend, BackendError, TaskInterval};
use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::{Decoder, Mesh};
use warpweft_plan::plan::{Policy, StepPlan};
use warpweft_plan::policy::{Reduce, ReduceDtype};
use warpweft_session::cluster::preset;
use warpweft_session::config::{Config, Declared};
use warpweft_session::session::{SessionError, simulate_program};

use super::programs::{PLAIN, chain, depth, plain, plain_with, training};

#[test]
fn a_collective_waits_for_the_last_of_all_ranks() {
    // Two calls on demand: the second gather begins when the slowest rank has ended its first call.
    let (ranks, length) = (64, 1_000_000u64);
    let cluster = plain_with("[jitter]\nseed = 3\nmean = 0.1\n");
    let program = chain(2, 64, length);
    let late = simulate_program(&program, &depth(0), &cluster, ranks, 400).unwrap();
    let alike = simulate_program(&program, &depth(0), &plain(), ranks, 1).unwrap();
    let harmonic: f64 = (1..=ranks).map(|rank| 1.0 / f64::from(rank)).sum();
    // Both calls end in a wait for all: in the next gather, and at the step boundary, which the slowest
    // rank sets.
    let delay = (late.step - alike.step).as_nanos() as f64;
    let expected = 2.0 * 0.1 * length as f64 * harmonic;
    assert!((delay / expected - 1.0).abs() < 0.05, "{delay} is not {expected}");
    assert!(late.exposure.skew.count() > 0);
}

#[test]
fn one_straggler_slows_everybody_by_its_factor() {
    let program = chain(4, 64, 1_000_000);
    let cluster = plain_with("[jitter]\nstraggler_share = 1\nstraggler_factor = 1.5\n");
    let slow = simulate_program(&program, &depth(0), &cluster, 8, 1).unwrap();
    let alike = simulate_program(&program, &depth(0), &plain(), 8, 1).unwrap();
    assert_eq!((slow.step - alike.step).as_nanos(), 4 * 500_000);
}

#[test]
fn a_seed_gives_the_same_times_again() {
    let cluster = plain_with("[jitter]\nseed = 3\nmean = 0.1\n");
    let other = plain_with("[jitter]\nseed = 4\nmean = 0.1\n");
    let step = |cluster| simulate_program(&chain(4, 64, 100_000), &depth(1), cluster, 16, 5).unwrap().step;
    assert_eq!(step(&cluster), step(&cluster));
    assert_ne!(step(&cluster), step(&other));
}

#[test]
fn memory_is_counted_and_not_reserved() {
    // 60 TB per rank, more than any machine that runs this test.
    let cluster =
        Cluster { gpu: warpweft_plan::cluster::Gpu { memory_bytes: 1 << 60, ..plain().gpu }, ..plain() };
    let program = chain(3, 20_000_000_000, 1000);
    let simulated = simulate_program(&program, &depth(3), &cluster, 4, 1).unwrap();
    assert!(simulated.plan.arena.bytes() > 50_000_000_000_000, "{}", simulated.plan.arena.bytes());
}

/// As many ranks, but other groups: prices would be those of other collectives than the plan's.
#[test]
fn a_plan_of_another_mesh_than_the_world_s_is_not_bound() {
    let (flat, hybrid) = (Mesh::new(4).unwrap(), Mesh::hybrid(4, 2).unwrap());
    for (planned, world) in [(flat, hybrid), (hybrid, flat), (flat, Mesh::new(8).unwrap())] {
        let plan = StepPlan::build(&chain(2, 64, 1000), &Policy::from(&depth(1)), planned).unwrap();
        let ops = plan.ops();
        let ranks = SimWorld::new(world, plain(), Reduce::Ordered).unwrap();
        let backend = ranks.backend().unwrap();
        let binding = plan.binding(backend.rank(), &ops);
        let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
        let Err(BackendError::Mesh { plan: of_plan, world: of_world, .. }) =
            backend.bind(&memory, &binding).map(drop)
        else {
            panic!("bound a plan for {planned} in a world of {world}");
        };
        assert_eq!((of_plan, of_world), (planned, world));
    }
}

#[test]
fn worlds_that_cannot_be_are_refused_with_what_to_do() {
    let h200 = preset("h200x4").unwrap().unwrap();
    let error = simulate_program(&chain(1, 64, 1), &depth(0), &h200, 5, 1).unwrap_err();
    assert!(matches!(error, SessionError::Backend(BackendError::NoLinks { ranks: 5, .. })), "{error}");
    assert!(error.to_string().contains("use at most 4 ranks"), "{error}");

    let small = PLAIN.replace("1_000_000_000_000", "1000");
    let small = Cluster::from_toml(&small, "small.toml").unwrap();
    let error = simulate_program(&chain(1, 64, 1), &depth(0), &small, 2, 1).unwrap_err().to_string();
    assert!(error.contains("a GPU of `plain` has 1000") && error.contains("use more ranks"), "{error}");

    let world = SimWorld::new(Mesh::new(2).unwrap(), plain(), Reduce::Ordered).unwrap();
    let _first = world.backend().unwrap();
    assert_eq!(world.backend().unwrap_err(), BackendError::SimulatorTaken);
}

#[test]
fn thousands_of_ranks_of_a_deep_decoder_are_simulated_one_by_one() {
    let text = include_str!("../../../examples/simulate/96-layers.toml");
    let decoder = Decoder::from_toml(text, "96-layers.toml").unwrap();
    let program = decoder.program(&decoder.model().unwrap()).unwrap();
    let cluster = preset("h100x8-ib").unwrap().unwrap();
    assert!(!cluster.jitter.is_none(), "else one clock would do");
    let begin = Instant::now();
    let config = Config {
        prefetch: depth(2).prefetch,
        // In f32 a GPU of this cluster has no room for what lands of the largest gradient.
        reduce_dtype: ReduceDtype::Bf16,
        ..Config::default()
    };
    let simulated = simulate_program(&program, &config, &cluster, 4096, 1).unwrap();
    println!(
        "4,096 ranks × 96 layers, {} tasks, planned, verified and two steps simulated in {:.2?}: {:.2?} a step",
        simulated.plan.tasks.len(),
        begin.elapsed(),
        simulated.step
    );
    let compute: u64 = program.calls().iter().flat_map(|call| &call.cost).map(|part| part.flops).sum();
    let least = compute as f64 / cluster.gpu.flops_per_s.bf16;
    assert!(simulated.step.as_secs_f64() > least, "no faster than its matrix products");
}

/// When the tasks of a step run that a host gives to the lanes of a simulated rank in this order.
fn issued(plan: &StepPlan, cluster: &Cluster, order: &[TaskId]) -> Vec<TaskInterval> {
    let backend =
        SimWorld::new(plan.weights.mesh, cluster.clone(), Reduce::Ordered).unwrap().backend().unwrap();
    let ops = plan.ops();
    let memory = backend.reserve(plan.arena.bytes(), 0).unwrap();
    let mut streams: Vec<_> =
        plan.lanes.iter().map(|lane| backend.open(&memory, *lane, None).unwrap()).collect();
    let mut bound = backend.bind(&memory, &plan.binding(backend.rank(), &ops)).unwrap();
    backend.begin_step(&mut bound).unwrap();
    for task in order {
        let planned = &plan.tasks[task.index()];
        let stream = &mut streams[planned.lane.index()];
        for wait in &planned.waits {
            backend.wait(stream, &bound, plan.tasks[wait.index()].signals.unwrap()).unwrap();
        }
        backend.enqueue(stream, &bound, *task).unwrap();
        planned.signals.map_or(Ok(()), |event| backend.record(stream, &bound, event)).unwrap();
    }
    streams.iter_mut().for_each(|stream| backend.synchronize(stream).unwrap());
    let mut intervals = Vec::new();
    backend.intervals(&bound, &mut intervals);
    intervals
}

/// The tasks of a plan in an order in which each comes after what it waits for, and those of one lane as soon as they
/// can.
fn one_lane_first(plan: &StepPlan, first: LaneId) -> Vec<TaskId> {
    let mut left: Vec<TaskId> = plan.entries().map(|(task, _)| task).collect();
    let mut order: Vec<TaskId> = Vec::new();
    while !left.is_empty() {
        let can_be_next = |task: &TaskId| {
            let planned = &plan.tasks[task.index()];
            let mut before = left.iter().take_while(|other| *other != task);
            before
                .all(|other| plan.tasks[other.index()].lane != planned.lane && !planned.waits.contains(other))
        };
        let of_first =
            left.iter().position(|task| plan.tasks[task.index()].lane == first && can_be_next(task));
        order.push(left.remove(of_first.unwrap_or(0)));
    }
    order
}

/// What lanes take from each other goes by when tasks begin, and not by when the host gave them to their lanes.
#[test]
fn a_step_takes_the_same_in_whatever_order_lanes_get_their_tasks() {
    let cluster = plain_with(
        "[contention]\ncompute_beside_collective = 1.3\ncollective_beside_compute = 1.2\n\
         collective_beside_collective = 2\ncompute_beside_quantize = 1.1\nquantize_beside_compute = 1.4\n",
    );
    let config = Config { communicators: Some(2), ..depth(2) };
    let plan = StepPlan::build(&training(4, 800, 1_000_000), &Policy::from(&config), Mesh::new(4).unwrap());
    let plan = plan.unwrap();
    let in_order: Vec<TaskId> = plan.entries().map(|(task, _)| task).collect();
    let expected = issued(&plan, &cluster, &in_order);
    let mut others = 0;
    for lane in &plan.lanes {
        let order = one_lane_first(&plan, lane.id);
        others += usize::from(order != in_order);
        assert_eq!(issued(&plan, &cluster, &order), expected, "{:?} first", lane.kind);
    }
    assert!(others > 2, "{others} other orders");
    let length = |interval: &TaskInterval| interval.end - interval.joined;
    let alone = issued(&plan, &plain(), &in_order);
    assert!(expected.iter().zip(&alone).any(|(one, other)| length(one) > length(other)), "lanes contend");
}
