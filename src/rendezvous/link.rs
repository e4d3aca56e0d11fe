//! One connection of a world that is whole: a thread that reads and a thread that writes.
//!
//! Laws:
//! - **RV-3** a connection that closes without a good-bye, or is silent for half the deadline, ends the world, with the name of the process
//!   at its other end. So does a peer that takes nothing for the length of the deadline. Who has nothing to say says so.
//! - The process of rank 0 passes on what it hears to all others before it takes it itself; so whatever made a rank of it go on is
//!   on its way to everybody.
//! - What was said before a good-bye arrives: a connection is closed when both ends have said good-bye, or after a short while.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use super::RendezvousError;
use super::message::Message;
use super::sealed::{self, Seal};
use super::shared::Shared;
use crate::id::{ProcessId, RankId};

/// Messages that wait to be written to one process.
const QUEUE: usize = 64;

/// How long a process that closes waits for the other ends to do so.
const LINGER: Duration = Duration::from_secs(2);

/// A connection to a process that was let in.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) process: ProcessId,
    /// For people: number, ranks and address.
    pub(super) name: String,
    /// The ranks that speak through it.
    pub(super) speakers: Vec<Range<usize>>,
    /// Is this the process of rank 0, which passes on what it hears?
    pub(super) relays: bool,
    pub(super) out: Seal,
    pub(super) into: Seal,
}

/// The way to one process.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) process: ProcessId,
    pub(super) name: String,
    queue: Sender<Message>,
}

impl Outgoing {
    /// Queues a message. False if there was no room for it within `deadline`.
    pub(super) fn tell(&self, message: Message, deadline: Duration) -> bool {
        // A process that said good-bye, or whose end is known, needs nothing any more.
        !matches!(self.queue.send_timeout(message, deadline), Err(SendTimeoutError::Timeout(_)))
    }

    /// Queues a message if there is room.
    pub(super) fn offer(&self, message: Message) {
        drop(self.queue.try_send(message));
    }

    /// Makes the writing thread look at the world.
    pub(super) fn wake(&self) {
        self.offer(Message::Beat);
    }
}

/// The threads of all connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    threads: Vec<JoinHandle<()>>,
    streams: Vec<TcpStream>,
}

impl Links {
    /// Serves `connections` from now on.
    pub(super) fn start(shared: &Arc<Shared>, connections: Vec<Connection>) -> Result<Self, RendezvousError> {
        let system =
            |what| move |error: io::Error| RendezvousError::System { what, reason: error.to_string() };
        let deadline = shared.deadline();
        let (mut outgoing, mut queues) = (Vec::new(), Vec::new());
        for connection in &connections {
            let (queue, messages) = bounded(QUEUE);
            let (process, name) = (connection.process, connection.name.clone());
            outgoing.push(Outgoing { process, name, queue });
            queues.push(messages);
        }
        shared.connect(outgoing);
        let mut links = Self::default();
        for (connection, messages) in connections.into_iter().zip(queues) {
            let Connection { stream, process, name, speakers, relays, out, into } = connection;
            let set = |stream: &TcpStream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(deadline / 2))?;
                stream.set_write_timeout(Some(deadline))
            };
            set(&stream).map_err(system("a time limit"))?;
            let copy = || stream.try_clone().map_err(system("a connection"));
            links.streams.push(copy()?);
            let writer =
                Writer { stream: copy()?, seal: out, shared: Arc::clone(shared), name: name.clone() };
            let reader =
                Reader { stream, seal: into, shared: Arc::clone(shared), process, name, speakers, relays };
            let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
                let thread = std::thread::Builder::new().name(format!("warpweft {name}"));
                thread.spawn(work).map_err(system("a thread"))
            };
            links.threads.push(spawn("writer", Box::new(move || writer.write(&messages)))?);
            links.threads.push(spawn("reader", Box::new(move || reader.read()))?);
        }
        Ok(links)
    }

    /// Says good-bye to everybody and ends the threads.
    pub(super) fn close(&mut self, shared: &Shared) {
        for peer in shared.outgoing() {
            peer.tell(Message::Bye, LINGER);
        }
        let until = Instant::now() + LINGER;
        while Instant::now() < until && !self.threads.iter().all(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for stream in &self.streams {
            // It fails where the other end has closed, which is what is wanted.
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

struct Writer {
    stream: TcpStream,
    seal: Seal,
    shared: Arc<Shared>,
    name: String,
}

impl Writer {
    fn write(mut self, messages: &Receiver<Message>) {
        let beat = (self.shared.deadline() / 10).clamp(Duration::from_millis(5), Duration::from_secs(1));
        loop {
            let next = match messages.recv_timeout(beat) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => Message::Beat,
                Err(RecvTimeoutError::Disconnected) => Message::Bye,
            };
            let message = match self.shared.ended() {
                Some(reason) => Message::Ended { reason: reason.to_owned() },
                None => next,
            };
            let is_last = matches!(message, Message::Ended { .. } | Message::Bye);
            if let Err(error) = sealed::write(&self.stream, &mut self.seal, &message) {
                // A reader that saw the other end close knows more, and is given the time to say it.
                std::thread::sleep(beat.min(Duration::from_millis(100)));
                self.shared.end(&format!("{} takes no messages ({error})", self.name));
                return;
            }
            if is_last {
                let _ = self.stream.shutdown(Shutdown::Write);
                return;
            }
        }
    }
}

struct Reader {
    stream: TcpStream,
    seal: Seal,
    shared: Arc<Shared>,
    process: ProcessId,
    name: String,
    speakers: Vec<Range<usize>>,
    relays: bool,
}

impl Reader {
    fn read(mut self) {
        let mut from = io::BufReader::new(&self.stream);
        loop {
            let message = match sealed::read(&mut from, &mut self.seal) {
                Ok(message) => message,
                Err(error) => {
                    self.shared.end(&self.lost(&error));
                    return;
                }
            };
            if let Message::Part { rank, .. } | Message::Left { rank, .. } | Message::Standing { rank, .. } =
                &message
            {
                if !self.speakers.iter().any(|ranks| ranks.contains(&rank.index())) {
                    self.shared.end(&format!("{} speaks for {rank}, which is not its own", self.name));
                    return;
                }
                let is_for_first = matches!(&message, Message::Part { topic, .. } if topic.is_for_first());
                if self.relays && !is_for_first {
                    self.shared.spread(&message, Some(self.process));
                }
            }
            match message {
                Message::Beat => {}
                Message::Part { topic, rank, last, bytes } => {
                    if !self.shared.arrive(topic, rank, last, &bytes) {
                        self.shared.end(&format!("{} says more of {rank} than was asked for", self.name));
                        return;
                    }
                }
                Message::Left { rank, reason } => self.shared.left(rank, &reason),
                Message::Standing { rank, text } => self.shared.stands(rank, &text),
                Message::Ended { reason } => {
                    self.shared.end(&reason);
                    return;
                }
                Message::Bye => {
                    for rank in self.speakers.iter().cloned().flatten().map(RankId::at) {
                        self.shared.left(rank, &format!("{} has closed its session", self.name));
                    }
                    let own = self.shared.outgoing().iter().filter(|peer| peer.process == self.process);
                    own.for_each(|peer| peer.offer(Message::Bye));
                    return;
                }
                Message::Welcome(_) => {
                    self.shared.end(&format!("{} began the world twice", self.name));
                    return;
                }
            }
        }
    }

    /// What became of the other end.
    fn lost(&self, error: &io::Error) -> String {
        let name = &self.name;
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let silence = self.shared.deadline() / 2;
                format!("{name} has been silent for {silence:?}: it is stopped, or its host is not reached")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                format!("{name} ended without a word: it was killed or crashed; see its own output")
            }
            io::ErrorKind::InvalidData => format!("{name} sent {error}"),
            _ => format!("the connection to {name} broke: {error}"),
        }
    }
}
