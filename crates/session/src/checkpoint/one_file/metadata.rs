//! The metadata in the header of a checkpoint in one file: its version, its weights, and what they are compared with.
//!
//! Law: an unknown version is refused, and so is a name that stands twice. A load of such a file, and a quantization,
//! asks here before it reads a tensor. Masters that a session begins with are read without (`pretrained`), as those of
//! any file.

use std::collections::{BTreeMap, HashMap};

use super::digests::{self, Listed};
use crate::checkpoint::FrozenDigest;
use crate::checkpoint::listed::once;
use warpweft_base::errors::shown;

/// Where a file says of which weights it has more than two lists of state, and how many.
pub(super) const MORE_STATES: &str = "more_states";

/// What this version writes.
pub(super) const VERSION: &str = "4";

/// What to say of a safetensors file that somebody else wrote.
const NO_CHECKPOINT: &str = "it has no `warpweft_checkpoint`, so no session saved it; weights from elsewhere are read by \
                             `PretrainedFiles`, for a session that begins with them";

/// The one that had no carried buffers.
pub(super) const WITHOUT_CARRIED: &str = "1";

/// What it reads.
const VERSIONS: [&str; 4] = [WITHOUT_CARRIED, "2", "3", VERSION];

/// The ones that need not have digests.
const UNSEALED: [&str; 2] = [WITHOUT_CARRIED, "2"];

/// The key of the version, by which such a file is known.
pub const SAVED: &str = "warpweft_checkpoint";

/// The key under which frozen weights stand that are not in the file.
pub(super) const FROZEN: &str = "frozen_digests";

/// All keys of the metadata that say something of a checkpoint alone; notes are the user's.
pub const KEYS: [&str; 12] = [
    SAVED,
    "weights",
    "optimizer_step",
    "optimizer_identity",
    // What it was called in files of before.
    "updated_by",
    "carried",
    "frozen",
    "one_state",
    MORE_STATES,
    FROZEN,
    digests::TENSORS,
    digests::METADATA,
];

/// What a file has of such a weight: its digest, rows and columns.
pub type FrozenEntry = (FrozenDigest, usize, usize);

/// What the metadata of a file say of its weights.
#[derive(Debug)]
pub struct SavedWeights {
    /// Names and formats, no name twice.
    pub weights: Vec<(String, String)>,
    /// Frozen weights that are not in the file.
    pub absent: HashMap<String, FrozenEntry>,
    /// What the tensors are compared with.
    pub digests: Listed,
}

impl SavedWeights {
    /// What is said in `about`, of a version that is known.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn of(about: &BTreeMap<String, String>) -> Result<Self, String> {
        let version = about.get(SAVED).ok_or(NO_CHECKPOINT)?.as_str();
        if !VERSIONS.contains(&version) {
            return Err(format!(
                "it has version {}, and this build knows versions 1 to {VERSION}; load it with a later one",
                shown(version)
            ));
        }
        let digests = Listed::of(about, !UNSEALED.contains(&version))?;
        let weights = about.get("weights").ok_or("it has no `weights`")?;
        let wrong =
            |what: &str, error| format!("it lists its {what} in a way that is not understood ({error})");
        let weights: Vec<(String, String)> =
            serde_json::from_str(weights).map_err(|error| wrong("weights", error))?;
        once("weight", weights.iter().map(|(name, _)| name))?;
        let absent = about.get(FROZEN).map_or("{}", String::as_str);
        let absent = serde_json::from_str(absent).map_err(|error| wrong("frozen weights", error))?;
        Ok(Self { weights, absent, digests })
    }
}
