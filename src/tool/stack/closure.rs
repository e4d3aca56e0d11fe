//! A rank's calls.
//!
//! Laws:
//! - A call carries out its parts in order (SK-1); what one of them wrote the next may read, whether they are of one call or of two.
//! - What fails when the value is made is said by every call, because a factory cannot refuse.

use std::sync::Arc;

use half::bf16;

use super::layers::{Gradients, Layers};
use super::parts::{Block, Part, is_written_first};
use super::program::{Computed, Declaration};
use super::shape::{Projection, StackShape};
use super::values;
use crate::backend::cuda::{CudaSurface, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
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
        let Declaration { calls, blocks, qkv_gradient, loss } = &*self.declaration;
        let Ready { layers, ends } = self.ready.as_mut().map_err(|error| error.clone())?;
        let unknown = || ComputeError::closure(format!("`{}` is no call of the stack", call.name));
        let lent = Lent { call, context, recipe: self.recipe };
        for part in calls.get(context.call().index()).ok_or_else(unknown)? {
            match *part {
                Part::Forward(block, projection) => {
                    let block = blocks.get(block).ok_or_else(unknown)?;
                    forward(layers, ends, block, projection, lent)?;
                }
                Part::Loss => {
                    let output = blocks.last().ok_or_else(unknown)?.output;
                    let (output, loss) = (lent.read(output)?, context.write::<f32>(*loss)?);
                    layers.elementwise.sum(context.handles(), output, loss)?;
                }
                Part::Backward(block, projection) => {
                    let block = blocks.get(block).ok_or_else(unknown)?;
                    backward(layers, ends, (block, *qkv_gradient), projection, lent)?;
                }
            }
        }
        Ok(())
    }
}

/// What a call may touch, for a part of it.
#[derive(Clone, Copy)]
struct Lent<'a, 'call> {
    call: &'call Call,
    context: &'call Context<'a>,
    recipe: Recipe,
}

impl<'a> Lent<'a, '_> {
    /// A buffer that holds what this part reads: a call before left it, or an earlier part of this one.
    fn read(self, buffer: BufferId) -> Result<DeviceSlice<'a, bf16>, ComputeError> {
        if is_written_first(&self.call.buffers, buffer) {
            return Ok(self.write(buffer)?.into_slice());
        }
        self.context.read(buffer)
    }

    fn write(self, buffer: BufferId) -> Result<DeviceSliceMut<'a, bf16>, ComputeError> {
        self.context.write(buffer)
    }

    /// A buffer, or at an end of the stack what is constant there.
    fn read_or(
        self,
        buffer: Option<BufferId>,
        end: &'a DeviceBuffer<bf16>,
    ) -> Result<DeviceSlice<'a, bf16>, ComputeError> {
        match buffer {
            Some(buffer) => self.read(buffer),
            None => Ok(end.read()),
        }
    }
}

fn forward<'a>(
    layers: &mut Layers,
    ends: &'a Ends,
    block: &Block,
    projection: Projection,
    lent: Lent<'a, '_>,
) -> Result<(), ComputeError> {
    let Block { x, qkv, middle, hidden, activated, output, .. } = *block;
    let handles = lent.context.handles();
    let weight = block.weight(projection);
    let weight = Weight::of(lent.context, weight, Orientation::Rowwise, lent.recipe.form())?;
    let done = match projection {
        Projection::Qkv => layers.qkv(handles, &weight, lent.read_or(x, &ends.input)?, lent.write(qkv)?),
        Projection::Proj => {
            let x = lent.read_or(x, &ends.input)?;
            layers.proj(handles, &weight, lent.read(qkv)?, x, lent.write(middle)?)
        }
        Projection::Fc1 => {
            let (hidden, activated) = (lent.write(hidden)?, lent.write(activated)?);
            layers.fc1(handles, &weight, lent.read(middle)?, hidden, activated)
        }
        Projection::Fc2 => {
            let (activated, middle) = (lent.read(activated)?, lent.read(middle)?);
            layers.fc2(handles, &weight, activated, middle, lent.write(output)?)
        }
    };
    Ok(done?)
}

fn backward<'a>(
    layers: &mut Layers,
    ends: &'a Ends,
    (block, qkv_gradient): (&Block, BufferId),
    projection: Projection,
    lent: Lent<'a, '_>,
) -> Result<(), ComputeError> {
    let Block { x, qkv, middle, hidden, activated, dy, hidden_gradient, middle_gradient, dx, .. } = *block;
    let (handles, recipe) = (lent.context.handles(), lent.recipe);
    let id = block.weight(projection);
    let weight = &Weight::of(lent.context, id, recipe.dgrad_orientation(), recipe.form())?;
    let dw = Output::gradient(lent.context, id)?;
    let done = match projection {
        Projection::Fc2 => {
            let dy = lent.read_or(dy, &ends.ones)?;
            let gradients = Gradients { weight, dy, dx: lent.write(hidden_gradient)?, dw };
            layers.fc2_backward(handles, gradients, lent.read(activated)?, lent.read(hidden)?)
        }
        Projection::Fc1 => {
            let of_output = lent.read_or(dy, &ends.ones)?;
            let (dy, dx) = (lent.read(hidden_gradient)?, lent.write(middle_gradient)?);
            layers.fc1_backward(handles, Gradients { weight, dy, dx, dw }, lent.read(middle)?, of_output)
        }
        Projection::Proj => {
            let (dy, dx) = (lent.read(middle_gradient)?, lent.write(qkv_gradient)?);
            layers.proj_backward(handles, Gradients { weight, dy, dx, dw }, lent.read(qkv)?)
        }
        Projection::Qkv => {
            let x = lent.read_or(x, &ends.input)?;
            let (dy, dx) = (lent.read(qkv_gradient)?, lent.write(dx)?);
            let of_middle = lent.read(middle_gradient)?;
            layers.qkv_backward(handles, Gradients { weight, dy, dx, dw }, x, of_middle)
        }
    };
    Ok(done?)
}
