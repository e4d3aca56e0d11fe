//! The slices that ranks exchange: where each lies before and after.
//!
//! Law: slices for, and from, all ranks of a group are of one size and lie in rank order, at the same place in every
//! arena.

use warpweft_plan::layout::Region;

/// One gradient of an exchange, or one buffer. Ranks are numbered in their group.
#[derive(Clone, Copy, Debug)]
pub struct Slices {
    /// The rank's slices for all, in rank order; the same place in every arena.
    pub source: Region,
    /// The others' slices for the rank, in rank order; the same place in every arena.
    pub received: Region,
    /// Whether the rank's own slice has a place among them.
    pub with_own: bool,
    /// Bytes of a slice.
    pub bytes: usize,
}

impl Slices {
    /// Where in its arena any rank has what it gives to `taker`.
    pub const fn given(&self, taker: usize) -> usize {
        self.source.offset + self.bytes * taker
    }

    /// Where in the arena of `taker` the slice of `giver` lands, which is another rank unless own slices have a place.
    pub const fn received_at(&self, giver: usize, taker: usize) -> usize {
        let place = if self.with_own || giver < taker { giver } else { giver - 1 };
        self.received.offset + self.bytes * place
    }
}
