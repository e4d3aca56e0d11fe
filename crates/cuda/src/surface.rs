//! The memory a closure sees: addresses of its rank's arena, and the stream to work on.
//!
//! Law: a closure enqueues on the stream it is given and nothing else: once warm it never waits and never
//! allocates, and it touches only what its context lent and memory of its own. So the same call can be
//! captured and replayed. Only a dynamic call is never captured. Users read this at
//! [`Compute`](warpweft_plan::compute::Compute) and [`CudaHandles`].

use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::{result, sys};

use super::device::address::DeviceAddress;
use super::device::context::DeviceOrdinal;
use super::device::stream::Stream;
use super::graph::keep_alive::KeepAlive;
use warpweft_plan::compute::{Borrower, ComputeContext, ComputeError, LentSlice, SPOILED, Surface};
use warpweft_plan::layout::Region;
use warpweft_plan::model::Call;

/// Device memory lent for reading: `len` elements of `T`.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a, T> {
    address: DeviceAddress,
    len: usize,
    lent: PhantomData<&'a T>,
}

/// Device memory lent for writing: `len` elements of `T`.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    address: DeviceAddress,
    len: usize,
    lent: PhantomData<&'a mut T>,
}

macro_rules! lent {
    ($name:ident) => {
        impl<T> $name<'_, T> {
            /// Where the first element is. A multiple of 256 bytes for whole operands; of 4 for the rows that an
            /// custom optimizer prepares, or gets back, of a round of whole matrices.
            #[must_use]
            pub const fn address(&self) -> DeviceAddress {
                self.address
            }

            /// Number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                self.len
            }

            /// Whether there are no elements.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.len == 0
            }
        }

        impl<T> LentSlice for $name<'_, T> {
            fn len(&self) -> usize {
                self.len
            }
        }
    };
}

lent!(DeviceSlice);
lent!(DeviceSliceMut);

impl<T> DeviceSlice<'_, T> {
    /// `len` elements starting at `address`, for memory that no context lent, such as a user's own.
    ///
    /// # Safety
    /// The elements are memory of the device the slice is used on, aligned for `T`. While the slice lives,
    /// and until the work that was given it is done, they stay allocated and only work ordered around it
    /// writes them.
    #[must_use]
    pub const unsafe fn from_address(address: DeviceAddress, len: usize) -> Self {
        Self { address, len, lent: PhantomData }
    }
}

impl<'a, T> DeviceSliceMut<'a, T> {
    /// The same elements, from now on only to be read.
    #[must_use]
    pub const fn into_slice(self) -> DeviceSlice<'a, T> {
        DeviceSlice { address: self.address, len: self.len, lent: PhantomData }
    }

    /// The same elements, to be read.
    #[must_use]
    pub const fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice { address: self.address, len: self.len, lent: PhantomData }
    }

    /// The same elements for a shorter time.
    #[must_use]
    pub const fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut { address: self.address, len: self.len, lent: PhantomData }
    }

    /// `len` elements starting at `address`, for memory that no context lent, such as a user's own.
    ///
    /// # Safety
    /// As [`DeviceSlice::from_address`]; in addition, only work ordered around it reads them.
    #[must_use]
    pub const unsafe fn from_address(address: DeviceAddress, len: usize) -> Self {
        Self { address, len, lent: PhantomData }
    }
}

/// What a closure needs to enqueue work: the stream of the compute lane and the device it belongs to, whose
/// primary context is current.
///
/// The stream is the session's. A closure enqueues on it and does nothing else with it: it does not wait for
/// it, destroy it, or begin to capture on it. Work on the legacy default stream is in no order with it. Once
/// its plan is warm, after the first step, a closure neither waits nor allocates; a table in
/// [`Compute`](warpweft_plan::compute::Compute#on-a-gpu) says what that means for captured steps and dynamic calls.
#[derive(Clone, Debug)]
pub struct CudaHandles {
    stream: sys::CUstream,
    device: DeviceOrdinal,
    /// Keeps the stream, and says what the driver's calls are charged to; handles for work outside a call have none.
    lane: Option<Arc<Stream>>,
    /// Keeps what captures of the rank may use; work outside a call is not captured.
    keep_alive: Option<Arc<KeepAlive>>,
}

impl CudaHandles {
    /// Handles for work outside a call, such as a user's own measurements.
    ///
    /// # Safety
    /// `stream` is a stream of the primary context of `device` and outlives every use of the handles. While
    /// they are used that context is current.
    #[must_use]
    pub const unsafe fn new(stream: sys::CUstream, device: DeviceOrdinal) -> Self {
        Self { stream, device, lane: None, keep_alive: None }
    }

    /// Handles of a lane.
    pub(super) fn of(stream: &Arc<Stream>, keep_alive: &Arc<KeepAlive>) -> Self {
        let (lane, keep_alive) = (Some(Arc::clone(stream)), Some(Arc::clone(keep_alive)));
        Self { stream: stream.handle(), device: stream.context().ordinal(), lane, keep_alive }
    }

    /// What is held for captures of the rank.
    pub(super) const fn keep_alive(&self) -> Option<&Arc<KeepAlive>> {
        self.keep_alive.as_ref()
    }

    /// Does `call`, one call of the driver or of cuBLASLt, which is charged to the driver and not to the
    /// closure.
    pub(super) fn driver<T>(&self, call: impl FnOnce() -> T) -> T {
        match &self.lane {
            Some(stream) => stream.meter().driver(call),
            None => call(),
        }
    }

    /// The stream the call's work belongs on, created with `CU_STREAM_NON_BLOCKING`. It may be capturing.
    #[must_use]
    pub const fn stream(&self) -> sys::CUstream {
        self.stream
    }

    /// The device.
    #[must_use]
    pub const fn device(&self) -> DeviceOrdinal {
        self.device
    }
}

/// Gives back `closure`, whose arguments now need no types: they are those of a closure on GPUs.
#[must_use]
pub fn on_cuda<F>(closure: F) -> F
where
    F: FnMut(&Call, &ComputeContext<'_, CudaSurface>) -> Result<(), ComputeError>,
{
    closure
}

/// Lends the arena of one rank to one call or update.
#[derive(Debug)]
pub struct CudaSurface {
    arena: DeviceAddress,
    handles: CudaHandles,
    borrower: Arc<dyn Borrower>,
}

impl CudaSurface {
    pub(super) fn new(arena: DeviceAddress, handles: CudaHandles, borrower: Arc<dyn Borrower>) -> Self {
        Self { arena, handles, borrower }
    }

    fn elements<T>(&self, region: Region) -> Result<usize, ComputeError> {
        let element = size_of::<T>();
        if element > 0
            && region.bytes.is_multiple_of(element)
            && region.offset.is_multiple_of(align_of::<T>())
        {
            return Ok(region.bytes / element);
        }
        Err(ComputeError::Element {
            call: self.borrower.name().to_owned(),
            what: self.borrower.name_at(region),
            bytes: region.bytes,
            element,
        })
    }
}

impl Surface for CudaSurface {
    type Handles = CudaHandles;
    type Device = DeviceOrdinal;
    type Read<'a, T: Pod> = DeviceSlice<'a, T>;
    type Write<'a, T: Pod> = DeviceSliceMut<'a, T>;

    fn read<T: Pod>(&self, region: Region) -> Result<DeviceSlice<'_, T>, ComputeError> {
        let len = self.elements::<T>(region)?;
        Ok(DeviceSlice { address: self.arena.plus(region.offset), len, lent: PhantomData })
    }

    fn write<T: Pod>(&self, region: Region) -> Result<DeviceSliceMut<'_, T>, ComputeError> {
        let len = self.elements::<T>(region)?;
        Ok(DeviceSliceMut { address: self.arena.plus(region.offset), len, lent: PhantomData })
    }

    fn spoil(&self, region: Region) -> Result<(), ComputeError> {
        let to = self.arena.plus(region.offset).number();
        // SAFETY: the region is the call's own in the rank's arena, and the stream is that of its lane.
        let fill = || unsafe { result::memset_d8_async(to, SPOILED, region.bytes, self.handles.stream) };
        self.handles.driver(fill).map_err(|error| ComputeError::Spoil {
            call: self.borrower.name().to_owned(),
            reason: format!("{error:?}"),
        })
    }

    fn handles(&self) -> &CudaHandles {
        &self.handles
    }
}
