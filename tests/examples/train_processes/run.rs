//! One run of the example `train`, in one process or several.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warpweft_testing::port::Port;

/// What one process may take, its kernels' compilation included.
const LIMIT: Duration = Duration::from_secs(120);

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
const FOREIGN: [&str; 25] = [
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
    "WARPWEFT_KERNEL_EXCHANGE",
    "WARPWEFT_SIGNAL_BY",
    "WARPWEFT_DEADLINE_S",
    "NCCL_HOSTID",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
];

/// One run of the example.
pub(crate) struct Run<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) processes: u32,
    pub(crate) gpus: Gpus,
    pub(crate) steps: u32,
    /// Beside what a launcher sets.
    pub(crate) variables: &'a [(&'a str, &'a str)],
    /// On how many hosts processes claim to be.
    pub(crate) hosts: u32,
    pub(crate) capture: bool,
    /// Beside what every run has.
    pub(crate) arguments: &'a [&'a str],
}

/// The GPUs of each process, by rank.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gpus {
    /// So many that no other process has.
    Own(u32),
    /// The first two, which processes on other hosts have too.
    FirstTwo,
    /// The first, for so many ranks, and for those of the other processes.
    Shared(u32),
}

impl Gpus {
    /// For two processes on a host each, with several ranks.
    pub(crate) const fn of_two_hosts(count: u32) -> Self {
        if count < 4 { Self::FirstTwo } else { Self::Own(count / 2) }
    }

    fn arguments(self) -> [String; 2] {
        match self {
            Self::Own(ranks) => ["--ranks".to_owned(), ranks.to_string()],
            Self::FirstTwo => ["--devices".to_owned(), "0,1".to_owned()],
            Self::Shared(ranks) => ["--devices".to_owned(), vec!["0"; ranks as usize].join(",")],
        }
    }
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// As they were written.
    pub(crate) losses: String,
    /// On what it ran, as it said.
    pub(crate) device: String,
}

impl Run<'_> {
    pub(crate) fn start(&self) -> Vec<Process> {
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
                .args(["--config", "examples/train/train.toml", "crates/format/src"])
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
    pub(crate) fn train(&self) -> Outcome {
        let _ = std::fs::remove_file(self.losses());
        let mut said = String::new();
        for mut process in self.start() {
            let (code, words) = process.ends(LIMIT);
            assert_eq!(code, Some(0), "{words}");
            process.child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        }
        let losses = std::fs::read_to_string(self.losses()).unwrap();
        let (made, steps) = (losses.lines().count(), self.steps as usize);
        let resumes = self.arguments.contains(&"--resume");
        assert!(if resumes { (1..steps).contains(&made) } else { made == steps }, "{losses}");
        let device = said.lines().find(|line| line.starts_with("device")).unwrap().to_owned();
        Outcome { losses, device }
    }
}

pub(crate) struct Process {
    child: Child,
    _port: Arc<Port>,
}

impl Process {
    /// Waits until it has made steps, all of them as they were requested: captured from the second on, if
    /// they are to be. Returns what it said until then.
    pub(crate) fn works(&mut self) -> String {
        let out = BufReader::new(self.child.stdout.take().unwrap());
        let mut lines = out.lines().map_while(Result::ok);
        let mut said = String::new();
        let works = lines.by_ref().any(|line| {
            said += &line;
            line.starts_with("step")
        });
        assert!(works, "it ended: {}", self.ends(LIMIT).1);
        assert!(!said.contains("not captured"), "{said}");
        // It goes on printing, and must not be held up by a full pipe.
        std::thread::spawn(move || lines.for_each(drop));
        said
    }

    /// With which code it ended, none if by a signal, and what it said on stderr.
    #[track_caller]
    pub(crate) fn ends(&mut self, limit: Duration) -> (Option<i32>, String) {
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

    pub(crate) fn signal(&self, name: &str) {
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
