//! Checkpoints that inference engines load: compressed-tensors, ModelOpt and DeepSeek FP8, written and read.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use warpweft::checkpoint::PretrainedFiles;
//! use warpweft::checkpoint::engines::{Dialect, EngineModel, EngineOptions};
//! use warpweft::format::Format;
//!
//! let files = PretrainedFiles::open_model("Qwen3-8B")?;
//! let mut options = EngineOptions::new(Dialect::CompressedTensors, Format::NVFP4_2D);
//! options.model_folder = Some("Qwen3-8B".into());
//! let report = EngineModel::plan(&files, options)?.write("Qwen3-8B-NVFP4", &mut |_, _| ControlFlow::Continue(()))?;
//! println!("{} layers, {} bytes", report.layers.len(), report.bytes);
//! # Ok::<(), warpweft::checkpoint::CheckpointError>(())
//! ```
//!
//! Laws:
//! - **EN-1** codes and scales are those of the quantizer, bit for bit: those that training uses, where it had the
//!   same scale groups, or where no layer that an engine fuses with another has a larger magnitude. They are moved,
//!   cropped and repeated, and never rounded again.
//! - **EN-2** what an engine fuses is quantized alike or not at all, and has one scale of the tensor; the experts of a
//!   layer are quantized alike or not at all.
//! - **EN-3** whoever reads a dialect computes values in the order of operations of the dialect's own package, and
//!   takes from `config.json` which dialect it is; nothing is guessed from numbers.
//! - **EN-4** a folder appears whole or not at all.
//!
//! Anyone may call: the tool, a trainer with a [`Checkpoint`](super::Checkpoint), whoever has
//! [`PretrainedFiles`](super::PretrainedFiles). Deliberately absent: calibration, and loading into an engine.
//!
//! | file | idea |
//! |---|---|
//! | `dialect`, `encoding` | what an engine calls the tensors of a layer, and how it stores them |
//! | `linears`, `scale_groups` | which tensors are quantized; which layers engines fuse |
//! | `name_map`, `import` | other names, cut rows, transposed matrices; weights read by them |
//! | `weights` | where plain weights come from |
//! | `candidates`, `plan` | tensors under their new names, and which are quantized; what becomes of each, and in which file |
//! | `encode`, `convert` | rows in a dialect; a model converted |
//! | `quantization_config` | what `config.json` says of it |
//! | `read_config`, `quantized_layer` | what a folder says of its layers; their values |
//! | `inspection` | what a folder is |
//! | `folder`, `report` | the folder that is written; what was done |

mod candidates;
mod convert;
pub(super) mod dialect;
mod encode;
pub(super) mod encoding;
mod folder;
mod import;
mod inspection;
mod linears;
mod name_map;
mod plan;
mod quantization_config;
pub(super) mod quantized_layer;
pub(super) mod read_config;
mod report;
mod scale_groups;
mod weights;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};
use warpweft_base::whole_file::regular;
use warpweft_format::{Format, Via};

use super::{CheckpointError, FileTask};
use convert::Conversion;
use folder::{CONFIG, MOST_CONFIG, ModelFolder};
use plan::Plan;

pub use convert::Watch;
pub use dialect::Dialect;
pub use inspection::StoredLayer;
pub use linears::{LayerRule, LeftAlone};
pub use name_map::NameMap;
pub use report::{ConvertedLayer, EngineReport, ScaleGroup};
pub(super) use weights::dimensions;
pub use weights::{PlainTensor, PlainWeights};

/// Options of converting a model for inference engines.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EngineOptions {
    /// The convention.
    pub dialect: Dialect,
    /// The format of linear layers; [`Dialect::formats`] lists those that it takes.
    pub format: Format,
    /// Rounding before anything else. Sessions round to bf16 unless set otherwise.
    pub via: Via,
    /// Other formats by the names of tensors, or `None` to keep them; the last rule that matches counts.
    pub rules: Vec<LayerRule>,
    /// Endings of names of layers that an engine fuses, beside those of known models: `[["attn.wq", "attn.wk"]]`.
    pub scale_groups: Vec<Vec<String>>,
    /// The largest magnitude of the inputs of every layer, by its name. Then NVFP4 layers are W4A4: engines quantize
    /// their inputs too. Without, they are W4A16.
    pub input_amaxes: Option<BTreeMap<String, f32>>,
    /// Other names.
    pub names: NameMap,
    /// The folder from which `config.json`, the tokenizer and so on come.
    pub model_folder: Option<PathBuf>,
    /// The most bytes of tensors in one file.
    pub bytes_of_file: u64,
}

impl EngineOptions {
    /// Every linear layer in `format`, values as they are, files of 5 GB.
    #[must_use]
    pub fn new(dialect: Dialect, format: Format) -> Self {
        Self {
            dialect,
            format,
            via: Via::None,
            rules: Vec::new(),
            scale_groups: Vec::new(),
            input_amaxes: None,
            names: NameMap::default(),
            model_folder: None,
            bytes_of_file: 5_000_000_000,
        }
    }

    const fn inputs_are_quantized(&self) -> bool {
        self.input_amaxes.is_some()
    }
}

/// A model that is about to be converted: what becomes of every tensor is known, and no value was read.
pub struct EngineModel<'a> {
    weights: &'a dyn PlainWeights,
    options: EngineOptions,
    plan: Plan,
    config: Value,
}

impl<'a> EngineModel<'a> {
    /// Decides what becomes of every tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] for a format that the dialect lacks, rules that give what an engine fuses several
    /// formats, names that the map lacks or gives twice, and where nothing would be quantized;
    /// [`CheckpointError::Engine`] for a model's folder without a valid `config.json`, or one that is quantized.
    pub fn plan(weights: &'a dyn PlainWeights, options: EngineOptions) -> Result<Self, CheckpointError> {
        let plan = Plan::of(weights, &options)?;
        let mut config = match &options.model_folder {
            None => json!({}),
            Some(folder) => plain_config(&folder.join(CONFIG))?,
        };
        // What is decoded is bf16, and so is the rest when it is loaded.
        for key in ["dtype", "torch_dtype"] {
            if config.get(key).is_some() {
                config[key] = json!("bfloat16");
            }
        }
        config["quantization_config"] = plan.layers.config(options.dialect);
        Ok(Self { weights, options, plan, config })
    }

    /// Bytes of the input that are going to be read.
    #[must_use]
    pub fn bytes_to_read(&self) -> u64 {
        self.plan.bytes_to_read()
    }

    /// Converts the model into the folder `target`, which is not there or empty (EN-4). `watch` gets every piece.
    ///
    /// Memory: 16 MiB of values at a time, three times as much read ahead, what is made of them, and a buffer for each
    /// file.
    ///
    /// # Errors
    /// [`CheckpointError::Taken`] for a folder that is there, [`CheckpointError::Unfit`] for values that do not come
    /// back, [`CheckpointError::Stopped`] when `watch` ends it, and what files refuse. Then `target` is as it was.
    pub fn write<'w>(
        self,
        target: impl AsRef<Path>,
        watch: &'w mut Watch<'w>,
    ) -> Result<EngineReport, CheckpointError> {
        let Self { weights, options, plan, config } = self;
        let begin = Instant::now();
        let Plan { units, files, index, bytes, layers, left, .. } = plan;
        let mut folder = ModelFolder::begin(target.as_ref(), &files)?;
        let mut report = EngineReport { left, bytes, files: files.len(), ..EngineReport::default() };
        let mut conversion =
            Conversion { weights, options: &options, folder: &mut folder, report: &mut report, watch };
        conversion.convert(&units)?;
        if let Some(from) = &options.model_folder {
            (report.copied, report.not_copied) = folder.copy_rest(from)?;
        }
        folder.json(CONFIG, &config)?;
        if let Some((name, value)) = layers.file_beside(options.dialect) {
            folder.json(name, &value)?;
        }
        folder.commit(&index, bytes)?;
        report.elapsed = begin.elapsed();
        Ok(report)
    }
}

/// The `config.json` of a model that is not quantized yet.
fn plain_config(path: &Path) -> Result<Value, CheckpointError> {
    let wrong = |reason: String| Err(CheckpointError::Engine { path: path.to_owned(), reason });
    let text = regular::read(path, MOST_CONFIG)
        .map_err(|error| CheckpointError::file(path, FileTask::Read, error))?;
    match serde_json::from_slice(&text) {
        Ok(Value::Object(config))
            if config.get("quantization_config").is_some_and(|stated| !stated.is_null()) =>
        {
            wrong("the model is quantized already; begin with the model as it was before".to_owned())
        }
        Ok(Value::Object(config)) => Ok(Value::Object(config)),
        Ok(_) => wrong("it is no object of JSON; fetch the model's folder again".to_owned()),
        Err(error) => wrong(format!("it is no JSON ({error}); fetch the model's folder again")),
    }
}
