//! How processes become a world: the process of rank 0 listens, the others connect, and all begin together.
//!
//! Laws:
//! - **RV-2** a process that is missing at the deadline is named on every process that came, and so is whoever was refused.
//! - A process that came is never left without a word: it is told that the world begins, and with whom, or why it does not.
//! - Processes that came and contradict each other (another number of processes, one process twice) end the beginning at once.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::door::{Door, Guest, PATIENCE};
use super::environment::MOST_PROCESSES;
use super::handshake::{self, Claim, Seals};
use super::link::Connection;
use super::message::Message;
use super::timed::Timed;
use super::{ProcessEnvironment, RendezvousError, Secret, sealed};
use crate::id::{ProcessId, RankId};

/// A pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A world as it begins.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) ranks: usize,
    pub(super) own: Range<usize>,
    pub(super) connections: Vec<Connection>,
}

/// Waits until all processes have come.
pub(super) fn join(
    environment: &ProcessEnvironment,
    ranks: u32,
    secret: Option<&Secret>,
    deadline: Duration,
) -> Result<Joined, RendezvousError> {
    let (process, processes) = (environment.process, environment.processes);
    if !(1..=MOST_PROCESSES).contains(&ranks) || process.number() >= processes {
        let reason = format!("{process} of {processes} owns {ranks} ranks");
        return Err(RendezvousError::Contradiction { reason });
    }
    if processes == 1 {
        return Ok(Joined { ranks: ranks as usize, own: 0..ranks as usize, connections: Vec::new() });
    }
    let secret = secret.ok_or_else(|| RendezvousError::Secret {
        reason: format!("this is {process} of {processes}, and they have no secret to know each other by"),
    })?;
    let claim = Claim { process, processes, ranks };
    let until = Instant::now() + deadline;
    if process.number() == 0 {
        host(environment, claim, secret, deadline, until)
    } else {
        member(environment, claim, secret, deadline, until)
    }
}

/// Positions of the ranks of each process.
fn split(ranks: &[u32]) -> Result<Vec<Range<usize>>, RendezvousError> {
    let mut end = 0;
    let ranges: Vec<_> = ranks
        .iter()
        .map(|ranks| {
            let begin = end;
            end += *ranks as usize;
            begin..end
        })
        .collect();
    if end > MOST_PROCESSES as usize || ranks.contains(&0) {
        let reason = format!(
            "together they own {end} ranks; each owns one at least, and all at most {MOST_PROCESSES}"
        );
        return Err(RendezvousError::Contradiction { reason });
    }
    Ok(ranges)
}

fn name(process: ProcessId, ranks: &Range<usize>, address: &str) -> String {
    let first = RankId::at(ranks.start);
    match ranks.len() {
        1 => format!("{process} ({first}, at {address})"),
        _ => format!("{process} ({first} to {}, at {address})", RankId::at(ranks.end.saturating_sub(1))),
    }
}

fn host(
    environment: &ProcessEnvironment,
    claim: Claim,
    secret: &Secret,
    deadline: Duration,
    until: Instant,
) -> Result<Joined, RendezvousError> {
    let mut door = Door::new(listen(environment)?, secret, until);
    let mut guests = Vec::new();
    match receive_all(&mut door, claim, &mut guests, deadline, until) {
        Ok(ranges) => begin(guests, &ranges, deadline),
        Err(error) => Err(give_up(&mut guests, error)),
    }
}

/// Tells everybody who came why no world begins, or why one that some have heard of ends.
fn give_up(guests: &mut [Guest], error: RendezvousError) -> RendezvousError {
    let farewell = Message::Ended { reason: error.to_string() };
    let until = Instant::now() + PATIENCE;
    // Whether one hears it changes nothing for the others.
    guests.iter_mut().for_each(|guest| drop(tell(guest, &farewell, until)));
    error
}

/// Starts the world on every process, or on none: whoever has heard that it began hears that it ended.
fn begin(
    mut guests: Vec<Guest>,
    ranges: &[Range<usize>],
    deadline: Duration,
) -> Result<Joined, RendezvousError> {
    let counts = ranges.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).collect();
    let welcome = Message::Welcome(counts);
    let title = |guest: &Guest| {
        let process = guest.claim.process;
        name(process, &ranges[process.index()], &guest.address)
    };
    let until = Instant::now() + PATIENCE;
    let broken = guests.iter_mut().find_map(|guest| match tell(guest, &welcome, until) {
        Ok(()) => None,
        Err(error) => Some(RendezvousError::Incomplete {
            missing: title(guest),
            deadline,
            refused: format!("; it came and its connection broke ({error})"),
        }),
    });
    if let Some(error) = broken {
        return Err(give_up(&mut guests, error));
    }
    let connection = |guest: Guest| {
        let name = title(&guest);
        let Guest { claim, seals: Seals { from_host: out, to_host: into }, stream, .. } = guest;
        let speakers = vec![ranges[claim.process.index()].clone()];
        Connection { stream, process: claim.process, name, speakers, relays: true, out, into }
    };
    let connections = guests.into_iter().map(connection).collect();
    let ranks = ranges.last().map_or(0, |range| range.end);
    Ok(Joined { ranks, own: ranges[0].clone(), connections })
}

fn tell(guest: &mut Guest, message: &Message, until: Instant) -> io::Result<()> {
    guest.stream.set_nonblocking(false)?;
    sealed::write(Timed::new(&guest.stream, until), &mut guest.seals.from_host, message)
}

fn listen(environment: &ProcessEnvironment) -> Result<TcpListener, RendezvousError> {
    let failed = |error: io::Error| {
        RendezvousError::Listen {
        address: environment.place(),
        reason: match error.kind() {
            io::ErrorKind::AddrInUse => "the port is in use, by another process that was started as number 0 or by another program; choose another MASTER_PORT".to_owned(),
            _ => format!("{error}; MASTER_ADDR must name the host of this process"),
        },
    }
    };
    // Who names the loopback means this machine alone; any other name may stand for several addresses of it.
    let literal = environment.address.parse::<IpAddr>().ok();
    let is_local = literal.is_some_and(|address| address.is_loopback()) || environment.address == "localhost";
    let resolved = (environment.address.as_str(), environment.port).to_socket_addrs().map_err(failed)?;
    let mut outcome = Err(failed(io::Error::other("the name has no address")));
    for address in resolved {
        let unspecified: IpAddr = if address.is_ipv6() { [0_u16; 8].into() } else { [0_u8; 4].into() };
        let address = if is_local { address } else { SocketAddr::new(unspecified, address.port()) };
        outcome = TcpListener::bind(address).map_err(failed);
        if outcome.is_ok() {
            break;
        }
    }
    let listener = outcome?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Lets the other processes in, and returns the ranks of each process.
fn receive_all(
    door: &mut Door,
    own: Claim,
    guests: &mut Vec<Guest>,
    deadline: Duration,
    until: Instant,
) -> Result<Vec<Range<usize>>, RendezvousError> {
    loop {
        for guest in door.look()? {
            admit(own, guest, guests)?;
        }
        if let Some(gone) = guests.iter().find(|guest| has_gone(guest)) {
            let (process, address) = (gone.claim.process, &gone.address);
            let reason = format!("{process} (at {address}) ended before all had come; see its own output");
            return Err(RendezvousError::Contradiction { reason });
        }
        if guests.len() + 1 == own.processes as usize {
            let mut ranks = vec![own.ranks; own.processes as usize];
            guests.iter().for_each(|guest| ranks[guest.claim.process.index()] = guest.claim.ranks);
            return split(&ranks);
        }
        if Instant::now() >= until {
            let has_come = |process: &ProcessId| guests.iter().any(|guest| guest.claim.process == *process);
            let missing = (1..own.processes).map(ProcessId::new).filter(|process| !has_come(process));
            let missing: Vec<String> = missing.map(|process| process.to_string()).collect();
            return Err(RendezvousError::Incomplete {
                missing: missing.join(", "),
                deadline,
                refused: door.refusals(),
            });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Takes in a process that proved itself, if it fits to the others.
fn admit(own: Claim, guest: Guest, guests: &mut Vec<Guest>) -> Result<(), RendezvousError> {
    let (claim, address) = (guest.claim, &guest.address);
    let other = guests.iter().find(|other| other.claim.process == claim.process);
    let reason = if claim.processes != own.processes {
        format!(
            "{} (at {address}) was told of {} processes and process 0 of {}; WORLD_SIZE must be the same everywhere",
            claim.process, claim.processes, own.processes
        )
    } else if claim.process.number() == 0 || claim.process.number() >= own.processes {
        format!("a process at {address} was told to be {} of {}", claim.process, own.processes)
    } else if let Some(other) = other {
        let first = &other.address;
        format!(
            "{} came twice, from {first} and from {address}; RANK must differ between processes",
            claim.process
        )
    } else {
        guests.push(guest);
        return Ok(());
    };
    let error = RendezvousError::Contradiction { reason };
    let mut guest = guest;
    // Whether it hears this changes nothing for the others.
    let farewell = Message::Ended { reason: error.to_string() };
    let _ = tell(&mut guest, &farewell, Instant::now() + PATIENCE);
    Err(error)
}

/// Has a process hung up that should be waiting?
fn has_gone(guest: &Guest) -> bool {
    match guest.stream.peek(&mut [0]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != io::ErrorKind::WouldBlock,
    }
}

fn member(
    environment: &ProcessEnvironment,
    claim: Claim,
    secret: &Secret,
    deadline: Duration,
    until: Instant,
) -> Result<Joined, RendezvousError> {
    let place = environment.place();
    let (stream, Seals { mut from_host, to_host }) = greet(environment, claim, secret, deadline, until)?;
    // The host began no later than this process was let in, and knows at its deadline who is missing.
    let until = Instant::now() + deadline + PATIENCE / 2;
    let silent = |error: io::Error| RendezvousError::NotReached {
        address: place.clone(),
        deadline,
        reason: format!("it let this process in and then said nothing ({error})"),
    };
    let ranges = match sealed::read(Timed::new(&stream, until), &mut from_host).map_err(silent)? {
        Message::Welcome(ranks) => split(&ranks)?,
        Message::Ended { reason } => return Err(RendezvousError::Told { reason }),
        _ => return Err(silent(io::Error::other("an unexpected message"))),
    };
    let (Some(own), Some(first), Some(last)) =
        (ranges.get(claim.process.index()), ranges.first(), ranges.last())
    else {
        return Err(silent(io::Error::other("a world without this process")));
    };
    if own.len() != claim.ranks as usize {
        return Err(silent(io::Error::other("a world with another number of ranks")));
    }
    let connection = Connection {
        stream,
        process: ProcessId::new(0),
        name: name(ProcessId::new(0), first, &place),
        speakers: vec![0..own.start, own.end..last.end],
        relays: false,
        out: to_host,
        into: from_host,
    };
    Ok(Joined { ranks: last.end, own: own.clone(), connections: vec![connection] })
}

/// Connects and is let in. Who is hung up on tries again for a while: it may have had to make place at a door full of strangers.
fn greet(
    environment: &ProcessEnvironment,
    claim: Claim,
    secret: &Secret,
    deadline: Duration,
    until: Instant,
) -> Result<(TcpStream, Seals), RendezvousError> {
    let place = environment.place();
    let mut refusal = None;
    let mut last = until;
    loop {
        let stream = match reach(environment, deadline, last) {
            Ok(stream) => stream,
            Err(error) => return Err(refusal.unwrap_or(error)),
        };
        let patient = until.max(Instant::now() + PAUSE);
        match handshake::greet(Timed::new(&stream, patient), claim, secret, &place) {
            Ok(seals) => return Ok((stream, seals)),
            Err(error @ RendezvousError::Stranger { .. }) => {
                if refusal.is_none() {
                    last = until.min(Instant::now() + PATIENCE);
                }
                if Instant::now() >= last {
                    return Err(error);
                }
                refusal = Some(error);
                std::thread::sleep(PAUSE * 5);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Tries to connect until somebody listens.
fn reach(
    environment: &ProcessEnvironment,
    deadline: Duration,
    until: Instant,
) -> Result<TcpStream, RendezvousError> {
    let place = environment.place();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let mut last = io::Error::other("the name has no address");
        match (environment.address.as_str(), environment.port).to_socket_addrs() {
            Err(error) => last = error,
            Ok(addresses) => {
                for address in addresses {
                    match TcpStream::connect_timeout(&address, left.clamp(PAUSE, PATIENCE)) {
                        // A socket may be given the very port it knocks at, and then answers itself.
                        Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                            last = io::Error::other("nobody listens");
                        }
                        Ok(stream) => return Ok(stream),
                        Err(error) => last = error,
                    }
                }
            }
        }
        if Instant::now() >= until {
            return Err(RendezvousError::NotReached { address: place, deadline, reason: last.to_string() });
        }
        std::thread::sleep(PAUSE * 5);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Shutdown;

    use super::*;
    use crate::rendezvous::sealed::{Seal, keys};

    /// A process that was let in, and what it has: its end and the key of what it hears.
    fn guest(process: u32) -> (Guest, TcpStream, Seal) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (stream, address) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let secret = Secret::new("a secret of tests").unwrap();
        let [from_host, to_host] = keys(&secret, &[]);
        let [heard, _] = keys(&secret, &[]);
        let claim = Claim { process: ProcessId::new(process), processes: 4, ranks: 1 };
        let seals = Seals { from_host, to_host };
        (Guest { claim, seals, stream, address: address.to_string() }, theirs, heard)
    }

    /// RV-2, RV-3: whether it was welcomed before or not.
    #[test]
    fn when_one_process_cannot_be_welcomed_all_others_are_told_which() {
        let (guests, mut ends): (Vec<_>, Vec<_>) = (1..4)
            .map(|process| {
                let (guest, stream, heard) = guest(process);
                (guest, (stream, heard))
            })
            .unzip();
        guests[1].stream.shutdown(Shutdown::Write).unwrap();
        let ranges: Vec<_> = (0..4).map(|rank| rank..rank + 1).collect();
        let error = begin(guests, &ranges, Duration::from_secs(77)).unwrap_err().to_string();
        for part in ["process 2 (rank 2", "within 77s", "connection broke"] {
            assert!(error.contains(part), "{error}");
        }
        let ended = Message::Ended { reason: error };
        let (first, heard) = &mut ends[0];
        assert_eq!(sealed::read(&*first, heard).unwrap(), Message::Welcome(vec![1; 4]));
        assert_eq!(sealed::read(&*first, heard).unwrap(), ended);
        let (last, heard) = &mut ends[2];
        assert_eq!(sealed::read(&*last, heard).unwrap(), ended, "it does not report a killed process 0");
    }
}
