//! The closure of one rank: looks a call up and runs its mathematics on the slices it declared.
//!
//! Law: nothing here outlives a call but scratch, and no call reads what another left there. What the
//! rank computes follows from the declared buffers and weights alone.

use warpweft::backend::cpu::CpuSurface;
use warpweft::compute::{Compute, ComputeContext, ComputeError, Surface};
use warpweft::format::Orientation;
use warpweft::model::Call;

use crate::model::{Config, Scratch};
use crate::program::{Declared, Part};
use crate::{attention, embedding, head, mlp};

type Context<'a> = ComputeContext<'a, CpuSurface>;
type Dense<'a> = <CpuSurface as Surface>::Read<'a, f32>;

/// One rank's transformer.
pub(crate) struct Transformer {
    config: Config,
    declared: Declared,
    scratch: Scratch,
}

impl Transformer {
    /// A transformer with scratch of its own.
    pub(crate) fn new(config: &Config, declared: &Declared) -> Self {
        Self { config: config.clone(), declared: declared.clone(), scratch: Scratch::new(config) }
    }

    fn dense<'a>(
        &self,
        context: &Context<'a>,
        name: &str,
        way: Orientation,
    ) -> Result<Dense<'a>, ComputeError> {
        context.dense(self.declared.weight(name), way)
    }

    fn read<'a>(&self, context: &Context<'a>, name: &str) -> Result<Dense<'a>, ComputeError> {
        context.read(self.declared.buffer(name))
    }

    fn attention(&mut self, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
        let name = |part: &str| format!("blocks.{layer}.attention.{part}");
        let write = |name: &str| context.write::<f32>(self.declared.buffer(name));
        let [gain, qkv, output] =
            ["gain", "qkv", "output"].map(|part| self.dense(context, &name(part), Orientation::Rowwise));
        let (gain, qkv, output) = (gain?, qkv?, output?);
        let x = self.read(context, &format!("residual.{}", 2 * layer))?;
        let mut y = write(&format!("residual.{}", 2 * layer + 1))?;
        let (mut rotated, mut logsumexp, mut mixed) =
            (write(&name("rotated"))?, write(&name("logsumexp"))?, write(&name("mixed"))?);
        let weights = attention::Weights { gain: &*gain, qkv: &*qkv, output: &*output };
        let keep = attention::Kept { rotated: &mut *rotated, logsumexp: &mut *logsumexp, mixed: &mut *mixed };
        attention::forward(&self.config, &x, weights, keep, &mut y, &mut self.scratch);
        Ok(())
    }

    fn attention_backward(&mut self, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
        let name = |part: &str| format!("blocks.{layer}.attention.{part}");
        let gain = self.dense(context, &name("gain"), Orientation::Rowwise)?;
        let qkv = self.dense(context, &name("qkv"), Orientation::Columnwise)?;
        let output = self.dense(context, &name("output"), Orientation::Columnwise)?;
        let x = self.read(context, &format!("residual.{}", 2 * layer))?;
        let (rotated, logsumexp, mixed) = (
            self.read(context, &name("rotated"))?,
            self.read(context, &name("logsumexp"))?,
            self.read(context, &name("mixed"))?,
        );
        let gradient = |part: &str| context.gradient(self.declared.weight(&name(part)));
        let (mut gain_gradient, mut qkv_gradient, mut output_gradient) =
            (gradient("gain")?, gradient("qkv")?, gradient("output")?);
        let mut residual = context.write::<f32>(self.declared.buffer("residual.gradient"))?;
        let weights = attention::Weights { gain: &*gain, qkv: &*qkv, output: &*output };
        let kept = attention::Kept { rotated: &*rotated, logsumexp: &*logsumexp, mixed: &*mixed };
        let gradients = attention::Weights {
            gain: &mut *gain_gradient,
            qkv: &mut *qkv_gradient,
            output: &mut *output_gradient,
        };
        attention::backward(&self.config, &x, weights, kept, gradients, &mut residual, &mut self.scratch);
        Ok(())
    }

    fn mlp(&mut self, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
        let name = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let [gain, up, down] =
            ["gain", "up", "down"].map(|part| self.dense(context, &name(part), Orientation::Rowwise));
        let (gain, up, down) = (gain?, up?, down?);
        let x = self.read(context, &format!("residual.{}", 2 * layer + 1))?;
        let mut hidden = context.write::<f32>(self.declared.buffer(&name("hidden")))?;
        let mut y = context.write::<f32>(self.declared.buffer(&format!("residual.{}", 2 * layer + 2)))?;
        let weights = mlp::Weights { gain: &*gain, up: &*up, down: &*down };
        mlp::forward(&self.config, &x, weights, &mut hidden, &mut y, &mut self.scratch);
        Ok(())
    }

    fn mlp_backward(&mut self, layer: usize, context: &Context<'_>) -> Result<(), ComputeError> {
        let name = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let gain = self.dense(context, &name("gain"), Orientation::Rowwise)?;
        let up = self.dense(context, &name("up"), Orientation::Columnwise)?;
        let down = self.dense(context, &name("down"), Orientation::Columnwise)?;
        let x = self.read(context, &format!("residual.{}", 2 * layer + 1))?;
        let hidden = self.read(context, &name("hidden"))?;
        let gradient = |part: &str| context.gradient(self.declared.weight(&name(part)));
        let (mut gain_gradient, mut up_gradient, mut down_gradient) =
            (gradient("gain")?, gradient("up")?, gradient("down")?);
        let mut residual = context.write::<f32>(self.declared.buffer("residual.gradient"))?;
        let weights = mlp::Weights { gain: &*gain, up: &*up, down: &*down };
        let gradients =
            mlp::Weights { gain: &mut *gain_gradient, up: &mut *up_gradient, down: &mut *down_gradient };
        mlp::backward(&self.config, &x, weights, &hidden, gradients, &mut residual, &mut self.scratch);
        Ok(())
    }

    fn head(&mut self, trains: bool, context: &Context<'_>) -> Result<(), ComputeError> {
        let gain = self.dense(context, "head.gain", Orientation::Rowwise)?;
        let table = self.dense(context, "embedding.table", Orientation::Rowwise)?;
        let x = self.read(context, &format!("residual.{}", 2 * self.config.layers))?;
        let targets = context.read::<u8>(self.declared.buffer("targets"))?;
        let mut loss = context.write::<f32>(self.declared.buffer("loss"))?;
        let weights = head::Weights { gain: &*gain, table: &*table };
        loss[0] = if trains {
            let mut gain_gradient = context.gradient(self.declared.weight("head.gain"))?;
            let mut table_gradient = context.gradient(self.declared.weight("embedding.table"))?;
            let mut residual = context.write::<f32>(self.declared.buffer("residual.gradient"))?;
            let gradients = head::Weights { gain: &mut *gain_gradient, table: &mut *table_gradient };
            let scratch = &mut self.scratch;
            head::forward_backward(&self.config, &x, weights, &targets, gradients, &mut residual, scratch)
        } else {
            head::evaluate(&self.config, &x, weights, &targets, &mut self.scratch)
        };
        Ok(())
    }
}

impl Compute<CpuSurface> for Transformer {
    fn run(&mut self, call: &Call, context: &Context<'_>) -> Result<(), ComputeError> {
        let part = self.declared.parts.get(&call.name).copied();
        let width = self.config.width;
        match part.ok_or_else(|| ComputeError::closure(format!("no part is named `{}`", call.name)))? {
            Part::Embed => {
                let table = self.dense(context, "embedding.table", Orientation::Rowwise)?;
                let tokens = context.read::<u8>(self.declared.buffer("tokens"))?;
                let mut x = context.write::<f32>(self.declared.buffer("residual.0"))?;
                embedding::forward(width, &tokens, &table, &mut x);
                Ok(())
            }
            Part::EmbedBackward => {
                let tokens = context.read::<u8>(self.declared.buffer("tokens"))?;
                let residual = self.read(context, "residual.gradient")?;
                let mut table = context.gradient(self.declared.weight("embedding.table"))?;
                embedding::backward(width, &tokens, &residual, &mut table);
                Ok(())
            }
            Part::Attention(layer) => self.attention(layer, context),
            Part::AttentionBackward(layer) => self.attention_backward(layer, context),
            Part::Mlp(layer) => self.mlp(layer, context),
            Part::MlpBackward(layer) => self.mlp_backward(layer, context),
            Part::Head => self.head(true, context),
            Part::Evaluate => self.head(false, context),
        }
    }
}
