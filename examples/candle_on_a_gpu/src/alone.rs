//! The same model trained by candle alone: autograd over all layers, candle's own AdamW, weights in f32.

use candle_core::{Device, Result, Tensor, Var};
use candle_nn::loss::cross_entropy;
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use warpweft::checkpoint::Checkpoint;

use crate::compare::Losses;
use crate::model::Layer;
use crate::program::Weight;
use crate::sizes::WINDOW;
use crate::text::{Batch, batch, held_out};

/// The masters of a checkpoint as variables, layer by layer.
fn variables(layers: &[Layer], checkpoint: &Checkpoint, device: &Device) -> Result<Vec<Vec<Var>>> {
    let variable = |weight: &Weight| {
        let state = checkpoint.weight(&weight.name);
        let master = state.map_or(&[][..], |state| &state.master);
        Var::from_slice(master, (weight.rows, weight.columns), device)
    };
    layers.iter().map(|layer| layer.weights.iter().map(variable).collect()).collect()
}

fn loss(layers: &[Layer], weights: &[Vec<Var>], batch: &Batch, device: &Device) -> Result<Tensor> {
    let samples = batch.targets.len();
    let mut output = Tensor::from_slice(&batch.windows, (samples, WINDOW), device)?;
    for (layer, weights) in layers.iter().zip(weights) {
        let weights: Vec<Tensor> = weights.iter().map(|weight| weight.as_tensor().clone()).collect();
        output = layer.apply(&weights, &output)?;
    }
    cross_entropy(&output, &Tensor::from_slice(&batch.targets, samples, device)?)
}

/// The losses of all steps, starting from the checkpoint's weights.
pub(crate) fn train(
    layers: &[Layer],
    begun: &Checkpoint,
    (steps, samples): (usize, usize),
    rates: ParamsAdamW,
    device: &Device,
) -> Result<Losses> {
    let weights = variables(layers, begun, device)?;
    let mut optimizer = AdamW::new(weights.concat(), rates)?;
    let mut losses = Vec::new();
    for step in 0..steps {
        let loss = loss(layers, &weights, &batch(step, 0, samples), device)?;
        optimizer.backward_step(&loss)?;
        losses.push(loss.to_scalar()?);
    }
    let held_out = loss(layers, &weights, &held_out(), device)?.to_scalar()?;
    Ok(Losses { steps: losses, held_out })
}

/// The loss of a checkpoint's masters on the text that no batch has.
pub(crate) fn evaluate(layers: &[Layer], checkpoint: &Checkpoint, device: &Device) -> Result<f32> {
    let weights = variables(layers, checkpoint, device)?;
    loss(layers, &weights, &held_out(), device)?.to_scalar()
}
