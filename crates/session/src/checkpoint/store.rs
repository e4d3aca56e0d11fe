//! Checkpoint stores: where checkpoints are kept.
//!
//! Law: a store is the user's choice; the session never calls one. Saving replaces the whole
//! checkpoint or nothing.

use async_trait::async_trait;

use super::{Checkpoint, CheckpointError};

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
///     async fn save(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
///         *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(checkpoint.clone());
///         Ok(())
///     }
///
///     async fn load(&self) -> Result<Checkpoint, CheckpointError> {
///         let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
///         let none = || CheckpointError::Content { path: "memory".into(), reason: "nothing was saved".to_owned() };
///         kept.ok_or_else(none)
///     }
/// }
/// ```
#[async_trait]
pub trait CheckpointStore: Send + Sync {
    /// Keeps `checkpoint` in place of what was there.
    ///
    /// # Errors
    /// [`CheckpointError`]; what was there is kept then. A [`FileStore`](super::FileStore) whose disk refuses to make
    /// the new file's name last says so, and has the new file by then.
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError>;

    /// The checkpoint kept last.
    ///
    /// # Errors
    /// [`CheckpointError`] when there is none or it cannot be read.
    async fn load(&self) -> Result<Checkpoint, CheckpointError>;
}
