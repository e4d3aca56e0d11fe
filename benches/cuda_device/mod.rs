//! A GPU to measure on: one pool of memory, and times by events with a cold L2 cache.

#![allow(unsafe_code, reason = "driver calls, on memory that the benchmark owns")]

mod plain;

use std::cell::Cell;

use cudarc::driver::{result, sys};
use warpweft_cuda::kernels::{CopyOperand, KernelLaunch, Kernels, NormFrom, NormOperand};
use warpweft_cuda::{DeviceAddress, KernelCache};

use plain::Plain;

/// More than any L2 cache.
const FLUSH_BYTES: usize = 256 << 20;
/// Bytes of noise the pool is filled from.
const NOISE_BYTES: usize = 64 << 20;

pub(crate) struct Device {
    pub(crate) kernels: Kernels,
    pub(crate) name: String,
    base: sys::CUdeviceptr,
    bytes: usize,
    used: Cell<usize>,
    /// Reads more bytes than the L2 cache holds, so that what is in it afterwards need not be written back.
    flush: KernelLaunch,
    plain: Plain,
    /// Values of both signs, then positive ones.
    noise: [sys::CUdeviceptr; 2],
    events: [sys::CUevent; 2],
    stream: sys::CUstream,
}

impl Device {
    pub(crate) fn open() -> Result<Self, String> {
        // SAFETY: opening the driver runs NVIDIA's own initializers.
        if !std::panic::catch_unwind(|| unsafe { sys::is_culib_present() }).unwrap_or(false) {
            return Err("no CUDA driver".to_owned());
        }
        let text = |error: result::DriverError| format!("{error:?}");
        result::init().map_err(text)?;
        let device = result::device::get(0).map_err(text)?;
        // SAFETY: the device is one the driver just gave; everything below is kept until the process ends.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(text)?;
            result::ctx::set_current(context).map_err(text)?;
            let kernels = Kernels::for_current_context(KernelCache::of_user())
                .map_err(|failure| failure.to_string())?;
            let flush = result::malloc_sync(FLUSH_BYTES).map_err(text)?;
            result::memset_d8_sync(flush, 1, FLUSH_BYTES).map_err(text)?;
            let at = |bytes| DeviceAddress::new(flush).plus(bytes);
            let operand = NormOperand { from: NormFrom::Values(at(0)), elements: FLUSH_BYTES / 4 - 64 };
            let flush = kernels.grad_norm(&[operand], at(FLUSH_BYTES - 256), at(FLUSH_BYTES - 128));
            let flush = flush.map_err(|failure| failure.to_string())?;
            let noise = [
                result::malloc_sync(NOISE_BYTES).map_err(text)?,
                result::malloc_sync(NOISE_BYTES).map_err(text)?,
            ];
            let values = noise_values();
            result::memcpy_htod_sync(noise[0], &values).map_err(text)?;
            let positive: Vec<u32> = values.iter().map(|bits| bits & 0x7FFF_7FFF).collect();
            result::memcpy_htod_sync(noise[1], &positive).map_err(text)?;
            let (free, _) = result::mem_get_info().map_err(text)?;
            let bytes = free / 10 * 9;
            let flag = sys::CUevent_flags::CU_EVENT_DEFAULT;
            Ok(Self {
                kernels,
                name: result::device::get_name(device).map_err(text)?,
                base: result::malloc_sync(bytes).map_err(text)?,
                bytes,
                used: Cell::new(0),
                flush,
                plain: Plain::new()?,
                noise,
                events: [
                    result::event::create(flag).map_err(text)?,
                    result::event::create(flag).map_err(text)?,
                ],
                stream: result::stream::create(result::stream::StreamKind::NonBlocking).map_err(text)?,
            })
        }
    }

    /// Gives the whole pool back.
    pub(crate) fn clear(&self) {
        self.used.set(0);
    }

    /// `bytes` bytes of the pool that hold small values, as f32 and as bf16; `None` when it is used up.
    pub(crate) fn take(&self, bytes: usize) -> Option<DeviceAddress> {
        self.take_of(bytes, self.noise[0])
    }

    /// The same with positive values.
    pub(crate) fn take_positive(&self, bytes: usize) -> Option<DeviceAddress> {
        self.take_of(bytes, self.noise[1])
    }

    fn take_of(&self, bytes: usize, noise: sys::CUdeviceptr) -> Option<DeviceAddress> {
        let at = self.used.get();
        let end = at + bytes.next_multiple_of(256);
        if end > self.bytes {
            return None;
        }
        self.used.set(end);
        let address = self.base + at as u64;
        for part in (0..bytes).step_by(NOISE_BYTES) {
            let bytes = NOISE_BYTES.min(bytes - part);
            // SAFETY: both ranges are ours and do not overlap.
            unsafe { result::memcpy_dtod_async(address + part as u64, noise, bytes, self.stream) }.unwrap();
        }
        Some(DeviceAddress::new(address))
    }

    /// Writes one value of a known type.
    pub(crate) fn put<T: bytemuck::Pod>(&self, address: DeviceAddress, value: T) {
        result::ctx::synchronize().unwrap();
        // SAFETY: the address was taken for this.
        unsafe { result::memcpy_htod_sync(address.number(), &[value]) }.unwrap();
    }

    /// Median microseconds of the launches one after the other.
    pub(crate) fn time(&self, launches: &[KernelLaunch], runs: usize) -> f64 {
        self.median(runs, || {
            for launch in launches {
                // SAFETY: the operands are of the pool, which lives until the process ends.
                unsafe { launch.enqueue(self.stream) }.unwrap();
            }
        })
    }

    /// Median microseconds of a copy that reads and writes `bytes` bytes together: the driver's, with source and
    /// target at several distances, or our own kernel's, whichever is fastest. More than the pool has room for counts
    /// as so many times what has room.
    pub(crate) fn time_of_copy(&self, bytes: usize, runs: usize) -> f64 {
        let half = (bytes / 2).min(self.bytes / 3);
        let times = (bytes / 2) as f64 / half as f64;
        let places = [half, half + (5 << 20), self.bytes / 2];
        let drivers = places.map(|distance| {
            let target = self.base + distance.next_multiple_of(256) as u64;
            self.median(runs, || {
                // SAFETY: two ranges of the pool that do not overlap.
                unsafe { result::memcpy_dtod_async(target, self.base, half, self.stream) }.unwrap();
            })
        });
        let from = DeviceAddress::new(self.base);
        let to = from.plus(half.next_multiple_of(256));
        let own = self.kernels.copy(&[CopyOperand { from, to, bytes: half }]).unwrap();
        times * drivers.into_iter().fold(self.time(&[own], runs), f64::min)
    }

    /// Median microseconds of a kernel that reads and writes so many bytes and does nothing else. Where the pool has
    /// no room for both, it writes over the end of what it reads.
    pub(crate) fn time_of_plain(&self, reads: usize, writes: usize, runs: usize) -> f64 {
        let after = reads.min(self.bytes.saturating_sub(writes + 256)).next_multiple_of(256);
        let to = self.base + after as u64;
        let median = |enqueue: &mut dyn FnMut()| self.median(runs, enqueue);
        self.plain.time((self.base, reads), (to, writes), self.stream, median)
    }

    /// Where work is enqueued.
    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// Median microseconds of what `enqueue` puts on the stream.
    pub(crate) fn median(&self, runs: usize, mut enqueue: impl FnMut()) -> f64 {
        let mut times: Vec<f64> = (0..runs + 2)
            .map(|_| {
                // SAFETY: stream, events and the flushed memory are ours and live.
                unsafe {
                    self.flush.enqueue(self.stream).unwrap();
                    result::event::record(self.events[0], self.stream).unwrap();
                    enqueue();
                    result::event::record(self.events[1], self.stream).unwrap();
                    result::stream::synchronize(self.stream).unwrap();
                    f64::from(result::event::elapsed(self.events[0], self.events[1]).unwrap()) * 1e3
                }
            })
            .skip(2)
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }
}

/// Bits of f32 values about 0.02, as weights have, whose two halves are also two such bf16 values.
fn noise_values() -> Vec<u32> {
    let mut state = 1_u64;
    let mut unit = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut high = || ((unit() + unit() + unit()) * 0.02).to_bits() >> 16;
    (0..NOISE_BYTES / 4).map(|_| high() << 16 | high()).collect()
}
