//! The main job on GPUs, split over processes: the same losses, and ends that name their cause.
//!
//! Needs two GPUs or more, and says so where there are none. With two, processes that claim to be hosts of two
//! ranks each use both GPUs: nobody compares the GPUs of one host with those of another. NCCL is used where it
//! is installed. Of the machine that it was built on it needs two programs: itself as
//! `X/deps/train_processes`, and `X/examples/train`, both perhaps stripped; it runs in the root of the
//! repository, whose files are what is trained on. With `--nocapture` every run has a line that says how long
//! it took.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod port;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use port::Port;
use warpweft::backend::cuda::{CudaOptions, CudaWorld, DeviceOrdinal, Transport};

/// One test at a time has the GPUs.
static ALONE: Mutex<()> = Mutex::new(());

/// What one process may take, its kernels' compilation included.
const LIMIT: Duration = Duration::from_secs(120);

/// What processes are given in which a peer ends.
const DEADLINE: Duration = Duration::from_secs(10);

/// What a process may take to end once a peer was killed or stopped: half the deadline until silence is
/// noticed, eight seconds to drain and abort, the rest for the driver's part of its exit.
const END: Duration = Duration::from_secs(30);

/// The GPUs to use: an even number up to four, or none, with the reason on stderr.
fn gpus(what: &str) -> Option<(u32, MutexGuard<'static, ()>)> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = DeviceOrdinal::all();
    match found.as_ref().map(Vec::len) {
        Ok(count) if count >= 4 => Some((4, alone)),
        Ok(count) if count >= 2 => Some((2, alone)),
        other => {
            let reason = match other {
                Ok(count) => format!("two GPUs are needed and {count} are here"),
                Err(failure) => failure.to_string(),
            };
            skipped(what, &reason);
            None
        }
    }
}

/// Said past the capture of the harness.
fn skipped(what: &str, reason: &str) {
    let mut out = std::io::stderr();
    writeln!(out, "skipped: {what}, because {reason}").unwrap();
}

fn has_nccl() -> bool {
    let devices = DeviceOrdinal::all().unwrap().into_iter().take(2).collect();
    let options = CudaOptions { transport: Some(Transport::Nccl), ..CudaOptions::new(devices) };
    CudaWorld::new(options).is_ok()
}

/// The program, which is built beside the tests. Paths are taken from where the tests run, which may be
/// another machine than they were built on. Cargo builds it with all tests, but not with one that is named:
/// then it may be missing, or older than the library.
#[track_caller]
fn example() -> PathBuf {
    const BUILD: &str = "build it as the tests were, with `cargo build --example train --features cuda` (and --release, where they have it)";
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples").join("train");
    assert!(program.is_file(), "{} is missing; {BUILD}", program.display());
    program
}

/// What a launcher, or a user, may have set for the tests themselves.
const FOREIGN: [&str; 23] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "WARPWEFT_PORT",
    "WARPWEFT_SECRET",
    "WARPWEFT_SECRET_FILE",
    "WARPWEFT_HOSTID",
    "WARPWEFT_TRANSPORT",
    "WARPWEFT_DEADLINE_S",
    "NCCL_HOSTID",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
];

/// One run of the example.
struct Run<'a> {
    folder: &'a Path,
    processes: u32,
    gpus: Gpus,
    steps: u32,
    /// Beside what a launcher sets.
    variables: &'a [(&'a str, &'a str)],
    /// On how many hosts processes claim to be.
    hosts: u32,
    capture: bool,
    /// Beside what every run has.
    arguments: &'a [&'a str],
}

/// The GPUs of each process, one for each of its ranks.
#[derive(Clone, Copy, Debug)]
enum Gpus {
    /// So many that no other process has.
    Own(u32),
    /// The first two, which processes on other hosts have too.
    FirstTwo,
}

impl Gpus {
    /// For two processes on a host each, with several ranks.
    const fn of_two_hosts(count: u32) -> Self {
        if count < 4 { Self::FirstTwo } else { Self::Own(count / 2) }
    }

    fn arguments(self) -> [String; 2] {
        match self {
            Self::Own(ranks) => ["--ranks".to_owned(), ranks.to_string()],
            Self::FirstTwo => ["--devices".to_owned(), "0,1".to_owned()],
        }
    }
}

/// What a run left.
#[derive(Debug)]
struct Outcome {
    /// As they were written.
    losses: String,
    /// On what it ran, as it said.
    device: String,
}

impl Run<'_> {
    fn start(&self) -> Vec<Process> {
        let (program, port) = (example(), Arc::new(Port::claim()));
        let start = |process: u32| {
            let mut command = Command::new(&program);
            for name in FOREIGN {
                command.env_remove(name);
            }
            command
                .args(["--device", "cuda", "--format", "nvfp4_2d", "--seed", "7"])
                .args(self.gpus.arguments())
                .args(["--steps", &self.steps.to_string()])
                .arg("--out")
                .arg(self.folder)
                .arg("--losses")
                .arg(self.losses())
                .args(["--config", "examples/train/train.toml", "src/format"])
                .envs(self.variables.iter().copied())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if self.processes > 1 {
                command
                    .env("RANK", process.to_string())
                    .env("WORLD_SIZE", self.processes.to_string())
                    .env("LOCAL_RANK", process.to_string())
                    .env("MASTER_ADDR", "127.0.0.1")
                    .env("MASTER_PORT", port.number().to_string())
                    .env("WARPWEFT_SECRET", "a secret of the test of processes");
            }
            command.args(self.arguments);
            if self.capture {
                command.arg("--capture");
            }
            if self.hosts > 1 {
                command
                    .env("NCCL_HOSTID", format!("host {}", process * self.hosts / self.processes))
                    .env("NCCL_P2P_DISABLE", "1")
                    .env("NCCL_SHM_DISABLE", "1");
            }
            Process { child: command.spawn().unwrap(), _port: Arc::clone(&port) }
        };
        (0..self.processes).map(start).collect()
    }

    fn losses(&self) -> PathBuf {
        self.folder.join("losses")
    }

    /// Runs to the end.
    #[track_caller]
    fn train(&self) -> Outcome {
        let _ = std::fs::remove_file(self.losses());
        let mut said = String::new();
        for mut process in self.start() {
            let (code, words) = process.ends(LIMIT);
            assert_eq!(code, Some(0), "{words}");
            process.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        }
        let losses = std::fs::read_to_string(self.losses()).unwrap();
        assert_eq!(losses.lines().count(), self.steps as usize);
        let device = said.lines().find(|line| line.starts_with("device")).unwrap().to_owned();
        Outcome { losses, device }
    }
}

struct Process {
    child: Child,
    _port: Arc<Port>,
}

impl Process {
    /// Waits until it has made steps, all of them as they were asked for: recorded from the second on, if
    /// they are to be. Returns what it said until then.
    fn works(&mut self) -> String {
        let out = BufReader::new(self.child.stdout.take().unwrap());
        let mut lines = out.lines().map_while(Result::ok);
        let mut said = String::new();
        let works = lines.by_ref().any(|line| {
            said += &line;
            line.starts_with("step")
        });
        assert!(works, "it ended: {}", self.ends(LIMIT).1);
        assert!(!said.contains("not recorded"), "{said}");
        // It goes on printing, and must not be held up by a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        said
    }

    /// With which code it ended, none if by a signal, and what it said on stderr.
    #[track_caller]
    fn ends(&mut self, limit: Duration) -> (Option<i32>, String) {
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(begun.elapsed() < limit, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let mut words = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut words).unwrap();
        (status.code(), words)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        // The shell's own, because a small system has no program of that name.
        let kill = format!("kill -{name} {pid}");
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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

/// `reduce = "ordered"`: the same bits by peers inside of each host and NCCL between them, recorded or not,
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
        let way = format!("{processes} processes, {hosts} hosts, {transport}, recorded: {capture}");
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

/// Processes, hosts that they claim to be on, transport, recorded.
type Split = (u32, u32, &'static str, bool);

/// The losses of ten steps with these arguments and variables, however ranks are split.
fn losses_of(count: u32, arguments: &[&str], variables: &[(&str, &str)], splits: &[Split]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for (processes, hosts, transport, capture) in splits.iter().copied() {
        let begun = Instant::now();
        let mut variables = variables.to_vec();
        variables.push(("WARPWEFT_TRANSPORT", transport));
        let (folder, gpus, variables) = (folder.path(), Gpus::Own(count / processes), &variables[..]);
        let run = Run { folder, processes, gpus, steps: 10, variables, hosts, capture, arguments };
        all.push(run.train().losses);
        let way = format!("{processes} processes, {hosts} hosts, {transport}, recorded: {capture}");
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
    eprintln!(
        "{place:?}, {end:?}: worked after {started:.1?}, the other ended {ended:.1?} behind the signal"
    );
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

/// RV-3 where nobody on the host could help: a recorded step is one launch, in which kernels spin for a
/// peer's words, or streams wait for them, or kernels of NCCL for its bytes.
#[test]
fn a_process_that_is_killed_or_stopped_in_a_recorded_step_is_named_by_the_others() {
    let Some((count, _alone)) = gpus("killed and stopped processes, recorded") else { return };
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
        skipped("recorded steps with NCCL", "it is missing");
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
