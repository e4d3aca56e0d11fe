//! Exchanges the storage of a tensor on a GPU, as slots do on the CPU.
//!
//! Law: the tensor stays the same one, so that closures and graphs that hold it find the new storage. What was in it is
//! returned and freed by nobody here.

use std::cell::RefCell;
use std::mem::{self, ManuallyDrop};

use candle_core::backend::BackendDevice;
use candle_core::cuda::CudaStorageSlice;
use candle_core::{CpuStorage, CudaDevice, CudaStorage, InplaceOp1, Layout, Result, Tensor, bail};

/// Exchanges the storage of a tensor. What was given is freed by nobody if that fails.
pub(crate) fn exchange(tensor: &Tensor, given: CudaStorageSlice) -> Result<CudaStorageSlice> {
    struct Exchange(RefCell<ManuallyDrop<CudaStorageSlice>>);

    impl InplaceOp1 for Exchange {
        fn name(&self) -> &'static str {
            "the exchange of a weight's memory"
        }

        fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
            bail!("a tensor of the CPU among those of a GPU")
        }

        fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
            mem::swap(&mut storage.slice, &mut **self.0.borrow_mut());
            Ok(())
        }
    }

    let exchange = Exchange(RefCell::new(ManuallyDrop::new(given)));
    tensor.inplace_op1(&exchange)?;
    Ok(ManuallyDrop::into_inner(exchange.0.into_inner()))
}

/// Overwrites a tensor that candle owns with values of the host, in a storage of their own.
pub(crate) fn replace(tensor: &Tensor, device: &CudaDevice, values: &CpuStorage) -> Result<()> {
    exchange(tensor, device.storage_from_cpu_storage(values)?.slice).map(drop)
}
