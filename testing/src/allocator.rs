//! The global allocator of tests that measure memory: it counts, then asks the system.
//!
//! A test binary that measures has it as its own, because no library may choose one for every binary:
//! `#[global_allocator] static ALLOCATOR: Allocator = Allocator;`
#![allow(unsafe_code, reason = "a global allocator is the only way to measure memory")]

use std::alloc::{GlobalAlloc, Layout, System};

use crate::{of_thread, peak, steady};

/// Counts for `of_thread`, `peak` and `steady`.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: every call is passed on to the system allocator unchanged; counting touches atomics and
// thread-locals that need no allocation.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        of_thread::allocated(layout.size());
        peak::allocated(layout.size());
        steady::count();
        // SAFETY: the caller's obligations are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        peak::freed(layout.size());
        // SAFETY: the pointer came from `System` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}
