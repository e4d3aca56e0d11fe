//! A sharded checkpoint as a whole: put together in memory, or its weights in one file for other tools.
//!
//! Law: every part is read, and what is put together is what an export would have given, but for the planes. No more
//! memory is requested than the parts have bytes, whatever the index says. For a file of weights one weight is in
//! memory at a time, so a model that fits into no process is published all the same.

use std::borrow::Cow;
use std::path::PathBuf;

use super::PartFiles;
use super::rows_of_parts::Opened;
use crate::checkpoint::published::{self, PlainWeight};
use crate::checkpoint::{Carried, CarriedBuffer, Checkpoint, CheckpointError, StatePart, WeightState};
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Shape};
use warpweft_plan::model::Block;

impl PartFiles {
    /// Writes the masters into one safetensors file, for serving or other tools, in place of what was there: the file
    /// that [`Checkpoint::save_weights`](super::super::Checkpoint::save_weights) makes of the same checkpoint, byte for
    /// byte. In memory is one weight at a time. It blocks the thread, and needs no session.
    ///
    /// ```no_run
    /// use warpweft::prelude::*;
    ///
    /// let name = |weight: &str| Some(format!("model.{weight}.weight"));
    /// PartFiles::new("runs/step-1000").save_weights("model.safetensors", ElementType::Bf16, name)?;
    /// # Ok::<(), CheckpointError>(())
    /// ```
    ///
    /// # Errors
    /// As [`PartFiles::load`] and [`Checkpoint::save_weights`](super::super::Checkpoint::save_weights). What was there
    /// is kept then.
    pub fn save_weights(
        &self,
        path: impl Into<PathBuf>,
        element: ElementType,
        tensor_of: impl Fn(&str) -> Option<String>,
    ) -> Result<(), CheckpointError> {
        let opened = Opened::open(&self.folder).map_err(CheckpointError::in_parts)?;
        let values = opened.weights_of(self.state.as_deref()).map_err(CheckpointError::in_parts)?;
        let opened = &opened;
        let path: PathBuf = path.into();
        let target = path.as_path();
        let weights = opened.index.weights.iter().map(|weight| {
            let all = Block { first: Shape::new(0, 0), shape: weight.shape() };
            let read = move || match weight.frozen {
                Some(_) => Err(published::no_values(target, &weight.name)),
                None => opened
                    .block(weight, values, all, &|| Ok(()))
                    .map(Cow::Owned)
                    .map_err(CheckpointError::in_parts),
            };
            PlainWeight { name: &weight.name, shape: weight.shape(), master: Box::new(read) }
        });
        published::write(target, element, weights, tensor_of)
    }

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
            let all = Block { first: Shape::new(0, 0), shape: weight.shape() };
            let states = StatePart::kept(usize::from(weight.lists)).skip(1);
            let states = states.map(|part| opened.block(weight, part, all, alive));
            weights.push(WeightState {
                master: if weight.frozen.is_some() {
                    Vec::new()
                } else {
                    opened.block(weight, StatePart::Master, all, alive)?
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
