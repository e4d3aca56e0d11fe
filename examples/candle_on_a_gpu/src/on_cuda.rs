//! Lent device memory and candle's tensors on a GPU: values are copied on candle's stream, and nothing is waited for
//! on the host.
//!
//! candle has a stream of its own. Two events order it with the session's: candle begins after what the session has
//! enqueued, and the session goes on after candle. Tensors own their memory, so lent memory never becomes one.
//! candle allocates within calls, on its stream, so steps are issued and not captured (`capture = "off"`, the default).

#![allow(
    unsafe_code,
    reason = "a stream is borrowed and lent memory is copied; each block says why it is sound"
)]

use std::sync::Arc;

use candle_core::cuda::{CudaDType, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Result, Storage, Tensor, bail};
use warpweft::backend::cuda::cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtr, DeviceRepr, result,
};
use warpweft::backend::cuda::{CudaHandles, DeviceSlice, DeviceSliceMut};
use warpweft::prelude::*;

use crate::closure::Bridge;

/// candle's device and stream, and the events that order the stream with the session's.
pub(crate) struct OnCuda {
    device: CudaDevice,
    context: Arc<CudaContext>,
    own: Arc<CudaStream>,
    session_is_ready: CudaEvent,
    candle_is_ready: CudaEvent,
}

impl OnCuda {
    pub(crate) fn new(gpu: DeviceOrdinal) -> Result<Self> {
        // The primary context of the GPU, which is the session's too.
        let device = Device::new_cuda_with_stream(gpu.number() as usize)?;
        let device = device.as_cuda_device()?.clone();
        // SAFETY: tensors are used on candle's stream alone.
        unsafe { device.disable_event_tracking() };
        let own = device.cuda_stream();
        let context = Arc::clone(own.context());
        let event = || context.new_event(None).w();
        let (session_is_ready, candle_is_ready) = (event()?, event()?);
        Ok(Self { device, context, own, session_is_ready, candle_is_ready })
    }

    fn lane(&self, handles: &CudaHandles) -> Arc<CudaStream> {
        // SAFETY: a stream of this primary context, which outlives the call.
        unsafe { self.context.wrap_borrowed_stream(handles.stream()) }
    }

    /// Lent elements in memory of candle's.
    fn copied<T: CudaDType + DeviceRepr>(&self, lent: DeviceSlice<'_, T>) -> Result<Storage> {
        // SAFETY: every element is written below, before anything reads it on the same stream.
        let slice = unsafe { self.device.alloc::<T>(lent.len()) }?;
        {
            let (target, _) = slice.device_ptr(&self.own);
            let (source, bytes) = (lent.address().number(), size_of::<T>() * lent.len());
            // SAFETY: both have that many bytes, and the session leaves the source alone until `leave`.
            unsafe { result::memcpy_dtod_async(target, source, bytes, self.own.cu_stream()) }.w()?;
        }
        Ok(Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, self.device.clone())))
    }
}

impl Bridge<CudaSurface> for OnCuda {
    fn enter(&self, handles: &CudaHandles) -> Result<()> {
        self.session_is_ready.record(&self.lane(handles)).w()?;
        self.own.wait(&self.session_is_ready).w()
    }

    fn leave(&self, handles: &CudaHandles) -> Result<()> {
        self.candle_is_ready.record(&self.own).w()?;
        self.lane(handles).wait(&self.candle_is_ready).w()
    }

    fn values(&self, lent: DeviceSlice<'_, f32>, shape: [usize; 2], variable: bool) -> Result<Tensor> {
        Ok(Tensor::from_storage(self.copied(lent)?, &shape, BackpropOp::none(), variable))
    }

    fn numbers(&self, lent: DeviceSlice<'_, u32>) -> Result<Tensor> {
        let len = lent.len();
        Ok(Tensor::from_storage(self.copied(lent)?, len, BackpropOp::none(), false))
    }

    fn store(&self, values: &Tensor, lent: DeviceSliceMut<'_, f32>) -> Result<()> {
        let values = values.to_dtype(DType::F32)?.contiguous()?;
        let (storage, layout) = values.storage_and_layout();
        let Storage::Cuda(storage) = &*storage else { bail!("a tensor of another device") };
        let elements = layout.shape().elem_count();
        if elements != lent.len() {
            bail!("{elements} values for {} elements", lent.len());
        }
        let values =
            storage.as_cuda_slice::<f32>()?.slice(layout.start_offset()..layout.start_offset() + elements);
        let (source, _) = values.device_ptr(&self.own);
        // SAFETY: both have that many bytes, and the session leaves the target alone until `leave`.
        unsafe {
            result::memcpy_dtod_async(
                lent.address().number(),
                source,
                size_of::<f32>() * elements,
                self.own.cu_stream(),
            )
        }
        .w()
    }
}
