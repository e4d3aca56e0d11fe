//! Ranges of bytes in an arena.
//!
//! Law: an offset is counted from the start of a rank's arena and is the same on every rank. What is placed
//! begins at a multiple of [`ALIGNMENT`]; [`aligned`] is the only place that rounds up to it.

use serde::Serialize;

/// Every slot and every plane inside a slot begins at a multiple of this many bytes: enough for
/// vector loads, copy engines and tensor-core descriptors.
pub const ALIGNMENT: usize = 256;

/// The most bytes an arena can have: pointers inside one allocation are no further apart.
pub const MAX_ARENA: usize = isize::MAX as usize;

/// What `bytes` bytes take in the arena: rounded up to [`ALIGNMENT`]. Saturates.
#[must_use]
pub const fn aligned(bytes: usize) -> usize {
    match bytes.checked_next_multiple_of(ALIGNMENT) {
        Some(aligned) => aligned,
        None => usize::MAX,
    }
}

/// A range of bytes, counted from the start of a rank's arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Region {
    /// First byte.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

impl Region {
    /// One byte past the last.
    #[must_use]
    pub const fn end(self) -> usize {
        self.offset + self.bytes
    }

    /// Whether the two share a byte.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.bytes > 0 && other.bytes > 0 && self.offset < other.end() && other.offset < self.end()
    }

    /// `bytes` bytes, `offset` bytes into this region; `None` if they do not fit.
    #[must_use]
    pub fn part(self, offset: usize, bytes: usize) -> Option<Self> {
        (offset.checked_add(bytes)? <= self.bytes).then_some(Self { offset: self.offset + offset, bytes })
    }
}
