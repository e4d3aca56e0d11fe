//! One rank's shard of one weight: rows of the masters and of the optimizer state, and their planes.
//!
//! Law: real rows only, in f32 however a rank stores them, so a shard does not say what it came from.

use crate::checkpoint::FrozenDigest;
use warpweft_base::id::RankId;
use warpweft_format::{DelayedState, OwnedPlanes};
use warpweft_plan::layout::{WeightLayout, Weights};

/// The rows of one weight whose masters a rank begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterRows<'a> {
    /// Name of the weight.
    pub weight: &'a str,
    /// Number of the first of these rows within the whole weight.
    pub first_row: usize,
    /// Columns of the weight.
    pub columns: usize,
}

impl<'a> MasterRows<'a> {
    /// The rows of a whole weight, or its first ones.
    #[must_use]
    pub const fn from_the_first(weight: &'a str, columns: usize) -> Self {
        Self { weight, first_row: 0, columns }
    }

    /// Position of their first value in the whole weight, row-major.
    #[must_use]
    pub const fn first_element(&self) -> usize {
        self.first_row * self.columns
    }
}

/// Optimizer state of one rank's rows of one weight. There is no state where the weight is frozen, and so is the master
/// where it is its planes alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WeightShard {
    /// FP32 master values, row-major, real rows only.
    pub master: Vec<f32>,
    /// Lists of optimizer state, as long as the master.
    pub states: Vec<Vec<f32>>,
    /// Quantized planes as stored, of each stored orientation in turn.
    pub planes: Vec<OwnedPlanes>,
    /// What dequantizing needs besides the planes; 1 for formats without.
    pub tensor_scale: f32,
    /// Scale in use and amax history, where scaling is delayed. On import, `None` begins anew.
    pub delayed: Option<DelayedState>,
    /// Of a frozen weight going out, which values the whole of it has. Coming in, those that it must have here,
    /// whether it is frozen here or trains.
    pub frozen: Option<FrozenDigest>,
    /// Coming in, whether the weight stays as it is: no values come.
    pub stays: bool,
}

impl WeightShard {
    /// A weight that stays as it is under an optimizer that begins anew.
    #[must_use]
    pub fn that_stays(weights: &Weights, layout: &WeightLayout, rank: RankId) -> Self {
        let elements = layout.shard.rows_of(rank).rows * layout.shard.shape.cols;
        let states = vec![vec![0.0; elements]; weights.lists_of(layout)];
        Self { states, stays: true, ..Self::default() }
    }
}
