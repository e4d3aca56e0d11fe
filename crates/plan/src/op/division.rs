//! The division of an all-reduce among its ranks.
//!
//! *Whole*, every rank gets the values of all others and combines them by itself, in rank order: `ranks − 1` times
//! its own bytes arrive. *In slices*, each rank gets the others' values of one slice, combines those in the same
//! order, and gives the outcome to all: `2 · (ranks − 1) / ranks` times its own bytes arrive, in two turns (a
//! reduce-scatter and an all-gather; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, §4.5).
//!
//! Laws:
//! - Both give every rank the same bits: each element is combined in rank order, by one rank or by all.
//! - Which of them it is follows from the sizes of all values and the number of ranks alone, so every rank, the
//!   planner, the verifier, prices and every backend agree.
//! - In slices, everything is. A value of which each rank gets a fair piece is cut by itself, in equal parts.
//!   What is left over, and values that are shorter, lie one after the other in a *string*, which is padded and
//!   cut like a value. So a rank gets the same number of bytes from each other one, and not more messages than
//!   there are large values.

use crate::model::CollectiveKind;

/// Slices, and what lies in a string, begin at multiples of this: the widest access of a kernel.
const ALIGNMENT: usize = 16;

/// What a second turn has to save a rank, in bytes received. Between hosts they take as long as the turn (20 µs at
/// 50 GB/s); inside a host a turn is shorter, and so is the time for the bytes.
const WORTH_A_TURN: usize = 1 << 20;

/// Or in room for values that wait to be combined. Two ranks get as many bytes in slices as whole and save only the
/// room; from here on that is worth a turn.
const WORTH_ITS_ROOM: usize = 32 << 20;

/// A shorter slice is no message of its own.
const LEAST_SLICE: usize = 4096;

/// How the values of one all-reduce are divided among its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    ranks: usize,
    /// The least slice that a value is cut for by itself; none where values go whole.
    least: Option<usize>,
}

impl Division {
    /// For values of these sizes in bytes, combined over `ranks` ranks.
    pub fn of(sizes: impl Iterator<Item = usize>, ranks: u32) -> Self {
        let (ranks, bytes) = (ranks as usize, sizes.fold(0, usize::saturating_add));
        // (ranks − 1) · bytes whole, less 2 · (ranks − 1) / ranks · bytes in slices.
        let saved = (bytes / ranks.max(1)).saturating_mul(ranks.saturating_sub(1) * ranks.saturating_sub(2));
        let room = bytes.saturating_mul(ranks);
        let is_worth_it = ranks > 1 && (saved >= WORTH_A_TURN || room >= WORTH_ITS_ROOM);
        Self { ranks, least: is_worth_it.then_some(LEAST_SLICE) }
    }

    /// In slices, however few bytes they are.
    pub const fn in_slices_of(least: usize, ranks: usize) -> Self {
        Self { ranks, least: Some(least) }
    }

    /// How many ranks there are.
    pub const fn ranks(self) -> usize {
        self.ranks
    }

    /// Does each rank combine slices for all?
    pub const fn is_in_slices(self) -> bool {
        self.least.is_some()
    }

    /// Bytes of each rank's slice of a value of `bytes` bytes that is cut by itself; 0 for one that is not.
    pub const fn slice(self, bytes: usize) -> usize {
        let Some(least) = self.least else { return 0 };
        let slice = bytes / self.ranks / ALIGNMENT * ALIGNMENT;
        if slice >= least { slice } else { 0 }
    }

    /// Bytes after the slices of a value of `bytes` bytes.
    pub const fn rest(self, bytes: usize) -> usize {
        bytes - self.slice(bytes) * self.ranks
    }

    /// Bytes that the rest of a value takes in the string.
    pub const fn in_string(self, bytes: usize) -> usize {
        self.rest(bytes).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of each rank's slice of the string of values of these sizes.
    pub fn slice_of_string(self, sizes: impl Iterator<Item = usize>) -> usize {
        let all = sizes.map(|bytes| self.in_string(bytes)).fold(0, usize::saturating_add);
        all.div_ceil(self.ranks.max(1)).next_multiple_of(ALIGNMENT)
    }

    /// Bytes that a rank combines for all, of values of these sizes. Saturates.
    pub(crate) fn combined(self, sizes: impl Iterator<Item = usize> + Clone) -> usize {
        let slices = sizes.clone().map(|bytes| self.slice(bytes)).fold(0, usize::saturating_add);
        slices.saturating_add(self.slice_of_string(sizes))
    }
}

/// Bytes that a rank of `ranks` gives each other one in an all-reduce of values of these sizes. Saturates.
pub fn given_to_each<I>(sizes: I, ranks: u32) -> usize
where
    I: Iterator<Item = usize> + Clone,
{
    let division = Division::of(sizes.clone(), ranks);
    match division.is_in_slices() {
        true => division.combined(sizes).saturating_mul(2),
        false => sizes.fold(0, usize::saturating_add),
    }
}

/// The same in an exchange of a buffer of `bytes` bytes.
pub fn collective_given_to_each(kind: CollectiveKind, bytes: usize, ranks: u32) -> usize {
    match kind {
        CollectiveKind::Sum | CollectiveKind::Max => given_to_each(std::iter::once(bytes), ranks),
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => {
            kind.given_to_each(bytes, ranks)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of one value: each rank's slice of it, and of the string.
    fn slices(bytes: usize, ranks: u32) -> Option<(usize, usize)> {
        let division = Division::of([bytes].into_iter(), ranks);
        division
            .is_in_slices()
            .then(|| (division.slice(bytes), division.slice_of_string([bytes].into_iter())))
    }

    #[test]
    fn few_bytes_go_whole_and_many_in_slices() {
        const MIB: usize = 1 << 20;
        assert_eq!(slices(1 << 40, 1), None);
        // Each of two gets half twice: as many bytes, and room for none.
        assert_eq!(slices(16 * MIB - 4, 2), None);
        assert_eq!(slices(16 * MIB, 2), Some((8 * MIB, 0)));
        // Of four each would get three times as many bytes, and gets one and a half times.
        assert_eq!(slices(2 * MIB / 3 - 4, 4), None);
        assert_eq!(slices(2 * MIB / 3 + 4, 4), Some((174_752, 16)));
        assert_eq!(slices(MIB + 36, 4), Some((MIB / 4, 16)));
        // A few bytes for each of many ranks are no messages of their own.
        assert_eq!(slices(3 * MIB, 384), Some((8192, 0)));
        assert_eq!(slices(MIB, 384), Some((0, 2736)));
        // The norms of a decoder.
        let norms = || [16 << 10; 65].into_iter();
        let division = Division::of(norms(), 384);
        assert_eq!((division.slice(16 << 10), division.slice_of_string(norms())), (0, 2784));
        assert_eq!(given_to_each(norms(), 384), 2 * 2784);
    }

    #[test]
    fn a_rank_gives_all_that_goes_whole_and_two_slices_of_the_rest() {
        assert_eq!(given_to_each([8 << 20].into_iter(), 8), 2 << 20);
        assert_eq!(given_to_each([4096, 8].into_iter(), 8), 4104);
        assert_eq!(given_to_each(std::iter::empty(), 8), 0);
        let sum = |bytes| collective_given_to_each(CollectiveKind::Sum, bytes, 8);
        assert_eq!((sum(8 << 20), sum(24)), (2 << 20, 24));
        assert_eq!(collective_given_to_each(CollectiveKind::AllGather, 8 << 20, 8), 8 << 20);
        assert_eq!(collective_given_to_each(CollectiveKind::ReduceScatter, 8 << 20, 8), 1 << 20);
    }

    proptest! {
        /// Slices are the whole, and however many ranks there are, one gets little more than twice what it has: what
        /// is added are pads of values and of the string.
        #[test]
        fn slices_bring_a_rank_at_most_twice_its_bytes_and_pads(
            sizes in prop::collection::vec(0..(1usize << 26), 0..5),
            ranks in 2..5000u32,
        ) {
            let (all, number) = (sizes.iter().sum::<usize>(), ranks as usize);
            let division = Division::of(sizes.iter().copied(), ranks);
            for bytes in &sizes {
                prop_assert_eq!(division.slice(*bytes) * number + division.rest(*bytes), *bytes);
                prop_assert_eq!(division.slice(*bytes) % ALIGNMENT, 0);
            }
            let string: usize = sizes.iter().map(|bytes| division.rest(*bytes)).sum();
            if division.is_in_slices() {
                prop_assert!(division.slice_of_string(sizes.iter().copied()) * number >= string);
                let received = given_to_each(sizes.iter().copied(), ranks) * (number - 1);
                let pads = ALIGNMENT * (sizes.len() + 2 * number);
                prop_assert!(received <= 2 * (all + pads), "{} of {}", received, all);
            } else {
                prop_assert_eq!(given_to_each(sizes.iter().copied(), ranks), all);
                prop_assert!(all * number < WORTH_ITS_ROOM);
            }
        }
    }
}
