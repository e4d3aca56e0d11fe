//! Authenticated messages on a connection.
//!
//! Laws:
//! - A message is kind, length, payload and a tag: a keyed hash over the message and its number in the
//!   stream, with a key of its own for each direction. So none is altered, repeated, left out or sent back.
//! - A reader keeps no more than [`MOST_PAYLOAD`] bytes at once, whatever a header says.

use std::io::{self, Read, Write};

use super::message::{MOST_PAYLOAD, Malformed, Message};
use super::secret::{PROOF, Secret};
use super::wire::Writer;

/// Bytes of a tag.
const TAG: usize = 16;

/// Bytes before the payload: kind and length.
const HEADER: usize = 5;

/// The key of one direction of one connection.
pub(super) struct Seal {
    key: Secret,
    /// Messages so far.
    number: u64,
}

impl Seal {
    pub(super) fn new(key: Secret) -> Self {
        Self { key, number: 0 }
    }

    /// The tag of the next message.
    fn next(&mut self, header: &[u8], payload: &[u8]) -> [u8; TAG] {
        let proof = self.key.proof("message", &[&self.number.to_le_bytes(), header, payload]);
        self.number += 1;
        let mut tag = [0; TAG];
        tag.copy_from_slice(&proof[..TAG]);
        tag
    }
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Seal({})", self.number)
    }
}

/// Writes one message.
pub(super) fn write(mut to: impl Write, seal: &mut Seal, message: &Message) -> io::Result<()> {
    let mut writer = Writer::default();
    message.payload(&mut writer);
    let payload = writer.take();
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let header = writer.byte(message.kind()).number(length).take();
    let tag = seal.next(&header, &payload);
    // One write, so that a small message is one packet.
    to.write_all(&writer.raw(&header).raw(&payload).raw(&tag).take())
}

/// Reads one message.
///
/// # Errors
/// What the connection says; [`io::ErrorKind::InvalidData`] for what is no message of the other end.
pub(super) fn read(mut from: impl Read, seal: &mut Seal) -> io::Result<Message> {
    let invalid = |words: &str| io::Error::new(io::ErrorKind::InvalidData, words.to_owned());
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let [kind, length @ ..] = header;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_PAYLOAD {
        return Err(invalid("a message longer than any is"));
    }
    let mut payload = vec![0; length];
    from.read_exact(&mut payload)?;
    let mut tag = [0; TAG];
    from.read_exact(&mut tag)?;
    let expected = seal.next(&header, &payload);
    // Looks at every byte, so that time tells nothing.
    if expected.iter().zip(tag).fold(0, |all, (one, other)| all | (one ^ other)) != 0 {
        return Err(invalid("a message with a wrong tag"));
    }
    Message::decode(kind, &payload).map_err(|error: Malformed| invalid(&error.to_string()))
}

/// The keys of both directions, from what both ends said at the beginning.
pub(super) fn keys(secret: &Secret, transcript: &[&[u8]]) -> [Seal; 2] {
    ["from the host", "to the host"].map(|purpose| {
        let key: [u8; PROOF] = secret.proof(purpose, transcript);
        Seal::new(Secret::derived(key))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seal() -> Seal {
        Seal::new(Secret::derived([7; PROOF]))
    }

    /// RV-4.
    #[test]
    fn a_message_is_neither_altered_nor_repeated() {
        let mut bytes = Vec::new();
        let message = Message::Ended { reason: "rank 1 died".into() };
        write(&mut bytes, &mut seal(), &message).unwrap();
        let mut reader = seal();
        assert_eq!(read(&bytes[..], &mut reader).unwrap(), message);
        assert!(read(&bytes[..], &mut reader).is_err(), "the same once more");
        for place in 0..bytes.len() {
            let mut altered = bytes.clone();
            altered[place] ^= 1;
            assert!(read(&altered[..], &mut seal()).is_err(), "byte {place}");
        }
        let mut other = Seal::new(Secret::derived([8; PROOF]));
        assert!(read(&bytes[..], &mut other).is_err(), "another key");
    }

    proptest! {
        /// RV-4: whatever comes is refused, in the memory of one message.
        #[test]
        fn noise_is_refused(bytes in any::<Vec<u8>>()) {
            prop_assert!(read(&bytes[..], &mut seal()).is_err());
        }
    }

    #[test]
    fn a_length_nothing_has_is_refused_before_memory_is_taken_for_it() {
        let bytes = Writer::default().byte(2).number(u32::MAX).take();
        let error = read(&bytes[..], &mut seal()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
