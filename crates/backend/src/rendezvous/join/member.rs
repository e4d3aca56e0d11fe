//! The beginning as every other process sees it: it connects, is let in, and waits for the word that the
//! world begins.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::{Joined, PAUSE, name, split};
use crate::rendezvous::door::PATIENCE;
use crate::rendezvous::handshake::{self, Claim, Seals};
use crate::rendezvous::link::Connection;
use crate::rendezvous::message::Message;
use crate::rendezvous::timed::Timed;
use crate::rendezvous::{ProcessEnvironment, RendezvousError, Secret, sealed};
use warpweft_base::errors::shown_text;
use warpweft_base::id::ProcessId;

/// Comes to the process of rank 0 and waits for its word.
pub(super) fn member(
    environment: &ProcessEnvironment,
    claim: Claim,
    secret: &Secret,
    deadline: Duration,
    until: Instant,
) -> Result<Joined, RendezvousError> {
    let place = environment.place();
    let (stream, Seals { mut from_host, to_host }) = greet(environment, claim, secret, deadline, until)?;
    // The host began no later than this process was let in, and knows at its deadline who is missing.
    let until = Instant::now() + deadline + PATIENCE * 2;
    let silent = |error: io::Error| RendezvousError::NotReached {
        address: place.clone(),
        deadline,
        reason: format!("it let this process in and then said nothing ({error})"),
    };
    let ranges = match sealed::read(Timed::new(&stream, until), &mut from_host).map_err(silent)? {
        Message::Welcome(ranks) => split(&ranks)?,
        Message::Ended { reason } => {
            return Err(RendezvousError::OtherProcess { reason: shown_text(reason) });
        }
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

/// Connects and is let in. Who is hung up on tries again for a while: it may have had to make place at a door
/// full of strangers. Once nobody listens any more, that was another program (a launcher that looks for a free
/// port listens there itself for a moment), and the host may still come.
fn greet(
    environment: &ProcessEnvironment,
    claim: Claim,
    secret: &Secret,
    deadline: Duration,
    until: Instant,
) -> Result<(TcpStream, Seals), RendezvousError> {
    let place = environment.place();
    let mut patience = None;
    let mut turned_away = String::new();
    loop {
        let left = patience.unwrap_or(until).saturating_duration_since(Instant::now());
        let error = match knock(environment, left) {
            Ok(stream) => {
                let patient = until.max(Instant::now() + PAUSE);
                match handshake::greet(Timed::new(&stream, patient), claim, secret, &place) {
                    Ok(seals) => return Ok((stream, seals)),
                    Err(error @ RendezvousError::Stranger { .. }) => {
                        patience.get_or_insert_with(|| until.min(Instant::now() + PATIENCE));
                        turned_away = format!("; before that: {error}");
                        error
                    }
                    Err(error) => return Err(error),
                }
            }
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    patience = None;
                }
                let reason = format!("{error}{turned_away}");
                RendezvousError::NotReached { address: place.clone(), deadline, reason }
            }
        };
        if Instant::now() >= patience.unwrap_or(until) {
            return Err(error);
        }
        std::thread::sleep(PAUSE * 5);
    }
}

/// Tries once to connect to whoever listens where the host should. Of a name with several addresses, that one
/// refused says more than that another cannot be reached.
fn knock(environment: &ProcessEnvironment, left: Duration) -> io::Result<TcpStream> {
    let mut silence = io::Error::other("the name has no address");
    for address in (environment.address.as_str(), environment.port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left.clamp(PAUSE, PATIENCE)) {
            // A socket may be given the very port it knocks at, and then answers itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                silence = io::Error::new(io::ErrorKind::ConnectionRefused, "nobody listens");
            }
            Ok(stream) => return Ok(stream),
            Err(_) if silence.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(error) => silence = error,
        }
    }
    Err(silence)
}
