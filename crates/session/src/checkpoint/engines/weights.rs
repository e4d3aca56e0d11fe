//! Plain weights: the source of a conversion.

use std::borrow::Cow;

use half::bf16;
use safetensors::Dtype;

use crate::checkpoint::{Checkpoint, CheckpointError, PretrainedFiles, WeightState};
use warpweft_base::errors::shown;
use warpweft_format::{Format, Shape};

/// A tensor of plain weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainTensor {
    /// Its name.
    pub name: String,
    /// Its dtype, in which it is written where it is left as it is.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<usize>,
}

/// Plain weights of a model, read in pieces.
pub trait PlainWeights: Sync {
    /// All tensors, in the order in which they are best read.
    ///
    /// # Errors
    /// One of them holds something other than weights in plain numbers.
    fn tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError>;

    /// Fills `values` with rows of a tensor from `first_row` on, as [`PretrainedFiles::rows`] does.
    ///
    /// # Errors
    /// What cannot be read.
    fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError>;

    /// Fills `bytes` with those of a tensor of `columns` columns from the byte `at` on, in its own dtype: its rows
    /// rounded to bf16, in which a model is served, unless the source has bytes of its own.
    ///
    /// # Errors
    /// What cannot be read.
    fn bytes(
        &self,
        tensor: &str,
        columns: usize,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), CheckpointError> {
        let (begin, words) = (at / size_of::<bf16>(), bytes.as_chunks_mut().0);
        let first = begin / columns.max(1);
        // Whole rows around them.
        let rows = (begin + words.len()).div_ceil(columns.max(1)) - first;
        let mut values = vec![0.0; rows * columns];
        self.rows(tensor, first, columns, &mut values)?;
        for (word, value) in words.iter_mut().zip(&values[begin - first * columns..]) {
            *word = bf16::from_f32(*value).to_le_bytes();
        }
        Ok(())
    }

    /// What delayed scaling multiplied a tensor by before it became FP8 with one scale; `None` where the scale is of
    /// the tensor itself.
    ///
    /// # Errors
    /// What cannot be read.
    fn delayed_factor(&self, tensor: &str) -> Result<Option<f32>, CheckpointError> {
        let _ = tensor;
        Ok(None)
    }

    /// The scale of the tensor that training quantized it with, as its planes in `format` have it; `None`
    /// where the source does not say, or was in another format.
    ///
    /// # Errors
    /// What cannot be read.
    fn trained_scale(&self, tensor: &str, format: Format) -> Result<Option<f32>, CheckpointError> {
        let _ = (tensor, format);
        Ok(None)
    }
}

/// The tensors of the files, in their dtypes.
impl PlainWeights for PretrainedFiles {
    fn tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError> {
        self.plain_tensors()
    }

    fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        Self::rows(self, tensor, first_row, columns, values)
    }

    fn bytes(
        &self,
        tensor: &str,
        _columns: usize,
        at: usize,
        bytes: &mut [u8],
    ) -> Result<(), CheckpointError> {
        self.fill(tensor, at, bytes)
    }
}

/// The dimensions of a weight as a tensor: one where it has one row or one column, as norms and biases are.
pub(in crate::checkpoint) fn dimensions(shape: Shape) -> Vec<usize> {
    match shape {
        Shape { rows: 1, cols: length } | Shape { rows: length, cols: 1 } => vec![length],
        Shape { rows, cols } => vec![rows, cols],
    }
}

/// The masters, and what frozen weights are dequantized to; what is left as it is becomes bf16. A weight of one row or
/// one column is a tensor of one dimension.
impl PlainWeights for Checkpoint {
    fn tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError> {
        let tensors = self.weights.iter().map(|WeightState { name, shape, .. }| PlainTensor {
            name: name.clone(),
            dtype: Dtype::BF16,
            shape: dimensions(*shape),
        });
        Ok(tensors.collect())
    }

    fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let begin = first_row * columns;
        let all = values_of(self, tensor)?;
        let rows = all.get(begin..begin + values.len()).ok_or_else(|| no_values(tensor))?;
        values.copy_from_slice(rows);
        Ok(())
    }

    fn delayed_factor(&self, tensor: &str) -> Result<Option<f32>, CheckpointError> {
        Ok(state_of(self, tensor).and_then(|state| Some(state.delayed.as_ref()?.scale)))
    }

    fn trained_scale(&self, tensor: &str, format: Format) -> Result<Option<f32>, CheckpointError> {
        let trained =
            state_of(self, tensor).filter(|state| state.format == format && !state.planes.is_empty());
        Ok(trained.map(|state| state.tensor_scale))
    }
}

fn state_of<'a>(checkpoint: &'a Checkpoint, tensor: &str) -> Option<&'a WeightState> {
    checkpoint.weights.iter().find(|state| state.name == tensor)
}

fn values_of<'a>(checkpoint: &'a Checkpoint, tensor: &str) -> Result<Cow<'a, [f32]>, CheckpointError> {
    state_of(checkpoint, tensor).ok_or_else(|| no_values(tensor))?.values().map_err(|_| no_values(tensor))
}

/// What is said of a weight that is not in the checkpoint with its values.
fn no_values(weight: &str) -> CheckpointError {
    let reason = format!(
        "`{}` has no values in this checkpoint: a saved one has a digest alone of a frozen weight; take the one that \
         `Session::export` gives",
        shown(weight)
    );
    CheckpointError::Unfit { reason }
}
