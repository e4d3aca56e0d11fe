//! Losses that are equal however ranks are split over processes, and whatever the transport.

use std::time::Instant;

use super::run::{Gpus, Run};
use super::{at_least, gpus, has_nccl, skipped};

/// `reduce = "ordered"`: the same bits, however ranks are split and whatever way bytes go.
#[test]
fn losses_do_not_depend_on_how_ranks_are_split_over_processes() {
    let Some((count, _alone)) = gpus("losses of several processes") else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |processes, transport| {
        let variables = &[("WARPWEFT_TRANSPORT", transport)];
        let gpus = Gpus::Own(count / processes);
        let (folder, arguments) = (folder.path(), &[]);
        let run = Run { folder, processes, gpus, steps: 20, variables, hosts: 1, capture: false, arguments };
        let begun = Instant::now();
        let losses = run.train().losses;
        eprintln!("{processes} processes, {transport}: {:.1?}", begun.elapsed());
        losses
    };
    let expected = run(1, "peer");
    let ways: &[_] = if has_nccl() { &["peer", "nccl"] } else { &["peer"] };
    for way in ways {
        for processes in [2, count] {
            assert_eq!(run(processes, way), expected, "{processes} processes, {way}");
        }
    }
}

/// `reduce = "ordered"`: the same bits where one GPU serves all ranks, of one process or of several.
#[test]
fn ranks_that_share_a_gpu_have_the_same_losses_however_they_are_split() {
    let Some(_alone) = at_least(1, "ranks that share a GPU") else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |processes| {
        let (folder, gpus) = (folder.path(), Gpus::Shared(4 / processes));
        let variables = &[("WARPWEFT_TRANSPORT", "peer")];
        let run =
            Run { folder, processes, gpus, steps: 10, variables, hosts: 1, capture: false, arguments: &[] };
        let begun = Instant::now();
        let losses = run.train().losses;
        eprintln!("{processes} processes on one GPU: {:.1?}", begun.elapsed());
        losses
    };
    let expected = run(1);
    for processes in [2, 4, 2] {
        assert_eq!(run(processes), expected, "{processes} processes");
    }
}

/// `reduce = "ordered"`: the same bits by peers inside of each host and NCCL between them, captured or not,
/// and by NCCL alone, which is what hosts of one rank each take.
#[test]
fn processes_on_several_hosts_have_the_losses_of_one() {
    let Some((count, _alone)) = gpus("processes on several hosts") else { return };
    if !has_nccl() {
        skipped("processes on several hosts", "NCCL is missing");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |gpus, processes, hosts, transport, capture| {
        let variables = &[("WARPWEFT_TRANSPORT", transport)];
        let (folder, arguments) = (folder.path(), &[]);
        Run { folder, processes, gpus, steps: 10, variables, hosts, capture, arguments }.train()
    };
    let own = |processes| Gpus::Own(count / processes);
    let expected = run(own(1), 1, 1, "peer", false).losses;
    let check = |gpus, expected: &str, (processes, hosts, transport, capture): Split, by| {
        let begun = Instant::now();
        let outcome = run(gpus, processes, hosts, transport, capture);
        let way = format!("{processes} processes, {hosts} hosts, {transport}, captured: {capture}");
        eprintln!("{way}: {} in {:.1?}", outcome.device, begun.elapsed());
        assert_eq!(outcome.losses, expected, "{way}");
        assert!(outcome.device.contains(by), "{way}: {}", outcome.device);
    };
    let (inside, alone) = ("inside of 2 hosts, NCCL between", "collectives by NCCL");
    check(own(2), &expected, (2, 2, "nccl", false), alone);
    check(own(count), &expected, (count, count, "auto", false), alone);
    if count < 4 {
        // What four ranks have in one process cannot be had here.
        let (gpus, nccl) = (Gpus::FirstTwo, run(Gpus::FirstTwo, 2, 2, "nccl", false).losses);
        check(gpus, &nccl, (2, 2, "auto", false), inside);
        check(gpus, &nccl, (2, 2, "auto", true), inside);
        skipped("hosts of several processes", "four GPUs are needed");
        return;
    }
    check(own(2), &expected, (2, 2, "auto", false), inside);
    check(own(2), &expected, (2, 2, "auto", true), inside);
    // The memory of peers in other processes of the host.
    check(own(4), &expected, (4, 2, "peer", false), inside);
    check(own(4), &expected, (4, 2, "auto", true), inside);
}

/// Processes, hosts that they claim to be on, transport, captured.
type Split = (u32, u32, &'static str, bool);

/// The losses of ten steps with these arguments and variables, however ranks are split.
fn losses_of(count: u32, arguments: &[&str], variables: &[(&str, &str)], splits: &[Split]) -> Vec<String> {
    losses_of_steps(10, count, arguments, variables, splits)
}

fn losses_of_steps(
    steps: u32,
    count: u32,
    arguments: &[&str],
    variables: &[(&str, &str)],
    splits: &[Split],
) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for (processes, hosts, transport, capture) in splits.iter().copied() {
        let begun = Instant::now();
        let mut variables = variables.to_vec();
        variables.push(("WARPWEFT_TRANSPORT", transport));
        let (folder, gpus, variables) = (folder.path(), Gpus::Own(count / processes), &variables[..]);
        let run = Run { folder, processes, gpus, steps, variables, hosts, capture, arguments };
        all.push(run.train().losses);
        let way = format!("{processes} processes, {hosts} hosts, {transport}, captured: {capture}");
        eprintln!("{arguments:?}, {way}: {:.1?}", begun.elapsed());
    }
    all
}

/// The ways that there are here.
fn splits(count: u32) -> Vec<Split> {
    let mut splits = vec![(1, 1, "peer", false), (1, 1, "peer", true)];
    if has_nccl() {
        splits.push((1, 1, "nccl", true));
        // Two ranks a host: peers inside, NCCL between.
        splits.extend((count >= 4).then_some((2, 2, "auto", true)));
    }
    splits
}

/// As drivers want it that write to no other GPU: with peers in the same process, in others, and captured. Kernels,
/// which signal by themselves, carry nothing here.
#[test]
fn signals_by_copies_have_the_losses_of_signals_as_the_driver_wants_them() {
    let Some((count, _alone)) = gpus("signals by copies") else { return };
    let alone =
        [(1, 1, "peer", false), (1, 1, "peer", true), (2, 1, "peer", false), (count, 1, "peer", true)];
    let by = |what| {
        let variables = [("WARPWEFT_SIGNAL_BY", what), ("WARPWEFT_KERNEL_EXCHANGE", "0B")];
        losses_of(count, &[], &variables, &alone)
    };
    let (usual, copies) = (by("auto"), by("copy"));
    assert!(usual.iter().chain(&copies).all(|losses| *losses == usual[0]), "{usual:?}\n{copies:?}");
}

/// PL-2, on the wire: a chunk brings what a whole gather brings.
#[test]
fn gathers_in_chunks_have_the_losses_of_whole_ones_by_every_way() {
    let Some((count, _alone)) = gpus("gathers in chunks") else { return };
    let expected = losses_of(count, &[], &[], &[(1, 1, "peer", false)]);
    let chunked = losses_of(count, &[], &[("WARPWEFT_PREFETCH__CHUNK", "8 KiB")], &splits(count));
    assert!(chunked.iter().all(|losses| *losses == expected[0]), "{expected:?}\n{chunked:?}");
}

/// Two replicas, on a host together or on one each: the same bits by every way. What they begin with is what
/// one copy begins with, and sums in another order round otherwise.
#[test]
fn replicas_have_the_same_losses_by_every_way() {
    let Some((count, _alone)) = gpus("replicas") else { return };
    let one = &losses_of(count, &[], &[], &[(1, 1, "peer", false)])[0];
    let two = losses_of(count, &["--replicate", "2"], &[], &splits(count));
    assert!(two.iter().all(|losses| *losses == two[0]), "{two:?}");
    let values = |losses: &str| losses.lines().map(|line| line.parse::<f64>().unwrap()).collect::<Vec<_>>();
    let (one, two) = (values(one), values(&two[0]));
    assert_eq!(one[0], two[0], "before the first update");
    assert!(one.iter().zip(&two).all(|(one, two)| (one / two - 1.0).abs() < 0.02), "{one:?}, {two:?}");
}
