//! The mathematics on the CPU: plain slices, one thread per rank.

use warpweft::backend::cpu::CpuSurface;
use warpweft::compute::{ComputeError, Surface};

use crate::closure::{Arithmetic, HeadBackward};
use crate::model::{Config, Scratch};
use crate::{attention, embedding, head, mlp};

type Read<'a, T> = <CpuSurface as Surface>::Read<'a, T>;
type Write<'a, T> = <CpuSurface as Surface>::Write<'a, T>;

/// One rank's share of the CPU.
pub(crate) struct Host {
    config: Config,
    scratch: Scratch,
}

impl Host {
    /// With scratch of its own.
    pub(crate) fn new(config: &Config) -> Self {
        Self { config: config.clone(), scratch: Scratch::new(config) }
    }
}

impl Arithmetic<CpuSurface> for Host {
    fn begin(&mut self, (): &()) -> Result<(), ComputeError> {
        Ok(())
    }

    fn embed(
        &mut self,
        tokens: Read<'_, u8>,
        table: Read<'_, f32>,
        mut x: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        embedding::forward(self.config.width, &tokens, &table, &mut x);
        Ok(())
    }

    fn embed_backward(
        &mut self,
        tokens: Read<'_, u8>,
        residual: Read<'_, f32>,
        mut table: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        embedding::backward(self.config.width, &tokens, &residual, &mut table);
        Ok(())
    }

    fn attention(
        &mut self,
        x: Read<'_, f32>,
        weights: attention::Weights<Read<'_, f32>>,
        mut keep: attention::Kept<Write<'_, f32>>,
        mut y: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        let keep = attention::Kept {
            rotated: &mut *keep.rotated,
            logsumexp: &mut *keep.logsumexp,
            mixed: &mut *keep.mixed,
        };
        attention::forward(&self.config, &x, attention_weights(&weights), keep, &mut y, &mut self.scratch);
        Ok(())
    }

    fn attention_backward(
        &mut self,
        x: Read<'_, f32>,
        weights: attention::Weights<Read<'_, f32>>,
        kept: attention::Kept<Read<'_, f32>>,
        mut gradients: attention::Weights<Option<Write<'_, f32>>>,
        mut residual: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        let weights = attention_weights(&weights);
        let kept =
            attention::Kept { rotated: &*kept.rotated, logsumexp: &*kept.logsumexp, mixed: &*kept.mixed };
        let gradients = attention::Weights {
            gain: gradients.gain.as_deref_mut(),
            qkv: gradients.qkv.as_deref_mut(),
            output: gradients.output.as_deref_mut(),
        };
        attention::backward(&self.config, &x, weights, kept, gradients, &mut residual, &mut self.scratch);
        Ok(())
    }

    fn mlp(
        &mut self,
        x: Read<'_, f32>,
        weights: mlp::Weights<Read<'_, f32>>,
        mut hidden: Write<'_, f32>,
        mut y: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        mlp::forward(&self.config, &x, mlp_weights(&weights), &mut hidden, &mut y, &mut self.scratch);
        Ok(())
    }

    fn mlp_backward(
        &mut self,
        x: Read<'_, f32>,
        weights: mlp::Weights<Read<'_, f32>>,
        hidden: Read<'_, f32>,
        mut gradients: mlp::Weights<Option<Write<'_, f32>>>,
        mut residual: Write<'_, f32>,
    ) -> Result<(), ComputeError> {
        let weights = mlp_weights(&weights);
        let gradients = mlp::Weights {
            gain: gradients.gain.as_deref_mut(),
            up: gradients.up.as_deref_mut(),
            down: gradients.down.as_deref_mut(),
        };
        mlp::backward(&self.config, &x, weights, &hidden, gradients, &mut residual, &mut self.scratch);
        Ok(())
    }

    fn head(
        &mut self,
        x: Read<'_, f32>,
        weights: head::Weights<Read<'_, f32>>,
        targets: Read<'_, u8>,
        mut loss: Write<'_, f32>,
        backward: Option<HeadBackward<Write<'_, f32>>>,
    ) -> Result<(), ComputeError> {
        let Self { config, scratch } = self;
        let weights = head::Weights { gain: &*weights.gain, table: &*weights.table };
        loss[0] = if let Some(HeadBackward { mut gradients, mut residual }) = backward {
            let gradients =
                head::Weights { gain: gradients.gain.as_deref_mut(), table: gradients.table.as_deref_mut() };
            head::forward_backward(config, &x, weights, &targets, gradients, &mut residual, scratch)
        } else {
            head::evaluate(config, &x, weights, &targets, scratch)
        };
        Ok(())
    }
}

fn attention_weights<'a>(weights: &'a attention::Weights<Read<'_, f32>>) -> attention::Weights<&'a [f32]> {
    attention::Weights { gain: &weights.gain, qkv: &weights.qkv, output: &weights.output }
}

fn mlp_weights<'a>(weights: &'a mlp::Weights<Read<'_, f32>>) -> mlp::Weights<&'a [f32]> {
    mlp::Weights { gain: &weights.gain, up: &weights.up, down: &weights.down }
}
