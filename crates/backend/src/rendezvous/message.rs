//! The messages of two processes that trust each other.
//!
//! Law: every message fits into [`MOST_PAYLOAD`] bytes, whatever it is about; longer contributions go in
//! parts. Decoding takes any bytes: it gives the one message they stand for, or refuses them, and keeps no
//! more than it was given.

use std::sync::Arc;

use super::board::Topic;
use super::wire::{Reader, Truncated, Writer};
use warpweft_base::id::RankId;

/// Bytes of a contribution in one message.
pub(super) const PART: usize = 1 << 20;

/// Bytes of a message without kind, length and tag.
pub(super) const MOST_PAYLOAD: usize = PART + 64;

/// Bytes of a text.
const MOST_TEXT: usize = 16 << 10;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The sender lives.
    Beat,
    /// The world is whole: ranks of every process, in the order of processes.
    Welcome(Vec<u32>),
    /// A part of what a rank contributes to a topic.
    Part { topic: Topic, rank: RankId, last: bool, bytes: Arc<[u8]> },
    /// A rank comes to no meeting any more.
    Left { rank: RankId, reason: String },
    /// How far a rank is, for people.
    Standing { rank: RankId, text: String },
    /// The world has ended.
    Ended { reason: String },
    /// The sender says nothing any more, in good order.
    Bye,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes that are no message")]
pub(super) struct Malformed;

impl From<Truncated> for Malformed {
    fn from(_: Truncated) -> Self {
        Self
    }
}

impl Message {
    /// Its kind, for the header.
    pub(super) const fn kind(&self) -> u8 {
        match self {
            Self::Beat => 0,
            Self::Welcome(_) => 1,
            Self::Part { .. } => 2,
            Self::Left { .. } => 3,
            Self::Standing { .. } => 4,
            Self::Ended { .. } => 5,
            Self::Bye => 6,
        }
    }

    /// Everything but its kind. Texts are cut.
    pub(super) fn payload(&self, into: &mut Writer) {
        match self {
            Self::Beat | Self::Bye => {}
            Self::Welcome(ranks) => {
                for ranks in ranks {
                    into.number(*ranks);
                }
            }
            Self::Part { topic, rank, last, bytes } => {
                into.byte(*topic as u8).number(rank.number()).byte(u8::from(*last)).raw(bytes);
            }
            Self::Left { rank, reason: text } | Self::Standing { rank, text } => {
                into.number(rank.number()).raw(cut(text).as_bytes());
            }
            Self::Ended { reason } => {
                into.raw(cut(reason).as_bytes());
            }
        }
    }

    /// The message of this kind that `payload` stands for.
    pub(super) fn decode(kind: u8, payload: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(payload);
        let text = |bytes| std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed);
        let message = match kind {
            0 => Self::Beat,
            1 => {
                let (numbers, rest) = reader.rest().as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(Malformed);
                }
                Self::Welcome(numbers.iter().map(|number| u32::from_le_bytes(*number)).collect())
            }
            2 => Self::Part {
                topic: Topic::from_number(reader.byte()?).ok_or(Malformed)?,
                rank: RankId::new(reader.number()?),
                last: match reader.byte()? {
                    0 => false,
                    1 => true,
                    _ => return Err(Malformed),
                },
                bytes: reader.rest().into(),
            },
            3 => Self::Left { rank: RankId::new(reader.number()?), reason: text(reader.rest())? },
            4 => Self::Standing { rank: RankId::new(reader.number()?), text: text(reader.rest())? },
            5 => Self::Ended { reason: text(reader.rest())? },
            6 => Self::Bye,
            _ => return Err(Malformed),
        };
        reader.end()?;
        Ok(message)
    }
}

/// As much of a text as a message carries: at most 16 KiB.
pub fn cut(text: &str) -> &str {
    let mut end = text.len().min(MOST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let rank = || any::<u32>().prop_map(RankId::new);
        let topic = (0..Topic::COUNT).prop_map(|number| Topic::from_number(number).unwrap());
        prop_oneof![
            Just(Message::Beat),
            Just(Message::Bye),
            any::<Vec<u32>>().prop_map(Message::Welcome),
            (topic, rank(), any::<bool>(), any::<Vec<u8>>()).prop_map(|(topic, rank, last, bytes)| {
                Message::Part { topic, rank, last, bytes: bytes.into() }
            }),
            (rank(), any::<String>()).prop_map(|(rank, reason)| Message::Left { rank, reason }),
            (rank(), any::<String>()).prop_map(|(rank, text)| Message::Standing { rank, text }),
            any::<String>().prop_map(|reason| Message::Ended { reason }),
        ]
    }

    proptest! {
        /// RV-4.
        #[test]
        fn a_message_is_read_as_it_was_written(message in message()) {
            let mut writer = Writer::default();
            message.payload(&mut writer);
            prop_assert_eq!(Message::decode(message.kind(), &writer.take()), Ok(message));
        }

        /// RV-4: any bytes are one message or none; what is read is written as it came.
        #[test]
        fn any_bytes_are_a_message_or_refused(kind in 0_u8..9, bytes in any::<Vec<u8>>()) {
            if let Ok(message) = Message::decode(kind, &bytes) {
                let mut writer = Writer::default();
                message.payload(&mut writer);
                prop_assert_eq!((message.kind(), writer.take()), (kind, bytes));
            }
        }
    }

    #[test]
    fn the_longest_of_every_kind_fits_into_a_message() {
        let (rank, long) = (RankId::new(0), "é".repeat(MOST_PAYLOAD));
        let bytes = vec![0; PART].into();
        for message in [
            Message::Welcome(vec![0; super::super::environment::MOST_PROCESSES as usize]),
            Message::Part { topic: Topic::Reports, rank, last: true, bytes },
            Message::Left { rank, reason: long.clone() },
            Message::Ended { reason: long },
        ] {
            let mut writer = Writer::default();
            message.payload(&mut writer);
            assert!(writer.take().len() <= MOST_PAYLOAD);
        }
    }
}
