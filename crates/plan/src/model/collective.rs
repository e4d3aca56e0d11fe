//! Collectives between calls: all-gather, reduce-scatter, all-to-all, all-reduce of buffers.
//!
//! Law: a collective is a call that no closure runs: it has a name and a place in program order, reads one buffer and
//! overwrites another. All ranks of its group give equally many elements. What it leaves follows from what they give
//! and from their order alone, so it is the same bits for every transport and number of processes. A gradient needs
//! none of these: gradients of weights are reduced by themselves.
//!
//! What ranks give each other may be of different lengths only where counts say so ([`Counts`]).
//!
//! Deliberately absent: sums of integers, and collectives of a rank with another alone.

use serde::Serialize;

use super::{Counts, Group};
use warpweft_base::id::BufferId;
use warpweft_format::ElementType;

/// What ranks do with the elements they give each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum CollectiveKind {
    /// Every rank gets the elements of all, in rank order: `[ranks, elements]`, any element type. What flows back
    /// through it is [`CollectiveKind::ReduceScatter`].
    AllGather,
    /// Every rank gives each rank, and so itself, an equal part of its elements, `[ranks, elements / ranks]`. It gets
    /// the sum of the parts that are for it, added in rank order in f32. Of bf16, it is rounded once. What flows back
    /// through it is [`CollectiveKind::AllGather`].
    ReduceScatter,
    /// Every rank gives each rank, and so itself, an equal part of its elements. It gets as many back, in rank
    /// order: both buffers are `[ranks, elements / ranks]`, any element type. It is its own inverse, and
    /// what flows back through it.
    AllToAll,
    /// Every rank gets the sum of all, element by element, added in rank order in f32. Of bf16, it is rounded once.
    Sum,
    /// Every rank gets the maximum of all, element by element, in f32 or bf16. NaN is no maximum, unless all are.
    Max,
}

impl CollectiveKind {
    /// Does it combine the values of ranks, as opposed to moving them?
    #[must_use]
    pub const fn combines(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::Sum | Self::Max)
    }

    /// Can the buffers have elements of this type?
    #[must_use]
    pub const fn takes(self, element: ElementType) -> bool {
        !self.combines() || matches!(element, ElementType::F32 | ElementType::Bf16)
    }

    /// Does each rank give every rank a part of its own, as opposed to the same?
    #[must_use]
    pub const fn has_parts(self) -> bool {
        matches!(self, Self::ReduceScatter | Self::AllToAll)
    }

    /// The elements that every rank has afterwards if each of `ranks` gives `elements`; none if these cannot be
    /// divided among the ranks, or are too many to count.
    #[must_use]
    pub fn received(self, elements: usize, ranks: u32) -> Option<usize> {
        match self {
            Self::AllGather => elements.checked_mul(ranks as usize),
            // No number but 0 is a multiple of 0.
            Self::ReduceScatter => elements.is_multiple_of(ranks as usize).then(|| part(elements, ranks)),
            Self::AllToAll => elements.is_multiple_of(ranks as usize).then_some(elements),
            Self::Sum | Self::Max => Some(elements),
        }
    }

    /// The bytes that a rank has for each other rank of `ranks` out of its `bytes`. Those that are combined may
    /// travel in slices (`op::Division`).
    #[must_use]
    #[doc(hidden)]
    pub const fn given_to_each(self, bytes: usize, ranks: u32) -> usize {
        match self {
            Self::AllToAll | Self::ReduceScatter => part(bytes, ranks),
            Self::AllGather | Self::Sum | Self::Max => bytes,
        }
    }
}

/// One of equal parts for as many ranks; nothing for none.
const fn part(all: usize, ranks: u32) -> usize {
    match all.checked_div(ranks as usize) {
        Some(part) => part,
        None => 0,
    }
}

impl std::fmt::Display for CollectiveKind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllToAll => "all-to-all",
            Self::Sum => "sum",
            Self::Max => "maximum",
        })
    }
}

/// One collective: [`ProgramBuilder::collective`](super::ProgramBuilder::collective) adds it to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Collective {
    /// What is done.
    pub kind: CollectiveKind,
    /// Among which ranks.
    pub group: Group,
    /// What every rank gives. It is read and stays.
    pub from: BufferId,
    /// What every rank gets. It is overwritten.
    pub to: BufferId,
    /// How much of both is filled; all of it without counts. Of an all-to-all alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts: Option<Counts>,
}

impl Collective {
    /// Of the given kind, among all ranks.
    #[must_use]
    pub const fn new(kind: CollectiveKind, from: BufferId, to: BufferId) -> Self {
        Self { kind, group: Group::World, from, to, counts: None }
    }

    /// A dropless dispatch, among all ranks: an all-to-all of the filled rows of `from` and of their counts. Both
    /// buffers are `[slots, capacity, width]`, with as many slots for each rank. What a slot of `to` holds after the
    /// rows that came is undefined.
    #[must_use]
    pub const fn dispatch(from: BufferId, to: BufferId, counts: Counts) -> Self {
        Self { counts: Some(counts), ..Self::new(CollectiveKind::AllToAll, from, to) }
    }

    /// The combine of a dispatch: as many rows as it brought in each slot go back to where they came from, in that
    /// order.
    #[must_use]
    pub fn back(self, from: BufferId, to: BufferId) -> Self {
        Self { counts: self.counts.map(Counts::back), from, to, ..self }
    }

    /// Other rows by the counts of a dispatch, the same way: what flows back through its combine.
    #[must_use]
    pub fn again(self, from: BufferId, to: BufferId) -> Self {
        Self { counts: self.counts.map(Counts::again), from, to, ..self }
    }

    /// The same among the ranks of `group`: those of a replica, or those at one place in all replicas.
    #[must_use]
    pub const fn among(self, group: Group) -> Self {
        Self { group, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_get_follows_from_what_they_give_and_how_many_they_are() {
        assert_eq!(CollectiveKind::AllGather.received(6, 4), Some(24));
        assert_eq!(CollectiveKind::AllGather.received(usize::MAX, 2), None);
        assert_eq!(CollectiveKind::AllToAll.received(6, 3), Some(6));
        assert_eq!(CollectiveKind::AllToAll.received(6, 4), None);
        assert_eq!(CollectiveKind::ReduceScatter.received(6, 3), Some(2));
        assert_eq!(CollectiveKind::ReduceScatter.received(6, 4), None);
        assert_eq!(CollectiveKind::Sum.received(6, 4), Some(6));
        assert!(!CollectiveKind::Sum.takes(ElementType::U32) && CollectiveKind::Sum.takes(ElementType::Bf16));
        assert!(CollectiveKind::AllToAll.takes(ElementType::U32));
        assert_eq!(CollectiveKind::AllToAll.given_to_each(24, 3), 8);
        assert_eq!(CollectiveKind::ReduceScatter.given_to_each(24, 3), 8);
        assert_eq!(CollectiveKind::Max.given_to_each(24, 3), 24);
    }
}
