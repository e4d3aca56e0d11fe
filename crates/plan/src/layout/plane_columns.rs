//! The columns of a weight in the rows of one of its planes.
//!
//! Law: columns that tensor parallelism cuts off are whole blocks of the format, so in every row of a plane they have
//! bytes of their own, one range. So planes of parts give the planes of the whole, and the other way round, by copies
//! alone. Padding columns are zero (PN-3).

use std::ops::Range;

use super::weight::WeightLayout;
use warpweft_format::{Format, Orientation, PlaneKind, Shape};

/// The bytes that a rank's columns have in a row of a plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlaneColumns {
    /// Bytes of a row of the whole weight's plane.
    whole: usize,
    /// Bytes of a row of the plane of the rank's part.
    part: usize,
    /// Where in a row of the whole those of the part are: without padding, unless it has all columns.
    range: Range<usize>,
    has_all: bool,
}

impl PlaneColumns {
    /// Those of a part of `layout` whose first column is `first`.
    #[must_use]
    pub fn new(layout: &WeightLayout, orientation: Orientation, kind: PlaneKind, first: usize) -> Self {
        let (format, part, whole) = (layout.format, layout.shard.shape.cols, layout.shard.whole().cols);
        let used = |cols| used_bytes(format, orientation, kind, cols);
        let stored = |cols| row_bytes(format, orientation, kind, cols);
        let has_all = part == whole;
        let range = if has_all { 0..stored(whole) } else { used(first)..used(first + part) };
        Self { whole: stored(whole), part: stored(part), range, has_all }
    }

    /// Bytes of a row of the whole weight's plane.
    #[must_use]
    pub const fn of_whole(&self) -> usize {
        self.whole
    }

    /// Bytes of a row of the plane of a part.
    #[must_use]
    pub const fn of_part(&self) -> usize {
        self.part
    }

    /// Has the part all columns?
    #[must_use]
    pub const fn has_all(&self) -> bool {
        self.has_all
    }

    /// Rows of a part, of these rows of the whole.
    #[must_use]
    pub fn take(&self, whole: Vec<u8>) -> Vec<u8> {
        if self.has_all {
            return whole;
        }
        let mut part = vec![0; whole.len() / self.whole.max(1) * self.part];
        for (from, to) in whole.chunks_exact(self.whole.max(1)).zip(part.chunks_exact_mut(self.part.max(1))) {
            to[..self.range.len()].copy_from_slice(&from[self.range.clone()]);
        }
        part
    }

    /// Puts rows of a part into as many rows of the whole.
    pub fn put(&self, part: &[u8], whole: &mut [u8]) {
        for (from, to) in part.chunks_exact(self.part.max(1)).zip(whole.chunks_exact_mut(self.whole.max(1))) {
            to[self.range.clone()].copy_from_slice(&from[..self.range.len()]);
        }
    }
}

/// Bytes of a row of a plane with this number of columns.
fn row_bytes(format: Format, orientation: Orientation, kind: PlaneKind, cols: usize) -> usize {
    let planes = format.shard_planes(orientation, Shape { rows: format.row_tile(), cols });
    planes.iter().find(|plane| plane.kind == kind).map_or(0, |plane| plane.row_bytes())
}

/// The same without padding.
fn used_bytes(format: Format, orientation: Orientation, kind: PlaneKind, cols: usize) -> usize {
    match kind {
        PlaneKind::Data => row_bytes(format, orientation, kind, cols),
        PlaneKind::Scale => {
            let planes = format.shard_planes(orientation, Shape { rows: format.row_tile(), cols });
            let element =
                planes.iter().find(|plane| plane.kind == kind).map_or(0, |plane| plane.element.bytes());
            // A block has one scale.
            format.amax_blocks(orientation, Shape { rows: 1, cols }) * element
        }
    }
}
