//! Slices that are lent and that are refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn region(offset: usize, bytes: usize) -> Region {
    Region { offset, bytes }
}

fn is_race<T>(result: Result<T, BorrowError>) -> bool {
    matches!(result, Err(BorrowError::Race { .. }))
}

#[test]
fn the_arena_is_zeroed_and_aligned() {
    let arena = Arena::reserve(1000).unwrap();
    let bytes = arena.read::<u8>(region(0, 1000)).unwrap();
    assert_eq!(bytes.as_ptr().addr() % ALIGNMENT, 0);
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn readers_share_and_a_writer_is_alone() {
    let arena = Arena::reserve(1024).unwrap();
    let first = arena.read::<f32>(region(0, 512)).unwrap();
    let second = arena.read::<u8>(region(256, 512)).unwrap();
    assert!(is_race(arena.write::<u8>(region(500, 4))));
    let beside = arena.write::<u8>(region(768, 256)).unwrap();
    assert!(is_race(arena.read::<u8>(region(1000, 4))));
    assert!(is_race(arena.write::<u8>(region(1000, 4))));
    drop((first, second, beside));
    assert!(arena.write::<u8>(region(0, 1024)).is_ok());
}

#[test]
fn a_race_says_who_holds_what() {
    let arena = Arena::reserve(1024).unwrap();
    let _held = arena.read::<u8>(region(256, 128)).unwrap();
    let error = arena.write::<u8>(region(0, 512)).unwrap_err();
    assert_eq!(error.to_string(), "race: bytes 0..512 are written while bytes 256..384 are still being read");
}

#[test]
fn a_region_that_is_no_slice_of_the_element_is_refused() {
    let arena = Arena::reserve(64).unwrap();
    assert!(matches!(arena.read::<f32>(region(0, 6)), Err(BorrowError::Element { .. })));
    assert!(matches!(arena.read::<f32>(region(2, 8)), Err(BorrowError::Element { .. })));
    assert!(matches!(arena.read::<()>(region(0, 8)), Err(BorrowError::Element { .. })));
    assert!(matches!(arena.read::<u8>(region(60, 8)), Err(BorrowError::Outside { .. })));
    assert!(matches!(arena.read::<u8>(region(usize::MAX, 8)), Err(BorrowError::Outside { .. })));
}

#[test]
fn an_empty_region_clashes_with_nothing() {
    let arena = Arena::reserve(64).unwrap();
    let _all = arena.write::<u8>(region(0, 64)).unwrap();
    assert!(arena.read::<f32>(region(64, 0)).unwrap().is_empty());
    assert!(arena.write::<f32>(region(8, 0)).unwrap().is_empty());
}

#[test]
fn an_arena_nobody_can_allocate_is_an_error() {
    assert!(Arena::reserve(usize::MAX).is_err());
    assert_eq!(Arena::reserve(0).unwrap().read::<u8>(region(0, 0)).unwrap().len(), 0);
}

/// Threads borrow overlapping ranges at random; a writer increments every element of its range. Every
/// increment of a granted write must be there in the end, and no reader may see its range change.
#[test]
fn threads_that_borrow_at_random_never_see_each_other() {
    const CELLS: usize = 64;
    const ROUNDS: usize = if cfg!(miri) { 30 } else { 20_000 };
    let arena = Arena::reserve(CELLS * 4).unwrap();
    let granted: [AtomicUsize; CELLS] = std::array::from_fn(|_| AtomicUsize::new(0));
    let work = |seed: u64| {
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..ROUNDS {
            let begin = random(CELLS);
            let cells = random(CELLS - begin) + 1;
            let range = region(begin * 4, cells * 4);
            if random(2) == 0 {
                if let Ok(mut slice) = arena.write::<u32>(range) {
                    slice.iter_mut().for_each(|cell| *cell += 1);
                    for count in &granted[begin..begin + cells] {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
            } else if let Ok(slice) = arena.read::<u32>(range) {
                let before: u64 = slice.iter().map(|cell| u64::from(*cell)).sum();
                std::thread::yield_now();
                assert_eq!(before, slice.iter().map(|cell| u64::from(*cell)).sum::<u64>());
            }
        }
    };
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let work = &work;
            scope.spawn(move || work(seed));
        }
    });
    let cells = arena.read::<u32>(region(0, CELLS * 4)).unwrap();
    for (cell, count) in cells.iter().zip(&granted) {
        assert_eq!(usize::try_from(*cell).unwrap(), count.load(Ordering::Relaxed));
    }
    assert!(cells.iter().any(|cell| *cell > 0));
    drop(cells);
    assert!(lock(&arena.borrows).is_empty());
}
