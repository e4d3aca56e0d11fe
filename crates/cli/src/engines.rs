//! `warpweft quantize --to`: a model into a folder that inference engines load.
//!
//! Law: what is computed, and what is refused, the library says (`warpweft::checkpoint::engines`). Here a file or a
//! folder becomes plain weights: the masters of a checkpoint that a session saved, compared with their digests, or the
//! tensors of any other file.

use std::path::Path;

use half::bf16;
use safetensors::Dtype;
use warpweft::checkpoint::engines::{EngineModel, EngineOptions, EngineReport, PlainTensor, PlainWeights};
use warpweft::checkpoint::{CheckpointError, PretrainedFiles};

use super::input::{Input, manifest_of};
use super::source::Source;
use super::{Progress, ToolError};

/// Converts the model `input`, a safetensors file or a folder as the Hugging Face hub has it, into the folder `output`.
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
    if input.is_dir() && options.model_folder.is_none() {
        options.model_folder = Some(input.to_owned());
    }
    let model = EngineModel::plan(&source, options)?;
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

/// The plain weights of a file or a folder.
#[derive(Debug)]
pub struct EngineInput {
    files: PretrainedFiles,
    /// Of a checkpoint that a session saved: its weights, each of which is the tensor `….master`.
    masters: Option<Vec<PlainTensor>>,
}

impl EngineInput {
    /// Opens it. Masters of a session are read once, and compared with their digests.
    ///
    /// # Errors
    /// [`ToolError`] for what holds no weights in plain numbers, and for a checkpoint that is damaged.
    pub fn open(input: &Path, progress: &mut dyn Progress) -> Result<Self, ToolError> {
        if input.is_dir() {
            return Ok(Self { files: PretrainedFiles::open_model(input)?, masters: None });
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
        let masters = source.left_out.is_some().then(|| {
            let tensors = source.tensors.iter().map(|entry| PlainTensor {
                name: entry.name.clone(),
                dtype: Dtype::BF16,
                shape: entry.shape.clone(),
            });
            tensors.collect()
        });
        Ok(Self { files: PretrainedFiles::open([input])?, masters })
    }

    /// The name of a tensor in the file.
    fn stored(&self, tensor: &str) -> String {
        if self.masters.is_some() { format!("{tensor}.master") } else { tensor.to_owned() }
    }
}

impl PlainWeights for EngineInput {
    fn tensors(&self) -> Result<Vec<PlainTensor>, CheckpointError> {
        self.masters.clone().map_or_else(|| PlainWeights::tensors(&self.files), Ok)
    }

    fn rows(
        &self,
        tensor: &str,
        first_row: usize,
        columns: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        self.files.rows(&self.stored(tensor), first_row, columns, values)
    }

    /// Masters are rounded to bf16, in which a model is served.
    fn bytes(&self, tensor: &str, at: usize, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        if self.masters.is_none() {
            return self.files.bytes(tensor, at, bytes);
        }
        let words = bytes.as_chunks_mut().0;
        let mut master = vec![0_u8; words.len() * size_of::<f32>()];
        self.files.bytes(&self.stored(tensor), at / size_of::<bf16>() * size_of::<f32>(), &mut master)?;
        for (word, value) in words.iter_mut().zip(master.as_chunks().0) {
            *word = bf16::from_f32(f32::from_le_bytes(*value)).to_le_bytes();
        }
        Ok(())
    }
}
