//! Counts the allocations of the calling thread, for tests that promise none, or a number.
//!
//! Law: counted where [`Allocator`](crate::Allocator) is the global allocator, and nowhere else.

use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// A size in bytes, and how many allocations of it there were.
    static WATCHED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Of an allocation.
pub(crate) fn allocated(bytes: usize) {
    ALLOCATIONS.with(|count| count.set(count.get() + 1));
    WATCHED.with(|watched| {
        let (size, count) = watched.get();
        watched.set((size, count + usize::from(size == bytes)));
    });
}

/// How many allocations `work` makes.
pub fn allocations_of(work: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

/// How many allocations of so many bytes `work` makes.
pub fn allocations_of_bytes(bytes: usize, work: impl FnOnce()) -> usize {
    WATCHED.set((bytes, 0));
    work();
    WATCHED.get().1
}
