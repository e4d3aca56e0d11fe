//! One arena per rank, lent out in typed slices.
//!
//! Laws:
//! - This is the only file of the backend with `unsafe`. Every slice comes out of a run-time table of
//!   borrowed byte ranges: a range that is written overlaps no other borrow. So every slice is sound whatever
//!   a plan, a checker or a peer says. A wrong plan gets a [`BorrowError::Race`] instead of a data race.
//! - The arena is zeroed once and never moves, grows or shrinks.
//! - Borrowing does not allocate once the table has grown to the most borrows ever alive at once.
//!
//! Lanes of the rank and collectives of its peers all borrow here. The plan decides which of them may borrow
//! when; waiting for a borrow is deliberately absent.

#![allow(unsafe_code, reason = "typed slices of one arena, each guarded by the table of borrows")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Mutex;

use bytemuck::Pod;

use crate::bell::lock;
use warpweft_plan::compute::LentSlice;
use warpweft_plan::layout::{ALIGNMENT, Region};

/// Borrows the table has room for from the start.
const BORROWS: usize = 64;

/// Why a piece of the arena cannot be lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BorrowError {
    /// The region lies outside the arena.
    #[error("{0} lie outside of the arena of {1} bytes", Bytes(*.region), .arena)]
    Outside {
        /// What was requested.
        region: Region,
        /// Size of the arena.
        arena: usize,
    },
    /// The region is not a slice of such elements.
    #[error("{0} are no whole number of aligned elements of {1} bytes", Bytes(*.region), .element)]
    Element {
        /// What was requested.
        region: Region,
        /// Size of the element.
        element: usize,
    },
    /// Another borrower holds part of it, and one of the two writes.
    #[error("race: {} are {} while {} are still being {}", Bytes(*.wanted), verb(*.writes), Bytes(*.held), verb(*.held_writes))]
    Race {
        /// What was requested.
        wanted: Region,
        /// Whether it was asked for writing.
        writes: bool,
        /// What the other borrower holds.
        held: Region,
        /// Whether that is being written.
        held_writes: bool,
    },
}

/// A region as messages show it.
struct Bytes(Region);

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "bytes {}..{}", self.0.offset, self.0.offset.saturating_add(self.0.bytes))
    }
}

fn verb(writes: bool) -> &'static str {
    if writes { "written" } else { "read" }
}

/// One live borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Borrow {
    region: Region,
    writes: bool,
}

/// The memory of one rank.
#[derive(Debug)]
pub(super) struct Arena {
    start: NonNull<u8>,
    layout: Layout,
    borrows: Mutex<Vec<Borrow>>,
}

// SAFETY: the arena is reached only through slices that the table keeps apart: readers share, a writer is
// alone. A thread that borrows a range after it was written takes the table's lock after the writer gave the
// range back under the same lock, so it sees what was written. Elements are `Pod`: any thread may hold them,
// and there is nothing to drop.
unsafe impl Send for Arena {}
// SAFETY: as above; every method takes `&self` and goes through the table.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves `bytes` zeroed bytes.
    ///
    /// # Errors
    /// The allocator's refusal, in words.
    pub(super) fn reserve(bytes: usize) -> Result<Self, String> {
        // One byte for an empty arena, so that there is always an allocation to give back.
        let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT).map_err(|error| error.to_string())?;
        // SAFETY: `layout` has a size of at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or_else(|| "the allocator refuses".to_owned())?;
        Ok(Self { start, layout, borrows: Mutex::new(Vec::with_capacity(BORROWS)) })
    }

    /// Size of the arena.
    pub(super) fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Lends a region for reading; others may read it too.
    pub(super) fn read<T: Pod>(&self, region: Region) -> Result<ReadSlice<'_, T>, BorrowError> {
        let (first, elements, lease) = self.lend::<T>(region, false)?;
        Ok(ReadSlice { first, elements, _lease: lease, _slice: PhantomData })
    }

    /// Lends a region for writing; no other borrower holds any of it.
    pub(super) fn write<T: Pod>(&self, region: Region) -> Result<WriteSlice<'_, T>, BorrowError> {
        let (first, elements, lease) = self.lend::<T>(region, true)?;
        Ok(WriteSlice { first, elements, _lease: lease, _slice: PhantomData })
    }

    /// Copies a region to another of the same size.
    pub(super) fn copy(&self, from: Region, to: Region) -> Result<(), BorrowError> {
        let source = self.read::<u8>(from)?;
        self.write::<u8>(to)?.copy_from_slice(&source);
        Ok(())
    }

    /// Sets a region to zero.
    pub(super) fn zero(&self, region: Region) -> Result<(), BorrowError> {
        self.write::<u8>(region)?.fill(0);
        Ok(())
    }

    /// Checks the region against arena, element and table, and enters it into the table.
    fn lend<T: Pod>(
        &self,
        region: Region,
        writes: bool,
    ) -> Result<(NonNull<T>, usize, Lease<'_>), BorrowError> {
        let arena = self.bytes();
        if region.offset.checked_add(region.bytes).is_none_or(|end| end > arena) {
            return Err(BorrowError::Outside { region, arena });
        }
        let element = size_of::<T>();
        if element == 0 || !region.bytes.is_multiple_of(element) {
            return Err(BorrowError::Element { region, element });
        }
        // SAFETY: `offset` is at most the size of the allocation `start` points to.
        let first = unsafe { self.start.add(region.offset) }.cast::<T>();
        if !first.is_aligned() {
            return Err(BorrowError::Element { region, element });
        }
        self.enter(Borrow { region, writes })?;
        Ok((first, region.bytes / element, Lease { arena: self, borrow: Borrow { region, writes } }))
    }

    fn enter(&self, borrow: Borrow) -> Result<(), BorrowError> {
        if borrow.region.bytes == 0 {
            return Ok(());
        }
        let mut borrows = lock(&self.borrows);
        let clash =
            borrows.iter().find(|held| (held.writes || borrow.writes) && held.region.overlaps(borrow.region));
        if let Some(held) = clash {
            return Err(BorrowError::Race {
                wanted: borrow.region,
                writes: borrow.writes,
                held: held.region,
                held_writes: held.writes,
            });
        }
        borrows.push(borrow);
        Ok(())
    }

    fn leave(&self, borrow: Borrow) {
        if borrow.region.bytes == 0 {
            return;
        }
        let mut borrows = lock(&self.borrows);
        if let Some(position) = borrows.iter().rposition(|held| *held == borrow) {
            borrows.swap_remove(position);
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `start` was allocated with this layout, and slices borrow the arena, so none is
        // left.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// One entry of the table, for as long as its slice lives.
#[derive(Debug)]
struct Lease<'arena> {
    arena: &'arena Arena,
    borrow: Borrow,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.arena.leave(self.borrow);
    }
}

/// A piece of the arena that is read; it is given back when dropped.
pub struct ReadSlice<'arena, T> {
    first: NonNull<T>,
    elements: usize,
    _lease: Lease<'arena>,
    _slice: PhantomData<&'arena [T]>,
}

impl<T: Pod> Deref for ReadSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `first` is aligned and `elements` of them lie inside the arena (`lend`). Its bytes are
        // initialized, zeroed at first and written as `Pod` since, which has no padding, and any bytes are a
        // valid `Pod`. No writer overlaps them while the lease lives, and the slice borrows `self`, which
        // holds the lease.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.elements) }
    }
}

impl<T: Pod> LentSlice for ReadSlice<'_, T> {
    fn len(&self) -> usize {
        self.elements
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for ReadSlice<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

/// A piece of the arena that is written; it is given back when dropped.
pub struct WriteSlice<'arena, T> {
    first: NonNull<T>,
    elements: usize,
    _lease: Lease<'arena>,
    _slice: PhantomData<&'arena mut [T]>,
}

impl<T: Pod> Deref for WriteSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: as for `ReadSlice`; the lease excludes all other borrowers.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.elements) }
    }
}

impl<T: Pod> DerefMut for WriteSlice<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `ReadSlice`; the lease excludes all other borrowers, and `&mut self` excludes other
        // slices made from it.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.elements) }
    }
}

impl<T: Pod> LentSlice for WriteSlice<'_, T> {
    fn len(&self) -> usize {
        self.elements
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for WriteSlice<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests;
