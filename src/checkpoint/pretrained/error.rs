//! Why weights cannot be had from files.
//!
//! Law: what stands in a file of somebody else's comes into a message escaped and cut.

use std::path::{Component, Path, PathBuf};

use warpweft_base::errors::{listed, shown, shown_path};
use warpweft_format::{FormatError, Shape};

/// Why pretrained weights cannot be read, or do not fit a model.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// The file system refused.
    #[error(
        "{}: {source}; name a safetensors file that is there and that this user can read",
        shown_path(path)
    )]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A folder, or a file of another kind than safetensors.
    #[error("{} is {what}", shown_path(path))]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },
    /// A tensor that holds something other than a weight in plain numbers: codes, scales, what an optimizer keeps.
    #[error("tensor `{}` is no weight in plain numbers, for {} is {what}", shown(tensor), shown_path(path))]
    NotWeights {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// What the file is, and what to do.
        what: String,
    },
    /// A file is no sound safetensors file.
    #[error(
        "{} is no sound safetensors file: {reason}; fetch it again, with its content and not a pointer of Git LFS in its place",
        shown_path(path)
    )]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such folder.
    #[error("there is no folder {}; {}", shown_path(folder), found_elsewhere(folder))]
    NoFolder {
        /// What was given for a folder.
        folder: PathBuf,
    },
    /// The index of a model's folder does not say which files it has, or not what they have.
    #[error(
        "{}: {reason}; fetch the whole folder of the model again, or name its files by PretrainedFiles::open",
        shown_path(path)
    )]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Two files have a tensor of one name.
    #[error(
        "tensor `{}` is both in {} and in {}; open the files of one model, each once",
        shown(tensor),
        shown_path(first),
        shown_path(second)
    )]
    Twice {
        /// The tensor.
        tensor: String,
        /// The file that was named first.
        first: PathBuf,
        /// The file that was named later.
        second: PathBuf,
    },
    /// No file has a tensor of this name.
    #[error(
        "none of the {files} files has a tensor `{}`, or their index does not list it; {}",
        shown(tensor),
        proposed(near)
    )]
    NoTensor {
        /// The name asked for.
        tensor: String,
        /// Files that are open.
        files: usize,
        /// Names near it, the nearest first.
        near: Vec<String>,
    },
    /// A tensor whose elements are no values of weights.
    #[error(
        "tensor `{}` in {} is in {dtype}, and F32, BF16 and F16 are read; convert it to one of these",
        shown(tensor),
        shown_path(path)
    )]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Its dtype, as safetensors calls it.
        dtype: String,
    },
    /// A tensor has another shape than the weight.
    #[error(
        "tensor `{}` in {} has the shape {found:?}, and the weight is {expected}; {}",
        shown(tensor),
        shown_path(path),
        fitting(found, *expected)
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// The weight's.
        expected: Shape,
    },
    /// Rows that a tensor does not have.
    #[error(
        "tensor `{}` in {} has the shape {found:?}, and {values} values were asked for from row {first_row} on, in \
         {columns} columns; ask for whole rows within it",
        shown(tensor),
        shown_path(path)
    )]
    Rows {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// The first row asked for.
        first_row: usize,
        /// The columns it was asked in.
        columns: usize,
        /// Values asked for.
        values: usize,
    },
    /// A weight of the model, and what is wrong with its tensor.
    #[error("weight `{}`: {source}", shown(weight))]
    Weight {
        /// The weight.
        weight: String,
        /// What is wrong.
        source: Box<PretrainedError>,
    },
    /// A tensor is not quantized as the frozen weight needs it.
    #[error(
        "`{}` of {} cannot be the planes of a frozen weight: {reason}; declare the weight in the file's format and shape, quantize the file anew (`warpweft quantize --format`), or begin with its values by `PretrainedFiles::initializer`",
        shown(tensor),
        shown_path(path)
    )]
    Quantized {
        /// The tensor, as it was called before it was quantized.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// Planes that have no place in the weight's layout.
    #[error(transparent)]
    Format {
        /// What is wrong with them.
        source: FormatError,
    },
    /// The initializer was asked for a weight that it was given no tensor for.
    #[error(
        "weight `{}` was given no tensor; name one for it, or let the function that is passed to try_initialize give its masters",
        shown(weight)
    )]
    NoName {
        /// The weight.
        weight: String,
    },
}

warpweft_base::debug_in_words!(PretrainedError);

/// What to do about a folder that is not there, which may be the name of a model on a hub: `owner/model`.
fn found_elsewhere(folder: &Path) -> String {
    let names = folder.components().map(|part| matches!(part, Component::Normal(_)));
    let names: Vec<bool> = names.collect();
    if names != [true, true] {
        return "pass the folder that has the model's files".to_owned();
    }
    let name = shown_path(folder);
    format!(
        "if that is the name of a model on the Hugging Face hub: nothing is downloaded here, so fetch it first (`hf \
         download {name} --local-dir FOLDER`), and pass the folder"
    )
}

/// Names for one that is not there.
fn proposed(near: &[String]) -> String {
    match near {
        [] => "PretrainedFiles::tensor_names lists what they have; open all files of the model".to_owned(),
        near => format!("names near it: {}", listed("`", near)),
    }
}

/// What to do about a tensor of another shape.
fn fitting(found: &[usize], Shape { rows, cols }: Shape) -> &'static str {
    if found == [cols, rows] {
        "it seems to be the transposed matrix: read it by PretrainedFiles::rows and transpose it in an initializer of your own"
    } else {
        "declare the weight in the tensor's shape, name another tensor, or cut the rows you need by PretrainedFiles::rows"
    }
}
