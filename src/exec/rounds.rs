//! Ranks that work for long and wait for each other meanwhile.
//!
//! Law: who is done waits in rounds, to which who is not comes between two pieces of its work. So nobody waits
//! past the deadline for a sign of life (RV-2), however long the work takes, and a rank that stands still in one
//! piece is named at the deadline, with what it was doing. At the end every rank knows how each of them ended.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::world::{failed, misfit};
use super::{ExecError, World};
use crate::id::RankId;
use crate::rendezvous::{Reader, Topic, Truncated, Writer};

/// The part of the deadline after which a rank that works comes to a round.
const PART_OF_DEADLINE: u32 = 4;

/// A rank that refuses, and why.
pub type Refusal = (RankId, String);

/// What a rank says in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Works,
    Done(u64),
    Refuses(String),
}

/// One rank's way through the rounds.
pub(super) struct Rounds<'w> {
    world: &'w World,
    rank: RankId,
    every: Duration,
    last: Cell<Instant>,
}

impl<'w> Rounds<'w> {
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
        loop {
            let ended = self.round(&own)?.into_iter().enumerate().map(|(rank, said)| match said {
                Said::Works => None,
                Said::Done(number) => Some(Ok(number)),
                Said::Refuses(reason) => Some(Err((RankId::at(rank), reason))),
            });
            if let Some(ended) = ended.collect::<Option<Vec<_>>>() {
                return Ok(ended.into_iter().collect());
            }
        }
    }

    fn round(&self, own: &Said) -> Result<Vec<Said>, ExecError> {
        let failed = |error| failed(self.rank, error);
        let all = self.world.rendezvous().exchange(self.rank, Topic::Work, &encode(own)).map_err(failed)?;
        self.last.set(Instant::now());
        all.iter().map(|bytes| decode(bytes).map_err(|_| failed(misfit("how a part ended")))).collect()
    }
}

impl Drop for Rounds<'_> {
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

    /// More than any test takes.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn of(world: &World, rank: u32) -> Rounds<'_> {
        Rounds::new(world, RankId::new(rank), "it writes")
    }

    /// RV-2: every sign of life is a round, after which who is done waits on.
    #[test]
    fn a_rank_that_works_is_waited_for_as_long_as_it_gives_signs_of_life() {
        for ends in [Ok(8), Err("the disk is full".to_owned())] {
            let world = World::new(2, DEADLINE);
            let [first, other] = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let mut rounds = of(&world, 1);
                    rounds.every = Duration::ZERO;
                    (0..3).try_for_each(|_| rounds.alive()).unwrap();
                    rounds.agree(ends.clone()).unwrap()
                });
                let rounds = of(&world, 0);
                assert_eq!(rounds.round(&Said::Done(7)).unwrap(), [Said::Done(7), Said::Works]);
                [rounds.agree(Ok(7)).unwrap(), other.join().unwrap()]
            });
            let expected = ends.map(|number| vec![7, number]).map_err(|reason| (RankId::new(1), reason));
            assert_eq!((first, other), (expected.clone(), expected));
        }
    }

    #[test]
    fn nobody_is_met_before_a_sign_of_life_is_due() {
        let world = World::new(2, DEADLINE);
        of(&world, 1).alive().unwrap();
    }

    /// RV-2.
    #[test]
    fn a_rank_that_gives_no_sign_of_life_is_named_with_what_it_does() {
        let world = World::new(2, Duration::from_millis(50));
        let _stands_still = of(&world, 1);
        let reason = of(&world, 0).agree(Ok(7)).unwrap_err().to_string();
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
