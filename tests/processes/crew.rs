//! Child processes of this program, started as a launcher would.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::child::{DEADLINE, RANKS, ROLE};
use warpweft_testing::port::Port;

/// What children wait for each other where nobody waits for the end of it: no machine is so busy that one
/// comes later.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The same where it is waited for to the end. Long all the same: a child that a busy machine keeps from
/// running is not to be named.
pub(crate) const BRIEF: Duration = Duration::from_secs(24);
/// Who says nothing for so long in a brief crew counts as silent.
pub(crate) const SILENCE: Duration = Duration::from_secs(BRIEF.as_secs() / 2);
/// What a busy machine may take on top of it.
const SLACK: Duration = Duration::from_secs(60);
pub(crate) const SECRET: &str = "a secret of children";

/// What the children have in common.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) role: &'static str,
    pub(crate) processes: u32,
    pub(crate) port: Arc<Port>,
    pub(crate) deadline: Duration,
}

/// One child, and what it says.
pub(crate) struct Member {
    process: Child,
    lines: Receiver<String>,
    deadline: Duration,
    _port: Arc<Port>,
    said: Vec<String>,
}

impl Crew {
    pub(crate) fn new(role: &'static str, processes: u32) -> Self {
        Self { role, processes, port: Arc::new(Port::claim()), deadline: PATIENCE }
    }

    /// Children that wait for somebody until the deadline.
    pub(crate) fn brief(role: &'static str, processes: u32) -> Self {
        Self { deadline: BRIEF, ..Self::new(role, processes) }
    }

    /// Starts the child that is to be `process`, with `ranks` ranks.
    pub(crate) fn start(&self, process: u32, ranks: u32) -> Member {
        self.start_with(process, ranks, &[])
    }

    /// Starts children with the numbers 0, 1, and so on. The first comes last: when its deadline begins, the
    /// others are there.
    pub(crate) fn start_all(&self, ranks: &[u32]) -> Vec<Member> {
        let mut members: Vec<Member> =
            (1..).zip(&ranks[1..]).map(|(process, ranks)| self.start(process, *ranks)).collect();
        members.iter_mut().for_each(|member| drop(member.hear("begins")));
        members.insert(0, self.start(0, ranks[0]));
        members
    }

    pub(crate) fn start_with(&self, process: u32, ranks: u32, changed: &[(&str, &str)]) -> Member {
        self.start_by(Command::new(std::env::current_exe().unwrap()), process, ranks, changed)
    }

    /// With no more than `files` open files.
    pub(crate) fn start_with_files(&self, process: u32, ranks: u32, files: u32) -> Member {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            // Without what the parent's own parent may have left open.
            .arg(format!("exec 3>&- && ulimit -n {files} && exec \"$0\""))
            .arg(std::env::current_exe().unwrap());
        self.start_by(shell, process, ranks, &[])
    }

    fn start_by(&self, mut command: Command, process: u32, ranks: u32, changed: &[(&str, &str)]) -> Member {
        command
            .env(ROLE, self.role)
            .env(RANKS, ranks.to_string())
            .env(DEADLINE, self.deadline.as_millis().to_string())
            .env("RANK", process.to_string())
            .env("WORLD_SIZE", self.processes.to_string())
            .env("LOCAL_RANK", process.to_string())
            .env_remove("LOCAL_WORLD_SIZE")
            .env_remove("WARPWEFT_PORT")
            .env_remove("WARPWEFT_SECRET_FILE")
            .env_remove("TORCHELASTIC_USE_AGENT_STORE")
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", self.port.number().to_string())
            .env("WARPWEFT_SECRET", SECRET)
            .envs(changed.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (say, lines) = mpsc::channel();
        let out = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Member { process, lines, deadline: self.deadline, _port: Arc::clone(&self.port), said: Vec::new() }
    }
}

impl Member {
    /// Waits for a line that begins with `word` and returns the rest of it. RV-2: it comes within the deadline.
    #[track_caller]
    pub(crate) fn hear(&mut self, word: &str) -> String {
        let limit = self.deadline + SLACK;
        match self.hear_within(word, limit) {
            Ok(rest) => rest,
            Err(_) => panic!("no `{word}` within {limit:?}; it said {:?}", self.said),
        }
    }

    /// The same, or that it was not said within `limit`, or that it will not be.
    fn hear_within(&mut self, word: &str, limit: Duration) -> Result<String, RecvTimeoutError> {
        let until = Instant::now() + limit;
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()))?;
            self.said.push(line.clone());
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.trim().to_owned());
            }
        }
    }

    /// Its last words, and that it ended with a failure.
    #[track_caller]
    pub(crate) fn fails(&mut self) -> String {
        let error = self.hear("error");
        assert!(!self.ends().success());
        error
    }

    /// Which of two fails first, and its last words.
    #[track_caller]
    pub(crate) fn first_to_fail(members: &mut [Self; 2]) -> (usize, String) {
        let until = Instant::now() + members[0].deadline + SLACK;
        loop {
            for (place, member) in members.iter_mut().enumerate() {
                if let Ok(error) = member.hear_within("error", Duration::from_millis(10)) {
                    return (place, error);
                }
            }
            assert!(
                Instant::now() < until,
                "none fails; they said {:?}",
                members.each_ref().map(|m| &m.said)
            );
        }
    }

    #[track_caller]
    pub(crate) fn ends(&mut self) -> std::process::ExitStatus {
        let until = Instant::now() + SLACK;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "it does not end; it said {:?}", self.said);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }

    /// Its largest resident memory so far, where the system tells.
    pub(crate) fn most_memory_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        line.trim().trim_end_matches("kB").trim().parse().ok()
    }

    /// SIGSTOP, SIGCONT.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        // The shell's own, because a small system has no program of that name.
        let kill = format!("kill -{name} {pid}");
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
