//! The beginning as the process of rank 0 sees it: it listens, lets the others in, and says to all that the
//! world begins or why not.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::{Joined, PAUSE, name, split};
use crate::rendezvous::door::{Door, Guest, PATIENCE};
use crate::rendezvous::handshake::{Claim, Seals};
use crate::rendezvous::link::Connection;
use crate::rendezvous::message::Message;
use crate::rendezvous::timed::Timed;
use crate::rendezvous::{ProcessEnvironment, RendezvousError, Secret, sealed};
use warpweft_base::id::ProcessId;

/// Connections that wait to be accepted; the system may allow fewer. Where more knock between two looks, they try again
/// after a second or more, and among them may be a member.
const QUEUE: i32 = 4096;

/// Waits for all others and begins the world.
pub(super) fn host(
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

/// Tells everybody who came why no world begins, or why one that some got word of ends.
fn give_up(guests: &mut [Guest], error: RendezvousError) -> RendezvousError {
    let farewell = Message::Ended { reason: error.to_string() };
    let until = Instant::now() + PATIENCE;
    // Whether one receives it changes nothing for the others.
    guests.iter_mut().for_each(|guest| drop(tell(guest, &farewell, until)));
    error
}

/// Starts the world on every process, or on none: whoever got word that it began gets word that it ended.
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
    // Once more, with a longer queue than std requests.
    rustix::net::listen(&listener, QUEUE).map_err(|error| failed(error.into()))?;
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
        for guest in door.look() {
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
            "{} (at {address}) was given {} processes and process 0 of {}; WORLD_SIZE must be the same everywhere",
            claim.process, claim.processes, own.processes
        )
    } else if claim.process.number() == 0 || claim.process.number() >= own.processes {
        format!("a process at {address} was set up as {} of {}", claim.process, own.processes)
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
    // Whether it receives this changes nothing for the others.
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

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpStream};

    use super::*;
    use crate::rendezvous::sealed::{Seal, keys};

    /// A process that was let in, and what it has: its end and the key of what it receives.
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
