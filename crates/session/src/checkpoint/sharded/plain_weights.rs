//! The masters of a sharded checkpoint as plain weights, read in pieces.
//!
//! Law: of a weight the rows that are requested are in memory, from whichever parts have them.

use safetensors::Dtype;

use super::PartFiles;
use super::index::IndexedWeight;
use super::rows_of_parts::Opened;
use crate::checkpoint::engines::{PlainTensor, PlainWeights, dimensions};
use crate::checkpoint::{CheckpointError, StatePart};
use warpweft_base::errors::{listed, shown};
use warpweft_format::Shape;
use warpweft_plan::model::Block;

/// The masters of a sharded checkpoint.
#[derive(Debug)]
struct Masters {
    opened: Opened,
}

impl PartFiles {
    /// The masters, under the names of their weights, for
    /// [`EngineModel::plan`](crate::checkpoint::engines::EngineModel::plan). What is left as it is becomes bf16.
    ///
    /// # Errors
    /// As [`PartFiles::saved`]; [`CheckpointError::Unfit`] where weights are frozen, of which the files have digests
    /// alone: the model would lack them.
    pub fn plain_weights(&self) -> Result<impl PlainWeights + use<>, CheckpointError> {
        let (masters, frozen) = self.trained_weights()?;
        if frozen.is_empty() {
            return Ok(masters);
        }
        Err(CheckpointError::unfit(format!(
            "the checkpoint has digests alone of the weights that are frozen, {}, so the model would lack them; convert what \
             `Session::export` gives, which has them",
            listed("`", frozen)
        )))
    }

    /// The masters of the weights that were trained, and the names of those that were frozen.
    ///
    /// # Errors
    /// As [`PartFiles::saved`].
    #[doc(hidden)]
    pub fn trained_weights(&self) -> Result<(impl PlainWeights + use<>, Vec<String>), CheckpointError> {
        let opened = Opened::open(&self.folder).map_err(CheckpointError::in_parts)?;
        let frozen = opened.index.weights.iter().filter(|weight| weight.frozen.is_some());
        let frozen = frozen.map(|weight| weight.name.clone()).collect();
        Ok((Masters { opened }, frozen))
    }
}

impl Masters {
    fn indexed(&self, weight: &str) -> Option<&IndexedWeight> {
        self.opened.index.weights.iter().find(|indexed| indexed.name == weight)
    }
}

impl PlainWeights for Masters {
    fn tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError> {
        let weights = self.opened.index.weights.iter().filter(|weight| weight.frozen.is_none());
        let tensor = |weight: &IndexedWeight| PlainTensor {
            name: weight.name.clone(),
            dtype: Dtype::BF16,
            shape: dimensions(weight.shape()),
        };
        Ok(weights.map(tensor).collect())
    }

    fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let unfit = |reason: String| CheckpointError::unfit(reason);
        let unknown = || unfit(format!("the checkpoint has no weight `{}`", shown(tensor)));
        let indexed = self.indexed(tensor).ok_or_else(unknown)?;
        // A weight of one column was requested as one row.
        let rows = if indexed.cols == 1 { indexed.rows } else { values.len() / columns.max(1) };
        let wanted = Block { first: Shape::new(first_row, 0), shape: Shape::new(rows, indexed.cols) };
        let found = self.opened.block(indexed, StatePart::Master, wanted, &|| Ok(()));
        let found = found.map_err(CheckpointError::in_parts)?;
        let name = shown(tensor);
        let few = || unfit(format!("weight `{name}` has fewer rows in the checkpoint than were requested"));
        values.copy_from_slice(found.get(..values.len()).ok_or_else(few)?);
        Ok(())
    }

    fn delayed_factor(&self, tensor: &str) -> Result<Option<f32>, CheckpointError> {
        let Some(weight) = self.indexed(tensor) else { return Ok(None) };
        let delayed = self.opened.delayed(weight, &|| Ok(())).map_err(CheckpointError::in_parts)?;
        Ok(delayed.map(|delayed| delayed.scale))
    }
}
