//! The folder of a save, or of a copy: free, and there.
//!
//! Law: a folder that has a checkpoint, or something in the place of its index, stays as it is (CK-1).

use std::path::Path;

use super::index::{self, Index};
use crate::checkpoint::{CheckpointError, FileTask};
use warpweft_base::whole_file::make_folder;

/// Is there no checkpoint in the folder, and nothing in the place of its index?
pub(super) fn check_free(folder: &Path) -> Result<(), CheckpointError> {
    if Index::is_there(folder) { Err(taken(&Index::path(folder))) } else { Ok(()) }
}

/// Makes the folder, if it is not there.
pub(super) fn make(folder: &Path) -> Result<(), CheckpointError> {
    make_folder(folder).map_err(|source| CheckpointError::file(folder, FileTask::MakeFolder, source))
}

/// What is said of a folder that has a checkpoint.
pub(super) fn taken(index: &Path) -> CheckpointError {
    let is_empty = std::fs::symlink_metadata(index).is_ok_and(|about| about.is_file() && about.len() == 0);
    let reason = if is_empty {
        index::EMPTY
    } else {
        "its folder holds a checkpoint, and no save replaces one; name another folder, such as one for \
         each step, and remove those you do not need"
    };
    CheckpointError::Taken { path: index.to_owned(), reason: reason.to_owned() }
}
