//! Lent slices and tensors on the CPU: values are copied, and nothing is waited for.

use candle_core::{Device, Result, Tensor, bail};
use warpweft::backend::cpu::{ReadSlice, WriteSlice};
use warpweft::bytemuck::{self, Pod};
use warpweft::prelude::CpuSurface;

use crate::bridge::{Bridge, Lent};
use crate::slot::{Pool, Slot};
use crate::values::{self, Form, store};

/// Candle's CPU.
#[derive(Debug, Default)]
pub(crate) struct OnCpu {
    pool: Pool,
}

impl Bridge for OnCpu {
    type Surface = CpuSurface;

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn enter(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn leave(&self, (): &()) -> Result<()> {
        Ok(())
    }

    fn read<T: Pod>(&self, lent: &ReadSlice<'_, T>) -> Result<Vec<T>> {
        Ok(lent.to_vec())
    }

    fn tensor(&self, lent: &ReadSlice<'_, u8>, form: &Form, variable: bool) -> Result<Tensor> {
        values::tensor(lent, form, variable)
    }

    fn put(&mut self, slot: &Slot, lent: Lent<'_, CpuSurface>) -> Result<()> {
        match lent {
            Lent::F32(values) => slot.fill(&values, &mut self.pool),
            Lent::Bf16(_) => bail!("weights are lent in f32 on a CPU"),
        }
    }

    fn take(&mut self, slot: &Slot) -> Result<()> {
        slot.empty(&mut self.pool)
    }

    fn store<T: Pod>(&self, values: Option<&Tensor>, lent: &mut WriteSlice<'_, T>) -> Result<()> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(lent);
        match values {
            Some(values) => store(values, bytes),
            None => {
                bytes.fill(0);
                Ok(())
            }
        }
    }
}
