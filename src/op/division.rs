//! How ranks share the work of an all-reduce.
//!
//! *Whole*, every rank gets the values of all others and combines them by itself, in rank order: `ranks − 1` times
//! its own bytes arrive. *In slices*, each rank gets the others' values of one slice, combines those in the same
//! order, and gives the outcome to all: `2 · (ranks − 1) / ranks` times its own bytes arrive, in two turns (a
//! reduce-scatter and an all-gather; Thakur, Rabenseifner, Gropp, IJHPCA 19(1), 2005, §4.5).
//!
//! Laws:
//! - Both give every rank the same bits: each element is combined in rank order, by one rank or by all.
//! - Which of them it is follows from the bytes of the whole collective and the number of ranks alone, so every rank,
//!   the planner, the verifier, prices and every backend agree.
//! - Slices of a value are equally long and begin at multiples of [`SLICE_ALIGNMENT`] bytes. What is left over goes
//!   whole.

use crate::model::ExchangeKind;

/// Slices are multiples of this: the widest access of a kernel.
const SLICE_ALIGNMENT: usize = 16;

/// What a second turn has to save a rank, in bytes received. Between hosts they take as long as the turn (20 µs at
/// 50 GB/s); inside a host a turn is shorter, and so is the time for the bytes.
const WORTH_A_TURN: usize = 1 << 20;

/// Or in room for values that wait to be combined: slices wait in the target. Of two ranks each gets as many bytes in
/// slices as whole, and beside those of so much room a turn takes little.
const WORTH_ITS_ROOM: usize = 32 << 20;

/// How the values of one all-reduce are divided among its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    ranks: usize,
    in_slices: bool,
}

impl Division {
    /// For values of `bytes` bytes in all, combined over `ranks` ranks.
    pub(crate) fn of(bytes: usize, ranks: u32) -> Self {
        let ranks = ranks as usize;
        // (ranks − 1) · bytes whole, less 2 · (ranks − 1) / ranks · bytes in slices.
        let saved = (bytes / ranks.max(1)).saturating_mul(ranks.saturating_sub(1) * ranks.saturating_sub(2));
        let room = bytes.saturating_mul(ranks);
        Self { ranks, in_slices: ranks > 1 && (saved >= WORTH_A_TURN || room >= WORTH_ITS_ROOM) }
    }

    /// In slices, however few bytes they are.
    #[cfg(test)]
    pub(crate) const fn in_slices(ranks: usize) -> Self {
        Self { ranks, in_slices: true }
    }

    /// Bytes that each rank combines for all, of a value of `bytes` bytes.
    pub(crate) const fn slice(self, bytes: usize) -> usize {
        if self.in_slices { bytes / self.ranks / SLICE_ALIGNMENT * SLICE_ALIGNMENT } else { 0 }
    }

    /// Bytes behind the slices, which every rank combines by itself.
    pub(crate) const fn rest(self, bytes: usize) -> usize {
        bytes - self.slice(bytes) * self.ranks
    }

    /// Bytes that a rank gives each other one, of a value of `bytes` bytes.
    pub(crate) const fn given_to_each(self, bytes: usize) -> usize {
        2 * self.slice(bytes) + self.rest(bytes)
    }
}

/// Bytes that a rank of `ranks` gives each other one in an all-reduce of values of these sizes. Saturates.
pub(crate) fn given_to_each<I>(sizes: I, ranks: u32) -> usize
where
    I: Iterator<Item = usize> + Clone,
{
    let division = Division::of(sizes.clone().fold(0, usize::saturating_add), ranks);
    sizes.fold(0, |sum, bytes| sum.saturating_add(division.given_to_each(bytes)))
}

/// The same in an exchange of a buffer of `bytes` bytes.
pub(crate) fn exchange_given_to_each(kind: ExchangeKind, bytes: usize, ranks: u32) -> usize {
    if kind.combines() {
        given_to_each(std::iter::once(bytes), ranks)
    } else {
        kind.given_to_each(bytes, ranks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_bytes_go_whole_and_many_in_slices() {
        for (bytes, ranks, slice, rest) in [
            (4, 1, 0, 4),
            (1 << 30, 1, 0, 1 << 30),
            // Each of two gets half twice: as many bytes, and room for none.
            ((16 << 20) - 4, 2, 0, (16 << 20) - 4),
            (16 << 20, 2, 8 << 20, 0),
            (4096, 8, 0, 4096),
            (1 << 20, 4, 1 << 18, 0),
            ((1 << 20) + 36, 4, 1 << 18, 36),
            (3 << 20, 384, 8192, 0),
        ] {
            let division = Division::of(bytes, ranks);
            assert_eq!((division.slice(bytes), division.rest(bytes)), (slice, rest), "{bytes} over {ranks}");
        }
        // 7 times 8 MiB, or an eighth of that from each of 7, twice.
        assert_eq!(given_to_each([8 << 20].into_iter(), 8), 2 << 20);
        assert_eq!(given_to_each([4096, 8].into_iter(), 8), 4104);
        assert_eq!(given_to_each(std::iter::empty(), 8), 0);
    }

    proptest! {
        /// A second turn is taken only where it saves bytes, and slices with the rest are the value.
        #[test]
        fn slices_never_bring_more_bytes_than_whole_values(
            sizes in prop::collection::vec(0..(1usize << 26), 0..5),
            ranks in 1..600u32,
        ) {
            let all: usize = sizes.iter().sum();
            let division = Division::of(all, ranks);
            for bytes in &sizes {
                prop_assert_eq!(division.slice(*bytes) * ranks as usize + division.rest(*bytes), *bytes);
                prop_assert!(division.given_to_each(*bytes) <= *bytes);
                prop_assert_eq!(division.slice(*bytes) % SLICE_ALIGNMENT, 0);
            }
            prop_assert!(given_to_each(sizes.iter().copied(), ranks) <= all);
        }
    }
}
