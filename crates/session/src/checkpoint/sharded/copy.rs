//! A second copy of a sharded checkpoint, in another folder.
//!
//! Law: only a whole checkpoint is copied, and the copy is made like a save: parts first, each whole or not at all, and
//! the index last (CK-1). Nothing that is there is replaced. A copy that fails removes its parts; what one left that
//! was killed is no checkpoint.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::index::{self, Index};
use super::{PIECE, UNSETTLED, folder};
use crate::checkpoint::{CheckpointError, FileTask};
use warpweft_base::errors::shown_path;
use warpweft_base::id::RankId;
use warpweft_base::whole_file::{WholeFile, regular};

/// Makes the folder of a copy, which is another one than the checkpoint's, and has no checkpoint yet.
pub(super) fn begin(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    folder::check_free(to)?;
    folder::make(to)?;
    match (from.canonicalize(), to.canonicalize()) {
        (Ok(from), Ok(to)) if from == to => Err(CheckpointError::other(format!(
            "{} is the folder of the checkpoint and of its second copy; name another one for the copy",
            shown_path(&to)
        ))),
        _ => Ok(()),
    }
}

/// Copies the checkpoint in `from` into `to`.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    begin(from, to)?;
    let (index, _) = Index::read(from).map_err(CheckpointError::in_parts)?;
    let mut made = Vec::new();
    let copied = parts(from, to, &index, &mut made).and_then(|()| index_file(from, to));
    copied.inspect_err(|_| made.iter().for_each(|part| drop(std::fs::remove_file(part))))
}

/// Copies the parts; those that are there then are in `made`.
fn parts(from: &Path, to: &Path, index: &Index, made: &mut Vec<PathBuf>) -> Result<(), CheckpointError> {
    for rank in (0..index.ranks).map(RankId::new) {
        let part = index.part(to, rank);
        file(&index.part(from, rank), &part)?;
        made.push(part);
    }
    Ok(())
}

fn index_file(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    let (source, target) = (Index::path(from), Index::path(to));
    let text = regular::read(&source, index::MOST_BYTES)
        .map_err(|error| CheckpointError::file(&source, FileTask::Read, error))?;
    WholeFile::write_as(&target, &text, false).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => folder::taken(&target),
        _ => CheckpointError::file(&target, FileTask::Write, error),
    })
}

/// Copies a file whose name no other save has.
fn file(from: &Path, to: &Path) -> Result<(), CheckpointError> {
    let unread = |error| CheckpointError::file(from, FileTask::Read, error);
    let unwritten = |error| CheckpointError::file(to, FileTask::Write, error);
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
