//! Who is let in: the handshakes of the process that listens.
//!
//! Laws:
//! - **RV-4** a stranger holds up nobody. Every handshake has a thread and one limit for all its bytes
//!   ([`PATIENCE`]); [`AT_ONCE`] take place at a time. Who comes then is given the place of the oldest, if
//!   that has had [`GRACE`] to prove itself, and else waits in the system's queue. Who came when the system gave
//!   no thread is kept, and is the first at the next look.
//! - Nobody unproven outlives the door: it hangs up on them.
//! - Who was refused, and what the system refused, is kept for whoever asks why somebody is missing.

use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::Secret;
use super::handshake::{self, Claim, Seals};
use super::timed::Timed;

/// How long whoever connects may take to prove itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may in any case, while others wait for its place: several times what a message takes around the
/// world, on a busy machine.
const GRACE: Duration = Duration::from_secs(1);
/// Handshakes at the same time.
const AT_ONCE: usize = 64;
/// Refusals that are kept.
const KEPT: usize = 8;

/// A process that was let in and waits for the others.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) claim: Claim,
    pub(super) seals: Seals,
    /// Does not block.
    pub(super) stream: TcpStream,
    pub(super) address: String,
}

/// Whoever has not proved itself yet.
#[derive(Debug)]
struct Unproven {
    number: u64,
    since: Instant,
    address: SocketAddr,
    /// Its thread has it too until it sends what came of the handshake.
    stream: Arc<TcpStream>,
}

type Met = Result<(Claim, Seals), String>;

/// Runs a handshake on a thread of its own.
type Spawn = fn(Box<dyn FnOnce() + Send>) -> io::Result<()>;

fn spawn(handshake: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    std::thread::Builder::new().name("warpweft handshake".to_owned()).spawn(handshake).map(drop)
}

/// Where processes and strangers knock.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    secret: Secret,
    /// No handshake goes on after this.
    until: Instant,
    /// Oldest first.
    unproven: VecDeque<Unproven>,
    /// Who came and got no thread: one at most, since nobody is accepted before it has one.
    waiting: Option<(Arc<TcpStream>, SocketAddr)>,
    /// How many came.
    count: u64,
    results: mpsc::Sender<(u64, Met)>,
    arrived: mpsc::Receiver<(u64, Met)>,
    refused: Vec<String>,
    /// Refused and not kept.
    more: usize,
    /// Why the system gave no connection, or no thread for one, the last time.
    failure: Option<String>,
    spawn: Spawn,
}

impl Door {
    /// A door at a listener that does not block.
    pub(super) fn new(listener: TcpListener, secret: &Secret, until: Instant) -> Self {
        let (results, arrived) = mpsc::channel();
        Self {
            listener,
            secret: secret.clone(),
            until,
            unproven: VecDeque::new(),
            waiting: None,
            count: 0,
            results,
            arrived,
            refused: Vec::new(),
            more: 0,
            failure: None,
            spawn,
        }
    }

    /// Begins handshakes with who knocked since, and returns who proved itself.
    pub(super) fn look(&mut self) -> Vec<Guest> {
        let mut guests = Vec::new();
        self.let_in(&mut guests);
        loop {
            let is_full = self.unproven.len() >= AT_ONCE;
            if is_full && !self.may_send_away() {
                return guests;
            }
            let came = match self.waiting.take() {
                Some(waiting) => Ok(waiting),
                None => self.listener.accept().map(|(stream, address)| (Arc::new(stream), address)),
            };
            let begun = came.and_then(|(stream, address)| {
                if is_full {
                    self.send_away(&mut guests);
                }
                self.shake(stream, address)
            });
            if let Err(error) = begun {
                match error.kind() {
                    io::ErrorKind::WouldBlock => return guests,
                    // Somebody who hung up before it was looked at.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => {
                        // What is missing may be what strangers hold; the next look tries again.
                        if self.may_send_away() {
                            self.send_away(&mut guests);
                        }
                        self.failure = Some(error.to_string());
                        return guests;
                    }
                }
            }
        }
    }

    /// Adds who proved itself since.
    fn let_in(&mut self, guests: &mut Vec<Guest>) {
        while let Ok((number, met)) = self.arrived.try_recv() {
            // Who was sent away before is not among them.
            let place = self.unproven.iter().position(|unproven| unproven.number == number);
            let Some(unproven) = place.and_then(|place| self.unproven.remove(place)) else { continue };
            let address = unproven.address;
            match met.and_then(|met| unproven.proved(met)) {
                Ok(guest) => guests.push(guest),
                Err(reason) => self.refuse(format!("{address} {reason}")),
            }
        }
    }

    /// Who was refused, and why: begins with a semicolon, or is empty.
    pub(super) fn refusals(&self) -> String {
        let mut words = String::new();
        if !self.refused.is_empty() {
            words = format!("; refused: {}", self.refused.join(", "));
        }
        if self.more > 0 {
            words += &format!(", and {} more", self.more);
        }
        if let Some(failure) = &self.failure {
            words += &format!("; the system refused to accept a connection: {failure}");
        }
        words
    }

    fn refuse(&mut self, refusal: String) {
        if self.refused.len() < KEPT {
            self.refused.push(refusal);
        } else {
            self.more += 1;
        }
    }

    fn may_send_away(&self) -> bool {
        self.unproven.front().is_some_and(|oldest| oldest.since.elapsed() >= GRACE)
    }

    /// Hangs up on the oldest of the unproven, unless a handshake ended meanwhile and left its place.
    fn send_away(&mut self, guests: &mut Vec<Guest>) {
        let before = self.unproven.len();
        self.let_in(guests);
        if self.unproven.len() < before {
            return;
        }
        if let Some(oldest) = self.unproven.pop_front() {
            oldest.hang_up();
            self.refuse(format!("{} did not prove itself while others waited", oldest.address));
        }
    }

    /// Begins a handshake; who gets no thread for it waits for the next look.
    fn shake(&mut self, stream: Arc<TcpStream>, address: SocketAddr) -> io::Result<()> {
        let since = Instant::now();
        let (number, until) = (self.count, self.until.min(since + PATIENCE));
        self.count += 1;
        self.unproven.push_back(Unproven { number, since, address, stream: Arc::clone(&stream) });
        let (results, secret) = (self.results.clone(), self.secret.clone());
        let work = move || {
            let blocking = stream.set_nonblocking(false).map_err(|error| error.to_string());
            let met = blocking.and_then(|()| handshake::receive(Timed::new(&stream, until), &secret));
            drop(stream);
            // Nobody listens any more when the door is gone.
            drop(results.send((number, met)));
        };
        (self.spawn)(Box::new(work)).map_err(|error| {
            self.waiting = self.unproven.pop_back().map(|unproven| (unproven.stream, unproven.address));
            io::Error::other(format!("no thread for it: {error}"))
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.unproven.iter().for_each(Unproven::hang_up);
    }
}

impl Unproven {
    /// Its thread reads nothing any more, and ends.
    fn hang_up(&self) {
        // It fails where the other end has closed, which is what is wanted.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn proved(self, (claim, seals): (Claim, Seals)) -> Result<Guest, String> {
        let stream = Arc::into_inner(self.stream).ok_or("is still being asked")?;
        stream.set_nonblocking(true).map_err(|error| error.to_string())?;
        Ok(Guest { claim, seals, stream, address: self.address.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::id::ProcessId;
    use crate::rendezvous::sealed::keys;

    fn secret() -> Secret {
        Secret::new("a secret of tests").unwrap()
    }

    fn door(until: Instant) -> (Door, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        (Door::new(listener, &secret(), until), address)
    }

    /// Looks until `is_done`.
    #[track_caller]
    fn look_until(door: &mut Door, is_done: impl Fn(&Door, &[Guest]) -> bool) -> Vec<Guest> {
        let (mut guests, begun) = (Vec::new(), Instant::now());
        while !is_done(door, &guests) {
            assert!(begun.elapsed() < Duration::from_secs(60), "{door:?}");
            guests.extend(door.look());
            std::thread::sleep(Duration::from_millis(5));
        }
        guests
    }

    /// RV-4.
    #[test]
    fn a_process_gets_the_place_of_the_oldest_of_many_strangers() {
        let (mut door, address) = door(Instant::now() + Duration::from_secs(60));
        let mut strangers: Vec<_> = (0..AT_ONCE).map(|_| TcpStream::connect(address).unwrap()).collect();
        look_until(&mut door, |door, _| door.unproven.len() == AT_ONCE);
        let member = std::thread::spawn(move || {
            let stream = TcpStream::connect(address).unwrap();
            let until = Instant::now() + Duration::from_secs(60);
            let claim = Claim { process: ProcessId::new(1), processes: 2, ranks: 1 };
            handshake::greet(Timed::new(&stream, until), claim, &secret(), "here").unwrap();
        });
        let guests = look_until(&mut door, |_, guests| !guests.is_empty());
        member.join().unwrap();
        assert_eq!(guests[0].claim.process, ProcessId::new(1));
        // One of 64 had to go at least, and the oldest went.
        assert!(door.unproven.len() < AT_ONCE);
        assert!(
            door.refusals().contains(&strangers[0].local_addr().unwrap().to_string()),
            "{}",
            door.refusals()
        );
        assert_eq!(strangers[0].read(&mut [0]).unwrap(), 0);
    }

    /// RV-4.
    #[test]
    fn the_unproven_are_hung_up_on_when_the_door_closes() {
        let (mut door, address) = door(Instant::now() + Duration::from_secs(60));
        let mut stranger = TcpStream::connect(address).unwrap();
        look_until(&mut door, |door, _| !door.unproven.is_empty());
        drop(door);
        stranger.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        assert_eq!(stranger.read(&mut [0]).unwrap(), 0);
    }

    /// A handshake that never ends: its thread is gone.
    fn silent(_handshake: Box<dyn FnOnce() + Send>) -> io::Result<()> {
        Ok(())
    }

    /// What a handshake with the member that came as number `number` came to.
    fn proved(number: u64) -> (u64, Met) {
        let [from_host, to_host] = keys(&secret(), &[]);
        let claim = Claim { process: ProcessId::new(1), processes: 2, ranks: 1 };
        (number, Ok((claim, Seals { from_host, to_host })))
    }

    /// RV-4: strangers may hold all threads that there are.
    #[test]
    fn whoever_there_is_no_thread_for_is_begun_with_as_soon_as_there_is_one() {
        let (mut door, address) = door(Instant::now() + Duration::from_secs(60));
        door.spawn = silent;
        let _member = TcpStream::connect(address).unwrap();
        look_until(&mut door, |door, _| !door.unproven.is_empty());
        door.results.send(proved(0)).unwrap();
        door.spawn = |_| Err(io::ErrorKind::WouldBlock.into());
        let late = TcpStream::connect(address).unwrap();
        let own_address = late.local_addr().unwrap();
        let until = door.until;
        let late = std::thread::spawn(move || {
            let claim = Claim { process: ProcessId::new(2), processes: 3, ranks: 1 };
            handshake::greet(Timed::new(&late, until), claim, &secret(), "here").map(drop)
        });
        let guests = look_until(&mut door, |door, _| door.failure.is_some());
        assert_eq!(guests.len(), 1, "who proved itself is let in all the same");
        assert!(door.unproven.is_empty() && door.refusals().contains("no thread for it"), "{door:?}");
        // It is kept, and nobody else is accepted meanwhile.
        let _next = TcpStream::connect(address).unwrap();
        door.look();
        assert!(door.unproven.is_empty() && door.waiting.is_some(), "{door:?}");
        door.spawn = spawn;
        let guests = look_until(&mut door, |_, guests| !guests.is_empty());
        assert_eq!(guests[0].address, own_address.to_string());
        late.join().unwrap().unwrap();
    }

    /// RV-4.
    #[test]
    fn who_proved_itself_since_the_last_look_is_not_sent_away() {
        let (mut door, address) = door(Instant::now() + Duration::from_secs(60));
        door.spawn = silent;
        let _both = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        look_until(&mut door, |door, _| door.unproven.len() == 2);
        door.results.send(proved(0)).unwrap();
        let mut guests = Vec::new();
        door.send_away(&mut guests);
        assert_eq!((guests.len(), door.unproven.len()), (1, 1));
        assert_eq!(door.refusals(), "");
        door.send_away(&mut guests);
        assert!(door.unproven.is_empty() && door.refusals().contains("did not prove itself"), "{door:?}");
    }

    /// RV-2.
    #[test]
    fn no_handshake_goes_on_past_the_deadline() {
        let (mut door, address) = door(Instant::now() + Duration::from_millis(100));
        let stranger = TcpStream::connect(address).unwrap();
        look_until(&mut door, |door, _| door.refusals().contains("said nothing"));
        drop(stranger);
    }
}
