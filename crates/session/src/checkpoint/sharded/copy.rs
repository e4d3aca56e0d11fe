//! A second copy of a sharded checkpoint, in another folder.
//!
//! Law: only a whole checkpoint is copied, and the copy is made like a save: parts first, each whole or not at all, and
//! the index last (CK-1). Nothing that is there is replaced. What a copy left that failed or was killed is no
//! checkpoint; parts that it had whole are taken by the next copy of the same save.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use super::PIECE;
use super::index::{self, Index};
use super::save::{UNSETTLED, taken};
use crate::checkpoint::{CheckpointError, FileTask};
use warpweft_base::id::RankId;
use warpweft_base::whole_file::{WholeFile, make_folder, regular};

/// Makes the folder of a copy, which has no checkpoint yet.
pub(super) fn begin(to: &Path) -> Result<(), CheckpointError> {
    if Index::is_there(to) {
        return Err(taken(&Index::path(to)));
    }
    make_folder(to).map_err(|source| CheckpointError::file(to, FileTask::MakeFolder, source))
}

/// Copies the checkpoint in `from` into `to`.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    begin(to)?;
    let (index, _) = Index::read(from).map_err(CheckpointError::in_parts)?;
    for rank in (0..index.ranks).map(RankId::new) {
        file(&index.part(from, rank), &index.part(to, rank))?;
    }
    let (source, target) = (Index::path(from), Index::path(to));
    let text = regular::read(&source, index::MOST_BYTES)
        .map_err(|error| CheckpointError::file(&source, FileTask::Read, error))?;
    WholeFile::write_as(&target, &text, false).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => taken(&target),
        _ => CheckpointError::file(&target, FileTask::Write, error),
    })
}

/// Copies a file whose name no other save has.
fn file(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    let unread = |error| CheckpointError::file(from, FileTask::Read, error);
    let unwritten = |error| CheckpointError::file(to, FileTask::Write, error);
    if to.exists() {
        return Ok(());
    }
    let mut source: File = regular::open(from).map_err(unread)?;
    let mut target = WholeFile::begin(to).map_err(unwritten)?;
    let mut piece = vec![0; PIECE];
    let mut unsettled = 0;
    loop {
        let bytes = source.read(&mut piece).map_err(unread)?;
        if bytes == 0 {
            return target.commit_as(false).map_err(unwritten);
        }
        target.write_all(&piece[..bytes]).map_err(unwritten)?;
        unsettled += bytes;
        if unsettled >= UNSETTLED {
            target.settle().map_err(unwritten)?;
            unsettled = 0;
        }
    }
}
