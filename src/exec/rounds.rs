//! Ranks that work for long and wait for each other meanwhile.
//!
//! Law: who is done waits in rounds, to which who is not comes between two pieces of its work. So nobody waits
//! past the deadline for a sign of life (RV-2), however long the work takes, and a rank that stands still in one
//! piece is named at the deadline, with what it was doing. At the end every rank knows how each of them ended.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::parts::Refusal;
use super::world::{failed, misfit};
use super::{ExecError, World};
use crate::id::RankId;
use crate::rendezvous::{Reader, Topic, Truncated, Writer};

/// The part of the deadline after which a rank that works comes to a round.
const PART_OF_DEADLINE: u32 = 4;

/// What a rank says in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Works,
    Done(u64),
    Refuses(String),
}

/// One rank's way through the rounds.
pub(super) struct Paces<'w> {
    world: &'w World,
    rank: RankId,
    every: Duration,
    last: Cell<Instant>,
}

impl<'w> Paces<'w> {
    /// Of a rank that says that it does `doing`, until this is dropped.
    pub(super) fn new(world: &'w World, rank: RankId, doing: &str) -> Self {
        world.stand(rank, doing);
        let every = world.rendezvous().deadline() / PART_OF_DEADLINE;
        Self { world, rank, every, last: Cell::new(Instant::now()) }
    }

    /// Comes to a round if one is due. Called between two pieces of work.
    ///
    /// # Errors
    /// The end of the world.
    pub(super) fn alive(&self) -> Result<(), ExecError> {
        if self.last.get().elapsed() < self.every { Ok(()) } else { self.round(&Said::Works).map(drop) }
    }

    /// Says how the work ended, waits for all others, and gives the number of each, or the first that refuses.
    ///
    /// # Errors
    /// The end of the world.
    pub(super) fn agree(&self, own: Result<u64, String>) -> Result<Result<Vec<u64>, Refusal>, ExecError> {
        let own = own.map_or_else(Said::Refuses, Said::Done);
        let all = loop {
            let all = self.round(&own)?;
            if !all.contains(&Said::Works) {
                break all;
            }
        };
        let ended = all.into_iter().enumerate().map(|(rank, said)| match said {
            Said::Refuses(reason) => Err((RankId::at(rank), reason)),
            Said::Done(number) => Ok(number),
            Said::Works => Ok(0),
        });
        Ok(ended.collect())
    }

    fn round(&self, own: &Said) -> Result<Vec<Said>, ExecError> {
        let failed = |error| failed(self.rank, error);
        let all = self.world.rendezvous().exchange(self.rank, Topic::Paces, &encode(own)).map_err(failed)?;
        self.last.set(Instant::now());
        all.iter().map(|bytes| decode(bytes).map_err(|_| failed(misfit("how a part ended")))).collect()
    }
}

impl Drop for Paces<'_> {
    fn drop(&mut self) {
        self.world.stand(self.rank, "");
    }
}

fn encode(said: &Said) -> Vec<u8> {
    let mut writer = Writer::default();
    match said {
        Said::Works => writer.byte(0),
        Said::Done(number) => writer.byte(1).long(*number),
        Said::Refuses(reason) => writer.byte(2).list(reason.as_bytes()),
    };
    writer.take()
}

fn decode(bytes: &[u8]) -> Result<Said, Truncated> {
    let mut reader = Reader::new(bytes);
    let said = match reader.byte()? {
        0 => Said::Works,
        1 => Said::Done(reader.long()?),
        2 => Said::Refuses(reader.text()?),
        _ => return Err(Truncated),
    };
    reader.end()?;
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(2);

    /// What two ranks hear, of which the second works for so many pieces of 100 ms before it ends so.
    fn heard(
        pieces: u32,
        alive: bool,
        ends: Result<u64, String>,
    ) -> Vec<Result<Result<Vec<u64>, Refusal>, String>> {
        let world = World::new(2, DEADLINE);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let paces = Paces::new(&world, RankId::new(1), "it writes");
                for _ in 0..pieces {
                    std::thread::sleep(Duration::from_millis(100));
                    if alive {
                        paces.alive()?;
                    }
                }
                paces.agree(ends)
            });
            let first = Paces::new(&world, RankId::new(0), "it writes").agree(Ok(7));
            [first, other.join().unwrap()].map(|heard| heard.map_err(|error| error.to_string())).to_vec()
        })
    }

    /// RV-2.
    #[test]
    fn a_rank_that_works_for_several_deadlines_is_waited_for_as_long_as_it_gives_signs_of_life() {
        assert_eq!(heard(30, true, Ok(8)), vec![Ok(Ok(vec![7, 8])); 2]);
        let refusal = (RankId::new(1), "the disk is full".to_owned());
        assert_eq!(heard(0, true, Err(refusal.1.clone())), vec![Ok(Err(refusal)); 2]);
        // Who comes too late still finds what the others said; it hears of the end in its next round.
        let reason = heard(30, false, Ok(8)).swap_remove(0).unwrap_err();
        assert!(reason.contains("rank 1 did not come") && reason.contains("it writes"), "{reason}");
    }

    #[test]
    fn what_is_said_arrives_and_what_is_torn_is_refused() {
        for said in [Said::Works, Said::Done(u64::MAX), Said::Refuses("é".to_owned())] {
            let bytes = encode(&said);
            assert_eq!(decode(&bytes), Ok(said));
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), Err(Truncated));
            }
        }
        assert_eq!(decode(&[3]), Err(Truncated));
    }
}
