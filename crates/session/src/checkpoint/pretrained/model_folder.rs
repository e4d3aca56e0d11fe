//! A model's folder, as the Hugging Face hub lays it out.
//!
//! Law: the folder's index says which files there are and which tensor is in which of them, and no file is opened
//! that is not directly in the folder. What the index promises, the files have: a tensor that is not where it says is
//! an error at once, not a surprise later. What it does not list is not there, even where a file has it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Component, Path};

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::PretrainedFiles;
use crate::checkpoint::engines::read_config::Quantization;
use crate::checkpoint::{CheckpointError, FileTask};
use warpweft_base::errors::shown;
use warpweft_base::whole_file::regular;

/// The file that lists the shards.
const INDEX: &str = "model.safetensors.index.json";
/// The only file of a model without shards.
const WHOLE: &str = "model.safetensors";
/// More than the index of any model takes: a hundred bytes for each of 600,000 tensors.
const MOST_INDEX: u64 = 1 << 26;

/// What is used of an index.
#[derive(serde::Deserialize)]
struct Index {
    /// The file of every tensor.
    weight_map: Listed,
}

/// Tensors and their files, as they are listed.
struct Listed(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ListVisitor)
    }
}

struct ListVisitor;

impl<'de> Visitor<'de> for ListVisitor {
    type Value = Listed;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the file of every tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
        let mut listed = Vec::new();
        while let Some(entry) = map.next_entry()? {
            listed.push(entry);
        }
        Ok(Listed(listed))
    }
}

impl PretrainedFiles {
    /// Opens a model's folder, as the Hugging Face hub lays it out: all files that
    /// `model.safetensors.index.json` lists, or `model.safetensors` where there is no such index. Of each file the
    /// tensors count that the index lists for it, and no others.
    ///
    /// # Errors
    /// As [`PretrainedFiles::open`]; [`CheckpointError::Engine`] for layers that are quantized in a way that is not
    /// read, or not as `config.json` says; [`CheckpointError::NoFolder`] where nothing is, such as for the name of a
    /// model on a hub, from which nothing is downloaded; [`CheckpointError::Index`] for an index that is none, that
    /// names a file outside of the folder, or that promises a tensor which its file does not have.
    pub fn open_model(folder: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        let folder = folder.as_ref();
        if !folder.is_dir() {
            return Err(CheckpointError::NoFolder { folder: folder.to_owned() });
        }
        let quantization = Quantization::of(folder)?.map(|quantization| (folder, quantization));
        let path = folder.join(INDEX);
        // A link that leads nowhere, or what this user may not look at, is no reason to take another file.
        let there = std::fs::symlink_metadata(&path);
        if there.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Self::open_listed([folder.join(WHOLE)], quantization, |_, _| true);
        }
        let wrong = |reason| CheckpointError::Index { path: path.clone(), reason };
        let Index { weight_map: Listed(weight_map) } = read(&path)?;
        let mut places: HashMap<&str, &str> = HashMap::new();
        for (tensor, file) in &weight_map {
            if places.insert(tensor, file).is_some() {
                return Err(wrong(format!("it lists the tensor `{}` twice", shown(tensor))));
            }
        }
        // Each once, in the order of their names.
        let mut files: Vec<&String> = weight_map.iter().map(|(_, file)| file).collect();
        files.sort_unstable();
        files.dedup();
        if let Some(name) = files.iter().find(|name| !is_of_folder(name)) {
            return Err(wrong(format!("it names `{}`, which is no file of this folder", shown(name))));
        }
        if files.is_empty() {
            return Err(wrong("it lists no tensor".to_owned()));
        }
        let is_listed = |file: usize, tensor: &str| {
            let place = places.get(tensor);
            place.is_some() && place.copied() == files.get(file).map(|name| name.as_str())
        };
        let opened = Self::open_listed(files.iter().map(|name| folder.join(name)), quantization, is_listed)?;
        match weight_map.iter().find(|(tensor, _)| !opened.has(tensor)) {
            None => Ok(opened),
            Some((tensor, file)) => {
                Err(wrong(format!("{} does not have the tensor `{}`", shown(file), shown(tensor))))
            }
        }
    }
}

fn read(path: &Path) -> Result<Index, CheckpointError> {
    let wrong = |reason| CheckpointError::Index { path: path.to_owned(), reason };
    let json = regular::read(path, MOST_INDEX).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge => wrong(error.to_string()),
        _ => CheckpointError::file(path.to_owned(), FileTask::ReadWeights, error),
    })?;
    serde_json::from_slice(&json).map_err(|error| wrong(shown(error)))
}

/// Is it the plain name of a file, fit for a message?
fn is_of_folder(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_plain =
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    is_plain && shown(name) == name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_folder_is_no_file_of_this_folder() {
        assert!(is_of_folder("model-00001-of-00002.safetensors"));
        for name in ["", ".", "..", "../a", "/a", "a/b", "a/", "./a", "a/../b", "a\u{1b}[31m", "a\0"] {
            assert!(!is_of_folder(name), "{name}");
        }
    }
}
