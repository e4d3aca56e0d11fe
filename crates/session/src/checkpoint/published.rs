//! Export of weights alone into one file for other tools.
//!
//! Law: the file has no word of this library: one tensor per weight, under the name and in the element type
//! that the caller chooses. It is replaced whole or not at all, and takes next to no memory beside the
//! checkpoint, or beside one weight of a sharded checkpoint.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::tensor::Dtype;

use super::safetensors::TensorFileError;
use super::safetensors::entry::METADATA;
use super::safetensors::tensor::{Content, Tensor};
use super::safetensors::writer;
use super::{Checkpoint, CheckpointError, FileTask};
use warpweft_base::errors::shown;
use warpweft_base::whole_file::WholeFile;
use warpweft_format::{ElementType, Format, Shape, Via};

/// Values rounded at once.
const PIECE: usize = 1 << 15;

impl Checkpoint {
    /// Writes the weights into one safetensors file, for serving or other tools, in place of what was there:
    /// masters, and of a frozen weight what its planes are dequantized to
    /// ([`WeightState::values`](super::WeightState::values)).
    ///
    /// `tensor_of` names the tensor of every weight; a weight for which it gives `None` is left out. Masters
    /// are written in f32, bit for bit, or in bf16, rounded to nearest with ties to even. A tensor is row-major, of
    /// the shape `[rows, cols]`; that of a weight
    /// of one row is `[cols]`, as other tools have norms and biases: whoever needs `[1, cols]` of one of
    /// these reshapes it. The metadata say `format: pt`, which readers of the Hugging Face hub's files request
    /// .
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
    /// [`CheckpointError`] when no weight is named, for another element type, a name that two weights have or none
    /// can have, a weight without all of its masters or with one that is not finite as it is written, and what the
    /// file system refuses. What was there is kept then, unless the error says that the new file is in place.
    pub fn save_weights(
        &self,
        path: impl Into<PathBuf>,
        element: ElementType,
        tensor_of: impl Fn(&str) -> Option<String>,
    ) -> Result<(), CheckpointError> {
        let path: PathBuf = path.into();
        let weights = self.weights.iter().map(|state| PlainWeight {
            name: &state.name,
            shape: state.shape,
            master: Box::new(|| match (&state.frozen, state.master.is_empty()) {
                (Some(_), true) => state.values().map_err(|_| no_values(&path, &state.name)),
                _ => Ok(Cow::Borrowed(&state.master)),
            }),
        });
        write(&path, element, weights, tensor_of)
    }
}

/// What is said of a frozen weight of a checkpoint that was saved without it.
pub(super) fn no_values(path: &Path, weight: &str) -> CheckpointError {
    let reason = format!(
        "`{weight}` was frozen, and a saved checkpoint has a digest of it and not its values; leave it out (`None`), or \
         save the weights that `Session::export` gives"
    );
    CheckpointError::Content { path: path.to_owned(), reason }
}

/// A weight for a file of weights alone.
pub(super) struct PlainWeight<'a> {
    pub(super) name: &'a str,
    pub(super) shape: Shape,
    /// Gives its master when it is its turn.
    pub(super) master: Box<dyn Fn() -> Result<Cow<'a, [f32]>, CheckpointError> + 'a>,
}

/// Writes a file of these weights, in place of what was there.
pub(super) fn write<'a>(
    path: &'a Path,
    element: ElementType,
    weights: impl Iterator<Item = PlainWeight<'a>>,
    tensor_of: impl Fn(&str) -> Option<String>,
) -> Result<(), CheckpointError> {
    let content = |reason: String| CheckpointError::Content { path: path.to_owned(), reason };
    let failed = |source| CheckpointError::file(path, FileTask::Keep, source);
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    for weight in weights {
        let Some(name) = tensor_of(weight.name) else { continue };
        if name == METADATA {
            return Err(content(format!(
                "`{}` cannot be called `{METADATA}`; name it otherwise",
                shown(weight.name)
            )));
        }
        if !names.insert(name.clone()) {
            return Err(content(format!(
                "two weights would be called `{}`; give each a name of its own",
                shown(name)
            )));
        }
        tensors.push(tensor(name, weight, element, path).map_err(content)?);
    }
    if tensors.is_empty() {
        return Err(content(
            "no weight was given a name, so the file would have none; let the function that names tensors give one \
             for each weight that is to be in it"
                .to_owned(),
        ));
    }
    let about = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let file = WholeFile::begin(path).map_err(failed)?;
    let file = writer::write(tensors, &about, file).map_err(|error| match error {
        TensorFileError::File(source) => source.downcast::<CheckpointError>().unwrap_or_else(failed),
        TensorFileError::Invalid(error) => content(error.to_string()),
    })?;
    file.commit().map_err(failed)
}

/// A weight as a tensor of the file `path`, or why there is none.
fn tensor<'a>(
    name: String,
    weight: PlainWeight<'a>,
    element: ElementType,
    path: &'a Path,
) -> Result<Tensor<'a>, String> {
    let PlainWeight { name: of, shape, master } = weight;
    let dimensions = if shape.rows == 1 { vec![shape.cols] } else { vec![shape.rows, shape.cols] };
    let (dtype, width) = match element {
        ElementType::F32 => (Dtype::F32, size_of::<f32>()),
        ElementType::Bf16 => (Dtype::BF16, size_of::<bf16>()),
        other => return Err(format!("weights are not written in {other}; write them in f32 or bf16")),
    };
    let write = move |file: &mut dyn Write| {
        let content = |reason| CheckpointError::Content { path: path.to_owned(), reason };
        let judged = master().and_then(|master| {
            check(of, shape, element, &master).map_err(content)?;
            Ok(master)
        });
        // What is wrong with it comes through the file's writer as what the system says does.
        let master = judged.map_err(io::Error::other)?;
        if dtype == Dtype::F32 {
            file.write_all(bytemuck::cast_slice(&master))
        } else {
            write_rounded(&master, file)
        }
    };
    let content = Content::Later { bytes: shape.elements().saturating_mul(width), write: Box::new(write) };
    Ok(Tensor { name, dtype, shape: dimensions, content })
}

/// Writes values as bf16, rounded to nearest, ties to even.
fn write_rounded(values: &[f32], file: &mut dyn Write) -> io::Result<()> {
    let mut rounded = Vec::with_capacity(values.len().min(PIECE));
    for piece in values.chunks(PIECE) {
        rounded.clear();
        rounded.extend(piece.iter().map(|value| bf16::from_f32(*value)));
        file.write_all(bytemuck::cast_slice(&rounded))?;
    }
    Ok(())
}

/// All of a master must be there, and finite as it is written.
fn check(weight: &str, shape: Shape, element: ElementType, master: &[f32]) -> Result<(), String> {
    if master.len() != shape.elements() {
        let (values, elements) = (master.len(), shape.elements());
        return Err(format!(
            "`{}` has {values} values of its master, and its shape {elements}",
            shown(weight)
        ));
    }
    let format = if element == ElementType::Bf16 { Format::Bf16 } else { Format::F32 };
    let Some(at) = master.iter().position(|value| !Via::None.round(format, *value).is_finite()) else {
        return Ok(());
    };
    let (value, row, column) = (master[at], at / shape.cols, at % shape.cols);
    Err(format!(
        "`{}` holds {value:?} in row {row}, column {column}, which is not finite in {element}; save a \
         checkpoint of before it diverged, or write it in f32 if it is finite there",
        shown(weight)
    ))
}
