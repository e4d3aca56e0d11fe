//! What of a checkpoint is quantized.
//!
//! Law: of a checkpoint that a session saved, the masters alone, under the names of their weights; for moments,
//! planes and carried buffers are nothing that a model is served with, and no session could resume from them
//! without the masters. Of any other file everything, as it is. What is left out is counted.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::ToolError;
use super::checkpoint::{Header, TensorEntry, shown};

/// What the metadata of a session's checkpoint have, by which it is known, and what they say only of it. Its notes
/// stay.
const SAVED: &str = "warpweft_checkpoint";
const WEIGHTS: &str = "weights";
const OF_A_SESSION: [&str; 9] = [
    SAVED,
    WEIGHTS,
    "optimizer_step",
    "updated_by",
    "carried",
    "frozen",
    "one_state",
    "digests",
    "metadata_digest",
];

/// What of a checkpoint is quantized or copied.
pub(super) struct Source<'header> {
    pub(super) tensors: Cow<'header, [TensorEntry]>,
    pub(super) metadata: BTreeMap<String, String>,
    /// Tensors that a session saved besides its masters, and their bytes; `None` for any other file.
    pub(super) left_out: Option<(usize, u64)>,
}

impl<'header> Source<'header> {
    /// What the file `path` with this header gives.
    ///
    /// # Errors
    /// [`ToolError::Saved`] for a checkpoint of a session that is damaged.
    pub(super) fn of(header: &'header Header, path: &Path) -> Result<Self, ToolError> {
        let mut metadata = header.metadata().clone();
        if !metadata.contains_key(SAVED) {
            return Ok(Self { tensors: Cow::Borrowed(header.tensors()), metadata, left_out: None });
        }
        let damaged = |problem| ToolError::Saved { path: path.to_owned(), problem };
        let listed = metadata.get(WEIGHTS).map_or("", String::as_str);
        let listed: Vec<(String, String)> = serde_json::from_str(listed).map_err(|error| {
            damaged(format!("lists its weights in a way that is not understood ({error})"))
        })?;
        // By the names of their masters.
        let mut weights: HashMap<String, String> =
            listed.into_iter().map(|(name, _)| (format!("{name}.master"), name)).collect();
        let (mut tensors, mut left_out) = (Vec::new(), (0, 0));
        for entry in header.tensors() {
            match weights.remove(&entry.name) {
                Some(name) => tensors.push(TensorEntry { name, ..entry.clone() }),
                None => left_out = (left_out.0 + 1, left_out.1 + entry.bytes()),
            }
        }
        if let Some(missing) = weights.keys().min() {
            return Err(damaged(format!("has no tensor `{}`", shown(missing))));
        }
        metadata.retain(|key, _| !OF_A_SESSION.contains(&key.as_str()));
        Ok(Self { tensors: Cow::Owned(tensors), metadata, left_out: Some(left_out) })
    }
}
