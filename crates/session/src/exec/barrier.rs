//! A barrier with heartbeats, for ranks that work for long.
//!
//! Law: who is done waits in meetings, to which who is not comes between two pieces of its work: its heartbeat. So
//! nobody waits past the deadline for a sign of life (RV-2), however long the work takes, and a rank that stands still
//! in one piece is named at the deadline, with what it was doing. At the end every rank knows how each of them ended.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::world::{failed, misfit};
use super::{ExecError, World};
use crate::checkpoint::CheckpointError;
use warpweft_backend::rendezvous::{Reader, Topic, Truncated, Writer};
use warpweft_base::id::RankId;

/// The part of the deadline after which a rank that works comes to a meeting.
const PART_OF_DEADLINE: u32 = 4;

/// A rank that refuses, and why. What another rank said is [`CheckpointError::OtherRank`]: words travel, not kinds.
pub type Refusal = (RankId, CheckpointError);

/// The work that ranks do before a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    SavesItsPart,
    ReadsItsPart,
    ComparesReplicas,
    CopiesItsState,
    DigestsFrozen,
    BeginsASave,
}

impl Work {
    /// What a rank says that it is doing, for those that wait for it.
    const fn in_words(self) -> &'static str {
        match self {
            Self::SavesItsPart => {
                "it writes its part of a checkpoint; write to a faster disk, or raise deadline_s"
            }
            Self::BeginsASave => "it begins a save in the background; raise deadline_s",
            Self::ReadsItsPart => {
                "it reads its part of a checkpoint; read from a faster disk, or raise deadline_s"
            }
            Self::ComparesReplicas => "it compares replicas of weights; raise deadline_s",
            Self::DigestsFrozen => "it digests its frozen weights; raise deadline_s",
            Self::CopiesItsState => "it copies its weights and state to the host; raise deadline_s",
        }
    }

    /// Why two ranks cannot go on together.
    fn against(self, other: Self) -> String {
        let does = |work| match work {
            Self::SavesItsPart => "saves parts",
            Self::BeginsASave => "saves in the background",
            Self::ReadsItsPart => "imports parts",
            Self::ComparesReplicas => "compares replicas",
            Self::CopiesItsState => "exports a checkpoint",
            Self::DigestsFrozen => "digests frozen weights",
        };
        format!("it {} where another rank {}; call the same in every process", does(other), does(self))
    }
}

/// The message of a rank in a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Said {
    Works,
    Done(u64),
    Refuses(String),
}

/// One rank's way through the barrier.
pub(super) struct Barrier<'w> {
    world: &'w World,
    rank: RankId,
    work: Work,
    every: Duration,
    last: Cell<Instant>,
}

impl<'w> Barrier<'w> {
    /// Of a rank that says that it does `work`, until this is dropped; but not while it waits for others.
    pub(super) fn new(world: &'w World, rank: RankId, work: Work) -> Self {
        world.stand(rank, work.in_words());
        let every = world.rendezvous().deadline() / PART_OF_DEADLINE;
        Self { world, rank, work, every, last: Cell::new(Instant::now()) }
    }

    /// Comes to a round if one is due. Called between two pieces of work.
    ///
    /// # Errors
    /// The end of the world.
    pub(super) fn alive(&self) -> Result<(), ExecError> {
        if self.last.get().elapsed() < self.every { Ok(()) } else { self.meet(&Said::Works).map(drop) }
    }

    /// Says how the work ended, waits for all others, and gives the number of each, or the first that refuses.
    ///
    /// # Errors
    /// The end of the world.
    pub(super) fn agree(
        &self,
        own: Result<u64, CheckpointError>,
    ) -> Result<Result<Vec<u64>, Refusal>, ExecError> {
        let said = match &own {
            Ok(number) => Said::Done(*number),
            Err(error) => Said::Refuses(error.to_string()),
        };
        self.world.stand(self.rank, "");
        let agreed = self.wait(&said);
        self.world.stand(self.rank, self.work.in_words());
        Ok(agreed?.map_err(|(rank, told)| match own {
            Err(error) if rank == self.rank => (rank, error),
            _ => (rank, told),
        }))
    }

    fn wait(&self, own: &Said) -> Result<Result<Vec<u64>, Refusal>, ExecError> {
        loop {
            let ended = self.meet(own)?.into_iter().enumerate().map(|(rank, said)| match said {
                Said::Works => None,
                Said::Done(number) => Some(Ok(number)),
                Said::Refuses(reason) => Some(Err((RankId::at(rank), CheckpointError::OtherRank { reason }))),
            });
            if let Some(ended) = ended.collect::<Option<Vec<_>>>() {
                return Ok(ended.into_iter().collect());
            }
        }
    }

    fn meet(&self, own: &Said) -> Result<Vec<Said>, ExecError> {
        let failed = |error| failed(self.rank, error);
        let said = encode(self.work, own);
        let all = self.world.rendezvous().exchange(self.rank, Topic::Work, &said).map_err(failed)?;
        self.last.set(Instant::now());
        let said = |bytes: &Arc<[u8]>| match decode(bytes) {
            Ok((work, said)) if work == self.work || said == Said::Works => Ok(said),
            Ok((other, _)) => Ok(Said::Refuses(self.work.against(other))),
            Err(Truncated) => Err(failed(misfit("how a part ended"))),
        };
        all.iter().map(said).collect()
    }
}

impl Drop for Barrier<'_> {
    fn drop(&mut self) {
        self.world.stand(self.rank, "");
    }
}

fn encode(work: Work, said: &Said) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.byte(work as u8);
    match said {
        Said::Works => writer.byte(0),
        Said::Done(number) => writer.byte(1).long(*number),
        Said::Refuses(reason) => writer.byte(2).list(reason.as_bytes()),
    };
    writer.take()
}

fn decode(bytes: &[u8]) -> Result<(Work, Said), Truncated> {
    let mut reader = Reader::new(bytes);
    let work = match reader.byte()? {
        0 => Work::SavesItsPart,
        1 => Work::ReadsItsPart,
        2 => Work::ComparesReplicas,
        3 => Work::CopiesItsState,
        4 => Work::DigestsFrozen,
        5 => Work::BeginsASave,
        _ => return Err(Truncated),
    };
    let said = match reader.byte()? {
        0 => Said::Works,
        1 => Said::Done(reader.long()?),
        2 => Said::Refuses(reader.text()?),
        _ => return Err(Truncated),
    };
    reader.end()?;
    Ok((work, said))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than any test takes.
    const DEADLINE: Duration = Duration::from_secs(60);

    fn of(world: &World, rank: u32) -> Barrier<'_> {
        Barrier::new(world, RankId::new(rank), Work::SavesItsPart)
    }

    /// How ranks ended, with the words of the one that refuses.
    fn in_words(agreed: Result<Vec<u64>, Refusal>) -> Result<Vec<u64>, (RankId, String)> {
        agreed.map_err(|(rank, error)| (rank, error.to_string()))
    }

    /// RV-2: every sign of life is a round, after which who is done waits on.
    #[test]
    fn a_rank_that_works_is_waited_for_as_long_as_it_gives_signs_of_life() {
        for ends in [Ok(8), Err("the disk is full")] {
            let world = World::new(2, DEADLINE);
            let [first, other] = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let mut barrier = of(&world, 1);
                    barrier.every = Duration::ZERO;
                    (0..3).try_for_each(|_| barrier.alive()).unwrap();
                    in_words(barrier.agree(ends.map_err(CheckpointError::other)).unwrap())
                });
                let barrier = of(&world, 0);
                assert_eq!(barrier.meet(&Said::Done(7)).unwrap(), [Said::Done(7), Said::Works]);
                [in_words(barrier.agree(Ok(7)).unwrap()), other.join().unwrap()]
            });
            let expected =
                ends.map(|number| vec![7, number]).map_err(|reason| (RankId::new(1), reason.to_owned()));
            assert_eq!((first, other), (expected.clone(), expected));
        }
    }

    /// Two refuse, and all get the refusal of the first: whoever it is by its kind, the others by its words.
    #[test]
    fn the_rank_that_refuses_first_knows_the_kind_and_the_others_its_words() {
        let world = World::new(2, DEADLINE);
        let refuses =
            |rank: u32| of(&world, rank).agree(Err(CheckpointError::other(rank.to_string()))).unwrap();
        let agreed = std::thread::scope(|scope| {
            [0, 1].map(|rank| scope.spawn(move || refuses(rank))).map(|thread| thread.join().unwrap())
        });
        let [first, other] = agreed.map(Result::unwrap_err);
        assert!(
            matches!(first.1, CheckpointError::Other { .. })
                && matches!(other.1, CheckpointError::OtherRank { .. })
        );
        assert_eq!(in_words(Err(first)), in_words(Err(other)));
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
        let all = [
            Work::SavesItsPart,
            Work::ReadsItsPart,
            Work::ComparesReplicas,
            Work::CopiesItsState,
            Work::DigestsFrozen,
            Work::BeginsASave,
        ];
        for work in all {
            for said in [Said::Works, Said::Done(u64::MAX), Said::Refuses("é".to_owned())] {
                let bytes = encode(work, &said);
                assert_eq!(decode(&bytes), Ok((work, said)));
                for end in 0..bytes.len() {
                    assert_eq!(decode(&bytes[..end]), Err(Truncated));
                }
            }
        }
        assert_eq!(decode(&[6, 0]), Err(Truncated));
        assert_eq!(decode(&[0, 3]), Err(Truncated));
    }

    /// CK-2: one process saves where another imports.
    #[test]
    fn ranks_that_do_different_work_refuse_each_other_by_name() {
        let world = World::new(2, DEADLINE);
        let [saves, reads] = std::thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let mut barrier = Barrier::new(&world, RankId::new(1), Work::ReadsItsPart);
                barrier.every = Duration::ZERO;
                barrier.alive().unwrap();
                in_words(barrier.agree(Ok(1)).unwrap())
            });
            [in_words(of(&world, 0).agree(Ok(0)).unwrap()), reads.join().unwrap()]
        });
        let words = "; call the same in every process";
        let expected = |does: &str, other: &str| format!("it {does} where another rank {other}{words}");
        assert_eq!(saves, Err((RankId::new(1), expected("imports parts", "saves parts"))));
        assert_eq!(reads, Err((RankId::new(0), expected("saves parts", "imports parts"))));
    }
}
