//! Lent device memory and tensors on a GPU: weights in place, everything else copied on candle's stream.
//!
//! Law: memory that a session lends is never freed by candle. A weight that is lent in its tensor's dtype becomes the
//! tensor's storage for one call, by an address that is wrapped anew each time; `take` unwraps it, and a tensor from
//! which it cannot be taken is never dropped. Candle has a stream of its own, because 0.11 takes none: two events order
//! it with the session's. Tensors are used on that stream alone, so that candle's own events are switched off.

#![expect(
    unsafe_code,
    reason = "candle owns what it computes with, and lent memory can be had by its address alone; each block says why \
              it is sound"
)]

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::cuda::{CudaDType, CudaStorageSlice, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Result, Storage, Tensor, bail};
use warpweft::backend::cuda::cudarc::driver::{
    CudaContext, CudaEvent, CudaSlice, CudaStream, DevicePtr, DeviceRepr, result, sys,
};
use warpweft::backend::cuda::{CudaHandles, CudaSurface, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
use warpweft::bytemuck::Pod;

use crate::bridge::{Bridge, Lent};
use crate::exchange::exchange;
use crate::slot::Slot;
use crate::values::Form;

/// Candle's device of a rank, with a stream of its own.
///
/// # Errors
/// Candle's.
pub(crate) fn device(gpu: DeviceOrdinal) -> Result<Device> {
    // The primary context of the GPU, which is the session's too.
    let device = Device::new_cuda_with_stream(gpu.number() as usize)?;
    // SAFETY: tensors of this device are used on its one stream alone.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    Ok(device)
}

/// One rank's device, and the events that order its stream with the session's.
pub(crate) struct OnCuda {
    device: Device,
    candle: CudaDevice,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    session_is_ready: CudaEvent,
    candle_is_ready: CudaEvent,
    /// What slots hold between calls: a byte each, of a dtype that operations refuse.
    nothing: Vec<CudaSlice<u8>>,
    /// The addresses of lent memory that is in slots.
    lent: BTreeSet<sys::CUdeviceptr>,
}

impl OnCuda {
    pub(crate) fn new(gpu: DeviceOrdinal) -> Result<Self> {
        let device = device(gpu)?;
        let candle = device.as_cuda_device()?.clone();
        let stream = candle.cuda_stream();
        let context = Arc::clone(stream.context());
        keep_memory(&context)?;
        let event = || context.new_event(None).w();
        let (session_is_ready, candle_is_ready) = (event()?, event()?);
        let (nothing, lent) = (Vec::new(), BTreeSet::new());
        Ok(Self { device, candle, context, stream, session_is_ready, candle_is_ready, nothing, lent })
    }

    fn lane(&self, handles: &CudaHandles) -> Arc<CudaStream> {
        // SAFETY: a stream of this primary context, which outlives the call; the wrapping does not.
        unsafe { self.context.wrap_borrowed_stream(handles.stream()) }
    }

    /// A copy of the first lent bytes, as `elements` values.
    fn copied<T: CudaDType + DeviceRepr>(
        &self,
        address: sys::CUdeviceptr,
        elements: usize,
    ) -> Result<CudaStorage> {
        // SAFETY: every element is written below, before anything reads it on the same stream.
        let slice = unsafe { self.candle.alloc::<T>(elements) }?;
        let (target, _) = slice.device_ptr(&self.stream);
        // SAFETY: both have that many bytes, and the session leaves the source alone until `leave`.
        unsafe { self.copy(target, address, elements * size_of::<T>()) }?;
        Ok(CudaStorage::wrap_cuda_slice(slice, self.candle.clone()))
    }

    /// # Safety
    /// Both have that many bytes, and nothing else touches them until candle's stream has done it.
    unsafe fn copy(&self, target: sys::CUdeviceptr, source: sys::CUdeviceptr, bytes: usize) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: as the caller says.
        unsafe { result::memcpy_dtod_async(target, source, bytes, self.stream.cu_stream()) }.w()
    }

    /// Lent memory as candle's, which `take` must get back.
    fn wrapped<T>(&mut self, lent: &DeviceSlice<'_, T>) -> CudaSlice<T> {
        let address = lent.address().number();
        self.lent.insert(address);
        // SAFETY: that many elements, which live until `leave`; by then `take` has unwrapped them without freeing.
        unsafe { self.stream.upgrade_device_ptr(address, lent.len()) }
    }

    /// Gives up memory that was in a slot: frees candle's own, and nothing that was lent.
    fn give_up<T>(&mut self, slice: CudaSlice<T>) {
        let elements = slice.len();
        let address = slice.leak();
        if !self.lent.remove(&address) {
            // SAFETY: the same memory again, which candle allocated on this stream.
            drop(unsafe { self.stream.upgrade_device_ptr::<T>(address, elements) });
        }
    }
}

/// Lets the GPU keep what candle frees, as every step allocates it again: mapping it anew takes longer than a step, and
/// may wait for all that runs.
fn keep_memory(context: &CudaContext) -> Result<()> {
    context.bind_to_thread().w()?;
    let mut all = u64::MAX;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the attribute is a `u64`, which the driver reads before it returns.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device()).w()?;
        sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut all).cast()).result().w()
    }
}

impl Bridge for OnCuda {
    type Surface = CudaSurface;

    fn device(&self) -> &Device {
        &self.device
    }

    fn enter(&self, handles: &CudaHandles) -> Result<()> {
        self.session_is_ready.record(&self.lane(handles)).w()?;
        self.stream.wait(&self.session_is_ready).w()
    }

    fn leave(&self, handles: &CudaHandles) -> Result<()> {
        self.candle_is_ready.record(&self.stream).w()?;
        self.lane(handles).wait(&self.candle_is_ready).w()
    }

    fn read<T: Pod>(&self, lent: &DeviceSlice<'_, T>) -> Result<Vec<T>> {
        let mut values = vec![T::zeroed(); lent.len()];
        // SAFETY: that many elements, and the host waits before it looks at them or lets them go.
        unsafe {
            let source = lent.address().number();
            result::memcpy_dtoh_async(&mut values, source, self.stream.cu_stream()).w()?;
        }
        self.stream.synchronize().w()?;
        Ok(values)
    }

    fn tensor(&self, lent: &DeviceSlice<'_, u8>, form: &Form, variable: bool) -> Result<Tensor> {
        let (address, elements) = (lent.address().number(), form.elements());
        if form.bytes() > lent.len() {
            bail!("{} bytes for a tensor of {}", lent.len(), form.bytes());
        }
        let storage = match form.dtype {
            DType::F32 => self.copied::<f32>(address, elements)?,
            DType::F64 => self.copied::<f64>(address, elements)?,
            DType::BF16 => self.copied::<warpweft::bf16>(address, elements)?,
            DType::F16 => self.copied::<warpweft::f16>(address, elements)?,
            DType::U8 => self.copied::<u8>(address, elements)?,
            DType::U32 => self.copied::<u32>(address, elements)?,
            DType::I16 => self.copied::<i16>(address, elements)?,
            DType::I32 => self.copied::<i32>(address, elements)?,
            DType::I64 => self.copied::<i64>(address, elements)?,
            other => bail!("tensors of dtype {other:?} do not go between blocks"),
        };
        let (storage, dims) = (Storage::Cuda(storage), form.dims.as_slice());
        Ok(Tensor::from_storage(storage, dims, BackpropOp::none(), variable))
    }

    fn put(&mut self, slot: &Slot, lent: Lent<'_, CudaSurface>) -> Result<()> {
        // What a call that failed may have left there, before the same address is lent again.
        self.take(slot)?;
        let elements = match &lent {
            Lent::F32(values) => values.len(),
            Lent::Bf16(values) => values.len(),
        };
        if elements != slot.tensor().elem_count() {
            bail!("{elements} values for a tensor of shape {:?}", slot.tensor().dims());
        }
        let given = match (slot.tensor().dtype(), lent) {
            (DType::F32, Lent::F32(values)) => CudaStorageSlice::F32(self.wrapped(&values)),
            (DType::BF16, Lent::Bf16(values)) => CudaStorageSlice::BF16(self.wrapped(&values)),
            (dtype, Lent::F32(values)) => {
                let copied = self.copied::<f32>(values.address().number(), elements)?;
                let dims = slot.tensor().dims();
                let copied = Tensor::from_storage(Storage::Cuda(copied), dims, BackpropOp::none(), false);
                let nothing = CudaStorageSlice::F4(self.candle.alloc_zeros::<u8>(1)?);
                exchange(&copied.to_dtype(dtype)?, nothing)?
            }
            (dtype, Lent::Bf16(_)) => bail!("a weight of dtype {dtype:?} is lent in bf16"),
        };
        match exchange(slot.tensor(), given)? {
            CudaStorageSlice::F4(nothing) => self.nothing.push(nothing),
            other => drop(other),
        }
        Ok(())
    }

    fn take(&mut self, slot: &Slot) -> Result<()> {
        let nothing = match self.nothing.pop() {
            Some(nothing) => nothing,
            None => self.candle.alloc_zeros::<u8>(1)?,
        };
        match exchange(slot.tensor(), CudaStorageSlice::F4(nothing))? {
            CudaStorageSlice::F32(slice) => self.give_up(slice),
            CudaStorageSlice::BF16(slice) => self.give_up(slice),
            CudaStorageSlice::F4(nothing) => self.nothing.push(nothing),
            other => drop(other),
        }
        Ok(())
    }

    fn store<T: Pod>(&self, values: Option<&Tensor>, lent: &mut DeviceSliceMut<'_, T>) -> Result<()> {
        let (target, room) = (lent.address().number(), lent.len() * size_of::<T>());
        let given = match values {
            None => 0,
            Some(values) if !values.device().same_device(&self.device) => {
                bail!("a tensor of another device than {:?}; make tensors on `vb.device()`", self.device)
            }
            Some(values) => {
                let values = values.contiguous()?;
                let (storage, layout) = values.storage_and_layout();
                let Storage::Cuda(storage) = &*storage else { bail!("a tensor of another device") };
                let each = values.dtype().size_in_bytes();
                let bytes = layout.shape().elem_count() * each;
                if bytes > room {
                    bail!("{bytes} bytes for {room}");
                }
                let source = self.address(&storage.slice)? + (layout.start_offset() * each) as u64;
                // SAFETY: both have that many bytes; the session leaves the target alone until `leave`, and candle
                // frees the source in the order of its stream.
                unsafe { self.copy(target, source, bytes) }?;
                bytes
            }
        };
        if given < room {
            // SAFETY: bytes of the target alone.
            unsafe {
                let stream = self.stream.cu_stream();
                result::memset_d8_async(target + given as u64, 0, room - given, stream).w()?;
            }
        }
        Ok(())
    }
}

impl OnCuda {
    fn address(&self, slice: &CudaStorageSlice) -> Result<sys::CUdeviceptr> {
        let stream = &self.stream;
        Ok(match slice {
            CudaStorageSlice::F32(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::F64(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::BF16(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::F16(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::U8(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::U32(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::I16(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::I32(slice) => slice.device_ptr(stream).0,
            CudaStorageSlice::I64(slice) => slice.device_ptr(stream).0,
            _ => bail!("tensors of this dtype do not go between blocks"),
        })
    }
}
