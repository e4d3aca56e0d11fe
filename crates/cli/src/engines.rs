//! `warpweft quantize --to`: converts a model into a folder that inference engines load.
//!
//! Law: what is computed, and what is refused, the library says (`warpweft_session::checkpoint::engines`). Here a
//! file or a folder becomes plain weights: the masters of a checkpoint that a session saved, in one file or in one for
//! each rank, compared with their digests, or the tensors of any other file.

use std::path::Path;

use safetensors::Dtype;
use warpweft_format::Format;
use warpweft_session::checkpoint::engines::{
    EngineModel, EngineOptions, EngineReport, PlainTensor, PlainWeights,
};
use warpweft_session::checkpoint::manifest::Part;
use warpweft_session::checkpoint::safetensors::TensorEntry;
use warpweft_session::checkpoint::{CheckpointError, PartFiles, PretrainedFiles};

use super::input::{Input, manifest_of};
use super::source::Source;
use super::{Progress, ToolError};

/// Converts the model `input`, a safetensors file, a folder as the Hugging Face hub has it, or a checkpoint that a
/// session saved, into the folder `output`.
///
/// Of a folder, `config.json`, the tokenizer and so on travel along, unless the options name another.
///
/// # Errors
/// [`ToolError::Model`] and whatever reading a file meets; there is no `output` then.
pub fn quantize_for_engines(
    input: &Path,
    output: &Path,
    mut options: EngineOptions,
    progress: &mut dyn Progress,
) -> Result<EngineReport, ToolError> {
    let source = EngineInput::open(input, progress)?;
    if source.is_model_folder && options.model_folder.is_none() {
        options.model_folder = Some(input.to_owned());
    }
    let model = EngineModel::plan(&*source.weights, options)?;
    progress.start(model.bytes_to_read());
    let mut told = String::new();
    let report = model.write(output, &mut |tensor, bytes| {
        if told != tensor {
            tensor.clone_into(&mut told);
            progress.tensor(tensor);
        }
        progress.advance(bytes)
    });
    match report {
        Ok(report) => {
            progress.finish();
            Ok(report)
        }
        Err(CheckpointError::Stopped) => Err(ToolError::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// The plain weights of a file or a folder, as input of a conversion for engines.
pub struct EngineInput {
    weights: Box<dyn PlainWeights>,
    /// Is it a model's folder, from which the rest travels along?
    is_model_folder: bool,
}

impl EngineInput {
    /// Opens it. Masters of a session's file are read once, and compared with their digests; those of a sharded
    /// checkpoint are compared when they are read.
    ///
    /// # Errors
    /// [`ToolError`] for what holds no weights in plain numbers, and for a checkpoint that is damaged.
    pub fn open(input: &Path, progress: &mut dyn Progress) -> Result<Self, ToolError> {
        let of_session = |weights| Ok(Self { weights, is_model_folder: false });
        if input.is_dir() {
            let parts = PartFiles::new(input);
            return match parts.is_taken() {
                true => of_session(Box::new(parts.plain_weights()?)),
                false => {
                    let weights = Box::new(PretrainedFiles::open_model(input)?);
                    Ok(Self { weights, is_model_folder: true })
                }
            };
        }
        let (header, mut data) = Input::open(input)?;
        if let Some(manifest) = manifest_of(&header, input)? {
            return Err(ToolError::AlreadyQuantized { path: input.to_owned(), format: manifest.format });
        }
        let source = Source::of(&header, input)?;
        if source.compared_bytes() > 0 {
            progress.start(source.compared_bytes());
        }
        source.compare(&mut data, progress)?;
        if !source.absent.is_empty() {
            return Err(ToolError::Frozen { path: input.to_owned(), weights: source.absent });
        }
        let files = PretrainedFiles::open([input])?;
        if source.left_out.is_none() {
            return of_session(Box::new(files));
        }
        let tensor = |entry: &TensorEntry| PlainTensor {
            name: entry.name.clone(),
            dtype: Dtype::BF16,
            shape: entry.shape.clone(),
        };
        of_session(Box::new(Masters { files, tensors: source.tensors.iter().map(tensor).collect() }))
    }
}

/// The masters of a session's file, each of which is the tensor `WEIGHT.master`.
struct Masters {
    files: PretrainedFiles,
    tensors: Vec<PlainTensor>,
}

fn stored(weight: &str) -> String {
    format!("{weight}.master")
}

impl PlainWeights for Masters {
    fn tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError> {
        Ok(self.tensors.clone())
    }

    fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        self.files.rows(&stored(tensor), first_row, columns, values)
    }

    fn delayed_factor(&self, tensor: &str) -> Result<Option<f32>, CheckpointError> {
        let name = format!("{tensor}.delayed_scale");
        if !self.files.tensor_names().any(|found| found == name) {
            return Ok(None);
        }
        let mut factor = [0; size_of::<f32>()];
        self.files.bytes(&name, 1, 0, &mut factor)?;
        Ok(Some(f32::from_le_bytes(factor)))
    }

    fn trained_scale(&self, tensor: &str, format: Format) -> Result<Option<f32>, CheckpointError> {
        // Scales of other formats are called as their planes are.
        let part = Part::tensor_scale(format).filter(|part| *part == Part::Amax);
        let name = part.map(|part| part.name(tensor));
        let Some(name) = name.filter(|name| self.files.tensor_names().any(|found| found == name)) else {
            return Ok(None);
        };
        let mut amax = [0; size_of::<f32>()];
        self.files.bytes(&name, 1, 0, &mut amax)?;
        Ok(Some(f32::from_le_bytes(amax)))
    }
}
