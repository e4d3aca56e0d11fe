//! Where checkpoints are kept.
//!
//! Law: a store is the user's choice; the session never calls one. Saving replaces the whole
//! checkpoint or nothing.

use std::path::PathBuf;

use async_trait::async_trait;

use super::{Checkpoint, PartError};
use warpweft_base::errors::{shown_path, told};
use warpweft_base::whole_file::next_step;

/// Why a checkpoint could not be saved or loaded.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("checkpoint {}: {source}; {}", shown_path(path), next_step(source))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// Of a checkpoint in parts: what is wrong, by its kind.
    #[error("cannot load the checkpoint in parts: {source}; nothing was loaded")]
    Parts {
        /// What is wrong, and what to do.
        #[from]
        source: PartError,
    },
    /// The file is no checkpoint of this library.
    #[error("checkpoint {}: {}; nothing was loaded or saved", shown_path(path), told(reason))]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

warpweft_base::debug_in_words!(StoreError);

/// Saves and loads checkpoints.
///
/// ```
/// use std::sync::{Mutex, PoisonError};
///
/// use warpweft::prelude::*;
///
/// /// Keeps one in memory.
/// #[derive(Default)]
/// struct Kept(Mutex<Option<Checkpoint>>);
///
/// #[warpweft::async_trait]
/// impl CheckpointStore for Kept {
///     async fn save(&self, checkpoint: &Checkpoint) -> Result<(), StoreError> {
///         *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkpoint.clone());
///         Ok(())
///     }
///
///     async fn load(&self) -> Result<Checkpoint, StoreError> {
///         let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
///         let none = || StoreError::Content { path: "memory".into(), reason: "nothing was saved".to_owned() };
///         kept.ok_or_else(none)
///     }
/// }
/// ```
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// Keeps `checkpoint` in place of what was there.
    ///
    /// # Errors
    /// [`StoreError`]; what was there is kept then. A [`FileStore`](super::FileStore) whose disk refuses to make the
    /// new file's name last says so, and has the new file by then.
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), StoreError>;

    /// The checkpoint kept last.
    ///
    /// # Errors
    /// [`StoreError`] when there is none or it cannot be read.
    async fn load(&self) -> Result<Checkpoint, StoreError>;
}
