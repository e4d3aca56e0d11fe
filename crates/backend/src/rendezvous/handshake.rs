//! Mutual authentication of two processes.
//!
//! Laws:
//! - Three messages of fixed size: the member says who it is, the host proves that it holds the secret, the
//!   member proves the same. Each proof covers everything said before, both ends' fresh random bytes
//!   included.
//! - The version comes first and unsealed, so that two builds can tell each other apart.
//! - A member that does not believe the host answers with zeros, so that the host can say so.

use std::io::{self, Read, Write};

use super::RendezvousError;
use super::sealed::{Seal, keys};
use super::secret::{PROOF, Secret};
use super::wire::{Reader, Truncated, Writer};
use warpweft_base::id::ProcessId;

/// What the first bytes of either end say.
const MAGIC: [u8; 8] = *b"warpweft";
/// Of everything that processes say to each other.
const VERSION: u16 = 5;
const NONCE: usize = 32;
const HELLO: usize = MAGIC.len() + 2 + 3 * 4 + NONCE;
const REPLY: usize = MAGIC.len() + 2 + NONCE + PROOF;

/// What a member says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) process: ProcessId,
    pub(super) processes: u32,
    /// Ranks it owns.
    pub(super) ranks: u32,
}

/// The keys of a connection.
#[derive(Debug)]
pub(super) struct Seals {
    pub(super) from_host: Seal,
    pub(super) to_host: Seal,
}

fn fresh() -> io::Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

fn seals(secret: &Secret, hello: &[u8], nonce: &[u8]) -> Seals {
    let [from_host, to_host] = keys(secret, &[hello, nonce]);
    Seals { from_host, to_host }
}

/// The member's side. The connection has a time limit.
pub(super) fn greet(
    mut connection: impl Read + Write,
    claim: Claim,
    secret: &Secret,
    address: &str,
) -> Result<Seals, RendezvousError> {
    let stranger = |error: io::Error| RendezvousError::Stranger {
        address: address.to_owned(),
        reason: match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".to_owned(),
            io::ErrorKind::UnexpectedEof => "it hung up".to_owned(),
            _ => error.to_string(),
        },
    };
    let Claim { process, processes, ranks } = claim;
    let mut writer = Writer::default();
    writer.raw(&MAGIC).raw(&VERSION.to_le_bytes()).number(process.number()).number(processes).number(ranks);
    let hello = writer.raw(&fresh().map_err(stranger)?).take();
    connection.write_all(&hello).map_err(stranger)?;
    let mut reply = [0; REPLY];
    connection.read_exact(&mut reply).map_err(stranger)?;
    let malformed = |_: Truncated| stranger(io::Error::other("a reply that is none"));
    let mut reader = Reader::new(&reply);
    let magic: [u8; 8] = reader.fixed().map_err(malformed)?;
    let theirs = u16::from_le_bytes(reader.fixed().map_err(malformed)?);
    let nonce: [u8; NONCE] = reader.fixed().map_err(malformed)?;
    let proof: [u8; PROOF] = reader.fixed().map_err(malformed)?;
    if magic != MAGIC {
        return Err(stranger(io::Error::other("it says something else")));
    }
    if theirs != VERSION {
        return Err(RendezvousError::Version { address: address.to_owned(), theirs, ours: VERSION });
    }
    if !secret.admits(&proof, "host", &[&hello, &nonce]) {
        // Whether it receives this changes nothing here.
        let _ = connection.write_all(&[0; PROOF]);
        return Err(RendezvousError::WrongSecret { address: address.to_owned() });
    }
    let proof = secret.proof("member", &[&hello, &nonce]);
    connection.write_all(&proof).map_err(stranger)?;
    Ok(seals(secret, &hello, &nonce))
}

/// The host's side, as far as the member has spoken.
#[derive(Debug)]
pub(super) struct Handshake {
    heard: [u8; HELLO + PROOF],
    /// Bytes of it that have come.
    length: usize,
    /// What the reply to the first message had.
    nonce: Option<[u8; NONCE]>,
}

impl Handshake {
    pub(super) const fn new() -> Self {
        Self { heard: [0; HELLO + PROOF], length: 0, nonce: None }
    }

    /// One that has begun.
    #[cfg(test)]
    pub(super) const fn begun() -> Self {
        Self { nonce: Some([0; NONCE]), ..Self::new() }
    }

    /// Has the member's first message come, and been answered?
    pub(super) const fn has_begun(&self) -> bool {
        self.nonce.is_some()
    }

    /// Goes on with what has come on a connection that does not block; nothing while there is more to come.
    ///
    /// # Errors
    /// Why the one who came is not let in, in words.
    pub(super) fn go_on(
        &mut self,
        mut connection: impl Read + Write,
        secret: &Secret,
    ) -> Result<Option<(Claim, Seals)>, String> {
        let is_of_ours = self.fill(&mut connection, MAGIC.len())?;
        if is_of_ours && self.heard[..MAGIC.len()] != MAGIC {
            return Err("is not warpweft".to_owned());
        }
        if !self.fill(&mut connection, HELLO)? {
            return Ok(None);
        }
        let (hello, _) = self.heard.split_at(HELLO);
        let mut reader = Reader::new(&hello[MAGIC.len()..]);
        let short = |error: Truncated| error.to_string();
        let theirs = u16::from_le_bytes(reader.fixed().map_err(short)?);
        let process = ProcessId::new(reader.number().map_err(short)?);
        let processes = reader.number().map_err(short)?;
        let ranks = reader.number().map_err(short)?;
        let nonce = match self.nonce {
            Some(nonce) => nonce,
            None => {
                let nonce = fresh().map_err(|error| error.to_string())?;
                let mine = secret.proof("host", &[hello, &nonce]);
                let mut reply = Writer::default();
                let reply = reply.raw(&MAGIC).raw(&VERSION.to_le_bytes()).raw(&nonce).raw(&mine).take();
                // The first bytes of a connection have room in its buffer.
                connection.write_all(&reply).map_err(hung_up)?;
                *self.nonce.insert(nonce)
            }
        };
        if theirs != VERSION {
            return Err(format!(
                "claims to be {process} and speaks version {theirs}, this process {VERSION}"
            ));
        }
        if !self.fill(&mut connection, HELLO + PROOF)? {
            return Ok(None);
        }
        let (hello, proof) = self.heard.split_at(HELLO);
        if !proof.try_into().is_ok_and(|proof: &[u8; PROOF]| secret.admits(proof, "member", &[hello, &nonce]))
        {
            return Err(format!("claims to be {process} and holds another secret"));
        }
        Ok(Some((Claim { process, processes, ranks }, seals(secret, hello, &nonce))))
    }

    /// Reads until the first `wanted` bytes have come; false while they have not.
    fn fill(&mut self, connection: &mut impl Read, wanted: usize) -> Result<bool, String> {
        while self.length < wanted {
            match connection.read(&mut self.heard[self.length..wanted]) {
                Ok(0) => return Err(hung_up(io::ErrorKind::UnexpectedEof.into())),
                Ok(bytes) => self.length += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(hung_up(error)),
            }
        }
        Ok(true)
    }
}

fn hung_up(error: io::Error) -> String {
    format!("hung up ({error})")
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    const CLAIM: Claim = Claim { process: ProcessId::new(1), processes: 2, ranks: 3 };

    fn secret(text: &str) -> Secret {
        Secret::new(text).unwrap()
    }

    /// The host's side of a connection that blocks.
    fn receive(stream: TcpStream, secret: &Secret) -> Result<(Claim, Seals), String> {
        Handshake::new().go_on(stream, secret).map(Option::unwrap)
    }

    /// Both ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (other, _) = listener.accept().unwrap();
        for end in [&one, &other] {
            end.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        }
        (one, other)
    }

    fn meet(
        host: &'static str,
        member: &'static str,
    ) -> (Result<(Claim, Seals), String>, Result<Seals, RendezvousError>) {
        let (mine, theirs) = pair();
        let host = std::thread::spawn(move || receive(mine, &secret(host)));
        let member = greet(theirs, CLAIM, &secret(member), "here");
        (host.join().unwrap(), member)
    }

    /// RV-4.
    #[test]
    fn two_ends_with_one_secret_trust_each_other_and_have_the_same_keys() {
        let (host, member) = meet("the same secret!", "the same secret!");
        let (claim, mut host) = host.unwrap();
        let mut member = member.unwrap();
        assert_eq!(claim, CLAIM);
        use crate::rendezvous::{message::Message, sealed};
        let mut bytes = Vec::new();
        sealed::write(&mut bytes, &mut host.from_host, &Message::Bye).unwrap();
        assert_eq!(sealed::read(&bytes[..], &mut member.from_host).unwrap(), Message::Bye);
        assert!(sealed::read(&bytes[..], &mut member.to_host).is_err(), "each direction has its key");
    }

    /// RV-4.
    #[test]
    fn another_secret_is_named_on_both_ends() {
        let (host, member) = meet("the same secret!", "another secret!!");
        let refusal = host.unwrap_err();
        assert!(refusal.contains("process 1") && refusal.contains("another secret"), "{refusal}");
        assert_eq!(member.unwrap_err(), RendezvousError::WrongSecret { address: "here".into() });
    }

    #[test]
    fn another_version_is_named_on_both_ends() {
        let (mine, mut theirs) = pair();
        let host = std::thread::spawn(move || receive(mine, &secret("the same secret!")));
        let mut hello = [1; HELLO];
        hello[..8].copy_from_slice(&MAGIC);
        theirs.write_all(&hello).unwrap();
        let refusal = host.join().unwrap().unwrap_err();
        assert!(refusal.contains("version 257"), "{refusal}");
        let (mut mine, theirs) = pair();
        let mut reply = [2; REPLY];
        reply[..8].copy_from_slice(&MAGIC);
        mine.write_all(&reply).unwrap();
        let error = greet(theirs, CLAIM, &secret("the same secret!"), "here").unwrap_err();
        assert_eq!(error, RendezvousError::Version { address: "here".into(), theirs: 514, ours: VERSION });
    }

    #[test]
    fn somebody_else_is_told_from_a_process_of_ours() {
        let (mine, mut theirs) = pair();
        let host = std::thread::spawn(move || receive(mine, &secret("the same secret!")));
        theirs.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(host.join().unwrap().unwrap_err(), "is not warpweft");
        let (mut mine, theirs) = pair();
        mine.write_all(&[b'H'; REPLY]).unwrap();
        let error = greet(theirs, CLAIM, &secret("the same secret!"), "here").unwrap_err();
        assert!(matches!(error, RendezvousError::Stranger { .. }), "{error}");
        let (mine, theirs) = pair();
        drop(mine);
        let error = greet(theirs, CLAIM, &secret("the same secret!"), "here").unwrap_err();
        assert!(error.to_string().contains("not warpweft"), "{error}");
    }
}
