//! Advice in messages about files of weights: names of the task, and what to do.

use std::io;
use std::path::{Component, Path};

use warpweft_base::errors::{listed, shown_path};
use warpweft_base::whole_file::next_step;
use warpweft_format::Shape;

/// A task on a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileTask {
    /// To make a folder.
    MakeFolder,
    /// To write a file, or to give it its name.
    Write,
    /// To read a file.
    Read,
    /// To keep a checkpoint in one file, or to load it.
    Keep,
    /// To read weights from elsewhere.
    ReadWeights,
}

impl FileTask {
    /// What a message begins with.
    pub(super) fn of(self, path: &Path) -> String {
        let path = shown_path(path);
        match self {
            Self::MakeFolder => format!("cannot make the folder {path}"),
            Self::Write => format!("cannot write {path}"),
            Self::Read => format!("cannot read {path}"),
            Self::Keep => format!("checkpoint {path}"),
            Self::ReadWeights => path.to_string(),
        }
    }

    pub(super) fn advice(self, source: &io::Error) -> &'static str {
        match self {
            Self::MakeFolder => "name a folder in which this user can write",
            Self::ReadWeights => "name a safetensors file that is there and that this user can read",
            Self::Write | Self::Read | Self::Keep => next_step(source),
        }
    }
}

/// What to do about a folder that is not there, which may be the name of a model on a hub: `owner/model`.
pub(super) fn found_elsewhere(folder: &Path) -> String {
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
pub(super) fn proposed(near: &[String]) -> String {
    match near {
        [] => "PretrainedFiles::tensor_names lists what they have; open all files of the model".to_owned(),
        near => format!("names near it: {}", listed("`", near)),
    }
}

/// What to do about a tensor of another shape.
pub(super) fn fitting(found: &[usize], Shape { rows, cols }: Shape) -> &'static str {
    if found == [cols, rows] {
        "it seems to be the transposed matrix: read it by PretrainedFiles::rows and transpose it in an initializer of your own"
    } else {
        "declare the weight in the tensor's shape, name another tensor, or cut the rows you need by PretrainedFiles::rows"
    }
}
