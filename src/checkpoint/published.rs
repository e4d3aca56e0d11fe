//! The weights of a checkpoint alone, in a file for other tools.
//!
//! Law: the file has no word of this library: one tensor per weight, under the name and in the element type
//! that the caller chooses. It is replaced whole or not at all, and takes next to no memory beside the
//! checkpoint, or beside one weight of a checkpoint in parts.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::tensor::Dtype;

use super::safetensors::TensorFileError;
use super::safetensors::header::METADATA;
use super::safetensors::tensor::Tensor;
use super::safetensors::writer;
use super::{Checkpoint, CheckpointError, FileTask};
use warpweft_base::errors::shown;
use warpweft_base::whole_file::WholeFile;
use warpweft_format::{ElementType, Format, Shape, Via};

impl Checkpoint {
    /// Writes the weights into one safetensors file, for serving or other tools, in place of what was there:
    /// masters, and of a frozen weight what its planes are dequantized to
    /// ([`WeightState::values`](super::WeightState::values)).
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
            master: match (&state.frozen, state.master.is_empty()) {
                (Some(_), true) => {
                    let values = || state.values().map_err(|_| no_values(&path, &state.name));
                    Master::Read(Box::new(move || Ok(values()?.into_owned())))
                }
                _ => Master::Held(&state.master),
            },
        });
        write(path.clone(), element, weights, tensor_of)
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
    pub(super) master: Master<'a>,
}

/// Where its master is.
pub(super) enum Master<'a> {
    /// In memory.
    Held(&'a [f32]),
    /// Elsewhere, and read when it is its turn.
    Read(Box<dyn Fn() -> Result<Vec<f32>, CheckpointError> + 'a>),
}

/// Writes a file of these weights, in place of what was there.
pub(super) fn write<'a>(
    path: PathBuf,
    element: ElementType,
    weights: impl Iterator<Item = PlainWeight<'a>>,
    tensor_of: impl Fn(&str) -> Option<String>,
) -> Result<(), CheckpointError> {
    let content = |reason: String| CheckpointError::Content { path: path.clone(), reason };
    let failed = |source| CheckpointError::file(&path, FileTask::Keep, source);
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
        tensors.push(tensor(name, weight, element, &path).map_err(content)?);
    }
    if tensors.is_empty() {
        return Err(content(
            "no weight was given a name, so the file would have none; let the function that names tensors give one \
             for each weight that is to be in it"
                .to_owned(),
        ));
    }
    let about = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let file = WholeFile::begin(&path).map_err(failed)?;
    let file = writer::write(tensors, &about, file).map_err(|error| match error {
        TensorFileError::File(source) => source.downcast::<CheckpointError>().unwrap_or_else(failed),
        TensorFileError::Unsound(error) => content(error.to_string()),
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
    match (element, master) {
        (ElementType::F32, Master::Held(master)) => {
            check(of, shape, element, master)?;
            Ok(Tensor::values(name, dimensions, master))
        }
        (ElementType::Bf16, Master::Held(master)) => {
            check(of, shape, element, master)?;
            Ok(Tensor::rounded(name, dimensions, master))
        }
        (ElementType::F32, Master::Read(read)) => {
            Ok(Tensor::later(name, Dtype::F32, dimensions, move || fetch(&read, (of, shape), element, path)))
        }
        (ElementType::Bf16, Master::Read(read)) => {
            let rounded = move || {
                let values = fetch(&read, (of, shape), element, path)?;
                Ok(values.into_iter().map(bf16::from_f32).collect())
            };
            Ok(Tensor::later::<bf16>(name, Dtype::BF16, dimensions, rounded))
        }
        (other, _) => Err(format!("weights are not written in {other}; write them in f32 or bf16")),
    }
}

/// A master that is read now. What is wrong with it comes through the file's writer as what the system says does.
fn fetch(
    read: &dyn Fn() -> Result<Vec<f32>, CheckpointError>,
    (weight, shape): (&str, Shape),
    element: ElementType,
    path: &Path,
) -> io::Result<Vec<f32>> {
    let master = read().map_err(io::Error::other)?;
    let content = |reason| CheckpointError::Content { path: path.to_owned(), reason };
    check(weight, shape, element, &master).map_err(content).map_err(io::Error::other)?;
    Ok(master)
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
