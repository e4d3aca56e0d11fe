//! Where checkpoints are kept.
//!
//! Law: a store is the embedder's choice; the session never calls one. Saving replaces the whole
//! checkpoint or nothing: the file store writes beside its target and renames.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{Checkpoint, WeightState};
use crate::format::{DelayedState, Format, Shape};

/// Why a checkpoint could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("checkpoint {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no checkpoint of this library.
    #[error("checkpoint {path}: {reason}; it was not loaded")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// Saves and loads checkpoints.
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// Keeps `checkpoint` in place of what was there.
    ///
    /// # Errors
    /// [`StoreError`]; what was there is kept then.
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), StoreError>;

    /// The checkpoint kept last.
    ///
    /// # Errors
    /// [`StoreError`] when there is none or it cannot be read.
    async fn load(&self) -> Result<Checkpoint, StoreError>;
}

/// One safetensors file: `<weight>.master`, `.exp_avg`, `.exp_avg_sq` in f32 `[rows, cols]`, where scaling is
/// delayed `.delayed_scale` `[1, 1]` and `.amax_history` `[1, history]`, and the planes under the names of the
/// `quantize` tool.
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

const VERSION: &str = "1";

/// Suffixes of the tensors of a delayed scale.
const DELAYED: [&str; 2] = ["delayed_scale", "amax_history"];

impl FileStore {
    /// A store in the file `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn content(&self, reason: impl std::fmt::Display) -> StoreError {
        StoreError::Content { path: self.path.clone(), reason: reason.to_string() }
    }

    fn read(&self, bytes: &[u8]) -> Result<Checkpoint, StoreError> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|error| self.content(error))?;
        let about = header.metadata().clone().unwrap_or_default();
        let field = |key: &str| about.get(key).ok_or_else(|| self.content(format!("it has no `{key}`")));
        if field("warpweft_checkpoint")? != VERSION {
            return Err(self.content("it was written by another version"));
        }
        let optimizer_step = field("optimizer_step")?.parse().map_err(|error| self.content(error))?;
        let names: Vec<(String, String)> =
            serde_json::from_str(field("weights")?).map_err(|error| self.content(error))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| self.content(error))?;
        let mut weights = Vec::new();
        for (name, format) in names {
            let format: Format = format.parse().map_err(|error| self.content(error))?;
            let (shape, master) = self.values(&tensors, &format!("{name}.master"))?;
            let (_, exp_avg) = self.values(&tensors, &format!("{name}.exp_avg"))?;
            let (_, exp_avg_sq) = self.values(&tensors, &format!("{name}.exp_avg_sq"))?;
            let delayed = self.delayed(&tensors, &name)?;
            weights.push(WeightState {
                name,
                shape,
                format,
                master,
                exp_avg,
                exp_avg_sq,
                planes: Vec::new(),
                tensor_scale: 1.0,
                delayed,
            });
        }
        Ok(Checkpoint { optimizer_step, weights })
    }

    fn delayed(&self, tensors: &SafeTensors<'_>, name: &str) -> Result<Option<DelayedState>, StoreError> {
        let [scale, history] = DELAYED.map(|suffix| format!("{name}.{suffix}"));
        if tensors.tensor(&scale).is_err() && tensors.tensor(&history).is_err() {
            return Ok(None);
        }
        let (factor, amaxes) = (self.values(tensors, &scale)?.1, self.values(tensors, &history)?);
        match (factor.as_slice(), amaxes) {
            ([scale], (Shape { rows: 1, .. }, history)) => Ok(Some(DelayedState { scale: *scale, history })),
            _ => Err(self.content(format!("`{scale}` is not one number, or `{history}` not one row"))),
        }
    }

    fn values(&self, tensors: &SafeTensors<'_>, name: &str) -> Result<(Shape, Vec<f32>), StoreError> {
        let tensor = tensors.tensor(name).map_err(|error| self.content(format!("`{name}`: {error}")))?;
        match (tensor.dtype(), tensor.shape()) {
            (Dtype::F32, [rows, cols]) => {
                let values = tensor
                    .data()
                    .chunks_exact(4)
                    .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
                Ok((Shape { rows: *rows, cols: *cols }, values.collect()))
            }
            _ => Err(self.content(format!("`{name}` is not a matrix of f32"))),
        }
    }
}

#[async_trait]
impl CheckpointStore for FileStore {
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
        let file = |source| StoreError::File { path: self.path.clone(), source };
        let tensors = Entries::of(checkpoint);
        let views = tensors.views().map_err(|error| self.content(error))?;
        let names: Vec<(String, String)> =
            checkpoint.weights.iter().map(|state| (state.name.clone(), state.format.to_string())).collect();
        let listed = serde_json::to_string(&names).map_err(|error| self.content(error))?;
        let about = HashMap::from([
            ("warpweft_checkpoint".to_owned(), VERSION.to_owned()),
            ("optimizer_step".to_owned(), checkpoint.optimizer_step.to_string()),
            ("weights".to_owned(), listed),
        ]);
        let beside = beside(&self.path);
        let bytes = safetensors::serialize(views, Some(about)).map_err(|error| self.content(error))?;
        std::fs::write(&beside, bytes).map_err(file)?;
        std::fs::rename(&beside, &self.path).map_err(|source| {
            let _ = std::fs::remove_file(&beside);
            file(source)
        })
    }

    async fn load(&self) -> Result<Checkpoint, StoreError> {
        let bytes = std::fs::read(&self.path)
            .map_err(|source| StoreError::File { path: self.path.clone(), source })?;
        self.read(&bytes)
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

/// Tensors by name, as bytes.
struct Entries {
    list: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Entries {
    fn of(checkpoint: &Checkpoint) -> Self {
        let mut list = Vec::new();
        for state in &checkpoint.weights {
            let shape = vec![state.shape.rows, state.shape.cols];
            for (suffix, values) in
                [("master", &state.master), ("exp_avg", &state.exp_avg), ("exp_avg_sq", &state.exp_avg_sq)]
            {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                list.push((format!("{}.{suffix}", state.name), Dtype::F32, shape.clone(), bytes));
            }
            if let Some(delayed) = &state.delayed {
                for (suffix, values) in DELAYED.iter().zip([&[delayed.scale][..], &delayed.history]) {
                    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    let name = format!("{}.{suffix}", state.name);
                    list.push((name, Dtype::F32, vec![1, values.len()], bytes));
                }
            }
            for stored in &state.planes {
                for (kind, (spec, bytes)) in
                    ["data", "scale"].iter().zip(stored.specs.iter().zip(&stored.planes))
                {
                    let name = format!("{}.{}_{kind}", state.name, stored.orientation);
                    let shape = vec![spec.rows, spec.cols * spec.element.bytes()];
                    list.push((name, Dtype::U8, shape, bytes.clone()));
                }
            }
            if !state.planes.is_empty() {
                let bytes = state.tensor_scale.to_le_bytes().to_vec();
                list.push((format!("{}.tensor_scale", state.name), Dtype::F32, vec![1], bytes));
            }
        }
        Self { list }
    }

    fn views(&self) -> Result<Vec<(&str, TensorView<'_>)>, safetensors::SafeTensorError> {
        self.list
            .iter()
            .map(|(name, dtype, shape, bytes)| {
                Ok((name.as_str(), TensorView::new(*dtype, shape.clone(), bytes)?))
            })
            .collect()
    }
}
