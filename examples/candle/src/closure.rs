//! What a call does: candle's forward, or forward once more and candle's autograd.
//!
//! Tensors live for one call. Forward keeps nothing of its graph, so backward computes its layer again from the input,
//! as activation checkpointing does, and takes the gradient of `sum(output × output's gradient)`: by the chain
//! rule these are the gradients of the loss.

use std::error::Error;
use std::sync::Arc;

use candle_core::Tensor;
use candle_nn::loss::cross_entropy;
use warpweft::compute::Surface;
use warpweft::prelude::*;

use crate::model::Layer;
use crate::program::{Job, Pass, Weight};
use crate::sizes::{WIDTH, WINDOW};

/// How tensors of candle get values that a session lends, and give values back.
///
/// Everything that candle does to lent memory is enqueued between `enter` and `leave` of its call.
pub(crate) trait Bridge<S: Surface> {
    /// Work of candle is from now on behind the session's.
    fn enter(&self, handles: &S::Handles) -> candle_core::Result<()>;
    /// Work of the session is from now on behind candle's.
    fn leave(&self, handles: &S::Handles) -> candle_core::Result<()>;
    /// A copy of lent values, as a variable if gradients of it will be asked for.
    fn values(
        &self,
        lent: S::Read<'_, f32>,
        shape: [usize; 2],
        variable: bool,
    ) -> candle_core::Result<Tensor>;
    /// A copy of lent numbers.
    fn numbers(&self, lent: S::Read<'_, u32>) -> candle_core::Result<Tensor>;
    /// Copies a tensor's values into lent memory.
    fn store(&self, values: &Tensor, lent: S::Write<'_, f32>) -> candle_core::Result<()>;
}

/// What the closures of all ranks share: the layers, and what the program's calls do, in their order.
pub(crate) struct Step {
    pub(crate) layers: Vec<Layer>,
    pub(crate) weights: Vec<Vec<WeightId>>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) samples: usize,
}

/// One rank's closure.
pub(crate) struct Closure<B> {
    pub(crate) step: Arc<Step>,
    pub(crate) bridge: B,
}

impl<S: Surface, B: Bridge<S>> Compute<S> for Closure<B> {
    fn run(&mut self, _: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self.bridge.enter(context.handles()).map_err(ComputeError::closure)?;
        let done = self.job(context);
        // After a failure too: the session goes on to use the memory that candle may still read.
        self.bridge.leave(context.handles()).map_err(ComputeError::closure)?;
        Ok(done?)
    }
}

impl<B> Closure<B> {
    fn job<S: Surface>(&self, context: &ComputeContext<'_, S>) -> Result<(), Box<dyn Error>>
    where
        B: Bridge<S>,
    {
        let (step, bridge) = (&*self.step, &self.bridge);
        let Job { layer, input, pass } = step.jobs[context.call().index()];
        let (ids, layer, first) = (&step.weights[layer], &step.layers[layer], layer == 0);
        let backward = !matches!(pass, Pass::Forward { .. });

        let weight = |(id, weight): (&WeightId, &Weight)| -> Result<Tensor, Box<dyn Error>> {
            let lent = context.dense(*id, Orientation::Rowwise)?;
            Ok(bridge.values(lent, [weight.rows, weight.columns], backward)?)
        };
        let weights: Vec<Tensor> = ids.iter().zip(&layer.weights).map(weight).collect::<Result<_, _>>()?;
        let input = match first {
            true => bridge.numbers(context.read(input)?)?.reshape((step.samples, WINDOW))?,
            false => bridge.values(context.read(input)?, [step.samples, WIDTH], backward)?,
        };
        let output = layer.apply(&weights, &input)?;

        let (gradients, input_gradient) = match pass {
            Pass::Forward { output: buffer } => {
                bridge.store(&output, context.write(buffer)?)?;
                return Ok(());
            }
            Pass::Loss { targets, loss, input_gradient } => {
                let mean = cross_entropy(&output, &bridge.numbers(context.read(targets)?)?)?;
                bridge.store(&mean, context.write(loss)?)?;
                (mean.backward()?, Some(input_gradient))
            }
            Pass::Backward { output_gradient, input_gradient } => {
                let of_output =
                    bridge.values(context.read(output_gradient)?, [step.samples, WIDTH], false)?;
                ((output * of_output)?.sum_all()?.backward()?, input_gradient)
            }
        };
        let gradient = |of: &Tensor| gradients.get(of).ok_or("autograd has no gradient of an operand");
        for (id, weight) in ids.iter().zip(&weights) {
            bridge.store(gradient(weight)?, context.gradient(*id)?)?;
        }
        if let Some(buffer) = input_gradient {
            bridge.store(gradient(&input)?, context.write(buffer)?)?;
        }
        Ok(())
    }
}
