//! One file of a checkpoint in parts.
//!
//! Law: a part that was opened is the one that was asked for, of this save, this optimizer step and this rank, with all
//! of its bytes. A tensor of it is read only if it has the type and shape that the index says; so nothing is read twice or beyond
//! its end. Its file is open only while something of it is read, so a checkpoint may have more parts than a process
//! may open files.

use std::collections::HashMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;

use safetensors::tensor::Dtype;

use super::PIECE;
use crate::errors::shown;
use crate::exec::{Alive, FileTask, PartError, SaveId};
use crate::id::RankId;
use crate::session::tensor_header::{self, Unsound};

/// What all parts of a save say of themselves, beside whose they are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub(super) version: u32,
    pub(super) save: SaveId,
    pub(super) ranks: u32,
    pub(super) optimizer_step: u32,
}

impl Origin {
    /// What the part of a rank says of itself. Those of version 1 do not know their step.
    pub(super) fn about(self, rank: RankId) -> Vec<(&'static str, String)> {
        let mut about = vec![
            ("warpweft_part", self.version.to_string()),
            ("save", self.save.to_string()),
            ("rank", rank.number().to_string()),
            ("ranks", self.ranks.to_string()),
        ];
        if self.version > 1 {
            about.push(("optimizer_step", self.optimizer_step.to_string()));
        }
        about
    }
}

/// A part whose header was read.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    /// By name: type, shape, first byte.
    tensors: HashMap<String, (Dtype, Vec<usize>, u64)>,
}

impl Part {
    /// Opens the file `path`, which must be this part.
    ///
    /// # Errors
    /// [`PartError`] when it is missing, torn, or another.
    pub(super) fn open(path: PathBuf, origin: Origin, rank: RankId) -> Result<Self, PartError> {
        let described = tensor_header::read(&path).map_err(|error| match error {
            Unsound::File(source) if source.kind() == ErrorKind::NotFound => {
                let reason =
                    format!("the part of {rank} is missing; copy it there, or load another checkpoint");
                PartError::Missing { path: path.clone(), reason }
            }
            Unsound::File(source) => PartError::file(&path, FileTask::Read, source),
            Unsound::Content(reason) => {
                let reason = format!(
                    "the part of {rank} is not whole: {reason}; copy it again, or load another checkpoint"
                );
                PartError::Damaged { path: path.clone(), reason }
            }
        })?;
        let other = |(key, expected): &(&str, String)| described.about.get(*key) != Some(expected);
        if let Some((key, expected)) = origin.about(rank).into_iter().find(other) {
            let found = described.about.get(key);
            let found = found.map_or_else(|| "nothing".to_owned(), |text| format!("`{}`", shown(text)));
            let reason = format!(
                "it is not the part of {rank} of this checkpoint: its `{key}` is {found}, and `{expected}` in the index; \
                 put back the file that was saved with it, or load another checkpoint"
            );
            return Err(PartError::Foreign { path, reason });
        }
        let data = described.data;
        let tensor = |(name, info): (String, safetensors::tensor::TensorInfo)| {
            (name, (info.dtype, info.shape, data + info.data_offsets.0 as u64))
        };
        let tensors = described.tensors.into_iter().map(tensor).collect();
        Ok(Self { path, tensors })
    }

    /// Where the bytes of a tensor begin, which must be of this type and shape.
    pub(super) fn tensor(&self, name: &str, dtype: Dtype, shape: &[usize]) -> Result<u64, PartError> {
        match self.tensors.get(name) {
            Some((found, extents, begin)) if *found == dtype && extents == shape => Ok(*begin),
            found => {
                let what = found.map_or_else(
                    || "is not there".to_owned(),
                    |(dtype, extents, _)| format!("is {dtype} {extents:?}"),
                );
                Err(self.damaged(format!(
                    "`{name}` {what} and should be {dtype} {shape:?}; load a checkpoint that is not damaged"
                )))
            }
        }
    }

    /// The extent of a list in f32, which is no longer than `most`.
    pub(super) fn length(&self, name: &str, most: usize) -> Result<usize, PartError> {
        match self.tensors.get(name) {
            Some((Dtype::F32, extents, _)) if extents.len() == 1 && extents[0] <= most => Ok(extents[0]),
            _ => Err(self.damaged(format!(
                "`{name}` is no list of up to {most} F32; load a checkpoint that is not damaged"
            ))),
        }
    }

    /// Fills `bytes` from the file's byte `at` on.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8], alive: &Alive<'_>) -> Result<(), PartError> {
        let failed = |source| PartError::file(&self.path, FileTask::Read, source);
        let mut file = File::open(&self.path).map_err(failed)?;
        file.seek(SeekFrom::Start(at)).map_err(failed)?;
        bytes
            .chunks_mut(PIECE)
            .try_for_each(|piece| file.read_exact(piece).and_then(|()| alive()).map_err(failed))
    }

    fn damaged(&self, reason: String) -> PartError {
        PartError::Damaged { path: self.path.clone(), reason }
    }
}
