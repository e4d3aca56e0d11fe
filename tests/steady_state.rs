//! What stays the same for 200 steps: no allocation on rank and lane threads, no address changes.
//!
//! Guards BK-2, TU-10 and the arena's law, of steps whose host time is split as of others. This file holds one test, so that nothing else in its process
//! allocates meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a counting allocator can only be written with it")]

mod trainer;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use trainer::{SIZE, Shaped, Trainer, feed, within_a_minute};
use warpweft::backend::cpu::CpuSurface;
use warpweft::compute::{ComputeContext, ComputeError};
use warpweft::config::{Capture, Config, Scaling, Tune};
use warpweft::format::{Format, Orientation};
use warpweft::id::{RankId, WeightId};
use warpweft::model::Call;
use warpweft::session::{Session, Tuning};

struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The embedder's own thread may allocate: it builds reports.
    static EMBEDDER: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call goes to the system allocator unchanged; counting touches atomics and a
// thread-local that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTS.load(Ordering::Relaxed) && !EMBEDDER.try_with(Cell::get).unwrap_or(true) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Address of the dense weight and of its gradient at every backward call, in order of calls.
type Addresses = Arc<Mutex<Vec<(usize, usize)>>>;

#[test]
fn two_hundred_steps_allocate_nothing_on_rank_and_lane_threads_and_move_nothing() {
    EMBEDDER.set(true);
    for (format, scaling, capture, trials) in [
        (Format::F32, Scaling::Current, Capture::Off, 0),
        (Format::NVFP4_2D, Scaling::Current, Capture::Off, 0),
        (Format::NVFP4_2D, Scaling::Current, Capture::Step, 0),
        (Format::NVFP4_2D, Scaling::Current, Capture::Segments, 0),
        (Format::FP8_TENSOR_E4M3, Scaling::Delayed, Capture::Off, 0),
        (Format::NVFP4_2D, Scaling::Current, Capture::Off, Tune::MOST_STEPS),
        (Format::NVFP4_2D, Scaling::Current, Capture::Step, Tune::MOST_STEPS),
    ] {
        within_a_minute(async move {
            EMBEDDER.set(true);
            let mut config = Config { capture, ..Config::default() };
            config.prefetch.depth = Some(2);
            config.quantize.scaling = scaling;
            config.tune.steps = trials;
            let dynamic: &[&str] = if capture == Capture::Segments { &["f1", "b1"] } else { &[] };
            let shaped = Shaped { layers: 3, weights: 3, ..Shaped::default() };
            let trainer = Trainer::with_dynamic(dynamic, shaped, format, &config);
            let weight = trainer.model.find("layer1").unwrap();
            let seen: Addresses = Arc::new(Mutex::new(Vec::with_capacity(1024)));
            let shared = Arc::clone(&seen);
            let closures = move |_: RankId| {
                let seen = Arc::clone(&shared);
                move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
                    touch(call, context, weight, &seen)
                }
            };
            let mut session = Session::builder(config, closures)
                .program(trainer.train.clone())
                .initialize(trainer::initial)
                .start_cpu(3)
                .await
                .unwrap();
            for step in 0..trials {
                feed(&mut session, "train", 3, step);
                session.step("train").await.unwrap();
            }
            // TU-10: plans that were tried may lie elsewhere; the one that stays does not move.
            seen.lock().unwrap().clear();
            for step in 0..10 {
                feed(&mut session, "train", 3, step);
                session.step("train").await.unwrap();
            }
            assert!(session.tuning().is_none_or(Tuning::is_frozen));
            COUNTS.store(true, Ordering::SeqCst);
            for step in 10..210 {
                feed(&mut session, "train", 3, step);
                session.split_host_time(step % 2 == 0);
                let report = session.step("train").await.unwrap();
                assert_eq!(report.host.is_some(), step % 2 == 0);
            }
            COUNTS.store(false, Ordering::SeqCst);
            assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 0, "{format}, {capture:?}");
            let mut addresses = seen.lock().unwrap().clone();
            assert_eq!(addresses.len(), 3 * 210);
            addresses.sort_unstable();
            addresses.dedup();
            assert_eq!(addresses.len(), 3, "one pair of addresses per rank: {format}, {capture:?}");
        });
    }
}

/// Writes what the call declares, and notes where the middle layer lies.
fn touch(
    call: &Call,
    context: &ComputeContext<'_, CpuSurface>,
    weight: WeightId,
    seen: &Addresses,
) -> Result<(), ComputeError> {
    for access in call.buffers.iter().filter(|access| access.access.writes()) {
        context.write::<f32>(access.buffer)?.fill(0.25);
    }
    for gradient in &call.grads {
        context.gradient(gradient.weight)?.fill(0.125);
    }
    if call.name == "b1" {
        let dense = context.dense(weight, Orientation::Columnwise)?;
        assert_eq!(dense.len(), SIZE * SIZE);
        let gradient = context.gradient(weight)?;
        seen.lock().unwrap().push((dense.as_ptr().addr(), gradient.as_ptr().addr()));
    }
    Ok(())
}
