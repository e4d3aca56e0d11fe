//! Where checkpoints are kept.
//!
//! Law: a store is the embedder's choice; the session never calls one. Saving replaces the whole
//! checkpoint or nothing.

use std::io::ErrorKind;
use std::path::PathBuf;

use async_trait::async_trait;

use super::Checkpoint;

/// Why a checkpoint could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system refused.
    #[error("checkpoint {path}: {source}; {}", next_step(source))]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is no checkpoint of this library.
    #[error("checkpoint {path}: {reason}; nothing was loaded or saved")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What to do about what the system says.
fn next_step(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::NotFound => "check the path, and that its folder is there",
        ErrorKind::PermissionDenied => "allow this user to read and write there, or name another path",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room, or name a path on another disk",
        _ => "name the path of a file that can be read and replaced",
    }
}

/// Saves and loads checkpoints.
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// Keeps `checkpoint` in place of what was there.
    ///
    /// # Errors
    /// [`StoreError`]; what was there is kept then.
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), StoreError>;

    /// The checkpoint kept last.
    ///
    /// # Errors
    /// [`StoreError`] when there is none or it cannot be read.
    async fn load(&self) -> Result<Checkpoint, StoreError>;
}
