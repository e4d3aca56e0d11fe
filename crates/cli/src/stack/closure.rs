//! The closure of a rank, which runs the calls of the stack.
//!
//! Laws:
//! - A call carries out its parts in order (SK-1); what one of them wrote the next may read, whether they are
//!   of one call or of two.
//! - What fails when the value is made is said by every call.

use std::sync::Arc;

use half::bf16;
use warpweft_base::id::BufferId;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{Activations, Device, DeviceBuffer, Input, Output, Recipe, Weight};
use warpweft_cuda::{CudaSurface, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
use warpweft_format::{Element, Orientation};
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError};
use warpweft_plan::model::Call;

use super::layers::{Computed, Gradients, Layers, Operands};
use super::parts::{Block, Part, Saved, is_written_first};
use super::program::Declaration;
use super::shape::{Projection, StackShape};
use super::values;

type Context<'a> = ComputeContext<'a, CudaSurface>;

/// Runs the parts of a declaration.
pub(super) struct Closure {
    declaration: Arc<Declaration>,
    recipe: Recipe,
    ready: Result<Ready, CudaFailure>,
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
    pub(super) fn new(device: &Device, layers: &Layers, shape: &StackShape) -> Result<Self, CudaFailure> {
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
    /// Opens the GPU and makes what the calls need, which were declared as `computed` says.
    pub(super) fn new(
        declaration: Arc<Declaration>,
        shape: &StackShape,
        computed: Computed,
        gpu: DeviceOrdinal,
    ) -> Self {
        let ready = Device::open(gpu).and_then(|device| {
            let layers = Layers::new(&device, shape, computed)?;
            let ends = Ends::new(&device, &layers, shape)?;
            Ok(Ready { layers, ends })
        });
        Self { declaration, recipe: computed.0, ready }
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
    fn read<T: Element>(self, buffer: BufferId) -> Result<DeviceSlice<'a, T>, ComputeError> {
        if is_written_first(&self.call.buffers, buffer) {
            return Ok(self.write(buffer)?.into_slice());
        }
        self.context.read(buffer)
    }

    fn write<T: Element>(self, buffer: BufferId) -> Result<DeviceSliceMut<'a, T>, ComputeError> {
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
    let Block { x, qkv, middle, hidden, saved, output, .. } = *block;
    let handles = lent.context.handles();
    let weight = block.weight(projection);
    let weight = &Weight::of(lent.context, weight, Orientation::Rowwise, lent.recipe.form())?;
    let kept = saved.kept(projection).map(|buffer| lent.write(buffer)).transpose()?;
    let done = match projection {
        Projection::Qkv => {
            let (x, y) = (lent.read_or(x, &ends.input)?.into(), lent.write(qkv)?);
            layers.qkv(handles, Operands { weight, x, kept, y })
        }
        Projection::Proj => {
            let residual = lent.read_or(x, &ends.input)?;
            let (x, y) = (Activations::Values(lent.read(qkv)?), lent.write(middle)?);
            layers.proj(handles, Operands { weight, x, kept, y }, residual)
        }
        Projection::Fc1 => {
            let (x, y) = (Activations::Values(lent.read(middle)?), lent.write(hidden)?);
            let activated = match saved {
                Saved::Values { activated } => Some(lent.write(activated)?),
                Saved::Codes(_) => None,
            };
            layers.fc1(handles, Operands { weight, x, kept, y }, activated)
        }
        Projection::Fc2 => {
            let x = match saved {
                Saved::Values { activated } => Activations::Values(lent.read(activated)?),
                Saved::Codes(_) => Activations::Gelu(lent.read(hidden)?),
            };
            let (residual, y) = (lent.read(middle)?, lent.write(output)?);
            layers.fc2(handles, Operands { weight, x, kept, y }, residual)
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
    let Block { hidden, saved, dy, hidden_gradient, middle_gradient, dx, .. } = *block;
    let (handles, recipe) = (lent.context.handles(), lent.recipe);
    let id = block.weight(projection);
    let weight = &Weight::of(lent.context, id, recipe.dgrad_orientation(), recipe.form())?;
    let dw = Output::gradient(lent.context, id)?;
    let input = block.input(projection);
    let x: Input<'a> = match (saved, input) {
        (Saved::Codes(_), Some(kept)) => Input::Kept(lent.read(kept)?),
        _ => lent.read_or(input, &ends.input)?.into(),
    };
    let done = match projection {
        Projection::Fc2 => {
            let (dy, dx) = (lent.read_or(dy, &ends.ones)?.into(), lent.write(hidden_gradient)?);
            let hidden = match saved {
                Saved::Values { .. } => Some(lent.read(hidden)?),
                Saved::Codes(_) => None,
            };
            layers.fc2_backward(handles, Gradients { weight, dy, x, dx, dw }, hidden)
        }
        Projection::Fc1 => {
            let (of_output, gradient) = (lent.read_or(dy, &ends.ones)?, lent.read(hidden_gradient)?);
            let dy = match saved {
                Saved::Values { .. } => Activations::Values(gradient),
                Saved::Codes(_) => Activations::GeluGradient { x: lent.read(hidden)?, gradient },
            };
            let dx = lent.write(middle_gradient)?;
            layers.fc1_backward(handles, Gradients { weight, dy, x, dx, dw }, of_output)
        }
        Projection::Proj => {
            let dy = Activations::Values(lent.read(middle_gradient)?);
            let dx = lent.write(qkv_gradient)?;
            layers.proj_backward(handles, Gradients { weight, dy, x, dx, dw })
        }
        Projection::Qkv => {
            let dy = Activations::Values(lent.read(qkv_gradient)?);
            let (dx, of_middle) = (lent.write(dx)?, lent.read(middle_gradient)?);
            layers.qkv_backward(handles, Gradients { weight, dy, x, dx, dw }, of_middle)
        }
    };
    Ok(done?)
}
