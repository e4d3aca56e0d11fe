//! Gathered planes made whole, on the rank alone.
//!
//! Laws:
//! - A rank's shard lies in the rows of its place among the ranks of its replica, whichever replica it is of; its slice
//!   of a shard at the place of its replica.
//! - After the last rank's rows everything is zero. Scale rows that travel once land where a plain gather
//!   would put them and are spread from there; spreading zeroes what comes after them, so nothing is zeroed
//!   twice.

use super::Refusal;
use super::binder::Binder;
use super::collective::{Gathered, Move, gathered};
use warpweft_format::{Format, Orientation, Shape};
use warpweft_plan::layout::Region;
use warpweft_plan::op::GatherPart;

/// What one rank does to make planes whole.
#[derive(Debug, Default)]
pub struct Assemble {
    /// The rank's own planes, and their rows.
    pub own: Vec<Move>,
    /// What comes after the last rank's rows.
    pub zeros: Vec<Region>,
    /// Scale planes whose compact rows are spread once all of them are there.
    pub spread: Vec<Spread>,
}

/// A gathered scale plane of a format that repeats rows.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    pub format: Format,
    pub orientation: Orientation,
    pub shape: Shape,
    pub plane: Region,
}

impl Assemble {
    pub fn resolve(binder: &Binder<'_>, parts: &[GatherPart]) -> Result<Self, Refusal> {
        let mut all = Self::default();
        for part in parts {
            let GatherPart { weight, orientation, .. } = *part;
            let layout = binder.weight(weight)?;
            let format = layout.format;
            let Gathered { planes, places: (shard, shards), shape, publishes, .. } = gathered(binder, part)?;
            // A published shard is as compact as what it is made of.
            let repeats = !publishes
                && format.compact_planes(orientation, shape) != format.shard_planes(orientation, shape);
            for (number, Move { from, to }) in planes.into_iter().enumerate() {
                let filled = from.bytes.saturating_mul(shards);
                let row = to.part(from.bytes.saturating_mul(shard), from.bytes);
                let rest = to.bytes.checked_sub(filled).and_then(|rest| to.part(filled, rest));
                let (Some(row), Some(rest)) = (row, rest) else {
                    return Err(format!("{shards} parts of {} bytes do not fit", from.bytes));
                };
                all.own.extend((from.bytes > 0).then_some(Move { from, to: row }));
                // Data first, then scales.
                match number > 0 && repeats {
                    true => all.spread.push(Spread { format, orientation, shape, plane: to }),
                    false => all.zeros.extend((rest.bytes > 0).then_some(rest)),
                }
            }
        }
        Ok(all)
    }
}
