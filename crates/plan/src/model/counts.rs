//! The counts of a dropless dispatch: how many rows ranks have for each other.
//!
//! Law: rows lie in slots, `[slots, capacity, width]`, and each slot has a count beside it. A rank has as many slots
//! for each rank of the group, itself included. Rows of a slot after its count are undefined. A dispatch brings counts
//! to whom the rows are for. What goes back, or the same way again, goes by the counts of that very dispatch, which
//! nobody has written since. Who reads rows reads their counts. A count above the capacity is a fault of the closure
//! that wrote it.

use serde::Serialize;

use warpweft_base::id::BufferId;

/// Which rows of both buffers of an all-to-all are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Counts {
    /// How many rows the rank has in each slot: u32. Slots for a rank, one or more, lie together, in rank order.
    pub given: BufferId,
    /// How many rows it gets in each: as many slots of every rank.
    pub taken: BufferId,
    /// For how many rows a slot has room.
    pub capacity: usize,
    /// How many of a hundred rows prices take to be filled. It changes no bytes and no bits.
    pub fill: u8,
    /// Whether an earlier dispatch has brought `taken`. Otherwise this one does.
    pub known: bool,
}

impl Counts {
    /// Of a dispatch that brings `taken`. Prices take all rows to be filled.
    #[must_use]
    pub const fn new(given: BufferId, taken: BufferId, capacity: usize) -> Self {
        Self { given, taken, capacity, fill: 100, known: false }
    }

    /// The same for prices of so many filled rows of a hundred.
    #[must_use]
    pub const fn filled(self, fill: u8) -> Self {
        Self { fill, ..self }
    }

    /// Those of what goes back to where rows came from.
    pub(super) const fn back(self) -> Self {
        Self { given: self.taken, taken: self.given, known: true, ..self }
    }

    /// Those of what goes the same way again.
    pub(super) const fn again(self) -> Self {
        Self { known: true, ..self }
    }

    /// Are these the counts that a dispatch by `other` has brought, to go by in either direction?
    #[must_use]
    #[doc(hidden)]
    pub fn follow(self, other: Self) -> bool {
        let pair = (self.given, self.taken);
        let either = pair == (other.given, other.taken) || pair == (other.taken, other.given);
        self.known && !other.known && self.capacity == other.capacity && either
    }
}
