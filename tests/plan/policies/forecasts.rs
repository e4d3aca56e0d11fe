//! Forecasts against the simulator, and bounds against numbers computed by hand.

use warpweft_format::{Format, Orientation};
use warpweft_plan::cluster::{Cluster, Contention};
use warpweft_plan::model::{Form, Model, Phase, StepProgram};
use warpweft_plan::plan::{Measured, StepPlan};
use warpweft_session::cluster::preset;
use warpweft_session::config::{Capture, Config, Declared, Prefetch};
use warpweft_session::session::{costs_of, plan_program_on, simulate_program};

use super::shapes::{SHAPES, program};

/// The preset of four H200 without what lanes take from each other, without delays and without launches.
fn plain() -> Cluster {
    let mut cluster = preset("h200x4").unwrap().unwrap();
    cluster.contention = Default::default();
    cluster.gpu.launch_us = 0.0;
    cluster.gpu.memory_bytes = 1 << 50;
    cluster
}

/// The law of the module: without contention and delays a forecast is a simulated step, to the nanosecond.
#[test]
fn a_forecast_is_what_the_simulator_says_where_lanes_take_nothing_from_each_other() {
    for (shape, (name, _, sizes)) in [SHAPES[0], SHAPES[4]].into_iter().enumerate() {
        let program = program(name, sizes, 1024);
        for (round, prefetch) in [Prefetch::depth(0), Prefetch::depth(3), Prefetch::auto()].iter().enumerate()
        {
            // Of every two settings one.
            for (capture, communicators, replicate) in
                [(Capture::Off, 1, 1), (Capture::Off, 2, 1), (Capture::Step, 2, 1), (Capture::Off, 3, 2)]
                    .into_iter()
                    .skip((shape + round) % 2)
                    .step_by(2)
            {
                let mut config = Config {
                    prefetch: prefetch.clone(),
                    capture,
                    communicators: Some(communicators),
                    ..Config::default()
                };
                config.mesh.dp_replicate = Some(replicate);
                // A step that is captured is issued once first.
                let simulated = simulate_program(&program, &config, &plain(), 4, 2).unwrap();
                let costs = costs_of(&config, &plain(), 4).unwrap();
                let forecast = simulated.plan.forecast(&costs);
                let last = simulated.steps.last().unwrap().as_nanos();
                assert!(forecast.exposed >= forecast.exposed_bound && forecast.step >= forecast.step_bound);
                assert_eq!(u128::from(forecast.step), last, "{name}, {prefetch}, {communicators}");
            }
        }
    }
}

/// A call of three weights, gathered as one or, in groups of one, each alone.
fn of_three(groups_of: Option<usize>) -> StepProgram {
    let mut model = Model::builder();
    let rows = [256, 512, 1280];
    let weights = rows.map(|rows| model.sharded(&format!("w{rows}"), rows, 128, Format::NVFP4_2D).unwrap());
    for (number, members) in groups_of.into_iter().flat_map(|of| weights.chunks(of)).enumerate() {
        model.group(&format!("group{number}"), members).unwrap();
    }
    let mut program = StepProgram::builder("evaluate", &model.build());
    let mut call = program.call("all", Phase::Forward);
    for weight in weights {
        call = call.uses(weight, Orientation::Columnwise, Form::Dense);
    }
    call.add().unwrap();
    program.build_evaluation().unwrap()
}

/// What was measured of three weights in one gather is spread over them by their bytes, and so prices plans that
/// gather them apart; and back.
#[test]
fn a_measured_gather_counts_for_each_of_its_weights_whatever_they_travel_with() {
    let (config, cluster) = (Config::default(), plain());
    let costs = costs_of(&config, &cluster, 4).unwrap();
    let [joined, apart] =
        [None, Some(1)].map(|groups_of| plan_program_on(&of_three(groups_of), &config, &cluster, 4).unwrap());
    let times: Vec<u64> = (1..=joined.tasks.len() as u64).map(|number| number * 1_000_000_000).collect();
    let of_op = |plan: &StepPlan, times: &[u64], op: &str| -> Vec<u64> {
        let tasks = plan.tasks.iter().zip(times).filter(|(task, _)| task.op.name() == op);
        tasks.map(|(_, time)| *time).collect()
    };
    let forecast = |plan: &StepPlan, measured: Measured| -> Vec<u64> {
        let costs = costs.clone().with_measured(measured);
        plan.forecast(&costs).spans.iter().map(|span| span.end - span.begin).collect()
    };
    let priced = forecast(&apart, Measured::new(&joined, &times));
    let mut ops = 0;
    for op in ["all-gather", "assemble", "transpose", "dequantize"] {
        let whole = of_op(&joined, &times, op);
        let parts = of_op(&apart, &priced, op);
        let [whole] = whole[..] else { continue };
        // Bytes are proportional to rows: 1, 2 and 5 of 8 parts; a scale for each tensor is little.
        let shares: Vec<f64> = parts.iter().map(|part| *part as f64 / whole as f64).collect();
        assert_eq!(parts.len(), 3, "{op}");
        for (share, expected) in shares.iter().zip([0.125, 0.25, 0.625]) {
            assert!((share - expected).abs() < 1e-3, "{op}: {shares:?}");
        }
        ops += 1;
    }
    assert_eq!(ops, 4);
    let back = forecast(&joined, Measured::new(&apart, &priced));
    for op in ["all-gather", "assemble", "transpose", "dequantize"] {
        let (found, told) = (of_op(&joined, &back, op)[0], of_op(&joined, &times, op)[0]);
        assert!(found.abs_diff(told) <= 3, "{op}: {found} of {told}");
    }
}

/// Both charge in the order in which tasks begin. Where tasks wait for the host they are near each other: it issues
/// in T in a forecast, and as actors do in the simulator.
#[test]
fn a_forecast_is_what_the_simulator_says_where_lanes_contend_too() {
    let (name, _, sizes) = SHAPES[0];
    let program = program(name, sizes, 4096);
    let mut hosts = preset("h100x8-ib").unwrap().unwrap();
    hosts.jitter = Default::default();
    for (mut cluster, ranks, replicate) in [(preset("h200x4").unwrap().unwrap(), 4, 1), (hosts, 16, 2)] {
        cluster.gpu.memory_bytes = 1 << 50;
        assert_ne!(cluster.contention, Contention::default());
        for prefetch in [Prefetch::depth(0), Prefetch::depth(2), Prefetch::auto()] {
            for capture in [Capture::Off, Capture::Step] {
                let mut config = Config { prefetch: prefetch.clone(), capture, ..Config::default() };
                config.mesh.dp_replicate = Some(replicate);
                let simulated = simulate_program(&program, &config, &cluster, ranks, 2).unwrap();
                let forecast = simulated.plan.forecast(&costs_of(&config, &cluster, ranks).unwrap());
                let last = simulated.steps.last().unwrap().as_nanos();
                let off = last as f64 / forecast.step as f64 - 1.0;
                let most = if capture == Capture::Off { 0.01 } else { 0.0 };
                assert!(off.abs() <= most, "{ranks} ranks, {prefetch}, {capture:?}: {off}");
            }
        }
    }
}

/// On one link what collectives keep from the compute lane is bounded by what they take alone, in whatever number of
/// communicators they stand in each other's way.
#[test]
fn calls_pay_for_what_a_link_moves_and_not_for_what_stands_still() {
    let (name, _, sizes) = SHAPES[0];
    let program = program(name, sizes, 64);
    let mut config = Config { prefetch: Prefetch::depth(2), ..Config::default() };
    config.mesh.dp_replicate = Some(2);
    let factor = 1.5;
    let mut one_link = plain();
    one_link.contention = Contention { collective_beside_collective: 2.0, ..Default::default() };
    let mut paid = one_link.clone();
    paid.contention.compute_beside_collective = factor;
    let forecast = |cluster: &Cluster, communicators| {
        let config = Config { communicators: Some(communicators), ..config.clone() };
        let plan = plan_program_on(&program, &config, cluster, 4).unwrap();
        plan.forecast(&costs_of(&config, cluster, 4).unwrap())
    };
    for communicators in 1..=3 {
        let alone = forecast(&plain(), communicators);
        let plan_config = Config { communicators: Some(communicators), ..config.clone() };
        let plan = plan_program_on(&program, &plan_config, &plain(), 4).unwrap();
        let collectives = plan.tasks.iter().zip(&alone.spans).filter(|(task, _)| task.op.is_collective());
        let moved: u64 = collectives.map(|(_, span)| span.end - span.begin).sum();
        let (free, charged) = (forecast(&one_link, communicators), forecast(&paid, communicators));
        assert_eq!(free.compute, alone.compute);
        let extra = (charged.compute - free.compute) as f64;
        let most = (factor - 1.0) * moved as f64 / factor;
        assert!(extra > 0.0 && extra <= 1.001 * most, "{communicators}: {extra} of {most}");
    }
}

/// The bound holds for every order of the same tasks, so the one of a plan is below the time of every other
/// plan of them. On two hosts gathers and exchanges share one link, and sums over replicas go over another.
#[test]
fn no_plan_of_the_same_tasks_beats_the_bound_of_another() {
    let (name, _, sizes) = SHAPES[0];
    let program = program(name, sizes, 64);
    let mut hosts = preset("h100x8-ib").unwrap().unwrap();
    hosts.contention = Contention { collective_beside_collective: 2.0, ..Default::default() };
    hosts.jitter = Default::default();
    hosts.gpu.memory_bytes = 1 << 50;
    let mut one_link = plain();
    one_link.contention = hosts.contention;
    let mut cases = [0.0, 3.0, 300.0].map(|launch_us| (plain(), launch_us, 4, 1)).to_vec();
    cases.extend([0.0, 300.0].map(|launch_us| (hosts.clone(), launch_us, 16, 2)));
    cases.extend([0.0, 300.0].map(|launch_us| (one_link.clone(), launch_us, 4, 2)));
    for (mut cluster, launch_us, ranks, replicate) in cases {
        cluster.gpu.launch_us = launch_us;
        let forecasts: Vec<_> = [0, 1, 2, 4, 8]
            .map(|depth| {
                let mut config = Config { prefetch: Prefetch::depth(depth), ..Config::default() };
                config.mesh.dp_replicate = Some(replicate);
                let plan = plan_program_on(&program, &config, &cluster, ranks).unwrap();
                (plan.tasks.len(), plan.forecast(&costs_of(&config, &cluster, ranks).unwrap()))
            })
            .into();
        let mut pairs = 0;
        for (tasks, one) in &forecasts {
            for (_, other) in forecasts.iter().filter(|(others, _)| others == tasks) {
                assert!(one.step_bound <= other.step, "{launch_us}: {} {}", one.step_bound, other.step);
                pairs += 1;
            }
        }
        assert!(pairs > forecasts.len(), "some depths have the same tasks");
    }
}

const TINY: &str = "layers = 1\nhidden = 1024\nffn = 2048\nheads = 8\nvocabulary = 1024";

/// On a link that is slower than anything else, every byte is exposed but what the calls can hide.
#[test]
fn on_a_slow_link_the_bound_is_the_link() {
    let mut cluster = plain();
    cluster.inside.latency_us = 0.0;
    cluster.inside.bytes_per_s = 1e6;
    let program = program("tiny", TINY, 128);
    let config = Config { communicators: Some(1), prefetch: Prefetch::depth(8), ..Config::default() };
    let plan = plan_program_on(&program, &config, &cluster, 4).unwrap();
    let forecast = plan.forecast(&costs_of(&config, &cluster, 4).unwrap());
    let wire = plan.bounds.wire_bytes as f64 / 1e6 * 1e9;
    // The optimizer's records and amaxes come after everything and hide nothing.
    assert!((forecast.step_bound as f64 / wire - 1.0).abs() < 0.01, "{} of {wire}", forecast.step_bound);
    assert!(
        (forecast.exposed_bound as f64 / wire - 1.0).abs() < 0.01,
        "{} of {wire}",
        forecast.exposed_bound
    );
}

/// On a link that takes no time, nothing is exposed but the first gather's nothing.
#[test]
fn on_a_link_without_cost_nothing_is_exposed_and_the_bound_is_compute() {
    let mut cluster = plain();
    cluster.inside.latency_us = 0.0;
    cluster.inside.bytes_per_s = 1e30;
    let program = program("tiny", TINY, 4096);
    let config = Config::default();
    let plan = plan_program_on(&program, &config, &cluster, 4).unwrap();
    let forecast = plan.forecast(&costs_of(&config, &cluster, 4).unwrap());
    assert_eq!((forecast.exposed, forecast.exposed_bound), (0, 0));
    // Times of tasks are whole nanoseconds, the bound adds them up before it cuts.
    let rounding = plan.tasks.len() as u64;
    assert!(forecast.step_bound + rounding >= forecast.compute, "{forecast:?}");
    assert!(forecast.gathers.iter().all(|gather| gather.nanoseconds >= 0), "{:?}", forecast.gathers);
}

/// A gather on demand holds its call up by all it takes; the slack says so.
#[test]
fn a_gather_on_demand_is_late_by_its_own_time() {
    let program = program("tiny", TINY, 128);
    let config = Config { prefetch: Prefetch::depth(0), ..Config::default() };
    let plan = plan_program_on(&program, &config, &plain(), 4).unwrap();
    let forecast = plan.forecast(&costs_of(&config, &plain(), 4).unwrap());
    let first = forecast.gathers[0];
    let span = forecast.spans[first.gather.index()];
    assert_eq!(first.nanoseconds, -(span.end - span.begin).cast_signed());
    let why = plan.why(first.gather, Some(&costs_of(&config, &plain(), 4).unwrap()));
    assert!(why.contains("slack     late by"), "{why}");
}

#[test]
fn a_cluster_file_declares_the_same_costs_as_the_preset_it_was_copied_from() {
    let (name, text) = warpweft_plan::cluster::PRESETS[0];
    let config = Config::default();
    let copied = costs_of(&config, &Cluster::from_toml(text, "ours.toml").unwrap(), 4).unwrap();
    assert_eq!(copied, costs_of(&config, &preset(name).unwrap().unwrap(), 4).unwrap());
}
