//! The masters a session begins with.
//!
//! Law: what an initializer fills in follows from the weight's name and the rows' place in it alone: ranks
//! that hold the same rows are asked one by one, and must be given the same values. What it cannot give it
//! says, and zeros never stand in for it.

use std::sync::Arc;

use super::ShardPlanes;
use warpweft_base::id::RankId;
use warpweft_plan::layout::WeightLayout;

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

/// Planes that a frozen weight begins with, of the rank's rows, and its tensor scale; or `None` where the
/// [`Initializer`] gives values. Or it says why it cannot, which ends the start.
pub type FirstPlanes =
    Arc<dyn Fn(&WeightLayout, RankId) -> Result<Option<(Vec<ShardPlanes>, f32)>, String> + Send + Sync>;

/// Fills in masters, row-major; they are zeros before. Or it says why it cannot, which ends the start.
pub type Initializer = Arc<dyn Fn(MasterRows<'_>, &mut [f32]) -> Result<(), String> + Send + Sync>;
