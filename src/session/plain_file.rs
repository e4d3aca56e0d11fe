//! The weights of a checkpoint alone, in a file for other tools.
//!
//! Law: the file has no word of this library: one tensor per weight, under the name and in the element type
//! that the caller chooses. It is replaced whole or not at all, and takes next to no memory beside the
//! checkpoint.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use safetensors::SafeTensorError;

use super::tensor_file::METADATA;
use super::tensors::Tensor;
use super::{Checkpoint, StoreError, WeightState, tensor_file};
use crate::format::{ElementType, Format, Via};
use crate::whole_file::WholeFile;

impl Checkpoint {
    /// Writes the masters into one safetensors file, for serving or other tools, in place of what was there.
    ///
    /// `tensor_of` names the tensor of every weight; a weight for which it gives `None` is left out. Masters
    /// are written in f32, bit for bit, or in bf16, rounded to nearest with ties to even. A tensor is row-major, of
    /// the shape `[rows, cols]`; that of a weight
    /// of one row is `[cols]`, as other tools have norms and biases: whoever needs `[1, cols]` of one of
    /// these reshapes it. The metadata say `format: pt`, which readers of the Hugging Face hub's files ask
    /// for.
    ///
    /// [`PretrainedFiles`](super::PretrainedFiles) reads such a file, by the same `tensor_of`; in f32 a
    /// session that is initialized from it begins with the same masters. It is no checkpoint: moments, step
    /// count and carried buffers are not in it. This blocks the thread until the file is on the disk.
    ///
    /// ```no_run
    /// use warpweft::prelude::*;
    ///
    /// async fn publish(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    ///     let checkpoint = session.export().await?;
    ///     let name = |weight: &str| Some(format!("model.{weight}.weight"));
    ///     Ok(checkpoint.save_weights("model.safetensors", ElementType::Bf16, name)?)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`StoreError`] for another element type, a name that two weights have or none can have, a weight
    /// without all of its masters or with one that is not finite as it is written, and what the file system
    /// refuses. What was there is kept then.
    pub fn save_weights(
        &self,
        path: impl Into<PathBuf>,
        element: ElementType,
        tensor_of: impl Fn(&str) -> Option<String>,
    ) -> Result<(), StoreError> {
        let path = path.into();
        let content = |reason: String| StoreError::Content { path: path.clone(), reason };
        let failed = |source| StoreError::File { path: path.clone(), source };
        let mut names = HashSet::new();
        let mut tensors = Vec::new();
        for state in &self.weights {
            let Some(name) = tensor_of(&state.name) else { continue };
            if name == METADATA {
                return Err(content(format!(
                    "`{}` cannot be called `{METADATA}`; name it otherwise",
                    state.name
                )));
            }
            if !names.insert(name.clone()) {
                return Err(content(format!(
                    "two weights would be called `{name}`; give each a name of its own"
                )));
            }
            tensors.push(tensor(name, state, element).map_err(content)?);
        }
        let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let mut file = WholeFile::begin(&path).map_err(failed)?;
        tensor_file::write(tensors, about, &mut file).map_err(|error| match error {
            SafeTensorError::IoError(source) => failed(source),
            error => content(error.to_string()),
        })?;
        file.commit().map_err(failed)
    }
}

/// The master of a weight as a tensor, or why there is none.
fn tensor(name: String, state: &WeightState, element: ElementType) -> Result<Tensor<'_>, String> {
    let (shape, master) = (state.shape, &state.master);
    if master.len() != shape.elements() {
        let (weight, values, elements) = (&state.name, master.len(), shape.elements());
        return Err(format!("`{weight}` has {values} values of its master, and its shape {elements}"));
    }
    let format = if element == ElementType::Bf16 { Format::Bf16 } else { Format::F32 };
    if let Some(at) = master.iter().position(|value| !Via::None.round(format, *value).is_finite()) {
        let (weight, value, row, column) = (&state.name, master[at], at / shape.cols, at % shape.cols);
        return Err(format!(
            "`{weight}` holds {value:?} in row {row}, column {column}, which is not finite in {element}; save a \
             checkpoint of before it diverged, or write it in f32 if it is finite there"
        ));
    }
    let dimensions = if shape.rows == 1 { vec![shape.cols] } else { vec![shape.rows, shape.cols] };
    match element {
        ElementType::F32 => Ok(Tensor::values(name, dimensions, master)),
        ElementType::Bf16 => Ok(Tensor::rounded(name, dimensions, master)),
        other => Err(format!("weights are not written in {other}; write them in f32 or bf16")),
    }
}
