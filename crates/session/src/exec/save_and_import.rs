//! Saves a rank's part of a checkpoint, and imports its rows of one.
//!
//! Law: all ranks save or none does, and all know who refused and why. A save begins on every rank before any
//! writes, and becomes a checkpoint once every part is kept. An import is read and judged by every rank before any
//! changes anything. Neither ends the world, unless a rank, a device or a process fails.

use std::cell::RefCell;
use std::io;

use super::barrier::{Barrier, Refusal, Work};
use super::step_reports::DIFFERENT_CHECKPOINTS;
use super::stored_state::StoredState;
use super::{ExecError, Handover, Rank};
use crate::checkpoint::ranks::{PartWriter, RankPart, RankState, SaveId};
use crate::checkpoint::{CheckpointError, FrozenDigest, StatePart};
use warpweft_backend::Backend;
use warpweft_base::id::{CarriedId, RankId, WeightId};
use warpweft_format::DelayedState;

/// The number of a rank that does not know whether the save became a checkpoint. Why comes in a meeting of its own.
const UNCERTAIN: u64 = 1;

impl<B: Backend> Rank<B> {
    /// Hands the rank's state to the writer in `handover`, which then says who could not save, if anybody could not.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn save_part(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        handover.part.refusal = None;
        let Some(writer) = handover.part.writer.take() else {
            return Err(ExecError::NoParts { rank: self.id(), what: "writer" });
        };
        self.quantize_new_masters()?;
        // All ranks need each other for them, and a writer asks one rank.
        drop(self.frozen_digests()?);
        handover.part.refusal = self.save_to(writer.as_ref())?;
        Ok(())
    }

    fn save_to(&self, writer: &dyn PartWriter) -> Result<Option<Refusal>, ExecError> {
        let rank = self.id();
        let barrier = Barrier::new(&self.world, rank, Work::SavesItsPart);
        let save = match barrier.agree(writer.begin(rank))? {
            Ok(numbers) => SaveId::of(&numbers),
            Err(refusal) => return Ok(Some(refusal)),
        };
        let state = LiveState::new(self, &barrier);
        let written = writer.write(save, &state);
        state.failure()?;
        self.end_save((writer, save), written, &state, (&barrier, &state))
    }

    /// Makes a checkpoint of the parts of all ranks, of which this one wrote its own, whose `state` it is; or withdraws
    /// them. Then says who could not save, if anybody could not. `live` gives signs of life meanwhile.
    pub(super) fn end_save(
        &self,
        (writer, save): (&dyn PartWriter, SaveId),
        written: Result<u64, CheckpointError>,
        state: &dyn RankState,
        (barrier, live): (&Barrier<'_>, &LiveState<'_, B>),
    ) -> Result<Option<Refusal>, ExecError> {
        let rank = self.id();
        let mut agreed = barrier.agree(written)?;
        if let Ok(parts) = &agreed {
            let completed = if rank == RankId::new(0) { writer.complete(save, parts, state) } else { Ok(()) };
            live.failure()?;
            let (own, why) = match completed {
                Ok(()) => (Ok(0), Ok(0)),
                Err(reason @ CheckpointError::InDoubt { .. }) => (Ok(UNCERTAIN), Err(reason)),
                Err(reason) => (Err(reason), Ok(0)),
            };
            agreed = barrier.agree(own)?;
            // An index that may be there needs all parts.
            if agreed.as_ref().is_ok_and(|numbers| numbers.contains(&UNCERTAIN)) {
                let why = barrier.agree(why)?.err();
                writer.keep(save, rank);
                return Ok(why);
            }
        }
        // Only what was agreed is known to all: where the world ended, rank 0 may have made a checkpoint of this part.
        match agreed {
            Ok(_) => writer.keep(save, rank),
            Err(_) => writer.withdraw(save, rank),
        }
        Ok(agreed.err())
    }

    /// Takes in what the rank owns of a checkpoint, from the reader in `handover`; or nothing, if any rank refuses
    /// or processes read different ones, and then `handover` says why, as `refusal` or `import_refused`.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn import_part(&mut self, handover: &mut Handover) -> Result<(), ExecError> {
        (handover.transfer.refused, handover.part.refusal) = (None, None);
        let Some(reader) = handover.part.reader.take() else {
            return Err(ExecError::NoParts { rank: self.id(), what: "reader" });
        };
        let (part, agreed) = {
            let barrier = Barrier::new(&self.world, self.id(), Work::ReadsItsPart);
            let state = LiveState::new(self, &barrier);
            let read = reader.read(self.id(), &|| state.alive());
            state.failure()?;
            let (part, own) = match read {
                Ok(part) => (part, Ok(reader.digest())),
                Err(reason) => (RankPart::default(), Err(reason)),
            };
            (part, barrier.agree(own)?)
        };
        match agreed {
            Err(refusal) => handover.part.refusal = Some(refusal),
            Ok(digests) if digests.windows(2).any(|pair| pair[0] != pair[1]) => {
                handover.transfer.refused = Some(DIFFERENT_CHECKPOINTS.to_owned());
            }
            Ok(_) => {
                handover.transfer.own = part;
                return self.import(handover);
            }
        }
        Ok(())
    }
}

/// The state of a rank that works on its part. The first failure of the rank or the world is kept, whatever becomes of
/// it on the way.
pub(super) struct LiveState<'r, B: Backend> {
    rank: &'r Rank<B>,
    barrier: &'r Barrier<'r>,
    failure: RefCell<Option<ExecError>>,
}

impl<'r, B: Backend> LiveState<'r, B> {
    pub(super) fn new(rank: &'r Rank<B>, barrier: &'r Barrier<'r>) -> Self {
        Self { rank, barrier, failure: RefCell::new(None) }
    }

    /// The failure of the rank or of its world, if there was one.
    pub(super) fn failure(&self) -> Result<(), ExecError> {
        self.failure.borrow_mut().take().map_or(Ok(()), Err)
    }

    fn kept<T>(&self, outcome: Result<T, ExecError>) -> io::Result<T> {
        outcome.map_err(|error| {
            let words = io::Error::other(error.to_string());
            self.failure.borrow_mut().get_or_insert(error);
            words
        })
    }
}

impl<B: Backend> RankState for LiveState<'_, B> {
    fn rank(&self) -> RankId {
        self.rank.id()
    }

    fn optimizer_step(&self) -> io::Result<u32> {
        self.kept(self.rank.steps_taken())
    }

    fn frozen(&self, weight: WeightId) -> Option<FrozenDigest> {
        self.rank.frozen.as_ref().and_then(|known| known.get(weight.index()).copied().flatten())
    }

    fn rows(&self, weight: WeightId, part: StatePart) -> io::Result<Vec<f32>> {
        self.kept(self.rank.rows(weight, part))
    }

    fn delayed(&self, weight: WeightId) -> io::Result<Option<DelayedState>> {
        self.kept(self.rank.delayed(weight))
    }

    fn carried(&self, buffer: CarriedId) -> io::Result<Vec<u8>> {
        self.kept(self.rank.carried_bytes(buffer))
    }

    fn alive(&self) -> io::Result<()> {
        self.kept(self.barrier.alive())
    }
}
