//! Tensors whose memory is put in place for a call and taken out after it.
//!
//! Law: a slot is one tensor for as long as its block lives, so that closures and graphs that hold it find new values
//! in it. Between calls it has no memory: a graph that is kept from forward to backward holds activations, not weights.
//! Whoever reads an empty slot gets candle's error, never old values and never memory that is not there.

use std::cell::RefCell;
use std::mem;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Result, Shape, Tensor, Var, bail};
use warpweft::{bf16, f16};

/// One tensor without memory of its own.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    tensor: Tensor,
}

/// Memory that slots leave for the next: as many pieces as the block of the most weights has.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    free: Vec<Vec<f32>>,
}

impl Pool {
    /// The smallest piece that holds `elements`, or else one that grows.
    fn take(&mut self, elements: usize) -> Vec<f32> {
        let fits = |(_, piece): &(usize, &Vec<f32>)| piece.capacity() >= elements;
        let best = self.free.iter().enumerate().filter(fits).min_by_key(|(_, piece)| piece.capacity());
        let place = best.map_or(self.free.len().wrapping_sub(1), |(place, _)| place);
        if place < self.free.len() { self.free.swap_remove(place) } else { Vec::new() }
    }
}

/// Exchanges a tensor's storage.
struct Swap(RefCell<CpuStorage>);

impl InplaceOp1 for Swap {
    fn name(&self) -> &'static str {
        "the exchange of a weight's memory"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, _: &Layout) -> Result<()> {
        mem::swap(storage, &mut self.0.borrow_mut());
        Ok(())
    }
}

impl Slot {
    /// A slot of zeros; its gradient can be requested if it is variable.
    pub(crate) fn zeros(
        shape: impl Into<Shape>,
        dtype: DType,
        (variable, device): (bool, &Device),
    ) -> Result<Self> {
        let shape = shape.into();
        let tensor = match variable {
            true => Var::zeros(shape, dtype, device)?.into_inner(),
            false => Tensor::zeros(shape, dtype, device)?,
        };
        Ok(Self { tensor })
    }

    /// A slot that keeps its memory.
    pub(crate) const fn of(tensor: Tensor) -> Self {
        Self { tensor }
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Puts `values` of the host in place, rounded to the tensor's dtype.
    pub(crate) fn fill(&self, values: &[f32], pool: &mut Pool) -> Result<()> {
        if values.len() != self.tensor.elem_count() {
            bail!("{} values for a tensor of shape {:?}", values.len(), self.tensor.dims());
        }
        let each = || values.iter().copied();
        let storage = match self.tensor.dtype() {
            DType::F32 => {
                let mut memory = pool.take(values.len());
                memory.clear();
                memory.extend_from_slice(values);
                CpuStorage::F32(memory)
            }
            DType::F64 => CpuStorage::F64(each().map(f64::from).collect()),
            DType::BF16 => CpuStorage::BF16(each().map(bf16::from_f32).collect()),
            DType::F16 => CpuStorage::F16(each().map(f16::from_f32).collect()),
            other => bail!("a weight of dtype {other:?}"),
        };
        self.swap(storage, pool)
    }

    /// Puts words in place, of a slot of u32.
    pub(crate) fn fill_words(&self, words: &[u32]) -> Result<()> {
        self.swap(CpuStorage::U32(words.to_vec()), &mut Pool::default())
    }

    /// Takes the memory of a tensor on the CPU out. What is left is of a dtype that candle's operations refuse:
    /// memory of no bytes would be read past its end by some of them.
    pub(crate) fn empty(&self, pool: &mut Pool) -> Result<()> {
        match self.tensor.dtype() {
            DType::F32 | DType::F64 | DType::BF16 | DType::F16 => self.swap(CpuStorage::F4(Vec::new()), pool),
            _ => Ok(()),
        }
    }

    fn swap(&self, storage: CpuStorage, pool: &mut Pool) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Device::Cuda(device) = self.tensor.device() {
            return crate::exchange::replace(&self.tensor, device, &storage);
        }
        let swap = Swap(RefCell::new(storage));
        self.tensor.inplace_op1(&swap)?;
        if let CpuStorage::F32(memory) = swap.0.into_inner()
            && memory.capacity() > 0
        {
            pool.free.push(memory);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Storage;

    #[test]
    fn a_graph_whose_weight_was_emptied_and_filled_again_has_the_gradients_of_one_that_kept_it() -> Result<()>
    {
        let (mut pool, values) = (Pool::default(), [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let slot = Slot::zeros((2, 3), DType::F32, (true, &Device::Cpu))?;
        slot.fill(&values, &mut pool)?;
        let x = Var::new(&[[1.0_f32, -1.0, 2.0]], &Device::Cpu)?;
        let y = x.matmul(&slot.tensor().t()?)?.silu()?;
        let expected = y.sum_all()?.backward()?;
        slot.empty(&mut pool)?;
        let held = match &*slot.tensor().storage_and_layout().0 {
            Storage::Cpu(CpuStorage::F4(values)) => values.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(held, 0);
        // What reads it meanwhile gets an error, and reads nothing.
        assert!(x.matmul(&slot.tensor().t()?).is_err() && slot.tensor().sqr().is_err());
        assert!(slot.tensor().contiguous()?.sum_all().is_err() && (slot.tensor() * 2.0).is_err());
        slot.fill(&values, &mut pool)?;
        let again = y.sum_all()?.backward()?;
        for of in [x.as_tensor(), slot.tensor()] {
            let (expected, again) = (expected.get(of).unwrap(), again.get(of).unwrap());
            assert_eq!(expected.to_vec2::<f32>()?, again.to_vec2::<f32>()?);
        }
        Ok(())
    }
}
