//! Admission: the handshakes of the process that listens.
//!
//! Laws:
//! - **RV-4** a silent connection costs a stranger more than it costs the world. All who knock are accepted at the next
//!   look, and read as far as they have spoken, by the thread that looks. [`AT_ONCE`] are unproven at a time; the
//!   others wait in the system's queue. Then the place of one who has had [`FIRST_WORD`] for its first message, or
//!   [`GRACE`] for its proof, is given away: from the address that has wasted the most places, and there of the oldest.
//! - Nobody is unproven for longer than [`PATIENCE`], or outlives the door: it hangs up on them.
//! - Who was refused, and what the system refused, is kept for whoever asks why somebody is missing.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::Secret;
use super::handshake::{Claim, Handshake, Seals};

/// How long whoever connects may take to prove itself.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long it may in any case, while others wait for its place: several times what a message takes around the
/// world, on a busy machine.
const GRACE: Duration = Duration::from_secs(1);
/// How long it may be silent at first, while others wait: a member speaks as soon as it is connected, and has spoken
/// before it is accepted if it had to wait.
const FIRST_WORD: Duration = Duration::from_millis(250);
/// Handshakes at the same time: a few hundred bytes and an open file each, and a quarter of the files that a process
/// commonly may have.
const AT_ONCE: usize = 256;
/// Addresses whose wasted places are counted.
const COUNTED: usize = 1024;
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
    since: Instant,
    address: SocketAddr,
    /// Does not block.
    stream: TcpStream,
    handshake: Handshake,
}

/// Where processes and strangers knock.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    secret: Secret,
    /// No handshake goes on after this.
    until: Instant,
    unproven: Vec<Unproven>,
    /// Places that each address has wasted.
    wasted: BTreeMap<IpAddr, u64>,
    refused: Vec<String>,
    /// Refused and not kept.
    more: usize,
    /// Why the system gave no connection the last time.
    failure: Option<String>,
}

impl Door {
    /// A door at a listener that does not block.
    pub(super) fn new(listener: TcpListener, secret: &Secret, until: Instant) -> Self {
        Self {
            listener,
            secret: secret.clone(),
            until,
            unproven: Vec::new(),
            wasted: BTreeMap::new(),
            refused: Vec::new(),
            more: 0,
            failure: None,
        }
    }

    /// Goes on with all handshakes, begins those with who knocked since, and returns who proved itself.
    pub(super) fn look(&mut self) -> Vec<Guest> {
        let mut guests = Vec::new();
        for unproven in std::mem::take(&mut self.unproven) {
            self.go_on(unproven, &mut guests);
        }
        loop {
            let is_full = self.unproven.len() >= AT_ONCE;
            let place = self.dispensable();
            if is_full && place.is_none() {
                return guests;
            }
            let came = self.listener.accept().and_then(|(stream, address)| {
                stream.set_nonblocking(true)?;
                let (since, handshake) = (Instant::now(), Handshake::new());
                Ok(Unproven { since, address, stream, handshake })
            });
            match came {
                Ok(unproven) => {
                    if let Some(place) = place.filter(|_| is_full) {
                        self.send_away(place);
                    }
                    self.go_on(unproven, &mut guests);
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return guests,
                    // Somebody who hung up before it was handled.
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => {
                        // What is missing may be what strangers hold; the next look tries again.
                        if let Some(place) = place {
                            self.send_away(place);
                        }
                        self.failure = Some(error.to_string());
                        return guests;
                    }
                },
            }
        }
    }

    /// Goes on with a handshake: lets it in, keeps it unproven, or refuses it.
    fn go_on(&mut self, mut unproven: Unproven, guests: &mut Vec<Guest>) {
        let Unproven { since, address, stream, handshake } = &mut unproven;
        let is_late = since.elapsed() >= PATIENCE || Instant::now() >= self.until;
        match handshake.go_on(&mut *stream, &self.secret) {
            Ok(Some((claim, seals))) => {
                let address = address.to_string();
                guests.push(Guest { claim, seals, stream: unproven.stream, address });
            }
            Ok(None) if !is_late => self.unproven.push(unproven),
            Ok(None) => self.refuse(&unproven, "said nothing"),
            Err(reason) => self.refuse(&unproven, &reason),
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

    fn refuse(&mut self, unproven: &Unproven, reason: &str) {
        let source = unproven.address.ip();
        if self.wasted.len() < COUNTED || self.wasted.contains_key(&source) {
            *self.wasted.entry(source).or_default() += 1;
        }
        if self.refused.len() < KEPT {
            self.refused.push(format!("{} {reason}", unproven.address));
        } else {
            self.more += 1;
        }
        unproven.hang_up();
    }

    /// Whose place is the next to be given away, if anybody has had its time.
    fn dispensable(&self) -> Option<usize> {
        let wasted = |source: IpAddr| self.wasted.get(&source).copied().unwrap_or(0);
        let has_had_its_time = |(_, unproven): &(usize, &Unproven)| {
            unproven.since.elapsed() >= if unproven.handshake.has_begun() { GRACE } else { FIRST_WORD }
        };
        (self.unproven.iter().enumerate())
            .filter(has_had_its_time)
            .max_by_key(|(_, unproven)| (wasted(unproven.address.ip()), Reverse(unproven.since)))
            .map(|(place, _)| place)
    }

    fn send_away(&mut self, place: usize) {
        let unproven = self.unproven.swap_remove(place);
        self.refuse(&unproven, "did not prove itself while others waited");
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.unproven.iter().for_each(Unproven::hang_up);
    }
}

impl Unproven {
    fn hang_up(&self) {
        // It fails where the other end has closed, which is what is wanted.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::rendezvous::handshake;
    use crate::rendezvous::timed::Timed;
    use warpweft_base::id::ProcessId;

    fn secret() -> Secret {
        Secret::new("a secret of tests").unwrap()
    }

    fn door(until: Instant) -> (Door, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 2 * AT_ONCE as i32).unwrap();
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
        // One had to go at least, and the oldest went.
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

    /// RV-4.
    #[test]
    fn a_place_is_taken_from_the_address_that_wasted_most_and_there_from_the_oldest() {
        let (mut door, address) = door(Instant::now() + Duration::from_secs(60));
        let _all = [(); 3].map(|()| TcpStream::connect(address).unwrap());
        look_until(&mut door, |door, _| door.unproven.len() == 3);
        assert_eq!(door.dispensable(), None, "nobody has had its time");
        let long_ago = Instant::now() - GRACE;
        let addresses = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 2]];
        for (number, (unproven, address)) in (0..).zip(door.unproven.iter_mut().zip(addresses)) {
            unproven.address = (address, 1).into();
            unproven.since = long_ago + Duration::from_millis(number);
        }
        assert_eq!(door.dispensable(), Some(0), "none has wasted more than another");
        door.wasted.insert([10, 0, 0, 2].into(), 1);
        assert_eq!(door.dispensable(), Some(1));
        door.unproven[1].handshake = Handshake::begun();
        door.unproven[1].since = Instant::now();
        assert_eq!(door.dispensable(), Some(2), "who has spoken has more time");
        door.send_away(2);
        assert_eq!(door.wasted[&IpAddr::from([10, 0, 0, 2])], 2);
        assert!(door.refusals().contains("10.0.0.2:1 did not prove itself"), "{door:?}");
    }

    /// RV-4: addresses are counted in bounded memory, those that were counted still.
    #[test]
    fn not_more_addresses_are_counted_than_there_is_room_for() {
        let (mut door, address) = door(Instant::now() + Duration::from_secs(60));
        let _stranger = TcpStream::connect(address).unwrap();
        look_until(&mut door, |door, _| !door.unproven.is_empty());
        let mut stranger = door.unproven.remove(0);
        for number in (0..2 * COUNTED as u32).chain([0]) {
            stranger.address = (IpAddr::from(number.to_be_bytes()), 1).into();
            door.refuse(&stranger, "said nothing");
        }
        assert_eq!((door.wasted.len(), door.wasted[&IpAddr::from([0; 4])]), (COUNTED, 2));
        assert_eq!((door.refused.len(), door.more), (KEPT, 2 * COUNTED + 1 - KEPT));
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
