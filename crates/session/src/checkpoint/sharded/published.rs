//! Export of a sharded checkpoint's weights into one file for other tools.
//!
//! Law: one weight is in memory at a time, so a model that fits into no process is published all the same.

use std::borrow::Cow;
use std::path::PathBuf;

use super::PartFiles;
use super::rows_of_parts::Opened;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::published::{self, PlainWeight};
use warpweft_format::ElementType;
use warpweft_plan::model::ShardRows;

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
            let all = ShardRows { begin: 0, rows: weight.rows };
            let read = move || match weight.frozen {
                Some(_) => Err(published::no_values(target, &weight.name)),
                None => opened
                    .rows(weight, values, all, &|| Ok(()))
                    .map(Cow::Owned)
                    .map_err(CheckpointError::in_parts),
            };
            PlainWeight { name: &weight.name, shape: weight.shape(), master: Box::new(read) }
        });
        published::write(target, element, weights, tensor_of)
    }
}
