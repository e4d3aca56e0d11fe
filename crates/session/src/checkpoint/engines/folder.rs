//! The output folder of a conversion: files of tensors with their index, `config.json`, and what travels along.
//!
//! Law **EN-4**: the folder takes its name when every file in it is on the disk, and vanishes when it is dropped
//! before. A name that is taken is refused, unless it is that of an empty folder. What a killed process leaves is
//! `.NAME.PROCESS-NUMBER.unfinished` beside it, which anybody may remove.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::plan::Place;
use crate::checkpoint::safetensors::{Outline, TensorFileError, Writer};
use crate::checkpoint::{CheckpointError, FileTask};

/// The description of a model.
pub(crate) const CONFIG: &str = "config.json";
/// More than any of them takes.
pub(crate) const MOST_CONFIG: u64 = 1 << 24;

/// Endings of files that hold weights, which do not travel along.
const WEIGHTS: [&str; 10] =
    ["safetensors", "bin", "pt", "pth", "gguf", "h5", "msgpack", "onnx", "ckpt", "index.json"];

/// Descriptions of how the model was stored before.
const DESCRIPTIONS: [&str; 2] = [CONFIG, "hf_quant_config.json"];

/// A folder on its way.
#[derive(Debug)]
pub(super) struct ModelFolder {
    target: PathBuf,
    /// Where it is until then.
    beside: PathBuf,
    files: Vec<(PathBuf, Writer<BufWriter<File>>)>,
}

impl ModelFolder {
    /// Begins a folder that is to be called `target`, with a file for each of `outlines`.
    pub(super) fn begin(target: &Path, outlines: &[Outline]) -> Result<Self, CheckpointError> {
        check_free(target)?;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| CheckpointError::file(path, FileTask::Write, error)
        };
        let failed_to_make = |error| CheckpointError::file(target, FileTask::MakeFolder, error);
        let beside = beside(target).map_err(failed_to_make)?;
        // From here on it is removed again when something fails.
        let mut folder = Self { target: target.to_owned(), beside, files: Vec::new() };
        let about = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        for (number, outline) in outlines.iter().enumerate() {
            let path = folder.beside.join(file_name(number, outlines.len()));
            let layout = outline.lay_out(&about).map_err(|error| match error {
                TensorFileError::File(error) => failed(&path)(error),
                TensorFileError::Invalid(error) => CheckpointError::Unfit { reason: error.to_string() },
            })?;
            let file = File::create_new(&path).map_err(failed(&path))?;
            let file = BufWriter::with_capacity(BUFFER, file);
            let writer = Writer::begin(file, layout).map_err(failed(&path))?;
            folder.files.push((path, writer));
        }
        Ok(folder)
    }

    /// Writes the next bytes of a tensor.
    pub(super) fn append(&mut self, place: Place, bytes: &[u8]) -> Result<(), CheckpointError> {
        let (path, writer) = &mut self.files[place.file];
        writer
            .append(place.tensor, bytes)
            .map_err(|error| CheckpointError::file(path.clone(), FileTask::Write, error))
    }

    /// Writes a file of JSON.
    pub(super) fn json(&self, name: &str, value: &Value) -> Result<(), CheckpointError> {
        let path = self.beside.join(name);
        let write = || {
            let mut text = serde_json::to_vec_pretty(value)?;
            text.push(b'\n');
            fs::write(&path, text)?;
            File::open(&path)?.sync_all()
        };
        write().map_err(|error| CheckpointError::file(path.clone(), FileTask::Write, error))
    }

    /// Copies the files of a model's folder that are not of weights. Gives their names, and those of what else is
    /// there, sorted.
    pub(super) fn copy_rest(&self, from: &Path) -> Result<(Vec<String>, Vec<String>), CheckpointError> {
        let read = |error| CheckpointError::file(from, FileTask::Read, error);
        let (mut names, mut others) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(from).map_err(read)? {
            let entry = entry.map_err(read)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with('.') || DESCRIPTIONS.contains(&name.as_str()) {
                continue;
            }
            let holds_weights = WEIGHTS.iter().any(|ending| name.ends_with(&format!(".{ending}")));
            if holds_weights || !entry.path().is_file() {
                others.push(name);
                continue;
            }
            let target = self.beside.join(&name);
            let copied = fs::copy(entry.path(), &target).and_then(|_| File::open(&target)?.sync_all());
            copied.map_err(|error| CheckpointError::file(target, FileTask::Write, error))?;
            names.push(name);
        }
        names.sort_unstable();
        others.sort_unstable();
        Ok((names, others))
    }

    /// Gives the folder its name, once every byte is on the disk.
    pub(super) fn commit(
        mut self,
        index: &BTreeMap<String, usize>,
        bytes: u64,
    ) -> Result<(), CheckpointError> {
        let count = self.files.len();
        if count > 1 {
            let map: BTreeMap<&str, String> =
                index.iter().map(|(tensor, file)| (tensor.as_str(), file_name(*file, count))).collect();
            let value = json!({ "metadata": { "total_size": bytes }, "weight_map": map });
            self.json("model.safetensors.index.json", &value)?;
        }
        for (path, writer) in std::mem::take(&mut self.files) {
            let finish = || writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all();
            finish().map_err(|error| CheckpointError::file(path, FileTask::Write, error))?;
        }
        check_free(&self.target)?;
        let failed = |error| CheckpointError::file(&self.target, FileTask::Write, error);
        fs::rename(&self.beside, &self.target).map_err(failed)?;
        // Its name is as lasting as the system makes names; every file in it is on the disk.
        self.beside.clear();
        Ok(())
    }
}

impl Drop for ModelFolder {
    fn drop(&mut self) {
        if !self.beside.as_os_str().is_empty() {
            self.files.clear();
            // There is nobody to tell beyond the first error.
            let _ = fs::remove_dir_all(&self.beside);
        }
    }
}

/// Bytes that wait to be written to one file.
const BUFFER: usize = 1 << 20;

/// `model.safetensors`, or one of several.
fn file_name(number: usize, count: usize) -> String {
    match count {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
    }
}

/// Makes a folder beside it, under a name that no other process has or left when it was killed.
fn beside(target: &Path) -> io::Result<PathBuf> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let mut number = 0;
    loop {
        let beside = target.with_file_name(format!(".{name}.{}-{number}.unfinished", std::process::id()));
        match fs::create_dir(&beside) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && number < MOST_LEFT => number += 1,
            made => return made.map(|()| beside),
        }
    }
}

/// Folders that killed processes of one number may have left.
const MOST_LEFT: u32 = 1000;

/// Refuses a name that is taken.
pub(super) fn check_free(target: &Path) -> Result<(), CheckpointError> {
    let taken =
        |reason: &str| Err(CheckpointError::Taken { path: target.to_owned(), reason: reason.to_owned() });
    if target.is_symlink() {
        return taken("it is a link, and a folder takes no link's name; name the folder itself");
    }
    match fs::read_dir(target) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            taken("it is no folder; name one that is not there")
        }
        Err(error) => Err(CheckpointError::file(target, FileTask::Read, error)),
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => taken("it is not empty, and no file in it is replaced; remove it, or name another"),
        },
    }
}
