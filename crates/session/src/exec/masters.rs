//! Sources of the masters that a session begins with.
//!
//! Law: what an initializer fills in follows from the weight's name and the rows' place in it alone: ranks
//! that hold the same rows are asked one by one, and must be given the same values. What it cannot give it
//! says, and zeros never stand in for it.

use std::sync::Arc;

use crate::checkpoint::ranks::MasterRows;
use warpweft_base::id::RankId;
use warpweft_format::OwnedPlanes;
use warpweft_plan::layout::WeightLayout;

/// Planes that a frozen weight begins with, of the rank's rows, and its tensor scale; or `None` where the
/// [`Initializer`] gives values. Or it says why it cannot, which ends the start.
pub type FirstPlanes =
    Arc<dyn Fn(&WeightLayout, RankId) -> Result<Option<(Vec<OwnedPlanes>, f32)>, String> + Send + Sync>;

/// Fills in masters, row-major; they are zeros before. Or it says why it cannot, which ends the start.
pub type Initializer = Arc<dyn Fn(MasterRows<'_>, &mut [f32]) -> Result<(), String> + Send + Sync>;
