//! The tensors of a checkpoint that are to be quantized or copied.
//!
//! Laws:
//! - Of a checkpoint that a session saved, the masters alone, under the names of their weights; for moments, planes and
//!   carried buffers are nothing that a model is served with, and no session could resume from them without the
//!   masters. Of any other file everything, as it is. What is left out is counted, and frozen weights, of which a
//!   session saves digests alone, are named.
//! - What holds something other than weights in plain numbers is refused with what it is (FK-1).
//! - A master of one row or one column is a norm or a bias, and has one dimension: no format takes it.
//! - Masters that are not as they were saved are refused before there is an output, and so are metadata: the digests
//!   that would show it are not in the output. What is left out is not read.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use warpweft_base::errors::shown;
use warpweft_session::checkpoint::kind::{Listed, NotWeights, Stated};
use warpweft_session::checkpoint::one_file::{KEYS, Listed as Digests, SAVED, SavedWeights};
use warpweft_session::checkpoint::safetensors::{Header, TensorEntry};

use super::input::Input;
use super::{Progress, ToolError};

/// What of a checkpoint is quantized or copied.
pub(super) struct Source<'header> {
    pub(super) tensors: Cow<'header, [TensorEntry]>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Tensors that a session saved besides its masters, and their bytes; `None` for any other file.
    pub(super) left_out: Option<(usize, u64)>,
    /// Frozen weights, which a session did not save.
    pub(super) absent: Vec<String>,
    /// Of a checkpoint that a session saved.
    saved: Option<Saved>,
}

/// The masters as a session saved them, and what it says of them.
struct Saved {
    path: PathBuf,
    masters: Vec<TensorEntry>,
    digests: Digests,
}

impl<'header> Source<'header> {
    /// What the file `path` with this header gives.
    ///
    /// # Errors
    /// [`ToolError::Saved`] for a checkpoint of a session that is damaged, as far as its header shows that;
    /// [`ToolError::NotWeights`] for another file that holds something other than weights in plain numbers.
    pub(super) fn of(header: &'header Header, path: &Path) -> Result<Self, ToolError> {
        let mut metadata = header.metadata().clone();
        if !metadata.contains_key(SAVED) {
            check_weights(header, path)?;
            let tensors = Cow::Borrowed(header.tensors());
            return Ok(Self { tensors, metadata, left_out: None, absent: Vec::new(), saved: None });
        }
        let damaged = |problem| ToolError::Saved { path: path.to_owned(), problem };
        let SavedWeights { weights, absent, digests } = SavedWeights::of(&metadata).map_err(damaged)?;
        let weights = weights.into_iter().map(|(name, _)| name).filter(|name| !absent.contains_key(name));
        // By the names of their masters.
        let mut weights: HashMap<String, String> =
            weights.map(|name| (format!("{name}.master"), name)).collect();
        let mut absent: Vec<String> = absent.into_keys().collect();
        absent.sort_unstable();
        let (mut masters, mut tensors, mut left_out) = (Vec::new(), Vec::new(), (0, 0));
        for entry in header.tensors() {
            match weights.remove(&entry.name) {
                Some(name) => {
                    masters.push(entry.clone());
                    tensors.push(TensorEntry { name, shape: dimensions(&entry.shape), ..entry.clone() });
                }
                None => left_out = (left_out.0 + 1, left_out.1 + entry.bytes()),
            }
        }
        if let Some(missing) = weights.keys().min() {
            return Err(damaged(format!("has no tensor `{}`", shown(missing))));
        }
        metadata.retain(|key, _| !KEYS.contains(&key.as_str()));
        // Readers of the Hugging Face hub's files request it.
        metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        let saved = Some(Saved { path: path.to_owned(), masters, digests });
        let (tensors, left_out) = (Cow::Owned(tensors), Some(left_out));
        Ok(Self { tensors, metadata, left_out, absent, saved })
    }

    /// Bytes that [`Source::compare`] reads.
    pub(super) fn compared_bytes(&self) -> u64 {
        self.saved.iter().flat_map(|saved| &saved.masters).map(TensorEntry::bytes).sum()
    }

    /// Reads what a session saved, and compares it with what it said of it.
    ///
    /// # Errors
    /// [`ToolError::Saved`] for a master that is another than was saved; what reading meets.
    pub(super) fn compare(&self, data: &mut Input, progress: &mut dyn Progress) -> Result<(), ToolError> {
        let Some(Saved { path, masters, digests }) = &self.saved else { return Ok(()) };
        for master in masters {
            progress.tensor(&master.name);
            let mut taken = digests.begin(master.dtype, &master.shape);
            data.pieces(master, progress, |piece| {
                taken.more(piece);
                Ok(())
            })?;
            let damaged = |problem| ToolError::Saved { path: path.clone(), problem };
            digests.compare(&master.name, taken).map_err(damaged)?;
        }
        Ok(())
    }
}

/// Refuses a file that is not what it should be, by what it contains.
fn check_weights(header: &Header, path: &Path) -> Result<(), ToolError> {
    let tensors = header.tensors().iter();
    let tensors = tensors.map(|entry| Listed::new(&entry.name, entry.dtype, &entry.shape));
    let stated = Stated::of(path, header.metadata().keys());
    match NotWeights::of(tensors, &stated).first() {
        None => Ok(()),
        Some(what) => Err(ToolError::NotWeights { path: path.to_owned(), what: what.to_owned() }),
    }
}

/// The dimensions of a master `[rows, cols]`.
fn dimensions(shape: &[usize]) -> Vec<usize> {
    match shape {
        [1, length] | [length, 1] => vec![*length],
        _ => shape.to_vec(),
    }
}
