//! The mathematics of a block, on lent memory.
//!
//! Law: eight parts, each one weight forward or backward, write whole what they say they write. Residuals are added by the
//! products, the queries are read where qkv left them; GELU is a kernel of its own in both directions.

use half::bf16;

use super::shape::{Projection, StackShape};
use crate::backend::cuda::{CudaHandles, DeviceSlice, DeviceSliceMut};
use crate::format::ElementType;
use crate::linear::{Backward, Device, Elementwise, Linear, LinearError, LinearSpec, Output, Recipe, Weight};

type Read<'a> = DeviceSlice<'a, bf16>;
type Write<'a> = DeviceSliceMut<'a, bf16>;

/// The products of every block, and what stands between them.
pub(super) struct Layers {
    qkv: Linear,
    proj: Linear,
    fc1: Linear,
    fc2: Linear,
    pub(super) elementwise: Elementwise,
}

/// Operands of a backward part: `dy` is the gradient of the part's result.
pub(super) struct Gradients<'a, 'w> {
    pub(super) weight: &'w Weight<'a>,
    pub(super) dy: Read<'a>,
    /// Of the part's input, overwritten.
    pub(super) dx: Write<'a>,
    /// Of the weight, overwritten.
    pub(super) dw: Output<'a>,
}

impl Layers {
    /// Products by `recipe`; `weight_gradient` is the element type of every dW.
    pub(super) fn new(
        device: &Device,
        shape: &StackShape,
        recipe: Recipe,
        weight_gradient: ElementType,
    ) -> Result<Self, LinearError> {
        let layer = |projection: Projection| {
            let spec = LinearSpec::new(recipe, shape.tokens, shape.weight(projection));
            let input_pitch = match projection {
                Projection::Proj => 3 * shape.hidden,
                _ => spec.input_pitch,
            };
            Linear::new(device, LinearSpec { weight_gradient, input_pitch, ..spec })
        };
        Ok(Self {
            qkv: layer(Projection::Qkv)?,
            proj: layer(Projection::Proj)?,
            fc1: layer(Projection::Fc1)?,
            fc2: layer(Projection::Fc2)?,
            elementwise: Elementwise::new(device)?,
        })
    }

    /// qkv `[tokens, 3H]` from x `[tokens, H]`.
    pub(super) fn qkv<'a>(
        &mut self,
        handles: &CudaHandles,
        weight: &Weight<'a>,
        x: Read<'a>,
        qkv: Write<'a>,
    ) -> Result<(), LinearError> {
        self.qkv.forward(handles, x, weight, qkv)
    }

    /// middle `[tokens, H]` = x + proj(queries).
    pub(super) fn proj<'a>(
        &mut self,
        handles: &CudaHandles,
        weight: &Weight<'a>,
        qkv: Read<'a>,
        x: Read<'a>,
        middle: Write<'a>,
    ) -> Result<(), LinearError> {
        self.proj.forward(handles, qkv, weight, Output::Sum { result: middle, addend: x })
    }

    /// hidden `[tokens, F]` = fc1(middle), and its GELU.
    pub(super) fn fc1<'a>(
        &mut self,
        handles: &CudaHandles,
        weight: &Weight<'a>,
        middle: Read<'a>,
        mut hidden: Write<'a>,
        activated: Write<'a>,
    ) -> Result<(), LinearError> {
        self.fc1.forward(handles, middle, weight, hidden.reborrow())?;
        self.elementwise.gelu(handles, hidden.as_slice(), activated)
    }

    /// output `[tokens, H]` = middle + fc2(activated).
    pub(super) fn fc2<'a>(
        &mut self,
        handles: &CudaHandles,
        weight: &Weight<'a>,
        activated: Read<'a>,
        middle: Read<'a>,
        output: Write<'a>,
    ) -> Result<(), LinearError> {
        self.fc2.forward(handles, activated, weight, Output::Sum { result: output, addend: middle })
    }

    /// From the gradient of the block's output to that of `hidden`.
    pub(super) fn fc2_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        activated: Read<'a>,
        hidden: Read<'a>,
    ) -> Result<(), LinearError> {
        let Gradients { weight, dy, mut dx, dw } = gradients;
        let operands = Backward { dy, weight, x: activated, dx: dx.reborrow().into(), dw };
        self.fc2.backward(handles, operands)?;
        self.elementwise.gelu_backward(handles, hidden, dx)
    }

    /// From the gradient of `hidden` to that of `middle`, which the output's own is part of.
    pub(super) fn fc1_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        middle: Read<'a>,
        of_output: Read<'a>,
    ) -> Result<(), LinearError> {
        let Gradients { weight, dy, dx, dw } = gradients;
        let dx = Output::Sum { result: dx, addend: of_output };
        self.fc1.backward(handles, Backward { dy, weight, x: middle, dx, dw })
    }

    /// From the gradient of `middle` to that of the queries, which are the first columns of `qkv`; the others are left as
    /// they are: zeros.
    pub(super) fn proj_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        qkv: Read<'a>,
    ) -> Result<(), LinearError> {
        let Gradients { weight, dy, dx, dw } = gradients;
        self.proj.backward(handles, Backward { dy, weight, x: qkv, dx: dx.into(), dw })
    }

    /// From the gradient of `qkv` to that of the block's input, which `middle`'s own is part of.
    pub(super) fn qkv_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        x: Read<'a>,
        of_middle: Read<'a>,
    ) -> Result<(), LinearError> {
        let Gradients { weight, dy, dx, dw } = gradients;
        let dx = Output::Sum { result: dx, addend: of_middle };
        self.qkv.backward(handles, Backward { dy, weight, x, dx, dw })
    }
}
