//! A rank that saves its part of a checkpoint, or takes in what it owns of one.
//!
//! Law: all ranks save or none does, and all know who refused and why. A save begins on every rank before any
//! writes, and becomes a checkpoint once every part is kept. An import is read and judged by every rank before any
//! changes anything. Neither ends the world, unless a rank, a device or a process fails.

use super::paces::Paces;
use super::parts::{Handed, Refusal};
use super::spread::DIFFERENT_CHECKPOINTS;
use super::{Exchange, ExecError, PartWriter, Rank, RankPart, RankState, SaveId};
use crate::backend::Backend;
use crate::id::RankId;

/// What a rank says it is doing meanwhile, for those that wait for it.
const WRITES: &str = "it writes its part of a checkpoint; write to a faster disk, or raise deadline_s";
const READS: &str = "it reads its part of a checkpoint; read from a faster disk, or raise deadline_s";

impl<B: Backend> Rank<B> {
    /// Hands the rank's state to the writer in `exchange`, which then says who could not save, if anybody could not.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn save_part(&mut self, exchange: &mut Exchange) -> Result<(), ExecError> {
        exchange.refusal = None;
        let Some(writer) = exchange.part_writer.take() else { return Ok(()) };
        self.quantize_new_masters()?;
        exchange.refusal = self.save_to(writer.as_ref())?;
        Ok(())
    }

    fn save_to(&self, writer: &dyn PartWriter) -> Result<Option<Refusal>, ExecError> {
        let rank = self.id();
        let paces = Paces::new(&self.world, rank, WRITES);
        let save = match paces.agree(writer.begin(rank))? {
            Ok(numbers) => SaveId::of(&numbers),
            Err(refusal) => return Ok(Some(refusal)),
        };
        let state = Handed::new(self, &paces);
        let written = writer.write(save, &state);
        state.failure()?;
        let mut agreed = paces.agree(written.map(|()| 0))?;
        if agreed.is_ok() {
            let completed = if rank == RankId::new(0) { writer.complete(save, &state) } else { Ok(()) };
            state.failure()?;
            agreed = paces.agree(completed.map(|()| 0))?;
        }
        // Only what was agreed is known to all: where the world ended, rank 0 may have made a checkpoint of this part.
        if agreed.is_err() {
            writer.withdraw(save, rank);
        }
        Ok(agreed.err())
    }

    /// Takes in what the rank owns of a checkpoint, from the reader in `exchange`; or nothing, if any rank refuses
    /// or processes read different ones, and then `exchange` says why.
    ///
    /// # Errors
    /// What the backend refuses, and the end of the world.
    pub fn import_part(&mut self, exchange: &mut Exchange) -> Result<(), ExecError> {
        exchange.import_refused = None;
        let Some(reader) = exchange.part_reader.take() else { return Ok(()) };
        let (part, agreed) = {
            let paces = Paces::new(&self.world, self.id(), READS);
            let state = Handed::new(self, &paces);
            let read = reader.read(self.id(), &|| state.alive());
            state.failure()?;
            let (part, own) = match read {
                Ok(part) => (part, Ok(reader.digest())),
                Err(reason) => (RankPart::default(), Err(reason)),
            };
            (part, paces.agree(own)?)
        };
        exchange.import_refused = match agreed {
            Err((rank, reason)) => Some(format!("{rank}: {reason}")),
            Ok(digests) if digests.windows(2).any(|pair| pair[0] != pair[1]) => {
                Some(DIFFERENT_CHECKPOINTS.to_owned())
            }
            Ok(_) => None,
        };
        if exchange.import_refused.is_some() {
            return Ok(());
        }
        let RankPart { shards, carried, optimizer_step } = part;
        (exchange.shards, exchange.carried, exchange.optimizer_step) = (shards, carried, optimizer_step);
        self.import(exchange)
    }
}
