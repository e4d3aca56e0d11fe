//! Checkpoint data of one rank, on its way out of memory or back into it.
//!
//! Law: who hands out knows no files, and who keeps parts knows no memory. What a rank hands out is one list of values
//! at a time, so a part is never whole in memory; what it takes in is its own rows, which are. Whoever keeps parts
//! says by a [`CheckpointError`] why it cannot, and never ends the world.

mod shard;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::{CheckpointError, FrozenDigest, StatePart, hexadecimal};
use warpweft_base::digest::Digest;
use warpweft_base::id::{CarriedId, RankId, WeightId};
use warpweft_format::DelayedState;

pub use shard::{MasterRows, WeightShard};

/// The identity of a save, which all its parts have. No two saves have the same one, but for a chance of 2^-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SaveId(#[serde(with = "hexadecimal")] u64);

impl SaveId {
    /// The one that follows from what every rank contributed.
    #[must_use]
    pub fn of(contributed: &[u64]) -> Self {
        let words: Vec<[u8; 8]> = contributed.iter().map(|word| word.to_le_bytes()).collect();
        Self(Digest::from_iter(words.iter().map(<[u8; 8]>::as_slice)).short())
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for SaveId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&hexadecimal::text(self.0))
    }
}

/// A heartbeat: whoever takes long for a part calls it between two pieces of its work, so that the other ranks wait on.
/// Its error ends the work.
pub type Alive<'a> = dyn Fn() -> io::Result<()> + 'a;

/// The state that a rank hands out. An error of any of these ends the part; the rank knows why.
pub trait RankState {
    /// The rank.
    fn rank(&self) -> RankId;
    /// Optimizer steps taken.
    fn optimizer_step(&self) -> io::Result<u32>;
    /// Which values a frozen weight has; `None` of one that trains.
    fn frozen(&self, weight: WeightId) -> Option<FrozenDigest>;
    /// Its rows of a master or a moment, as f32; nothing of a frozen weight.
    fn rows(&self, weight: WeightId, part: StatePart) -> io::Result<Vec<f32>>;
    /// Scale in use and amax history, where scaling is delayed.
    fn delayed(&self, weight: WeightId) -> io::Result<Option<DelayedState>>;
    /// A carried buffer; of one that is not there it is empty.
    fn carried(&self, buffer: CarriedId) -> io::Result<Vec<u8>>;
    /// As [`Alive`].
    fn alive(&self) -> io::Result<()>;
}

/// Keeps the parts of one save.
pub trait PartWriter: fmt::Debug + Send + Sync {
    /// Makes ready, before any part is written, and gives a number that no other save has.
    ///
    /// # Errors
    /// Why nothing can be saved, as of the others.
    fn begin(&self, rank: RankId) -> Result<u64, CheckpointError>;
    /// Keeps the part of one rank for good, and gives a number by which it is known again, such as a digest.
    ///
    /// # Errors
    /// Why not.
    fn write(&self, save: SaveId, state: &dyn RankState) -> Result<u64, CheckpointError>;
    /// Makes a checkpoint of the parts, all of which are kept; called on rank 0 alone. `parts` is what writing each of
    /// them gave, in rank order.
    ///
    /// # Errors
    /// Why not. By [`CheckpointError::InDoubt`] there may be a checkpoint, now or after a loss of power, so parts stay;
    /// by all others there is none, and parts are withdrawn.
    fn complete(&self, save: SaveId, parts: &[u64], state: &dyn RankState) -> Result<(), CheckpointError>;
    /// Every rank knows that the parts stay, because the save became a checkpoint, or may have become one. Nothing need
    /// be done. Where a rank, a device or a process fails first, neither this nor [`PartWriter::withdraw`] is called.
    fn keep(&self, _save: SaveId, _rank: RankId) {}
    /// What is to be done once there is a checkpoint, in words that say where, if anything is.
    fn follows(&self) -> Option<String> {
        None
    }
    /// Does it: after [`PartWriter::complete`], in the process of rank 0, on a thread of its own. The checkpoint stays
    /// whatever comes of it.
    ///
    /// # Errors
    /// Why not.
    fn follow(&self) -> Result<(), CheckpointError> {
        Ok(())
    }
    /// Forgets the part of one rank, if there is one, because the save failed.
    fn withdraw(&self, save: SaveId, rank: RankId);
}

/// The part of a checkpoint that a rank imports: its own rows of every weight, and its carried buffers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankPart {
    /// Its rows of every weight.
    pub shards: Vec<WeightShard>,
    /// Its carried buffers, in the order of [`warpweft_plan::plan::carried`].
    pub carried: Vec<Vec<u8>>,
    /// Optimizer steps taken.
    pub optimizer_step: u32,
}

/// Gives ranks what they own of a checkpoint.
pub trait PartReader: fmt::Debug + Send + Sync {
    /// The number of the checkpoint, by which processes know that they read the same.
    fn digest(&self) -> u64;
    /// What `rank` owns, every value judged.
    ///
    /// # Errors
    /// Why it cannot be imported.
    fn read(&self, rank: RankId, alive: &Alive<'_>) -> Result<RankPart, CheckpointError>;
}
