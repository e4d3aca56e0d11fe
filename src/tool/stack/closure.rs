//! A rank's calls.
//!
//! Law: what fails when the value is made is said by every call, because a factory cannot refuse.

use std::sync::Arc;

use half::bf16;

use super::layers::{Gradients, Layers};
use super::program::{Block, Computed, Declaration, Part};
use super::shape::{Projection, StackShape};
use super::values;
use crate::backend::cuda::{CudaSurface, DeviceOrdinal, DeviceSlice};
use crate::compute::{Compute, ComputeContext, ComputeError};
use crate::format::Orientation;
use crate::id::BufferId;
use crate::linear::{Device, DeviceBuffer, LinearError, Output, Recipe, Weight};
use crate::model::Call;

type Context<'a> = ComputeContext<'a, CudaSurface>;

/// Runs the parts of a declaration.
pub(super) struct Closure {
    declaration: Arc<Declaration>,
    recipe: Recipe,
    ready: Result<Ready, LinearError>,
}

struct Ready {
    layers: Layers,
    ends: Ends,
}

/// What is constant: the input of the first block and the gradient of the last output.
pub(super) struct Ends {
    pub(super) input: DeviceBuffer<bf16>,
    pub(super) ones: DeviceBuffer<bf16>,
}

impl Ends {
    pub(super) fn new(device: &Device, layers: &Layers, shape: &StackShape) -> Result<Self, LinearError> {
        let elements = shape.tokens * shape.hidden;
        let (mut input, mut ones) = (device.buffer::<bf16>(elements)?, device.buffer::<bf16>(elements)?);
        let queue = device.queue()?;
        let kernels = &layers.elementwise;
        kernels.uniform(queue.handles(), values::INPUT, values::INPUT_AMPLITUDE, input.write())?;
        kernels.fill(queue.handles(), 1.0, ones.write())?;
        queue.synchronize()?;
        Ok(Self { input, ones })
    }
}

impl Closure {
    /// Opens the GPU and makes what the calls need; `gradients` is the element type of weight gradients that they declare.
    pub(super) fn new(
        declaration: Arc<Declaration>,
        shape: &StackShape,
        (recipe, gradients): Computed,
        gpu: DeviceOrdinal,
    ) -> Self {
        let ready = Device::open(gpu).and_then(|device| {
            let layers = Layers::new(&device, shape, recipe, gradients)?;
            let ends = Ends::new(&device, &layers, shape)?;
            Ok(Ready { layers, ends })
        });
        Self { declaration, recipe, ready }
    }
}

impl Compute<CudaSurface> for Closure {
    fn run(&mut self, call: &Call, context: &Context<'_>) -> Result<(), ComputeError> {
        let Declaration { parts, blocks, qkv_gradient, loss } = &*self.declaration;
        let Ready { layers, ends } = self.ready.as_mut().map_err(|error| error.clone())?;
        let unknown = || ComputeError::closure(format!("`{}` is no call of the stack", call.name));
        match parts.get(context.call().index()).copied().ok_or_else(unknown)? {
            Part::Forward(block, projection) => {
                let block = blocks.get(block).ok_or_else(unknown)?;
                forward(layers, ends, self.recipe, block, projection, context)
            }
            Part::Loss => {
                let output = blocks.last().ok_or_else(unknown)?.output;
                let (output, loss) = (context.read::<bf16>(output)?, context.write::<f32>(*loss)?);
                Ok(layers.elementwise.sum(context.handles(), output, loss)?)
            }
            Part::Backward(block, projection) => {
                let block = blocks.get(block).ok_or_else(unknown)?;
                backward(layers, ends, self.recipe, (block, *qkv_gradient), projection, context)
            }
        }
    }
}

fn forward(
    layers: &mut Layers,
    ends: &Ends,
    recipe: Recipe,
    block: &Block,
    projection: Projection,
    context: &Context<'_>,
) -> Result<(), ComputeError> {
    let Block { x, qkv, middle, hidden, activated, output, .. } = *block;
    let handles = context.handles();
    let weight = block.weights[projection as usize];
    let weight = Weight::of(context, weight, Orientation::Rowwise, recipe.form())?;
    let done = match projection {
        Projection::Qkv => {
            layers.qkv(handles, &weight, own_or(context, x, &ends.input)?, context.write(qkv)?)
        }
        Projection::Proj => {
            let x = own_or(context, x, &ends.input)?;
            layers.proj(handles, &weight, context.read(qkv)?, x, context.write(middle)?)
        }
        Projection::Fc1 => {
            let (hidden, activated) = (context.write(hidden)?, context.write(activated)?);
            layers.fc1(handles, &weight, context.read(middle)?, hidden, activated)
        }
        Projection::Fc2 => {
            let (activated, middle) = (context.read(activated)?, context.read(middle)?);
            layers.fc2(handles, &weight, activated, middle, context.write(output)?)
        }
    };
    Ok(done?)
}

fn backward(
    layers: &mut Layers,
    ends: &Ends,
    recipe: Recipe,
    (block, qkv_gradient): (&Block, BufferId),
    projection: Projection,
    context: &Context<'_>,
) -> Result<(), ComputeError> {
    let Block { x, qkv, middle, hidden, activated, dy, hidden_gradient, middle_gradient, dx, .. } = *block;
    let handles = context.handles();
    let id = block.weights[projection as usize];
    let lent = Weight::of(context, id, recipe.dgrad_orientation(), recipe.form())?;
    let (weight, dw) = (&lent, Output::gradient(context, id)?);
    let done = match projection {
        Projection::Fc2 => {
            let dy = own_or(context, dy, &ends.ones)?;
            let gradients = Gradients { weight, dy, dx: context.write(hidden_gradient)?, dw };
            layers.fc2_backward(handles, gradients, context.read(activated)?, context.read(hidden)?)
        }
        Projection::Fc1 => {
            let of_output = own_or(context, dy, &ends.ones)?;
            let (dy, dx) = (context.read(hidden_gradient)?, context.write(middle_gradient)?);
            layers.fc1_backward(handles, Gradients { weight, dy, dx, dw }, context.read(middle)?, of_output)
        }
        Projection::Proj => {
            let (dy, dx) = (context.read(middle_gradient)?, context.write(qkv_gradient)?);
            layers.proj_backward(handles, Gradients { weight, dy, dx, dw }, context.read(qkv)?)
        }
        Projection::Qkv => {
            let x = own_or(context, x, &ends.input)?;
            let (dy, dx) = (context.read(qkv_gradient)?, context.write(dx)?);
            let of_middle = context.read(middle_gradient)?;
            layers.qkv_backward(handles, Gradients { weight, dy, dx, dw }, x, of_middle)
        }
    };
    Ok(done?)
}

/// A buffer, or at an end of the stack what is constant there.
fn own_or<'a>(
    context: &Context<'a>,
    buffer: Option<BufferId>,
    end: &'a DeviceBuffer<bf16>,
) -> Result<DeviceSlice<'a, bf16>, ComputeError> {
    match buffer {
        Some(buffer) => context.read(buffer),
        None => Ok(end.read()),
    }
}
