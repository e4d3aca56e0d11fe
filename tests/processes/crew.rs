//! Children of this program, as a launcher would start them.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::child::{DEADLINE, RANKS, ROLE};

/// What children wait for each other in most tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(4);
/// What a busy machine may take on top of it.
const SLACK: Duration = Duration::from_secs(8);
pub(crate) const SECRET: &str = "a secret of children";

/// What the children have in common.
#[derive(Clone)]
pub(crate) struct Crew {
    pub(crate) role: &'static str,
    pub(crate) processes: u32,
    pub(crate) port: u16,
    pub(crate) deadline: Duration,
}

/// One child, and what it says.
pub(crate) struct Member {
    process: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

/// A port nobody listens on now, outside of the range from which the system gives ports to clients.
pub(crate) fn free_port() -> u16 {
    let begin = 20_000 + (std::process::id() % 10_000) as u16;
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (begin..32_000).chain(10_000..begin).find(is_free).unwrap()
}

impl Crew {
    pub(crate) fn new(role: &'static str, processes: u32) -> Self {
        Self { role, processes, port: free_port(), deadline: PATIENCE }
    }

    /// Starts the child that is told to be `process`, with `ranks` ranks.
    pub(crate) fn start(&self, process: u32, ranks: u32) -> Member {
        self.start_with(process, ranks, &[])
    }

    pub(crate) fn start_all(&self, ranks: &[u32]) -> Vec<Member> {
        (0..).zip(ranks).map(|(process, ranks)| self.start(process, *ranks)).collect()
    }

    pub(crate) fn start_with(&self, process: u32, ranks: u32, changed: &[(&str, &str)]) -> Member {
        self.start_by(Command::new(std::env::current_exe().unwrap()), process, ranks, changed)
    }

    /// With no more than `files` open files.
    pub(crate) fn start_with_files(&self, process: u32, ranks: u32, files: u32) -> Member {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg(format!("ulimit -n {files} && exec \"$0\""))
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
            .env("MASTER_PORT", self.port.to_string())
            .env("WARPWEFT_SECRET", SECRET)
            .envs(changed.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (say, lines) = mpsc::channel();
        let out = BufReader::new(process.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| say.send(line)));
        Member { process, lines, said: Vec::new() }
    }
}

impl Member {
    /// Waits for a line that begins with `word` and returns the rest of it.
    #[track_caller]
    pub(crate) fn hear(&mut self, word: &str, within: Duration) -> String {
        let until = Instant::now() + within + SLACK;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("no `{word}` within {within:?}; it said {:?}", self.said);
            };
            self.said.push(line.clone());
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Its last words, and that it ended with a failure.
    #[track_caller]
    pub(crate) fn fails(&mut self, within: Duration) -> String {
        let error = self.hear("error", within);
        assert!(!self.ends().success());
        error
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

    /// SIGSTOP, SIGCONT.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
