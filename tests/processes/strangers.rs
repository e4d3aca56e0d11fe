//! Silent strangers: connections that say nothing and return as soon as they are closed, while a world starts.
//!
//! A few hundred of them and one world in the suite. `WARPWEFT_STRANGERS` and `WARPWEFT_WORLDS` request more, and then
//! the figures are printed and judged:
//! `WARPWEFT_STRANGERS=1000 WARPWEFT_WORLDS=20 cargo test --test processes -- silent_strangers`.
//! All of it stays on the loopback and ends with the worlds.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::crew::{Crew, PATIENCE};

/// More than the handshakes at a time and a listen queue of 128 together.
const STRANGERS: usize = 400;
/// How long a stranger waits for a connection, and looks whether it shall stop while it has one.
const TURN: Duration = Duration::from_secs(1);
/// Within what a world starts once its last member has come, where figures are judged.
const LIMIT: Duration = Duration::from_secs(5);
/// Resident memory of the process of rank 0, where figures are judged.
const MOST_KIB: u64 = 64 << 10;

struct Strangers {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    connections: Arc<AtomicUsize>,
}

impl Strangers {
    /// Returns once each of them has knocked.
    fn at(port: u16, number: usize) -> Self {
        let (ends, connections) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let knocked = Arc::new(AtomicUsize::new(0));
        let stranger = |_| {
            let (ends, connections) = (Arc::clone(&ends), Arc::clone(&connections));
            let knocked = Arc::clone(&knocked);
            let work = move || {
                let mut is_first = true;
                while !ends.load(Ordering::Relaxed) {
                    let place = SocketAddr::from(([127, 0, 0, 1], port));
                    let came = TcpStream::connect_timeout(&place, TURN);
                    if std::mem::take(&mut is_first) {
                        knocked.fetch_add(1, Ordering::Relaxed);
                    }
                    match came {
                        Ok(stream) => {
                            connections.fetch_add(1, Ordering::Relaxed);
                            stay(stream, &ends);
                        }
                        // When nobody listens any more, the world is whole.
                        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return,
                        Err(_) => std::thread::sleep(Duration::from_millis(5)),
                    }
                }
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(work).unwrap()
        };
        let threads = (0..number).map(stranger).collect();
        let until = Instant::now() + PATIENCE;
        while knocked.load(Ordering::Relaxed) < number {
            assert!(Instant::now() < until, "not all strangers knocked");
            std::thread::sleep(Duration::from_millis(5));
        }
        Self { ends, threads, connections }
    }

    /// How many connections they had.
    fn end(self) -> usize {
        self.ends.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.connections.load(Ordering::Relaxed)
    }
}

/// Says nothing until it is hung up on.
fn stay(mut stream: TcpStream, ends: &AtomicBool) {
    stream.set_read_timeout(Some(TURN)).unwrap();
    while !ends.load(Ordering::Relaxed) {
        match stream.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock) => {}
            _ => return,
        }
    }
}

/// RV-4.
pub(crate) fn silent() {
    let requested = |name| std::env::var(name).ok().map(|number| number.parse().unwrap());
    let (strangers, worlds) = (requested("WARPWEFT_STRANGERS"), requested("WARPWEFT_WORLDS"));
    let is_judged = strangers.is_some() || worlds.is_some();
    let (strangers, worlds) = (strangers.unwrap_or(STRANGERS), worlds.unwrap_or(1));
    for world in 0..worlds {
        let crew = Crew::brief("join", 2);
        let mut host = crew.start(0, 1);
        host.hear("begins");
        while TcpStream::connect(("127.0.0.1", crew.port.number())).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let strangers = Strangers::at(crew.port.number(), strangers);
        let mut member = crew.start(1, 1);
        member.hear("begins");
        let begun = Instant::now();
        host.hear("joined as");
        member.hear("joined as");
        let took = begun.elapsed();
        let memory = host.most_memory_kib();
        host.hear("done");
        member.hear("done");
        let connections = strangers.end();
        if is_judged {
            println!("world {world}: {took:.2?}, {connections} connections, {memory:?} KiB");
            assert!(took < LIMIT && memory.is_none_or(|memory| memory < MOST_KIB));
        }
    }
}
