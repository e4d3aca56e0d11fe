//! Processes that are killed or stopped while others run a step.

use std::path::Path;
use std::time::{Duration, Instant};

use super::run::{Gpus, Run};
use super::{gpus, has_nccl, skipped};

/// What processes are given in which a peer ends.
const DEADLINE: Duration = Duration::from_secs(10);

/// What a process may take to end once a peer was killed or stopped: half the deadline until silence is
/// noticed, eight seconds to drain and abort, the rest for the driver's part of its exit.
const END: Duration = Duration::from_secs(30);

/// A process that ends in another one's steps.
#[derive(Clone, Copy, Debug)]
struct End {
    /// What it gets.
    signal: &'static str,
    victim: usize,
    /// What the other says of it.
    words: &'static str,
}

const KILLED: End = End { signal: "KILL", victim: 1, words: "was killed" };
const FIRST_KILLED: End = End { victim: 0, ..KILLED };
const STOPPED: End = End { signal: "STOP", victim: 1, words: "silent" };

/// Where a process ends, and how the others reach it.
#[derive(Clone, Copy, Debug)]
struct Place {
    transport: &'static str,
    hosts: u32,
    capture: bool,
    /// Up to what size kernels carry bytes to peers, and wait for them.
    by_kernel: Option<&'static str>,
    /// Whether CUPTI times all steps.
    by_cupti: bool,
}

/// One of two processes ends in a step: the other says which, and exits by itself, with an error.
#[track_caller]
fn named_by_the_other(folder: &Path, count: u32, place: Place, end: End) {
    let begun = Instant::now();
    let deadline = DEADLINE.as_secs().to_string();
    let mut variables = vec![("WARPWEFT_TRANSPORT", place.transport), ("WARPWEFT_DEADLINE_S", &deadline)];
    variables.extend(place.by_kernel.map(|size| ("WARPWEFT_KERNEL_EXCHANGE", size)));
    let trace = folder.join("trace.json");
    if place.by_cupti {
        variables.push(("WARPWEFT_TRACE__ENABLED", "true"));
        variables.push(("WARPWEFT_TRACE__PATH", trace.to_str().unwrap()));
        variables.push(("WARPWEFT_TRACE__STEPS", "1000000"));
        variables.push(("WARPWEFT_TRACE__DEVICE", "auto"));
    }
    let run = Run {
        folder,
        processes: 2,
        gpus: if place.hosts > 1 { Gpus::of_two_hosts(count) } else { Gpus::Own(1) },
        steps: 1_000_000,
        variables: &variables,
        hosts: place.hosts,
        capture: place.capture,
        arguments: &[],
    };
    let mut processes = run.start();
    let said = processes[0].works();
    if place.by_cupti && !said.contains("timed by CUPTI") {
        skipped("a killed process beside CUPTI", "CUPTI is not to be had");
        return;
    }
    let (started, told) = (begun.elapsed(), Instant::now());
    processes[end.victim].signal(end.signal);
    let (code, said) = processes[1 - end.victim].ends(END);
    let ended = told.elapsed();
    eprintln!("{place:?}, {end:?}: worked after {started:.1?}, the other ended {ended:.1?} after the signal");
    let named = said.contains(&format!("process {} (rank", end.victim)) && said.contains(end.words);
    assert!(code == Some(1) && named, "{place:?}, {end:?}: {code:?}, {said}");
}

/// RV-3: within the deadline, by name, on every other process. RL-1: with peers inside of hosts and NCCL between
/// them, streams wait for words and for NCCL in turn.
#[test]
fn a_process_that_is_killed_or_stopped_in_a_step_is_named_by_the_others() {
    let Some((count, _alone)) = gpus("killed and stopped processes") else { return };
    let folder = tempfile::tempdir().unwrap();
    // The way, and hosts.
    let ways: &[_] = if has_nccl() { &[("peer", 1), ("nccl", 1), ("auto", 2)] } else { &[("peer", 1)] };
    for (transport, hosts) in ways.iter().copied() {
        for end in [KILLED, FIRST_KILLED, STOPPED] {
            let place = Place { transport, hosts, capture: false, by_kernel: None, by_cupti: false };
            named_by_the_other(folder.path(), count, place, end);
        }
    }
}

/// RV-3 where nobody on the host could help: a captured step is one launch, in which kernels spin for a
/// peer's words, or streams wait for them, or kernels of NCCL for its bytes.
#[test]
fn a_process_that_is_killed_or_stopped_in_a_captured_step_is_named_by_the_others() {
    let Some((count, _alone)) = gpus("killed and stopped processes, captured") else { return };
    let folder = tempfile::tempdir().unwrap();
    let end = |transport, hosts, by_kernel, end| {
        let place = Place { transport, hosts, capture: true, by_kernel, by_cupti: false };
        named_by_the_other(folder.path(), count, place, end);
    };
    end("peer", 1, None, KILLED);
    end("peer", 1, None, FIRST_KILLED);
    end("peer", 1, None, STOPPED);
    end("peer", 1, Some("0 B"), KILLED);
    if !has_nccl() {
        skipped("captured steps with NCCL", "it is missing");
        return;
    }
    end("nccl", 1, None, KILLED);
    end("nccl", 1, None, STOPPED);
    end("auto", 2, None, KILLED);
    end("auto", 2, None, STOPPED);
}

/// RV-3, RL-1: CUPTI's calls, and its thread, use the locks of the driver too.
#[test]
fn a_process_that_is_killed_while_cupti_times_its_peer_is_named_by_it() {
    let Some((count, _alone)) = gpus("killed processes beside CUPTI") else { return };
    let folder = tempfile::tempdir().unwrap();
    let ways: &[_] = if has_nccl() { &[("peer", 1), ("nccl", 1), ("auto", 2)] } else { &[("peer", 1)] };
    for (transport, hosts) in ways.iter().copied() {
        for end in [KILLED, FIRST_KILLED] {
            let place = Place { transport, hosts, capture: false, by_kernel: None, by_cupti: true };
            named_by_the_other(folder.path(), count, place, end);
        }
    }
}
