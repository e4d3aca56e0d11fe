//! Lent slices and candle's tensors on the CPU: values are copied, nothing is waited for.

use candle_core::{DType, Device, Result, Storage, Tensor, Var, bail};
use warpweft::backend::cpu::{ReadSlice, WriteSlice};
use warpweft::prelude::*;

use crate::closure::Bridge;

/// candle's CPU.
pub(crate) struct OnCpu;

impl Bridge<CpuSurface> for OnCpu {
    fn enter(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn leave(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn values(&self, lent: ReadSlice<'_, f32>, shape: [usize; 2], variable: bool) -> Result<Tensor> {
        match variable {
            true => Ok(Var::from_slice(&lent, &shape, &Device::Cpu)?.into_inner()),
            false => Tensor::from_slice(&lent, &shape, &Device::Cpu),
        }
    }

    fn numbers(&self, lent: ReadSlice<'_, u32>) -> Result<Tensor> {
        Tensor::from_slice(&lent, lent.len(), &Device::Cpu)
    }

    fn store(&self, values: &Tensor, mut lent: WriteSlice<'_, f32>) -> Result<()> {
        let values = values.to_dtype(DType::F32)?.contiguous()?;
        let (storage, layout) = values.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { bail!("a tensor of another device") };
        let values = &storage.as_slice::<f32>()?[layout.start_offset()..][..layout.shape().elem_count()];
        if values.len() != lent.len() {
            bail!("{} values for {} elements", values.len(), lent.len());
        }
        lent.copy_from_slice(values);
        Ok(())
    }
}
