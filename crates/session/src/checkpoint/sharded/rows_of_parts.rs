//! The block of a rank, wherever it lies in a sharded checkpoint: resharding on load.
//!
//! Law: a part is opened when something of it is requested, and read where that is; so what is in memory is what
//! was requested, the index, and the headers of the parts that it came from. Memory is taken once the parts were seen
//! to hold as much, each tensor once; so it is bounded by their length, whatever the index says. No file stays open.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use safetensors::tensor::Dtype;

use super::block_digests::BLOCK;
use super::index::{Index, IndexedBuffer, IndexedWeight};
use super::read_part::{Found, Part};
use crate::checkpoint::block_copies::{put, taken};
use crate::checkpoint::ranks::Alive;
use crate::checkpoint::{CheckpointError, OptimizerIdentity, StatePart, tensors};
use warpweft_base::id::RankId;
use warpweft_format::{DelayedState, Shape};
use warpweft_plan::model::{Block, ShardLayout};

/// Amaxes that a configuration can ask to be remembered.
const LONGEST_HISTORY: usize = 1 << 16;

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
    pub(super) fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let (index, digest) = Index::read(folder)?;
        let parts = (0..index.ranks).map(|_| OnceLock::new()).collect();
        Ok(Self { folder: folder.to_owned(), index, digest, parts })
    }

    /// The part of a rank, opened if it was not yet.
    fn part(&self, rank: RankId) -> Result<&Part, CheckpointError> {
        let path = self.index.part(&self.folder, rank);
        let none =
            || CheckpointError::damaged(&path, format!("the checkpoint is of {} ranks", self.index.ranks));
        let place = self.parts.get(rank.index()).ok_or_else(none)?;
        if place.get().is_none() {
            let part = Part::open(path.clone(), &self.index, rank)?;
            // Another rank may have been quicker; either will do.
            let _ = place.set(part);
        }
        place.get().ok_or_else(none)
    }

    /// Which values are its weights: masters, or the state of this name.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] for a state that it does not name, or that a weight does not have.
    pub(super) fn weights_of(&self, state: Option<&str>) -> Result<StatePart, CheckpointError> {
        let Some(name) = state else { return Ok(StatePart::Master) };
        let list = OptimizerIdentity::state(self.index.optimizer_identity.as_ref(), name)?;
        let has =
            |weight: &&IndexedWeight| weight.frozen.is_some() || list.index() < usize::from(weight.lists);
        match self.index.weights.iter().find(|weight| !has(weight)) {
            None => Ok(StatePart::State(list)),
            Some(weight) => Err(OptimizerIdentity::lacks(&weight.name, name)),
        }
    }

    /// Blocks of a weight, one after the other.
    ///
    /// # Errors
    /// As [`Opened::block`].
    pub(super) fn blocks(
        &self,
        weight: &IndexedWeight,
        state: StatePart,
        mut wanted: impl Iterator<Item = Block>,
        alive: &Alive<'_>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let Some(first) = wanted.next() else { return Ok(Vec::new()) };
        let mut values = self.block(weight, state, first, alive)?;
        for block in wanted {
            values.extend(self.block(weight, state, block, alive)?);
        }
        Ok(values)
    }

    /// A block of a weight, from whichever parts have something of it.
    ///
    /// # Errors
    /// [`CheckpointError`] of the part that is not as it should be.
    pub(super) fn block(
        &self,
        weight: &IndexedWeight,
        state: StatePart,
        wanted: Block,
        alive: &Alive<'_>,
    ) -> Result<Vec<f32>, CheckpointError> {
        let name = tensors::state_name(&weight.name, state);
        let mut pieces = Vec::new();
        for piece in pieces_of(&weight.layout(), wanted) {
            let part = self.part(weight.rank(piece.rank))?;
            // Opening a part may take long, and a weight may be in hundreds.
            alive().map_err(|error| part.unread(error))?;
            let Shape { rows, cols } = piece.held;
            pieces.push((part.tensor(&name, Dtype::F32, &[rows, cols])?, piece));
        }
        // All of it is there, so it may be asked memory for.
        let mut values = vec![0.0; pieces.iter().map(|(_, piece)| piece.from.shape.elements()).sum()];
        for (tensor, Piece { held, from, to, .. }) in pieces {
            copy(tensor, held.cols, from, &mut values, wanted.shape.cols, to, alive)?;
        }
        Ok(values)
    }

    /// Scale in use and amax history of a weight, if it has them.
    ///
    /// # Errors
    /// As [`Opened::block`].
    pub(super) fn delayed(
        &self,
        weight: &IndexedWeight,
        alive: &Alive<'_>,
    ) -> Result<Option<DelayedState>, CheckpointError> {
        if !weight.delayed {
            return Ok(None);
        }
        let part = self.part(weight.rank(RankId::new(0)))?;
        let [scale, history] = tensors::delayed_names(&weight.name);
        let mut state = DelayedState::new(part.length(&history, LONGEST_HISTORY)?);
        let tensor = part.tensor(&scale, Dtype::F32, &[1])?;
        tensor.read(0, bytemuck::bytes_of_mut(&mut state.scale), alive)?;
        let tensor = part.tensor(&history, Dtype::F32, &[state.history.len()])?;
        tensor.read(0, bytemuck::cast_slice_mut(&mut state.history), alive)?;
        Ok(Some(state))
    }

    /// A rank's bytes of a carried buffer.
    ///
    /// # Errors
    /// As [`Opened::block`].
    pub(super) fn carried(
        &self,
        buffer: &IndexedBuffer,
        rank: RankId,
        alive: &Alive<'_>,
    ) -> Result<Vec<u8>, CheckpointError> {
        let part = self.part(rank)?;
        let name = tensors::carried_name(&buffer.name, rank.index());
        let tensor = part.tensor(&name, Dtype::U8, &[buffer.bytes])?;
        let mut bytes = vec![0; buffer.bytes];
        tensor.read(0, &mut bytes, alive)?;
        Ok(bytes)
    }
}

/// What the part of a rank has of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    rank: RankId,
    /// The shape of what the part has of the weight.
    held: Shape,
    /// Where in that it is.
    from: Block,
    /// Where in the block that is wanted.
    to: Block,
}

/// The pieces of a block, of whichever ranks have one. A rank may have several, where segments are cut by themselves.
fn pieces_of(layout: &ShardLayout, wanted: Block) -> impl Iterator<Item = Piece> {
    let (layout, parts) = (*layout, (layout.owners() / layout.ranks.max(1)) as usize);
    let runs = (0..parts).flat_map(move |part| {
        let above = move |in_part: &mut usize, run: Block| {
            let first = *in_part;
            *in_part += run.shape.rows;
            Some((part, first, run))
        };
        layout.blocks_of_part(part).scan(0, above)
    });
    runs.filter_map(move |(part, first, run)| Some((part, first, run, common(run, wanted)?))).flat_map(
        move |(part, first, run, common)| {
            // Of the rows of this part.
            let begin = first + common.first.rows - run.first.rows;
            let end = begin + common.shape.rows;
            let shards = begin / layout.rows_per_rank.max(1)..end.div_ceil(layout.rows_per_rank.max(1));
            shards.filter_map(move |shard| {
                let rank = RankId::at(shard * parts + part);
                let own = layout.rows_of(rank);
                let (from, to) = (begin.max(own.begin), end.min(own.begin + own.rows));
                let rows = to.checked_sub(from).filter(|rows| *rows > 0)?;
                let shape = Shape { rows, ..common.shape };
                let block = |rows: usize, first_column: usize| Block {
                    first: Shape { rows, cols: common.first.cols - first_column },
                    shape,
                };
                Some(Piece {
                    rank,
                    held: Shape { rows: own.rows, cols: layout.shape.cols },
                    from: block(from - own.begin, run.first.cols),
                    to: block(from - begin + common.first.rows - wanted.first.rows, wanted.first.cols),
                })
            })
        },
    )
}

/// What two blocks have in common, if it is something.
fn common(one: Block, other: Block) -> Option<Block> {
    let end =
        |block: Block| Shape::new(block.first.rows + block.shape.rows, block.first.cols + block.shape.cols);
    let (one_end, other_end) = (end(one), end(other));
    let first = Shape::new(one.first.rows.max(other.first.rows), one.first.cols.max(other.first.cols));
    let rows = one_end.rows.min(other_end.rows).checked_sub(first.rows).filter(|rows| *rows > 0)?;
    let cols = one_end.cols.min(other_end.cols).checked_sub(first.cols).filter(|cols| *cols > 0)?;
    Some(Block { first, shape: Shape::new(rows, cols) })
}

/// Reads the block `from` of a tensor of `held` columns to the place `to` in `values`, of `columns` columns: at once
/// where both are whole rows, and otherwise through some rows at a time.
fn copy(
    tensor: Found<'_>,
    held: usize,
    from: Block,
    values: &mut [f32],
    columns: usize,
    to: Block,
    alive: &Alive<'_>,
) -> Result<(), CheckpointError> {
    let byte_of = |row: usize| row * held * size_of::<f32>();
    if from.shape.cols == held && to.shape.cols == columns {
        let begin = to.first.rows * columns;
        let rows = values.get_mut(begin..begin + to.shape.elements()).unwrap_or_default();
        return tensor.read(byte_of(from.first.rows), bytemuck::cast_slice_mut(rows), alive);
    }
    let at_once = (BLOCK / byte_of(1).max(1)).max(1);
    let mut rows = Vec::new();
    for begin in (0..from.shape.rows).step_by(at_once) {
        let piece = Shape { rows: at_once.min(from.shape.rows - begin), ..from.shape };
        rows.resize(piece.rows * held, 0.0);
        tensor.read(byte_of(from.first.rows + begin), bytemuck::cast_slice_mut(&mut rows), alive)?;
        let own = taken(&rows, held, Block { first: Shape { rows: 0, ..from.first }, shape: piece });
        let first = Shape { rows: to.first.rows + begin, ..to.first };
        put(&own.unwrap_or_default(), Block { first, shape: piece }, values, columns);
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::ranks::SaveId;
    use crate::checkpoint::safetensors::tensor::Tensor;
    use crate::checkpoint::sharded::{block_digests, write_part};
    use warpweft_format::Format;

    const RANKS: u32 = 5;

    /// Ranks with a row each of a weight of one column.
    fn saved(folder: &Path) {
        let weight = IndexedWeight {
            name: "w".to_owned(),
            format: Format::F32,
            rows: RANKS as usize,
            cols: 1,
            parts: RANKS,
            rows_per_part: 1,
            cut: None,
            expert: None,
            lists: 0,
            delayed: false,
            scale_group: None,
            frozen: None,
        };
        let mut index = Index { weights: vec![weight], ..Index::bare(SaveId::of(&[1]), RANKS) };
        for rank in (0..RANKS).map(RankId::new) {
            let row = move || Ok(vec![rank.number() as f32]);
            let tensor =
                Tensor::later(tensors::state_name("w", StatePart::Master), Dtype::F32, vec![1, 1], row);
            let mut file = std::fs::File::create(index.part(folder, rank)).unwrap();
            let digest = write_part::write(&[tensor], index.about(rank), &mut file).unwrap();
            index.digests.push_str(&block_digests::text(&[digest]));
        }
        std::fs::write(Index::path(folder), index.text().unwrap()).unwrap();
    }

    /// Files in `folder` that this process has open.
    fn open_in(folder: &Path) -> usize {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let leads = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        leads.filter(|path| path.starts_with(folder)).count()
    }

    /// A process may open a thousand files or so, and a checkpoint has as many parts as ranks saved it.
    #[test]
    fn of_many_parts_that_are_read_one_file_is_open_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        saved(&folder);
        let opened = Opened::open(&folder).unwrap();
        let all = Block { first: Shape::new(0, 0), shape: Shape::new(RANKS as usize, 1) };
        // Signs of life while a file is read, and between two files.
        let seen = std::cell::RefCell::new([0; 2]);
        let alive = || {
            seen.borrow_mut()[open_in(&folder)] += 1;
            Ok(())
        };
        let rows = opened.block(&opened.index.weights[0], StatePart::Master, all, &alive).unwrap();
        assert_eq!(rows, [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert!(seen.into_inner().iter().all(|times| *times >= RANKS));
        assert_eq!(open_in(&folder), 0);
    }
}
