//! The mathematics on one GPU, for the closure.
//!
//! Law: made on the rank's thread before the first step, for the GPU of the rank's seat. What fails then ends the
//! start of the session.

use warpweft::backend::cuda::{CudaHandles, CudaSurface, DeviceSlice, DeviceSliceMut};
use warpweft::compute::ComputeError;

use super::compile::Cubin;
use super::device::Device;
use super::failure::Failure;
use super::scratch::Scratch;
use super::span::Span;
use crate::closure::{Arithmetic, HeadBackward};
use crate::model::Config;
use crate::{attention, head, mlp};

type Read<'a, T> = DeviceSlice<'a, T>;
type Write<'a, T> = DeviceSliceMut<'a, T>;

/// One rank's GPU.
pub(crate) struct Gpu {
    config: Config,
    device: Device,
    scratch: Scratch,
}

impl Gpu {
    /// Opens GPU `ordinal` on this thread, with scratch of its own.
    ///
    /// # Errors
    /// Whatever the driver or a library refuses.
    pub(crate) fn new(config: &Config, ordinal: u32, kernels: &Cubin) -> Result<Self, Failure> {
        let device = Device::open(ordinal, kernels)?;
        let scratch = Scratch::new(&device, config)?;
        Ok(Self { config: config.clone(), device, scratch })
    }

    /// Runs one part.
    fn part(
        &mut self,
        part: impl FnOnce(&Device, &Config, &mut Scratch) -> Result<(), Failure>,
    ) -> Result<(), ComputeError> {
        part(&self.device, &self.config, &mut self.scratch).map_err(ComputeError::closure)
    }
}

impl Arithmetic<CudaSurface> for Gpu {
    fn begin(&mut self, handles: &CudaHandles) -> Result<(), ComputeError> {
        self.part(|device, _, _| device.work_on(handles.stream()))
    }

    fn embed(
        &mut self,
        tokens: Read<'_, u8>,
        table: Read<'_, f32>,
        x: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, _| {
            let shape = (config.tokens(), config.width);
            super::embedding::forward(device, shape, tokens.into(), table.into(), x.into())
        })
    }

    fn embed_backward(
        &mut self,
        tokens: Read<'_, u8>,
        residual: Read<'_, f32>,
        table: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, _| {
            let shape = (config.tokens(), config.width);
            super::embedding::backward(device, shape, tokens.into(), residual.into(), table.into())
        })
    }

    fn attention(
        &mut self,
        x: Read<'_, f32>,
        weights: attention::Weights<Read<'_, f32>>,
        keep: attention::Kept<Write<'_, f32>>,
        y: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, scratch| {
            let weights = attention_spans(weights);
            let keep = attention::Kept {
                rotated: keep.rotated.into(),
                logsumexp: keep.logsumexp.into(),
                mixed: keep.mixed.into(),
            };
            super::attention::forward(device, config, x.into(), weights, keep, y.into(), scratch)
        })
    }

    fn attention_backward(
        &mut self,
        x: Read<'_, f32>,
        weights: attention::Weights<Read<'_, f32>>,
        kept: attention::Kept<Read<'_, f32>>,
        gradients: attention::Weights<Option<Write<'_, f32>>>,
        residual: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, scratch| {
            let weights = attention_spans(weights);
            let kept = attention::Kept {
                rotated: kept.rotated.into(),
                logsumexp: kept.logsumexp.into(),
                mixed: kept.mixed.into(),
            };
            let gradients = attention::Weights {
                gain: gradients.gain.map(Into::into),
                qkv: gradients.qkv.map(Into::into),
                output: gradients.output.map(Into::into),
            };
            let (x, residual) = (x.into(), residual.into());
            super::attention::backward(device, config, x, weights, kept, gradients, residual, scratch)
        })
    }

    fn mlp(
        &mut self,
        x: Read<'_, f32>,
        weights: mlp::Weights<Read<'_, f32>>,
        hidden: Write<'_, f32>,
        y: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, scratch| {
            let weights = mlp_spans(weights);
            super::mlp::forward(device, config, x.into(), weights, hidden.into(), y.into(), scratch)
        })
    }

    fn mlp_backward(
        &mut self,
        x: Read<'_, f32>,
        weights: mlp::Weights<Read<'_, f32>>,
        hidden: Read<'_, f32>,
        gradients: mlp::Weights<Option<Write<'_, f32>>>,
        residual: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, scratch| {
            let weights = mlp_spans(weights);
            let gradients = mlp::Weights {
                gain: gradients.gain.map(Into::into),
                up: gradients.up.map(Into::into),
                down: gradients.down.map(Into::into),
            };
            let (x, hidden, residual) = (x.into(), hidden.into(), residual.into());
            super::mlp::backward(device, config, x, weights, hidden, gradients, residual, scratch)
        })
    }

    fn head(
        &mut self,
        x: Read<'_, f32>,
        weights: head::Weights<Read<'_, f32>>,
        targets: Read<'_, u8>,
        loss: Write<'_, f32>,
        backward: Option<HeadBackward<Write<'_, f32>>>,
    ) -> Result<(), ComputeError> {
        self.part(|device, config, scratch| {
            let weights = head::Weights { gain: weights.gain.into(), table: weights.table.into() };
            let (x, targets, loss) = (x.into(), targets.into(), loss.into());
            let Some(HeadBackward { gradients, residual }) = backward else {
                return super::head::evaluate(device, config, x, weights, targets, loss, scratch);
            };
            let gradients = head::Weights {
                gain: gradients.gain.map(Into::into),
                table: gradients.table.map(Into::into),
            };
            let residual = residual.into();
            super::head::forward_backward(
                device, config, x, weights, targets, gradients, loss, residual, scratch,
            )
        })
    }
}

fn attention_spans(weights: attention::Weights<Read<'_, f32>>) -> attention::Weights<Span<'_, f32>> {
    attention::Weights { gain: weights.gain.into(), qkv: weights.qkv.into(), output: weights.output.into() }
}

fn mlp_spans(weights: mlp::Weights<Read<'_, f32>>) -> mlp::Weights<Span<'_, f32>> {
    mlp::Weights { gain: weights.gain.into(), up: weights.up.into(), down: weights.down.into() }
}
