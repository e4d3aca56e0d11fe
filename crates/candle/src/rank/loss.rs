//! The loss of a rank's part of a batch, and what its call writes of it.
//!
//! Law: the host looks at a loss before anything is differentiated, and one that is not finite ends the step.

use candle_core::{DType, Tensor};
use warpweft::compute::ComputeError;
use warpweft::id::BufferId;
use warpweft_blocks::{At, Loss as LossPass, Part};

use super::{Rank, failed};
use crate::Error;
use crate::blocks::{Loss, guarded};
use crate::bridge::Bridge;

impl<B: Bridge> Rank<B> {
    /// Writes what the loss call says of the loss.
    pub(super) fn write_loss(
        &self,
        at: &At<'_, B::Surface>,
        pass: &LossPass,
        said: [f32; 2],
    ) -> Result<(), ComputeError> {
        let &[of_sum, of_weight] = pass.outputs.as_slice() else {
            return Err(ComputeError::closure("a loss writes a sum and its weight"));
        };
        for (buffer, said) in [of_sum, of_weight].into_iter().zip(said) {
            let said = Tensor::new(&[said], self.bridge.device());
            let mut lent = at.context.write::<f32>(buffer)?;
            let stored = said.and_then(|said| self.bridge.store(Some(&said), &mut lent));
            stored.map_err(|source| failed("loss", source))?;
        }
        Ok(())
    }

    /// The loss of the last block's output: what is differentiated, its sum, and the sum's weight.
    pub(super) fn loss_of(
        &self,
        at: &At<'_, B::Surface>,
        logits: &Tensor,
        targets: BufferId,
        part: Part,
    ) -> Result<(Tensor, f32, f32), ComputeError> {
        let shared = &self.shared;
        let shape = shared.shape(at.context.program())?;
        let form = shape.part(&shape.targets, part.samples, "loss")?;
        let targets = self.bridge.tensor(&at.context.read_bytes(targets)?, &form, false);
        let targets = targets.map_err(|source| failed("loss", source))?;
        let loss = guarded("loss", || (shared.loss)(logits, &targets)).map_err(ComputeError::closure)?;
        let number = |tensor: &Tensor| scalar(tensor).map_err(|source| failed("loss", source));
        let (value, sum, weight) = match loss {
            Loss::Mean(mean) => {
                let samples = part.samples as f32;
                let loss = number(&mean)?;
                (mean, loss * samples, samples)
            }
            Loss::Sum { sum, weight } => {
                let weight = number(&weight)?;
                if at.trains && weight != part.weight {
                    let (given, expected) = (weight, part.weight);
                    return Err(ComputeError::closure(Error::Weight { given, expected }));
                }
                let value = number(&sum)?;
                (sum, value, weight)
            }
        };
        if !sum.is_finite() {
            let block = shared.blocks[at.block].name.clone();
            return Err(ComputeError::closure(Error::Loss { block, loss: sum }));
        }
        let value = value.sum_all().map_err(|source| failed("loss", source))?;
        Ok((value, sum, weight))
    }
}

pub(crate) fn scalar(tensor: &Tensor) -> candle_core::Result<f32> {
    tensor.flatten_all()?.get(0)?.to_dtype(DType::F32)?.to_scalar()
}
