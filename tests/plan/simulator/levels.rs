//! Gradients summed in levels: undivided inside of hosts, one sum of each host between them.

use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::{Group, Levels};
use warpweft_plan::op::Op;
use warpweft_session::config::Config;
use warpweft_session::session::{Simulation, costs_of, simulate_program};

use super::programs::{depth, plain_with, training};

/// So many GPUs a host: 2 µs and a byte a nanosecond inside, 10 µs and a tenth of that between hosts.
fn hosts(gpus_per_node: u32) -> Cluster {
    let between = plain_with("[between]\nlatency_us = 10\nbytes_per_s = 1e8\nmessage_us = 1\n");
    Cluster { gpus_per_node, ..between }
}

fn leveled(levels: &[u32]) -> Config {
    let mut config = depth(1);
    config.mesh.levels = Some(Levels::new(levels).unwrap());
    config
}

fn lengths(simulation: &Simulation, prefix: &str) -> Vec<u64> {
    let found = simulation.timeline.slices.iter().filter(|slice| slice.name.starts_with(prefix));
    found.map(|slice| slice.end.count() - slice.begin.count()).collect()
}

/// The bytes that each exchange brings a rank, and over which group, in T.
fn exchanged(simulation: &Simulation) -> Vec<(usize, Group)> {
    let exchanges = simulation.plan.tasks.iter().filter(|task| matches!(task.op, Op::ExchangeGradient(_)));
    exchanges.map(|task| (task.wire_bytes, task.op.group().unwrap())).collect()
}

/// A weight of 100 × 500, so 50,000 bytes of f32 gradients for each of four ranks on two hosts.
#[test]
fn an_exchange_of_each_level_takes_the_links_that_it_goes_over() {
    let program = training(1, 100, 1000);
    let simulated = simulate_program(&program, &leveled(&[2]), &hosts(2), 4, 1).unwrap();
    // Two slices from the neighbour; then of the other host's sum one, in one message.
    assert_eq!(lengths(&simulated, "exchange gradient"), [2000 + 100_000, 10_000 + 1000 + 500_000]);
    let flat = simulate_program(&program, &leveled(&[]), &hosts(2), 4, 1).unwrap();
    // Two slices of 50,000 bytes from the other host, in a round of three partners.
    assert_eq!(lengths(&flat, "exchange gradient"), [10_000 + 2000 + 1_000_000 + 2 * 10_000]);
}

/// Of S bytes of gradients a rank gets from other hosts 56/64 undivided, or 7/64 as sums.
#[test]
fn between_eight_hosts_of_eight_an_eighth_of_the_bytes_is_left() {
    let program = training(1, 128, 1000);
    let gradient = 128 * 500 * 4;
    let by_itself = simulate_program(&program, &depth(1), &hosts(8), 64, 1).unwrap();
    let [(inside, first), (between, second)] = exchanged(&by_itself)[..] else { panic!("two exchanges") };
    assert_eq!((inside, between), (gradient / 8 * 7, gradient / 64 * 7));
    let reach =
        |group| hosts(8).spread(by_itself.plan.weights.mesh, by_itself.plan.weights.mesh.strides(group));
    assert_eq!((reach(first), reach(second)), ((8, 1), (1, 8)), "on one host; one of each");
    let flat = simulate_program(&program, &leveled(&[]), &hosts(8), 64, 1).unwrap();
    assert_eq!(exchanged(&flat), [(gradient / 64 * 63, Group::Shard)]);
    assert!(by_itself.step < flat.step / 2, "{:?}, {:?}", by_itself.step, flat.step);
}

/// A forecast of a plan is the simulator's step, to the nanosecond, whatever the levels and the ranks of a host.
#[test]
fn forecasts_of_levels_are_what_the_simulator_takes() {
    for (ranks, levels, ranks_per_node) in
        [(16, &[8][..], None), (16, &[2, 4, 8], None), (24, &[6], Some(6)), (16, &[4], Some(6))]
    {
        let (config, cluster) = (leveled(levels), Cluster { ranks_per_node, ..hosts(8) });
        let simulated = simulate_program(&training(4, 120, 60_000), &config, &cluster, ranks, 1).unwrap();
        let forecast = simulated.plan.forecast(&costs_of(&config, &cluster, ranks).unwrap());
        assert_eq!(u128::from(forecast.step), simulated.step.as_nanos(), "{ranks} ranks, {levels:?}");
        assert!(forecast.step_bound <= forecast.step);
    }
}

/// A node of which a job leaves GPUs out has fewer ranks, and groups lie over other nodes.
#[test]
fn ranks_of_a_node_are_as_many_as_a_job_takes_of_its_gpus() {
    let cluster = |ranks_per_node| Cluster { ranks_per_node, ..hosts(8) };
    assert_eq!([None, Some(6), Some(12)].map(|ranks| cluster(ranks).nodes(24)), [(8, 3), (6, 4), (8, 3)]);
    let simulated =
        |ranks| simulate_program(&training(2, 120, 1000), &leveled(&[6]), &cluster(ranks), 24, 1).unwrap();
    assert!(simulated(Some(6)).step < simulated(None).step, "a block on two nodes");
}

/// In a file it is refused as well (`cluster` of the session crate).
#[test]
fn a_cluster_of_a_program_with_more_ranks_on_a_node_than_gpus_is_refused() {
    let cluster = Cluster { ranks_per_node: Some(12), ..hosts(8) };
    for refused in [
        costs_of(&leveled(&[8]), &cluster, 24).map(drop),
        simulate_program(&training(2, 120, 1000), &leveled(&[8]), &cluster, 24, 1).map(drop),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("`ranks_per_node` is 12; set it to at most `gpus_per_node`, 8"), "{error}");
    }
}
