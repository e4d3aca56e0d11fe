//! Puts a sharded checkpoint together.
//!
//! Law: every part is read, and what comes out is what an export would have given, but for the planes. No more memory
//! is requested than the parts have bytes, whatever the index says.

use super::PartFiles;
use super::rows_of_parts::Opened;
use crate::checkpoint::{Carried, CarriedBuffer, Checkpoint, CheckpointError, StatePart, WeightState};
use warpweft_base::id::RankId;
use warpweft_plan::model::ShardRows;

impl PartFiles {
    /// All of it in one [`Checkpoint`], for a [`FileStore`](super::super::FileStore), `warpweft quantize` or
    /// whatever else needs it whole; the weights alone are published by [`PartFiles::save_weights`]. It must fit into
    /// memory. It blocks the thread, and needs no session. Planes are not in it ([`WeightState::planes`] is empty).
    /// Values are not judged; an import judges them.
    ///
    /// ```no_run
    /// use warpweft::prelude::*;
    ///
    /// async fn whole() -> Result<(), CheckpointError> {
    ///     let checkpoint = PartFiles::new("runs/step-1000").load()?;
    ///     FileStore::new("step-1000.safetensors").save(&checkpoint).await
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CheckpointError::Parts`] when there is no checkpoint in the folder, or a part is missing, torn or of another
    /// save.
    pub fn load(&self) -> Result<Checkpoint, CheckpointError> {
        self.put_together().map_err(CheckpointError::in_parts)
    }

    fn put_together(&self) -> Result<Checkpoint, CheckpointError> {
        let opened = Opened::open(&self.folder)?;
        let (index, alive) = (&opened.index, &|| Ok(()));
        let mut weights = Vec::with_capacity(index.weights.len());
        for weight in &index.weights {
            let all = ShardRows { begin: 0, rows: weight.rows };
            let states = StatePart::kept(usize::from(weight.lists)).skip(1);
            let states = states.map(|part| opened.rows(weight, part, all, alive));
            weights.push(WeightState {
                master: if weight.frozen.is_some() {
                    Vec::new()
                } else {
                    opened.rows(weight, StatePart::Master, all, alive)?
                },
                states: states.collect::<Result<_, _>>()?,
                delayed: opened.delayed(weight, alive)?,
                frozen: weight.frozen,
                ..WeightState::bare(weight.name.clone(), weight.shape(), weight.format)
            });
        }
        let buffer = |buffer| {
            let ranks = (0..index.ranks).map(|rank| opened.carried(buffer, RankId::new(rank), alive));
            Ok(CarriedBuffer { name: buffer.name.clone(), ranks: ranks.collect::<Result<_, _>>()? })
        };
        let carried = match self.zeros {
            true => Carried::Zeros,
            false => {
                Carried::Buffers(index.carried.iter().map(buffer).collect::<Result<_, CheckpointError>>()?)
            }
        };
        let (optimizer_step, notes) = (index.optimizer_step, index.notes.clone());
        let optimizer_identity = index.optimizer_identity.clone();
        let checkpoint = Checkpoint { optimizer_step, optimizer_identity, weights, carried, notes };
        Ok(match (&self.state, self.restarts) {
            (Some(state), _) => checkpoint.weights_of_state(state)?,
            (None, true) => checkpoint.restart_optimizer(),
            (None, false) => checkpoint,
        })
    }
}
