//! How processes become a world: the process of rank 0 listens, the others connect, and all begin together.
//!
//! Laws:
//! - **RV-2** a process that is missing at the deadline is named on every process that came, and so is whoever was refused.
//! - A stranger who connects is refused and does not hold up anybody: handshakes have threads and time limits of their own.
//! - Processes that came and contradict each other (another number of processes, one process twice) end the beginning at once.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::environment::MOST_PROCESSES;
use super::handshake::{self, Claim, Seals};
use super::link::Connection;
use super::message::Message;
use super::{ProcessEnvironment, RendezvousError, Secret, sealed};
use crate::id::{ProcessId, RankId};

/// A pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long whoever connects may take to prove itself.
const PATIENCE: Duration = Duration::from_secs(5);
/// Handshakes at the same time; whoever comes then waits in the system's queue.
const AT_ONCE: usize = 64;
/// Refusals that are kept for the error.
const KEPT: usize = 8;

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

/// A process that was let in and waits for the others.
#[derive(Debug)]
struct Guest {
    claim: Claim,
    seals: Seals,
    stream: TcpStream,
    address: String,
}

fn host(
    environment: &ProcessEnvironment,
    claim: Claim,
    secret: &Secret,
    deadline: Duration,
    until: Instant,
) -> Result<Joined, RendezvousError> {
    let listener = listen(environment)?;
    let mut guests = Vec::new();
    match receive_all(&listener, claim, secret, &mut guests, deadline, until) {
        Ok(ranges) => begin(guests, &ranges),
        Err(error) => {
            let farewell = Message::Ended { reason: error.to_string() };
            guests.iter_mut().for_each(|guest| drop(tell(guest, &farewell)));
            Err(error)
        }
    }
}

/// Starts the world on every process.
fn begin(guests: Vec<Guest>, ranges: &[Range<usize>]) -> Result<Joined, RendezvousError> {
    let counts = ranges.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).collect();
    let welcome = Message::Welcome(counts);
    let mut connections = Vec::new();
    for mut guest in guests {
        let (process, ranks) = (guest.claim.process, ranges[guest.claim.process.index()].clone());
        let name = name(process, &ranks, &guest.address);
        tell(&mut guest, &welcome).map_err(|error| RendezvousError::Incomplete {
            missing: name.clone(),
            deadline: PATIENCE,
            refused: format!("; it came and its connection broke ({error})"),
        })?;
        let Guest { seals: Seals { from_host: out, to_host: into }, stream, .. } = guest;
        connections.push(Connection {
            stream,
            process,
            name,
            speakers: vec![ranks],
            relays: true,
            out,
            into,
        });
    }
    let ranks = ranges.last().map_or(0, |range| range.end);
    Ok(Joined { ranks, own: ranges[0].clone(), connections })
}

fn tell(guest: &mut Guest, message: &Message) -> io::Result<()> {
    guest.stream.set_nonblocking(false)?;
    guest.stream.set_write_timeout(Some(PATIENCE))?;
    sealed::write(&guest.stream, &mut guest.seals.from_host, message)
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
    listener: &TcpListener,
    own: Claim,
    secret: &Secret,
    guests: &mut Vec<Guest>,
    deadline: Duration,
    until: Instant,
) -> Result<Vec<Range<usize>>, RendezvousError> {
    let (results, arrived) = mpsc::channel();
    let (mut shaking, mut refused, mut overflow) = (0, Vec::new(), 0);
    loop {
        while shaking < AT_ONCE
            && let Ok((stream, address)) = listener.accept()
        {
            let (results, secret) = (results.clone(), secret.clone());
            let work = move || drop(results.send(shake(stream, address, &secret, until)));
            let thread = std::thread::Builder::new().name("warpweft handshake".to_owned()).spawn(work);
            thread
                .map_err(|error| RendezvousError::System { what: "a thread", reason: error.to_string() })?;
            shaking += 1;
        }
        while let Ok(result) = arrived.try_recv() {
            shaking -= 1;
            match result {
                Ok(guest) => admit(own, guest, guests)?,
                Err(refusal) if refused.len() < KEPT => refused.push(refusal),
                Err(_) => overflow += 1,
            }
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
                refused: refusals(&refused, overflow),
            });
        }
        std::thread::sleep(PAUSE);
    }
}

fn refusals(refused: &[String], more: usize) -> String {
    match (refused, more) {
        ([], _) => String::new(),
        (_, 0) => format!("; refused: {}", refused.join(", ")),
        _ => format!("; refused: {}, and {more} more", refused.join(", ")),
    }
}

fn shake(stream: TcpStream, address: SocketAddr, secret: &Secret, until: Instant) -> Result<Guest, String> {
    let limit = until.saturating_duration_since(Instant::now()).clamp(PAUSE, PATIENCE);
    let set = |stream: &TcpStream| {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))
    };
    let met = set(&stream).map_err(|error| error.to_string());
    let (claim, seals) =
        met.and_then(|()| handshake::receive(&stream, secret)).map_err(|why| format!("{address} {why}"))?;
    stream.set_nonblocking(true).map_err(|error| format!("{address} {error}"))?;
    Ok(Guest { claim, seals, stream, address: address.to_string() })
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
    let _ = tell(&mut guest, &Message::Ended { reason: error.to_string() });
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
    let broken =
        |error: io::Error| RendezvousError::System { what: "a connection", reason: error.to_string() };
    let stream = reach(environment, deadline, until)?;
    let left = until.saturating_duration_since(Instant::now()).max(PAUSE);
    stream.set_read_timeout(Some(left)).map_err(broken)?;
    stream.set_write_timeout(Some(left)).map_err(broken)?;
    let Seals { mut from_host, to_host } = handshake::greet(&stream, claim, secret, &place)?;
    // The host began no later than this process was let in, and knows at its deadline who is missing.
    stream.set_read_timeout(Some(deadline + PATIENCE / 2)).map_err(broken)?;
    let silent = |error: io::Error| RendezvousError::NotReached {
        address: place.clone(),
        deadline,
        reason: format!("it let this process in and then said nothing ({error})"),
    };
    let ranges = match sealed::read(&stream, &mut from_host).map_err(silent)? {
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
