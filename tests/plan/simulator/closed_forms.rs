//! Simulated times against closed forms.

use warpweft_format::{Format, Orientation};
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::{CostHint, Form, Math, Model, Phase, StepProgram};
use warpweft_plan::op::Vote;
use warpweft_session::config::Declared;
use warpweft_session::session::{Simulation, costs_of, plan_program_on, simulate_program};

use super::programs::{
    PLAIN, call_of, chain, depth, early_gradient, gradients, plain, plain_with, tiles, training,
};

const RANKS: u32 = 4;
/// A gather of 100 × 500 bf16 weights over four ranks in a ring: 3 · 2 µs, and three quarters of 100,000 bytes.
const GATHER: u64 = 3 * 2000 + 75_000;

fn slice(simulation: &Simulation, prefix: &str) -> (u64, u64) {
    let found = simulation.timeline.slices.iter().find(|slice| slice.name.starts_with(prefix)).unwrap();
    (found.begin.count(), found.end.count())
}

#[test]
fn a_single_gather_takes_its_latencies_and_its_bytes() {
    let simulated = simulate_program(&chain(1, 100, 50_000), &depth(0), &plain(), RANKS, 1).unwrap();
    assert_eq!(slice(&simulated, "all-gather"), (0, GATHER));
    assert_eq!(slice(&simulated, "compute"), (GATHER, GATHER + 50_000));
    assert_eq!(simulated.step.as_nanos() as u64, GATHER + 50_000);
    assert_eq!(simulated.exposure.exposed.count(), GATHER);
}

/// Planes live from the begin of their gather to the end of the call that reads them, in slots of whole 256
/// bytes. Calls take longer than gathers, so as many are there as may be ahead.
#[test]
fn the_counter_of_gathered_planes_shows_how_far_ahead_gathers_are() {
    const SLOT: f64 = 100_096.0;
    let gathered = |simulated: &Simulation| -> Vec<(u64, f64)> {
        let own = simulated.timeline.counters.iter().filter(|sample| sample.name.contains("gathered"));
        own.map(|sample| (sample.at.count(), sample.value)).collect()
    };
    let alone = simulate_program(&chain(1, 100, 50_000), &depth(0), &plain(), RANKS, 1).unwrap();
    assert_eq!(gathered(&alone), [(0, SLOT), (GATHER + 50_000, 0.0)]);
    let most = [0, 1, 2].map(|ahead| {
        let simulated = simulate_program(&chain(5, 100, 500_000), &depth(ahead), &plain(), RANKS, 1).unwrap();
        let mut all = simulated.timeline.counters.iter().filter(|sample| sample.name.contains("transient"));
        assert!(all.clone().all(|sample| sample.value <= simulated.plan.bounds.transient_bytes as f64));
        assert_eq!(all.next_back().unwrap().value, 0.0);
        gathered(&simulated).into_iter().map(|(_, bytes)| bytes).fold(0.0, f64::max)
    });
    assert_eq!(most, [SLOT, 2.0 * SLOT, 3.0 * SLOT]);
}

/// The rank's own 25,000 bytes are read and written at a byte a nanosecond, on the lane of the call that
/// reads them.
#[test]
fn planes_are_made_whole_at_the_speed_of_memory_between_gather_and_call() {
    let mut cluster = plain();
    cluster.gpu.hbm_bytes_per_s = 1e9;
    let simulated = simulate_program(&chain(1, 100, 50_000), &depth(0), &cluster, RANKS, 1).unwrap();
    assert_eq!(slice(&simulated, "all-gather"), (0, GATHER));
    assert_eq!(slice(&simulated, "assemble"), (GATHER, GATHER + 50_000));
    assert_eq!(slice(&simulated, "compute"), (GATHER + 50_000, GATHER + 100_000));
    // Four 16 × 64 shards of NVFP4: 512 bytes of codes each, and one row of 4 scales; 128 rows of scales
    // stand in the planes.
    let simulated = simulate_program(&tiles(64, Form::Planes), &depth(0), &cluster, RANKS, 1).unwrap();
    let (begin, end) = slice(&simulated, "assemble");
    assert_eq!(end - begin, 2 * 516 + (128 - 4) * 4);
    // Of whoever wants values, those shards are read, one amax of the tensor, and f32 values are written.
    let simulated = simulate_program(&tiles(64, Form::Dense), &depth(0), &cluster, RANKS, 1).unwrap();
    assert!(simulated.timeline.slices.iter().all(|slice| !slice.name.starts_with("assemble")));
    let (begin, end) = slice(&simulated, "dequantize");
    assert_eq!(end - begin, 4 * 516 + 4 + 64 * 64 * 4);
}

/// A shard of 16 × 64 in tiles of 16 × 16: 4096 bytes of masters, 512 of codes and 4 scales. A byte takes a
/// nanosecond.
#[test]
fn a_cast_writes_codes_and_a_scale_writes_scales() {
    const VOTE: u64 = size_of::<Vote>() as u64;
    let mut cluster = plain();
    cluster.gpu.hbm_bytes_per_s = 1e9;
    let mut model = Model::builder();
    let weight = model.sharded("w", 64, 64, Format::NVFP4_2D).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    program.call("forward", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Planes).add().unwrap();
    program.call("backward", Phase::Backward).gradient(weight).add().unwrap();
    let program = program.build_training().unwrap();
    let simulated = simulate_program(&program, &depth(0), &cluster, RANKS, 1).unwrap();
    let length = |prefix| {
        let (begin, end) = slice(&simulated, prefix);
        end - begin
    };
    // Masters and factors are read, and so is the vote.
    assert_eq!(length("partial cast"), 4096 + 4 * 4 + 512 + VOTE);
    // The amaxes of tiles and of the tensor are read, and factors, scales in e4m3 and that of the tensor are written.
    assert_eq!(length("fused scale"), (4 * 4 + 4) + (4 * 4 + 4 + 4) + VOTE);
}

/// Products hide their bytes behind operations, or operations behind bytes; a pass hides behind nothing. In
/// bf16 an operation takes a nanosecond and in fp8 half of one; a byte takes one, a kernel 3 µs.
#[test]
fn parts_of_a_call_add_up_and_only_the_products_of_a_part_hide_its_bytes() {
    let mut cluster = plain();
    (cluster.gpu.hbm_bytes_per_s, cluster.gpu.kernel_us) = (1e9, 3.0);
    cluster.gpu.flops_per_s.fp8 = 2e9;
    let part = |flops, bytes, math, kernels| CostHint { flops, bytes, math, kernels };
    let pass = CostHint::pass(700);
    let product = CostHint::product(10, 5, 20, Math::Fp8);
    for (parts, expected) in [
        (vec![], 0),
        (vec![part(1000, 400, Math::Bf16, 0)], 1000),
        (vec![part(400, 1000, Math::Bf16, 1)], 1000 + 3000),
        (vec![pass], 700 + 3000),
        // Not the longer of the sums, which were 2700 and 1100.
        (
            vec![part(1000, 400, Math::Bf16, 2), pass, part(1700, 0, Math::Bf16, 0)],
            1000 + 700 + 1700 + 3 * 3000,
        ),
        (vec![product, product, part(1000, 0, Math::Bf16, 1)], 1000 + 1000 + 1000 + 3 * 3000),
        (vec![product.times(2), pass.times(3)], 2000 + 2100 + 5 * 3000),
    ] {
        let simulated = simulate_program(&call_of(&parts), &depth(0), &cluster, RANKS, 1).unwrap();
        let (begin, end) = slice(&simulated, "compute");
        assert_eq!(end - begin, expected, "{parts:?}");
    }
}

/// An op of the library's own is a kernel, a gather is none.
#[test]
fn a_local_op_takes_a_kernel_beside_its_bytes() {
    let mut cluster = plain();
    (cluster.gpu.hbm_bytes_per_s, cluster.gpu.kernel_us) = (1e9, 3.0);
    let simulated = simulate_program(&chain(1, 100, 50_000), &depth(0), &cluster, RANKS, 1).unwrap();
    assert_eq!(slice(&simulated, "all-gather"), (0, GATHER));
    assert_eq!(slice(&simulated, "assemble"), (GATHER, GATHER + 50_000 + 3000));
    // This call says of no kernel.
    assert_eq!(slice(&simulated, "compute"), (GATHER + 53_000, GATHER + 103_000));
}

#[test]
fn a_ring_exchange_of_gradients_takes_its_latencies_and_its_f32_bytes() {
    let simulated = simulate_program(&training(1, 100, 1000), &depth(0), &plain(), RANKS, 1).unwrap();
    let (begin, end) = slice(&simulated, "exchange gradient");
    assert_eq!(end - begin, 3 * 2000 + 150_000);
}

#[test]
fn a_chain_on_demand_is_fully_exposed() {
    let simulated = simulate_program(&chain(10, 100, 100_000), &depth(0), &plain(), RANKS, 1).unwrap();
    assert_eq!(simulated.step.as_nanos() as u64, 10 * (GATHER + 100_000));
    assert_eq!(simulated.exposure.exposed.count(), 10 * GATHER);
}

#[test]
fn a_chain_one_call_ahead_hides_all_but_its_first_gather() {
    let simulated = simulate_program(&chain(10, 100, 100_000), &depth(1), &plain(), RANKS, 1).unwrap();
    assert_eq!(simulated.step.as_nanos() as u64, GATHER + 10 * 100_000);
    assert_eq!(simulated.exposure.exposed.count(), GATHER);
}

#[test]
fn on_a_slow_link_depth_never_costs_time_and_the_link_is_the_bound() {
    let program = training(12, 400, 100_000);
    let steps: Vec<u128> = (0..=6)
        .map(|ahead| {
            let simulated = simulate_program(&program, &depth(ahead), &plain(), RANKS, 1).unwrap();
            simulated.step.as_nanos()
        })
        .collect();
    assert!(steps.windows(2).all(|pair| pair[1] <= pair[0]), "{steps:?}");
    assert!(steps[1] < steps[0], "{steps:?}");
    // The gathers of a forward pass, one after the other, and what cannot overlap them.
    let forward = u128::from(12 * (3 * 2000 + 300_000u64));
    assert!(*steps.last().unwrap() >= forward, "{steps:?}");
}

#[test]
fn contention_is_charged_for_the_time_both_lanes_run() {
    // The call begins when its own gather is done; the next gather, issued before it, runs beside it all along.
    let cluster = plain_with("[contention]\ncompute_beside_collective = 1.5\n");
    let simulated = simulate_program(&chain(2, 100, 30_000), &depth(1), &cluster, RANKS, 1).unwrap();
    let alone = simulate_program(&chain(2, 100, 30_000), &depth(1), &plain(), RANKS, 1).unwrap();
    assert_eq!(slice(&alone, "compute call 0"), (GATHER, GATHER + 30_000));
    assert_eq!(slice(&simulated, "compute call 0"), (GATHER, GATHER + 45_000));
}

/// On one communicator a small reduction is ready early and stands after a gather ten times as long that
/// nobody needs yet.
#[test]
fn chunks_of_a_long_gather_let_a_reduction_in_between() {
    let begin_of_reduction = |chunk: Option<u64>| {
        let mut config = depth(5);
        (config.communicators, config.reduce_delay) = (Some(1), 2);
        config.prefetch.chunk = chunk.map(warpweft_plan::policy::ByteSize::new);
        let simulated = simulate_program(&early_gradient(1000), &config, &plain(), RANKS, 1).unwrap();
        slice(&simulated, "exchange gradient").0
    };
    // Whole: a million bytes, of which three quarters travel. In four chunks, of which two are requested
    // before the reduction is.
    assert_eq!(begin_of_reduction(None), GATHER + 3 * 2000 + 750_000);
    let each = 1_000_000u64.div_ceil(4) / 4 / 256 * 256 + 256;
    let chunk = 3 * 2000 + 3 * each;
    assert_eq!(begin_of_reduction(Some(4 * each)), GATHER + 2 * chunk);
}

#[test]
fn a_launch_costs_host_time_and_a_replayed_step_only_one() {
    let cluster = |launch| {
        let mut cluster = plain();
        (cluster.gpu.launch_us, cluster.gpu.replay_us) = (launch, 7.0);
        cluster
    };
    let program = chain(1, 100, 50_000);
    let step = |capture, launch| {
        let config = warpweft_session::config::Config { capture, ..depth(0) };
        simulate_program(&program, &config, &cluster(launch), RANKS, 2).unwrap().step.as_nanos() as u64
    };
    use warpweft_session::config::Capture;
    let one = step(Capture::Off, 1.0) - step(Capture::Off, 0.0);
    assert!(one >= 1000 && one.is_multiple_of(1000), "{one}");
    assert_eq!(step(Capture::Step, 1.0), step(Capture::Off, 0.0) + 7000);
}

#[test]
fn two_communicators_share_a_link_if_the_cluster_says_so() {
    // In the backward of three layers gathers of one run beside reductions of another.
    let shared = plain_with("[contention]\ncollective_beside_collective = 2\n");
    let step =
        |cluster| simulate_program(&training(3, 100, 1000), &depth(2), cluster, RANKS, 1).unwrap().step;
    assert!(step(&shared) > step(&plain()));
}

/// Gradients travel inside of nodes and their sums between them, at once if both have a communicator; a node that has
/// both replicas gives them one link.
#[test]
fn sums_over_replicas_that_are_nodes_hold_up_nothing_inside_of_them() {
    let program = gradients(4, 100, 1000);
    let step = |communicators, gpus_per_node: &str, contention: &str| {
        let text = PLAIN.replacen("gpus_per_node = 4096", &format!("gpus_per_node = {gpus_per_node}"), 1);
        let text = format!("{text}[between]\nlatency_us = 2\nbytes_per_s = 1e9\n{contention}");
        let cluster = Cluster::from_toml(&text, "ours.toml").unwrap();
        let mut config = warpweft_session::config::Config { communicators: Some(communicators), ..depth(0) };
        config.mesh.dp_replicate = Some(2);
        simulate_program(&program, &config, &cluster, RANKS, 1).unwrap().step
    };
    let shared = "[contention]\ncollective_beside_collective = 2\n";
    assert_eq!(step(3, "2", shared), step(3, "2", ""));
    assert!(step(3, "2", "") < step(2, "2", ""));
    assert!(step(3, "4", shared) > step(3, "4", ""));
    // A third communicator on that one link moves nothing twice: what stands still is charged once.
    let [one, two, three] = [1, 2, 3].map(|communicators| step(communicators, "4", shared));
    assert!(three <= two && two <= one, "{one:?} {two:?} {three:?}");
}

#[test]
fn times_beyond_all_reason_are_refused_and_expected_times_stay_times() {
    let mut cluster = plain();
    (cluster.contention.compute_beside_collective, cluster.jitter.mean) = (1e300, 1e300);
    (cluster.gpu.launch_us, cluster.inside.bytes_per_s) = (1e300, 1e-300);
    cluster.inside.latency_us = 1e300;
    let program = training(3, 100, u64::MAX / 2);
    let error = simulate_program(&program, &depth(2), &cluster, RANKS, 3).unwrap_err().to_string();
    assert!(error.contains("virtual time has come to its end") && error.contains("per second"), "{error}");
    let plan = plan_program_on(&program, &depth(2), &cluster, RANKS).unwrap();
    let forecast = plan.forecast(&costs_of(&depth(2), &cluster, RANKS).unwrap());
    assert!(forecast.step >= 1 << 60 && forecast.step_bound >= 1 << 60, "{forecast:?}");
}

#[test]
fn a_cluster_file_gives_no_times_beyond_an_hour_and_no_speed_of_nothing() {
    for (from, to) in [
        ("launch_us = 0", "launch_us = 1e30"),
        ("latency_us = 2", "latency_us = 1e300"),
        ("latency_us = 2", "latency_us = -1"),
        ("replay_us = 0", "replay_us = 3.7e9"),
        ("f32 = 1e9", "f32 = 1e-300"),
        ("fp4 = 1e9", "fp4 = nan"),
        ("[inside]", "[jitter]\nmean = 1e300\n[inside]"),
        ("[inside]", "[contention]\ncompute_beside_quantize = 1e300\n[inside]"),
    ] {
        let error = Cluster::from_toml(&PLAIN.replacen(from, to, 1), "ours.toml").unwrap_err().to_string();
        let key = to.split(" = ").next().unwrap().rsplit('\n').next().unwrap();
        assert!(error.contains(key) && error.contains("set it to a number "), "{error}");
    }
    Cluster::from_toml(&PLAIN.replace("launch_us = 0", "launch_us = 3.6e9"), "ours.toml").unwrap();
}
