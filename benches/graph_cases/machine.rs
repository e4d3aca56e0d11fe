//! The GPUs, one a rank: streams, the kernel, and memory that every peer reaches.
//!
//! Laws:
//! - Memory is plain `cuMemAlloc`, as the library's: peers reach stream-ordered pools much more slowly.
//! - Priorities are the library's: the compute stream's the least, the copy stream's the greatest.
//! - All is kept until the process ends.

use std::ffi::{CString, c_int, c_void};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{result, sys};
use warpweft::backend::cuda::DeviceOrdinal;

use super::at;
use super::options::Options;

const THREADS: u32 = 128;

pub(crate) struct Machine {
    pub(crate) name: String,
    pub(crate) ranks: Vec<Rank>,
}

pub(crate) struct Rank {
    pub(crate) number: usize,
    context: sys::CUcontext,
    pub(crate) compute: sys::CUstream,
    pub(crate) copy: sys::CUstream,
    spin: sys::CUfunction,
    /// One on every multiprocessor.
    blocks: u32,
    cycles: i64,
    /// What peers pull: a slot per round.
    pub(crate) source: sys::CUdeviceptr,
    /// What was pulled: a slot per round and peer.
    pub(crate) target: sys::CUdeviceptr,
    /// One per round and peer, written by the peer.
    pub(crate) words: sys::CUdeviceptr,
}

// SAFETY: the handles are names that the driver looks up; its calls are thread safe.
unsafe impl Send for Rank {}
// SAFETY: as above; nothing behind `&Rank` is changed by this process.
unsafe impl Sync for Rank {}

impl Machine {
    /// # Errors
    /// There are no two GPUs that reach each other, or the kernel cannot be made.
    pub(crate) fn open(options: &Options) -> Result<Self, String> {
        // Opens and starts the driver.
        let visible = DeviceOrdinal::all().map_err(|failure| failure.to_string())?.len();
        let ranks = options.ranks(visible)?;
        // SAFETY: opening the compiler runs NVIDIA's own initializers.
        if !std::panic::catch_unwind(|| unsafe { cudarc::nvrtc::sys::is_culib_present() }).unwrap_or(false) {
            return Err("no kernel compiler (libnvrtc)".to_owned());
        }
        let ptx = cudarc::nvrtc::compile_ptx(include_str!("spin.cu")).map_err(|error| error.to_string())?;
        let image = CString::new(ptx.to_src()).map_err(|error| error.to_string())?;
        let ranks: Vec<Rank> =
            (0..ranks).map(|number| Rank::open(number, ranks, &image, options)).collect::<Result<_, _>>()?;
        for from in &ranks {
            for to in ranks.iter().filter(|to| to.number != from.number) {
                from.reach(to)?;
            }
        }
        let first = result::device::get(0).map_err(at("cuDeviceGet"))?;
        Ok(Self { name: result::device::get_name(first).map_err(at("cuDeviceGetName"))?, ranks })
    }
}

impl Rank {
    fn open(number: usize, ranks: usize, image: &CString, options: &Options) -> Result<Self, String> {
        let device = result::device::get(number as c_int).map_err(at("cuDeviceGet"))?;
        let slots = options.rounds * options.bytes.iter().copied().max().unwrap_or(16);
        // SAFETY: the device is one the driver just gave, its context is current for all that follows, and
        // the image is text that ends with a zero.
        unsafe {
            let context = result::primary_ctx::retain(device).map_err(at("cuDevicePrimaryCtxRetain"))?;
            result::ctx::set_current(context).map_err(at("cuCtxSetCurrent"))?;
            let attribute = |attribute| result::device::get_attribute(device, attribute);
            let kilohertz = attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).map_err(at("the clock"))?;
            let blocks =
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(at("blocks"))?;
            let module = result::module::load_data(image.as_ptr().cast()).map_err(at("cuModuleLoadData"))?;
            let stream = |priority| {
                let kind = result::stream::StreamKind::NonBlocking;
                result::stream::create_with_priority(kind, priority).map_err(at("cuStreamCreate"))
            };
            let (least, greatest) = result::stream::get_priority_range().map_err(at("priorities"))?;
            let memory = |bytes| result::malloc_sync(bytes).map_err(at("cuMemAlloc"));
            Ok(Self {
                number,
                context,
                compute: stream(least)?,
                copy: stream(greatest)?,
                spin: result::module::get_function(module, c"spin".to_owned())
                    .map_err(at("cuModuleGetFunction"))?,
                blocks: blocks.unsigned_abs(),
                cycles: i64::from(kilohertz) * options.kernel_us as i64 / 1000,
                source: memory(slots)?,
                target: memory(slots * ranks)?,
                words: memory(options.rounds * ranks * size_of::<u32>())?,
            })
        }
    }

    /// Lets this rank's streams reach the memory of `peer`.
    fn reach(&self, peer: &Self) -> Result<(), String> {
        self.make_current()?;
        // SAFETY: both contexts are kept until the process ends.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            other => other.result().map_err(|error| {
                format!("GPU {} does not reach GPU {}: {error:?}", self.number, peer.number)
            }),
        }
    }

    pub(crate) fn make_current(&self) -> Result<(), String> {
        // SAFETY: the context is kept until the process ends.
        unsafe { result::ctx::set_current(self.context) }.map_err(at("cuCtxSetCurrent"))
    }

    /// Puts the kernel on the compute stream; at its end it counts at `count`. The context is current.
    pub(crate) fn spin(&self, count: sys::CUdeviceptr) -> Result<(), String> {
        let (mut cycles, mut count) = (self.cycles, count);
        let mut arguments: [*mut c_void; 2] = [(&raw mut cycles).cast(), (&raw mut count).cast()];
        let (grid, block) = ((self.blocks, 1, 1), (THREADS, 1, 1));
        // SAFETY: the arguments are those of the kernel, and the driver copies them; the count is a word of
        // this rank's memory, which no other kernel of the stream writes meanwhile.
        unsafe { result::launch_kernel(self.spin, grid, block, 0, self.compute, &mut arguments) }
            .map_err(at("cuLaunchKernel"))
    }

    /// Waits until one of its streams is empty.
    pub(crate) fn drain(&self, stream: sys::CUstream) -> Result<(), String> {
        // SAFETY: the stream is kept until the process ends.
        unsafe { result::stream::synchronize(stream) }.map_err(at("cuStreamSynchronize"))
    }
}
