//! The closure of a rank: candle's forward, or forward once more and candle's autograd.
//!
//! Tensors live for one call, unless the step keeps its graphs. Then forward leaves its tensors with the closure, and
//! backward takes them. Otherwise backward recomputes its layer from the input, as with activation recompute. Both
//! take the gradient of `sum(output × output's gradient)`: by the chain rule these are the gradients of the loss.

use std::collections::HashMap;
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
    /// Work of candle is from now on after the session's.
    fn enter(&self, handles: &S::Handles) -> candle_core::Result<()>;
    /// Work of the session is from now on after candle's.
    fn leave(&self, handles: &S::Handles) -> candle_core::Result<()>;
    /// A copy of lent values, as a variable if gradients of it will be requested.
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
    pub(crate) keeps_graph: bool,
}

/// A layer's output, and the variables that it was made of.
struct Applied {
    weights: Vec<Tensor>,
    input: Tensor,
    output: Tensor,
}

/// One rank's closure.
pub(crate) struct Closure<B> {
    step: Arc<Step>,
    bridge: B,
    /// What forward left for backward, by layer. With several micro-batches it would be by micro-batch too.
    kept: HashMap<usize, Applied>,
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
    pub(crate) fn new(step: Arc<Step>, bridge: B) -> Self {
        Self { step, bridge, kept: HashMap::new() }
    }

    fn job<S: Surface>(&mut self, context: &ComputeContext<'_, S>) -> Result<(), Box<dyn Error>>
    where
        B: Bridge<S>,
    {
        let Job { layer, input, pass } = self.step.jobs[context.call().index()];
        let keeps = self.step.keeps_graph;
        let (differentiated, input_gradient) = match pass {
            Pass::Forward { output: buffer } => {
                if layer == 0 {
                    self.kept.clear(); // of a step that failed
                }
                let applied = self.apply(context, (layer, input), keeps)?;
                self.bridge.store(&applied.output, context.write(buffer)?)?;
                if keeps {
                    self.kept.insert(layer, applied);
                }
                return Ok(());
            }
            Pass::Loss { targets, loss, input_gradient } => {
                let applied = self.apply(context, (layer, input), true)?;
                let mean = cross_entropy(&applied.output, &self.bridge.numbers(context.read(targets)?)?)?;
                self.bridge.store(&mean, context.write(loss)?)?;
                ((mean, applied), Some(input_gradient))
            }
            Pass::Backward { output_gradient, input_gradient } => {
                let applied = match keeps {
                    true => self.kept.remove(&layer).ok_or("forward kept no graph")?,
                    false => self.apply(context, (layer, input), true)?,
                };
                let of_output =
                    self.bridge.values(context.read(output_gradient)?, [self.step.samples, WIDTH], false)?;
                (((&applied.output * of_output)?.sum_all()?, applied), input_gradient)
            }
        };
        let (scalar, Applied { weights, input, .. }) = differentiated;
        let gradients = scalar.backward()?;
        let gradient = |of: &Tensor| gradients.get(of).ok_or("autograd has no gradient of an operand");
        for (id, weight) in self.step.weights[layer].iter().zip(&weights) {
            self.bridge.store(gradient(weight)?, context.gradient(*id)?)?;
        }
        if let Some(buffer) = input_gradient {
            self.bridge.store(gradient(&input)?, context.write(buffer)?)?;
        }
        Ok(())
    }

    /// Runs a layer on what the call was lent; with `tracks`, gradients of it can be requested.
    fn apply<S: Surface>(
        &self,
        context: &ComputeContext<'_, S>,
        (layer, input): (usize, BufferId),
        tracks: bool,
    ) -> Result<Applied, Box<dyn Error>>
    where
        B: Bridge<S>,
    {
        let (step, bridge) = (&*self.step, &self.bridge);
        let (ids, number, layer) = (&step.weights[layer], layer, &step.layers[layer]);
        let weight = |(id, weight): (&WeightId, &Weight)| -> Result<Tensor, Box<dyn Error>> {
            let lent = context.dense(*id, Orientation::Rowwise)?;
            Ok(bridge.values(lent, [weight.rows, weight.columns], tracks)?)
        };
        let weights: Vec<Tensor> = ids.iter().zip(&layer.weights).map(weight).collect::<Result<_, _>>()?;
        let input = match number {
            0 => bridge.numbers(context.read(input)?)?.reshape((step.samples, WINDOW))?,
            _ => bridge.values(context.read(input)?, [step.samples, WIDTH], tracks)?,
        };
        let output = layer.apply(&weights, &input)?;
        Ok(Applied { weights, input, output })
    }
}
