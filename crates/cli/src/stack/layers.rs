//! The mathematics of a block, on lent memory.
//!
//! Law: eight parts, each one weight forward or backward, write whole what they say they write. Residuals are
//! added by the products, the queries are read where qkv left them. GELU is a kernel of its own after fc1,
//! and after the data gradient of fc2; or, where products quantize what they read, it is taken on the way:
//! by fc2 forward and by fc1 backward. Then forward keeps of every input what the weight's gradient reads.

use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{
    Activations, BackwardOperands, Device, Elementwise, Input, Linear, Output, Recipe, Weight,
};
use warpweft_cuda::{CudaHandles, DeviceSlice, DeviceSliceMut};
use warpweft_format::ElementType;

use super::shape::{Projection, StackShape};

/// By which products, and in what their weight gradients are written.
pub(super) type Computed = (Recipe, ElementType);

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

/// Operands of a forward part.
pub(super) struct Operands<'a, 'w> {
    pub(super) weight: &'w Weight<'a>,
    pub(super) x: Activations<'a>,
    /// Room for what the weight's gradient reads of x, where that is codes.
    pub(super) kept: Option<DeviceSliceMut<'a, u8>>,
    /// The product, overwritten.
    pub(super) y: Write<'a>,
}

/// Operands of a backward part: `dy` is the gradient of the part's result, `x` what forward read.
pub(super) struct Gradients<'a, 'w> {
    pub(super) weight: &'w Weight<'a>,
    pub(super) dy: Activations<'a>,
    pub(super) x: Input<'a>,
    /// Of the part's input, overwritten.
    pub(super) dx: Write<'a>,
    /// Of the weight, overwritten.
    pub(super) dw: Output<'a>,
}

/// Bytes that forward keeps of the input of each weight, in the order of [`Projection::ALL`]; `None` where
/// inputs stay in bf16. Of a shape that has no products nothing is kept: that there are none is said when
/// [`Layers`] are made.
pub(super) fn kept_bytes(shape: &StackShape, (recipe, weight_gradient): Computed) -> Option<[usize; 4]> {
    let kept = |projection| shape.layer(projection, recipe, weight_gradient).kept_bytes().ok().flatten();
    let [qkv, proj, fc1, fc2] = Projection::ALL;
    recipe.fuses_gelu().then_some([kept(qkv)?, kept(proj)?, kept(fc1)?, kept(fc2)?])
}

impl Layers {
    /// Products as `computed` says.
    pub(super) fn new(
        device: &Device,
        shape: &StackShape,
        (recipe, weight_gradient): Computed,
    ) -> Result<Self, CudaFailure> {
        let layer = |projection| Linear::new(device, shape.layer(projection, recipe, weight_gradient));
        Ok(Self {
            qkv: layer(Projection::Qkv)?,
            proj: layer(Projection::Proj)?,
            fc1: layer(Projection::Fc1)?,
            fc2: layer(Projection::Fc2)?,
            elementwise: Elementwise::new(device)?,
        })
    }

    /// qkv `[tokens, 3H]` from x `[tokens, H]`.
    pub(super) fn qkv(
        &mut self,
        handles: &CudaHandles,
        operands: Operands<'_, '_>,
    ) -> Result<(), CudaFailure> {
        forward(&mut self.qkv, handles, operands, None)
    }

    /// middle `[tokens, H]` = `residual` + proj(queries).
    pub(super) fn proj<'a>(
        &mut self,
        handles: &CudaHandles,
        operands: Operands<'a, '_>,
        residual: Read<'a>,
    ) -> Result<(), CudaFailure> {
        forward(&mut self.proj, handles, operands, Some(residual))
    }

    /// hidden `[tokens, F]` = fc1(middle), and its GELU where fc2 does not take it on the way.
    pub(super) fn fc1<'a>(
        &mut self,
        handles: &CudaHandles,
        operands: Operands<'a, '_>,
        activated: Option<Write<'a>>,
    ) -> Result<(), CudaFailure> {
        let Operands { weight, x, kept, mut y } = operands;
        forward(&mut self.fc1, handles, Operands { weight, x, kept, y: y.reborrow() }, None)?;
        match activated {
            Some(activated) => self.elementwise.gelu(handles, y.as_slice(), activated),
            None => Ok(()),
        }
    }

    /// output `[tokens, H]` = `residual` + fc2(activated).
    pub(super) fn fc2<'a>(
        &mut self,
        handles: &CudaHandles,
        operands: Operands<'a, '_>,
        residual: Read<'a>,
    ) -> Result<(), CudaFailure> {
        forward(&mut self.fc2, handles, operands, Some(residual))
    }

    /// From the gradient of the block's output to that of GELU(hidden); to that of `hidden` where it is
    /// given, because fc1 does not take GELU on the way.
    pub(super) fn fc2_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        hidden: Option<Read<'a>>,
    ) -> Result<(), CudaFailure> {
        let Gradients { weight, dy, x, mut dx, dw } = gradients;
        backward(&mut self.fc2, handles, Gradients { weight, dy, x, dx: dx.reborrow(), dw }, None)?;
        match hidden {
            Some(hidden) => self.elementwise.gelu_backward(handles, hidden, dx),
            None => Ok(()),
        }
    }

    /// From the gradient of `hidden` to that of `middle`, which the output's own is part of.
    pub(super) fn fc1_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        of_output: Read<'a>,
    ) -> Result<(), CudaFailure> {
        backward(&mut self.fc1, handles, gradients, Some(of_output))
    }

    /// From the gradient of `middle` to that of the queries, which are the first columns of `qkv`; the others
    /// are left as they are: zeros.
    pub(super) fn proj_backward(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'_, '_>,
    ) -> Result<(), CudaFailure> {
        backward(&mut self.proj, handles, gradients, None)
    }

    /// From the gradient of `qkv` to that of the block's input, which `middle`'s own is part of.
    pub(super) fn qkv_backward<'a>(
        &mut self,
        handles: &CudaHandles,
        gradients: Gradients<'a, '_>,
        of_middle: Read<'a>,
    ) -> Result<(), CudaFailure> {
        backward(&mut self.qkv, handles, gradients, Some(of_middle))
    }
}

/// `result`, or `result` plus what is added to it.
fn onto<'a>(result: Write<'a>, addend: Option<Read<'a>>) -> Output<'a> {
    match addend {
        Some(addend) => Output::Sum { result, addend },
        None => result.into(),
    }
}

fn forward<'a>(
    layer: &mut Linear,
    handles: &CudaHandles,
    operands: Operands<'a, '_>,
    residual: Option<Read<'a>>,
) -> Result<(), CudaFailure> {
    let Operands { weight, x, kept, y } = operands;
    match kept {
        Some(kept) => layer.forward_keeping(handles, x, weight, onto(y, residual), kept),
        None => layer.forward(handles, x, weight, onto(y, residual)),
    }
}

fn backward<'a>(
    layer: &mut Linear,
    handles: &CudaHandles,
    gradients: Gradients<'a, '_>,
    addend: Option<Read<'a>>,
) -> Result<(), CudaFailure> {
    let Gradients { weight, dy, x, dx, dw } = gradients;
    layer.backward(handles, BackwardOperands { dy, weight, x, dx: onto(dx, addend), dw })
}
