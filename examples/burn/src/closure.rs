//! The closure of a rank: burn's forward, or forward once more and burn's autodiff.
//!
//! Tensors live for one call. Forward keeps nothing of its graph, so backward computes its layer again from the input,
//! as activation checkpointing does, and takes the gradient of `sum(output × output's gradient)`: by the chain
//! rule these are the gradients of the loss.

use std::error::Error;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Tensor};
use warpweft::prelude::*;

use crate::model::{Input, Layer};
use crate::program::{Job, Pass};
use crate::sizes::{WIDTH, WINDOW};
use crate::values::{gradients, numbers, store, tensor, with_values};

/// One rank's closure: the layers, whose parameters have no values of their own, and what the program's calls do.
pub(crate) struct Closure {
    pub(crate) layers: Vec<Layer>,
    pub(crate) weights: Vec<Vec<WeightId>>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) samples: usize,
}

impl Compute<CpuSurface> for Closure {
    fn run(&mut self, _: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        Ok(self.job(context)?)
    }
}

impl Closure {
    fn job(&self, context: &ComputeContext<'_, CpuSurface>) -> Result<(), Box<dyn Error>> {
        let Job { layer, input, pass } = self.jobs[context.call().index()];
        let (ids, layer, first, samples) =
            (&self.weights[layer], &self.layers[layer], layer == 0, self.samples);
        // Whether burn records a graph is said by the device of a call's tensors.
        let device = match pass {
            Pass::Forward { .. } => Device::flex(),
            Pass::Loss { .. } | Pass::Backward { .. } => Device::flex().autodiff(),
        };

        let lent = |id: &WeightId| Ok(context.dense(*id, Orientation::Rowwise)?.to_vec());
        let lent = ids.iter().map(lent).collect::<Result<_, ComputeError>>()?;
        let part = with_values(layer.part.clone(), lent, &device)?;
        let mut leaf = None;
        let input = match first {
            true => Input::Bytes(numbers(&context.read::<u32>(input)?, [samples, WINDOW], &device)),
            false => {
                let values = tensor(&context.read(input)?, [samples, WIDTH], &device);
                let values = values.set_require_grad(device.is_autodiff());
                leaf = Some(values.clone());
                Input::Values(values)
            }
        };
        let output = part.forward(input)?;

        let (mut found, input_gradient) = match pass {
            Pass::Forward { output: buffer } => {
                return store(&output.try_into_data()?, &mut context.write(buffer)?);
            }
            Pass::Loss { targets, loss, input_gradient } => {
                let targets = numbers(&context.read(targets)?, [samples], &device);
                let mean = CrossEntropyLossConfig::new().init(&device).forward(output, targets);
                store(&mean.try_to_data()?, &mut context.write(loss)?)?;
                (mean.backward(), Some(input_gradient))
            }
            Pass::Backward { output_gradient, input_gradient } => {
                let of_output: Tensor<2> = tensor(&context.read(output_gradient)?, [samples, WIDTH], &device);
                ((output * of_output).sum().backward(), input_gradient)
            }
        };
        for (id, gradient) in ids.iter().zip(gradients(&part, &mut found)?) {
            store(&gradient, &mut context.gradient(*id)?)?;
        }
        if let Some(buffer) = input_gradient {
            let gradient = leaf.and_then(|input| input.grad_remove(&mut found));
            let gradient = gradient.ok_or("autodiff has no gradient of a layer's input")?;
            store(&gradient.try_into_data()?, &mut context.write(buffer)?)?;
        }
        Ok(())
    }
}
