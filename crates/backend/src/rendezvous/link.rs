//! One connection of a world that is whole: a thread that reads and a thread that writes.
//!
//! Laws:
//! - **RV-3** a connection that closes without a good-bye, or is silent for half the deadline, ends the
//!   world, with the name of the process at its other end. So does a peer that takes nothing for the length
//!   of the deadline. Who has nothing to say says so.
//! - The process of rank 0 passes on what it receives to all others before it takes it itself; so whatever made
//!   a rank of it go on is on its way to everybody.
//! - What was said before a good-bye arrives: a connection is closed when both ends have said good-bye, or
//!   after a short while.
//! - A peer that has said good-bye does not end the world any more, whatever becomes of its connection.
//! - All connections are served, or none: then everybody gets the reason, and no thread is left.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::RendezvousError;
use super::message::Message;
use super::outgoing::{LINGER, Left, Outgoing};
use super::sealed::{self, Seal};
use super::shared::Shared;
use super::timed::Timed;
use warpweft_base::errors::shown_text;
use warpweft_base::id::{ProcessId, RankId};

/// Messages that wait to be written to one process.
const QUEUE: usize = 64;

/// A connection to a process that was let in.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) process: ProcessId,
    /// For people: number, ranks and address.
    pub(super) name: String,
    /// The ranks that speak through it.
    pub(super) speakers: Vec<Range<usize>>,
    /// Is this the process of rank 0, which passes on what it receives?
    pub(super) relays: bool,
    pub(super) out: Seal,
    pub(super) into: Seal,
}

/// The threads of all connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    threads: Vec<JoinHandle<()>>,
    streams: Vec<TcpStream>,
}

type Work = Box<dyn FnOnce() + Send>;

/// What the system must give before a connection is served.
struct Prepared {
    /// To write to, and to close.
    copies: [TcpStream; 2],
    /// One that writes and one that reads, once they are given their work.
    threads: [(Sender<Work>, JoinHandle<()>); 2],
}

impl Prepared {
    fn new(connection: &Connection, deadline: Duration) -> Result<Self, RendezvousError> {
        let system =
            |what| move |error: io::Error| RendezvousError::System { what, reason: error.to_string() };
        let stream = &connection.stream;
        let set = || {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(deadline / 2))?;
            stream.set_write_timeout(Some(deadline))
        };
        set().map_err(system("a time limit"))?;
        let copy = || stream.try_clone().map_err(system("a connection"));
        let spawn = |name: &str| {
            let (give, given) = bounded::<Work>(1);
            let thread = std::thread::Builder::new().name(format!("warpweft {name}"));
            let thread = thread.spawn(move || given.iter().take(1).for_each(|work| work()));
            thread.map(|thread| (give, thread)).map_err(system("a thread"))
        };
        Ok(Self { copies: [copy()?, copy()?], threads: [spawn("writer")?, spawn("reader")?] })
    }
}

impl Links {
    /// Serves `connections` from now on.
    pub(super) fn start(
        shared: &Arc<Shared>,
        mut connections: Vec<Connection>,
    ) -> Result<Self, RendezvousError> {
        let prepared: Result<Vec<_>, _> =
            connections.iter().map(|connection| Prepared::new(connection, shared.deadline())).collect();
        // Threads that were started find that there is no work for them.
        let prepared = prepared.inspect_err(|error| {
            let farewell = Message::Ended { reason: shared.end(&error.to_string()) };
            for Connection { stream, out, .. } in &mut connections {
                let timed = Timed::new(stream, Instant::now() + LINGER);
                // Whether one receives it changes nothing for the others.
                drop(sealed::write(timed, out, &farewell));
            }
        })?;
        let mut links = Self::default();
        let (mut outgoing, mut work) = (Vec::new(), Vec::new());
        for (connection, prepared) in connections.into_iter().zip(prepared) {
            let Connection { stream, process, name, speakers, relays, out, into } = connection;
            let (queue, messages) = bounded(QUEUE);
            let has_left = Left::default();
            outgoing.push(Outgoing { process, name: name.clone(), queue, has_left: has_left.clone() });
            let [written, closed] = prepared.copies;
            let writer = Writer {
                stream: written,
                seal: out,
                shared: Arc::clone(shared),
                name: name.clone(),
                has_left,
            };
            let reader =
                Reader { stream, seal: into, shared: Arc::clone(shared), process, name, speakers, relays };
            links.streams.push(closed);
            let [(write, writes), (read, reads)] = prepared.threads;
            links.threads.extend([writes, reads]);
            work.push((write, Box::new(move || writer.write(&messages)) as Work));
            work.push((read, Box::new(move || reader.read())));
        }
        shared.connect(outgoing);
        for (thread, work) in work {
            // The thread waits for it.
            drop(thread.send(work));
        }
        Ok(links)
    }

    /// Says good-bye to everybody and ends the threads.
    pub(super) fn close(&mut self, shared: &Shared) {
        let until = Instant::now() + LINGER;
        for peer in shared.outgoing() {
            peer.tell(Message::Bye, until.saturating_duration_since(Instant::now()));
        }
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

pub(super) struct Writer {
    stream: TcpStream,
    seal: Seal,
    shared: Arc<Shared>,
    name: String,
    has_left: Left,
}

impl Writer {
    fn write(mut self, messages: &Receiver<Message>) {
        let beat = (self.shared.deadline() / 10).clamp(Duration::from_millis(5), Duration::from_secs(1));
        loop {
            let next = match messages.recv_timeout(beat) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) if self.has_left.is_set() => Message::Bye,
                Err(RecvTimeoutError::Timeout) => Message::Beat,
                Err(RecvTimeoutError::Disconnected) => Message::Bye,
            };
            let message = match self.shared.ended() {
                Some(reason) => Message::Ended { reason: reason.to_owned() },
                None => next,
            };
            let is_last = matches!(message, Message::Ended { .. } | Message::Bye);
            if let Err(error) = sealed::write(&self.stream, &mut self.seal, &message) {
                // The reader sees the other end close too and knows more; on a busy machine it comes later.
                let until = Instant::now() + LINGER;
                while !self.has_left.is_set() && self.shared.ended().is_none() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                if !self.has_left.is_set() {
                    self.shared.end(&format!("{} takes no messages ({error})", self.name));
                }
                return;
            }
            if is_last {
                let _ = self.stream.shutdown(Shutdown::Write);
                return;
            }
        }
    }
}

pub(super) struct Reader {
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
                        self.shared.end(&format!("{} says more of {rank} than was requested", self.name));
                        return;
                    }
                }
                Message::Left { rank, reason } => self.shared.left(rank, &shown_text(reason)),
                Message::Standing { rank, text } => self.shared.stands(rank, &shown_text(text)),
                Message::Ended { reason } => {
                    self.shared.end(&shown_text(reason));
                    return;
                }
                Message::Bye => {
                    for rank in self.speakers.iter().cloned().flatten().map(RankId::at) {
                        self.shared.left(rank, &format!("{} has closed its session", self.name));
                    }
                    let own = self.shared.outgoing().iter().filter(|peer| peer.process == self.process);
                    own.for_each(Outgoing::part);
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::rendezvous::board::Topic;
    use crate::rendezvous::message::PART;
    use crate::rendezvous::secret::Secret;

    const RANK: RankId = RankId::new(0);

    /// The other end of a connection.
    struct Peer {
        stream: TcpStream,
        out: Seal,
        into: Seal,
    }

    impl Peer {
        fn says(&mut self, message: &Message) {
            sealed::write(&self.stream, &mut self.out, message).unwrap();
        }

        /// What it receives until the end of the connection.
        fn hears(&mut self) -> Vec<Message> {
            std::iter::from_fn(|| sealed::read(&self.stream, &mut self.into).ok()).collect()
        }
    }

    /// A connection of rank 0 to the process of rank `number`.
    fn connection(number: u32) -> (Connection, Peer) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let secret = Secret::new("a secret of tests").unwrap();
        let ([out, into], [heard, said]) = (sealed::keys(&secret, &[]), sealed::keys(&secret, &[]));
        let process = ProcessId::new(number);
        let ranks = number as usize..number as usize + 1;
        let (name, speakers) = (process.to_string(), vec![ranks]);
        let connection = Connection { stream, process, name, speakers, relays: true, out, into };
        (connection, Peer { stream: theirs, out: said, into: heard })
    }

    fn part() -> Message {
        Message::Part { topic: Topic::Reports, rank: RANK, last: false, bytes: vec![1; PART].into() }
    }

    /// A world of two, whose other process takes nothing until the queue to it is full, and then says good-bye.
    fn good_bye_to_a_full_queue() -> (Arc<Shared>, Links, Peer) {
        let shared = Arc::new(Shared::new(2, 0..1, Duration::from_secs(60)));
        let (connection, mut peer) = connection(1);
        let links = Links::start(&shared, vec![connection]).unwrap();
        while shared.outgoing()[0].tell(part(), Duration::from_millis(200)) {}
        peer.says(&Message::Bye);
        let begun = Instant::now();
        while !shared.outgoing()[0].has_left.is_set() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody heard the good-bye");
            std::thread::sleep(Duration::from_millis(1));
        }
        (shared, links, peer)
    }

    /// RV-3.
    #[test]
    fn a_good_bye_is_answered_although_the_queue_is_full() {
        let (shared, mut links, mut peer) = good_bye_to_a_full_queue();
        // The room that comes too late for the reader is used by the writer.
        std::thread::sleep(LINGER + Duration::from_millis(100));
        let heard = peer.hears();
        assert_eq!(heard.last(), Some(&Message::Bye));
        assert!(heard.iter().filter(|message| **message == part()).count() >= QUEUE);
        links.close(&shared);
        assert_eq!(shared.ended(), None);
    }

    /// RV-3.
    #[test]
    fn who_closes_after_a_good_bye_that_was_not_answered_does_not_end_the_world() {
        let (shared, mut links, peer) = good_bye_to_a_full_queue();
        peer.stream.shutdown(Shutdown::Both).unwrap();
        drop(peer);
        let begun = Instant::now();
        while !links.threads.iter().all(JoinHandle::is_finished) {
            assert!(begun.elapsed() < Duration::from_secs(60), "a thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(shared.ended(), None);
        assert!(shared.outgoing()[0].tell(part(), Duration::ZERO), "who left is waited for no more");
        links.close(&shared);
    }

    /// RV-3.
    #[test]
    fn connections_that_cannot_be_served_are_told_why() {
        // No socket takes a limit of no time.
        let shared = Arc::new(Shared::new(3, 0..1, Duration::ZERO));
        let (connections, peers): (Vec<_>, Vec<_>) = (1..3).map(connection).unzip();
        let error = Links::start(&shared, connections).unwrap_err();
        assert!(matches!(error, RendezvousError::System { what: "a time limit", .. }), "{error}");
        for mut peer in peers {
            assert_eq!(peer.hears(), [Message::Ended { reason: error.to_string() }]);
        }
    }
}
