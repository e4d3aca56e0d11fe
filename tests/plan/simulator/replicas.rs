//! Replicas on simulated hosts: traffic within a replica, and between replicas.

use warpweft_plan::cluster::Cluster;
use warpweft_session::config::Config;
use warpweft_session::session::{SessionError, Simulation, costs_of, simulate_program};

use super::programs::{chain, depth, plain, plain_with, training};

/// Two GPUs a host: 2 µs and a byte a nanosecond inside, 10 µs and a tenth of that between hosts.
fn hosts() -> Cluster {
    let between = plain_with("[between]\nlatency_us = 10\nbytes_per_s = 1e8\n");
    Cluster { gpus_per_node: 2, ..between }
}

fn replicated(replicate: u32, ahead: u32) -> Config {
    let mut config = depth(ahead);
    config.mesh.dp_replicate = Some(replicate);
    config
}

fn lengths(simulation: &Simulation, prefix: &str) -> Vec<u64> {
    let found = simulation.timeline.slices.iter().filter(|slice| slice.name.starts_with(prefix));
    found.map(|slice| slice.end.count() - slice.begin.count()).collect()
}

/// A weight of 100 × 500: each rank of a pair sums half of its f32 gradient with the same half of the other pair.
#[test]
fn a_sum_over_replicas_goes_between_hosts_and_everything_of_a_replica_stays_inside() {
    let program = training(1, 100, 1000);
    let simulated = simulate_program(&program, &replicated(2, 0), &hosts(), 4, 1).unwrap();
    // Half of 100,000 bytes of bf16 from one peer.
    assert_eq!(lengths(&simulated, "all-gather")[0], 2000 + 50_000);
    // Half of 200,000 bytes of f32 from one peer.
    assert_eq!(lengths(&simulated, "exchange gradient"), [2000 + 100_000]);
    // The other pair's 100,000 bytes at a tenth of a byte a nanosecond.
    assert_eq!(lengths(&simulated, "all-reduce"), [10_000 + 1_000_000]);

    let sharded = simulate_program(&program, &replicated(1, 0), &hosts(), 4, 1).unwrap();
    assert!(lengths(&sharded, "all-gather")[0] > 2000 + 50_000, "over four ranks of two hosts");
    assert!(lengths(&sharded, "all-reduce").is_empty());
}

/// Every replica gets the rows of all others, and adds them by itself.
#[test]
fn a_sum_over_replicas_takes_as_many_times_its_rows_as_there_are_others() {
    let program = training(1, 100, 1000);
    for replicas in [2u32, 3, 4, 8] {
        let config = replicated(replicas, 0);
        let simulated = simulate_program(&program, &config, &hosts(), 2 * replicas, 1).unwrap();
        let others = u64::from(replicas - 1);
        assert_eq!(lengths(&simulated, "all-reduce"), [others * (10_000 + 1_000_000)], "{replicas}");
        let received = simulated.plan.tasks.iter().filter(|task| task.op.name() == "all-reduce");
        let received: Vec<_> = received.map(|task| task.wire_bytes as u64).collect();
        assert_eq!(received, [others * 100_000], "what a rank receives, {replicas}");
    }
}

/// A forecast of a plan is the simulator's step, to the nanosecond, on any mesh.
#[test]
fn forecasts_of_replicas_are_what_the_simulator_takes() {
    for (ranks, replicate) in [(4, 2), (8, 4), (6, 3), (2, 2)] {
        let config = replicated(replicate, 2);
        let simulated = simulate_program(&training(4, 120, 60_000), &config, &hosts(), ranks, 1).unwrap();
        let forecast = simulated.plan.forecast(&costs_of(&config, &hosts(), ranks).unwrap());
        assert_eq!(
            u128::from(forecast.step),
            simulated.step.as_nanos(),
            "{ranks} ranks, {replicate} replicas"
        );
        assert!(forecast.step_bound <= forecast.step);
    }
}

/// A collective waits for the late of its own group alone: many small replicas wait less for each other than
/// one large one.
#[test]
fn a_gather_waits_for_the_last_rank_of_its_replica() {
    let cluster = plain_with("[jitter]\nseed = 5\nmean = 0.2\n");
    let skew = |replicate| {
        let program = chain(24, 64, 1_000_000);
        let late = simulate_program(&program, &replicated(replicate, 0), &cluster, 64, 40).unwrap();
        let alike = simulate_program(&program, &replicated(replicate, 0), &plain(), 64, 1).unwrap();
        (late.step - alike.step).as_nanos() as f64 / 24e6
    };
    // Mean delay of a call: that of the latest of 64 ranks, and about that of the latest of two.
    let (one, many) = (skew(1), skew(32));
    let harmonic = |ranks: u32| (1..=ranks).map(|rank| 1.0 / f64::from(rank)).sum::<f64>();
    assert!((one / (0.2 * harmonic(64)) - 1.0).abs() < 0.1, "{one}");
    assert!(many < 0.6 * one && many > 0.2 * harmonic(2), "{many} and {one}");
}

#[test]
fn auto_plans_replicas_with_the_prices_of_their_links() {
    let mut config = replicated(2, 0);
    config.prefetch = warpweft_session::config::Prefetch::auto();
    let program = training(6, 200, 200_000);
    let auto = simulate_program(&program, &config, &hosts(), 4, 1).unwrap();
    let on_demand = simulate_program(&program, &replicated(2, 0), &hosts(), 4, 1).unwrap();
    assert!(auto.step < on_demand.step, "{:?} and {:?}", auto.step, on_demand.step);
}

#[test]
fn replicas_that_do_not_divide_the_ranks_are_refused_before_anything_is_simulated() {
    let error = simulate_program(&chain(1, 64, 1), &replicated(3, 0), &plain(), 4, 1).unwrap_err();
    assert!(matches!(error, SessionError::Declare(_)), "{error}");
    assert!(error.to_string().contains("4 ranks cannot hold 3 replicas"), "{error}");
}
