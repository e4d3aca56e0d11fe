//! The same model trained by burn alone: autodiff over all layers, burn's own AdamW, weights in f32.

use std::error::Error;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use warpweft::checkpoint::Checkpoint;
use warpweft::config::OptimizerConfig;

use crate::compare::Losses;
use crate::model::{Input, Layer, Part};
use crate::sizes::WINDOW;
use crate::text::{Batch, batch, held_out};
use crate::values::{numbers, with_values};

fn loss(parts: &[Part], batch: &Batch, device: &Device) -> Result<Tensor<1>, Box<dyn Error>> {
    let samples = batch.targets.len();
    let mut input = Input::Bytes(numbers(&batch.windows, [samples, WINDOW], device));
    for part in parts {
        input = Input::Values(part.forward(input)?);
    }
    let Input::Values(logits) = input else { return Err("a model without layers".into()) };
    let targets = numbers(&batch.targets, [samples], device);
    Ok(CrossEntropyLossConfig::new().init(device).forward(logits, targets))
}

fn value(loss: &Tensor<1>) -> Result<f32, Box<dyn Error>> {
    Ok(loss.try_to_data()?.as_slice::<f32>()?[0])
}

/// The losses of all steps, starting from the values that the parameters have.
pub(crate) fn train(
    mut parts: Vec<Part>,
    (steps, samples): (usize, usize),
    settings: &OptimizerConfig,
    device: &Device,
) -> Result<Losses, Box<dyn Error>> {
    let adam = AdamWConfig::new().with_beta_1(settings.beta1 as f32).with_beta_2(settings.beta2 as f32);
    let adam = adam.with_epsilon(settings.eps as f32).with_weight_decay(settings.weight_decay as f32);
    let mut adam = adam.init();
    let mut losses = Vec::new();
    for step in 0..steps {
        let loss = loss(&parts, &batch(step, 0, samples), device)?;
        losses.push(value(&loss)?);
        let gradients = GradientsParams::from_grads(loss.backward(), &parts);
        parts = adam.step(settings.lr, parts, gradients);
    }
    let held_out = value(&loss(&parts, &held_out(), device)?)?;
    Ok(Losses { steps: losses, held_out })
}

/// The loss of a checkpoint's masters on the text that no batch has.
pub(crate) fn evaluate(
    layers: &[Layer],
    checkpoint: &Checkpoint,
    device: &Device,
) -> Result<f32, Box<dyn Error>> {
    let part = |layer: &Layer| {
        let master = |name: &str| checkpoint.weight(name).map(|state| state.master.clone());
        let masters: Option<_> = layer.weights.iter().map(|weight| master(&weight.name)).collect();
        with_values(layer.part.clone(), masters.ok_or("a checkpoint without one of the weights")?, device)
    };
    let parts = layers.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    value(&loss(&parts, &held_out(), device)?)
}
