//! A checkpoint in parts that is read.
//!
//! Law: a part is opened when something of it is asked for, and read where that is; so what is in memory is what
//! was asked for, the index, and the headers of the parts that it came from.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use safetensors::tensor::Dtype;

use super::index::{Index, IndexedBuffer, IndexedWeight};
use super::part::Part;
use crate::exec::Alive;
use crate::format::DelayedState;
use crate::id::RankId;
use crate::model::ShardRows;
use crate::session::{StoreError, tensors};

/// What there is of every row of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Master,
    ExpAvg,
    ExpAvgSq,
}

impl Kind {
    /// The name of such a tensor, in a part as in a whole checkpoint.
    pub(super) fn of(self, weight: &str) -> String {
        let suffix = match self {
            Self::Master => "master",
            Self::ExpAvg => "exp_avg",
            Self::ExpAvgSq => "exp_avg_sq",
        };
        format!("{weight}.{suffix}")
    }
}

/// A folder whose index was read.
#[derive(Debug)]
pub(super) struct Opened {
    folder: PathBuf,
    pub(super) index: Index,
    /// Which index it is.
    pub(super) digest: u64,
    parts: Vec<OnceLock<Part>>,
}

impl Opened {
    /// Reads the index.
    ///
    /// # Errors
    /// As [`Index::read`].
    pub(super) fn open(folder: &Path) -> Result<Self, StoreError> {
        let (index, digest) = Index::read(folder)?;
        let parts = (0..index.ranks).map(|_| OnceLock::new()).collect();
        Ok(Self { folder: folder.to_owned(), index, digest, parts })
    }

    /// The part of a rank, opened if it was not yet.
    fn part(&self, rank: RankId) -> Result<&Part, StoreError> {
        let path = self.index.part(&self.folder, rank);
        let none = || StoreError::Content {
            path: path.clone(),
            reason: format!("the checkpoint is of {} ranks", self.index.ranks),
        };
        let place = self.parts.get(rank.index()).ok_or_else(none)?;
        if place.get().is_none() {
            let part = Part::open(path.clone(), self.index.save, rank, self.index.ranks)?;
            // Another rank may have been quicker; either will do.
            let _ = place.set(part);
        }
        place.get().ok_or_else(none)
    }

    /// Rows of a weight, from whichever parts have them.
    ///
    /// # Errors
    /// [`StoreError`] of the part that is not as it should be.
    pub(super) fn rows(
        &self,
        weight: &IndexedWeight,
        kind: Kind,
        wanted: ShardRows,
        alive: &Alive<'_>,
    ) -> Result<Vec<f32>, StoreError> {
        let (cut, cols, name) = (weight.cut(), weight.cols, kind.of(&weight.name));
        let end = (wanted.begin + wanted.rows).min(weight.rows);
        let (mut places, mut row) = (Vec::new(), wanted.begin);
        while row < end {
            let rank = RankId::at(row / cut.rows_per_rank);
            let held = cut.rows_of(rank);
            let part = self.part(rank)?;
            let begin = part.tensor(&name, Dtype::F32, &[held.rows, cols])?;
            let rows = (held.begin + held.rows).min(end) - row;
            places.push((part, begin + ((row - held.begin) * cols * size_of::<f32>()) as u64, rows * cols));
            row += rows;
        }
        // All of it is there, so it may be asked memory for.
        let mut values = vec![0.0; places.iter().map(|(_, _, elements)| elements).sum()];
        let mut rest = values.as_mut_slice();
        for (part, at, elements) in places {
            let (piece, more) = rest.split_at_mut(elements);
            part.read(at, bytemuck::cast_slice_mut(piece), alive)?;
            rest = more;
        }
        Ok(values)
    }

    /// Scale in use and amax history of a weight, if it has them.
    ///
    /// # Errors
    /// As [`Opened::rows`].
    pub(super) fn delayed(
        &self,
        weight: &IndexedWeight,
        alive: &Alive<'_>,
    ) -> Result<Option<DelayedState>, StoreError> {
        if !weight.delayed {
            return Ok(None);
        }
        let part = self.part(RankId::new(0))?;
        let [scale, history] = tensors::delayed_names(&weight.name);
        let mut state = DelayedState::new(part.length(&history)?);
        let begin = part.tensor(&scale, Dtype::F32, &[1])?;
        part.read(begin, bytemuck::bytes_of_mut(&mut state.scale), alive)?;
        let begin = part.tensor(&history, Dtype::F32, &[state.history.len()])?;
        part.read(begin, bytemuck::cast_slice_mut(&mut state.history), alive)?;
        Ok(Some(state))
    }

    /// A rank's bytes of a carried buffer.
    ///
    /// # Errors
    /// As [`Opened::rows`].
    pub(super) fn carried(
        &self,
        buffer: &IndexedBuffer,
        rank: RankId,
        alive: &Alive<'_>,
    ) -> Result<Vec<u8>, StoreError> {
        let part = self.part(rank)?;
        let name = tensors::carried_name(&buffer.name, rank.index());
        let begin = part.tensor(&name, Dtype::U8, &[buffer.bytes])?;
        let mut bytes = vec![0; buffer.bytes];
        part.read(begin, &mut bytes, alive)?;
        Ok(bytes)
    }
}
