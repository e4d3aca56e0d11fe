//! The products of one shape.

use half::bf16;

use super::activations::{Activations, Input, Measured, check_kept, operand, plain};
use super::device::Device;
use super::recipe::Recipe;
use super::shapes;
use super::spec::LinearSpec;
use super::weight::Weight;
use crate::gemm::{Activation, Lent, LentMut, Product, Scaled, Source, Swizzled};
use crate::{CudaFailure, CudaHandles, CudaSurface, DeviceSlice, DeviceSliceMut};
use warpweft_base::id::WeightId;
use warpweft_format::{Directions, ElementType, Fp8Element, Orientation, Shape};
use warpweft_plan::compute::{ComputeContext, ComputeError};

/// Where y, dx or dW goes.
#[derive(Debug)]
pub enum Output<'a> {
    /// Rounded to bf16, nearest even.
    Bf16(DeviceSliceMut<'a, bf16>),
    /// As it was summed.
    F32(DeviceSliceMut<'a, f32>),
    /// The product plus `addend`, summed in f32 and rounded to bf16 once: a residual stream.
    Sum {
        /// What is written.
        result: DeviceSliceMut<'a, bf16>,
        /// The same number of elements as the result, laid out alike.
        addend: DeviceSlice<'a, bf16>,
    },
}

impl<'a> From<DeviceSliceMut<'a, bf16>> for Output<'a> {
    fn from(slice: DeviceSliceMut<'a, bf16>) -> Self {
        Self::Bf16(slice)
    }
}

impl<'a> From<DeviceSliceMut<'a, f32>> for Output<'a> {
    fn from(slice: DeviceSliceMut<'a, f32>) -> Self {
        Self::F32(slice)
    }
}

impl<'a> Output<'a> {
    /// Where a call writes its gradient of `weight`, in the element type it declares: f32, or bf16 by
    /// [`CallBuilder::gradient_in`](warpweft_plan::model::CallBuilder::gradient_in), to which the product then rounds
    /// by itself. [`LinearSpec::weight_gradient`] must be the same.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares this gradient.
    pub fn gradient(
        context: &ComputeContext<'a, CudaSurface>,
        weight: WeightId,
    ) -> Result<Self, ComputeError> {
        match context.gradient_element(weight)? {
            ElementType::Bf16 => Ok(context.gradient_bf16(weight)?.into()),
            ElementType::F32 | ElementType::U8 | ElementType::U32 => Ok(context.gradient(weight)?.into()),
        }
    }

    /// The memory, if it has `expected` elements of `wanted`, and what is added.
    fn lent(
        self,
        what: &'static str,
        expected: usize,
        wanted: ElementType,
    ) -> Result<Target<'a>, CudaFailure> {
        let (actual, element, result): (usize, ElementType, LentMut<'a>) = match self {
            Self::Bf16(slice) => (slice.len(), ElementType::Bf16, slice.into()),
            Self::F32(slice) => (slice.len(), ElementType::F32, slice.into()),
            Self::Sum { result, addend } => {
                let addend = operand("the addend", addend, expected)?;
                let Target { result, .. } = Self::Bf16(result).lent(what, expected, wanted)?;
                return Ok(Target { result, addend: Some(addend) });
            }
        };
        if (actual, element) == (expected, wanted) {
            return Ok(Target { result, addend: None });
        }
        Err(CudaFailure::Operand { what, actual, element, expected, wanted })
    }
}

/// Where a product goes, and what is added to it.
#[derive(Debug)]
struct Target<'a> {
    result: LentMut<'a>,
    addend: Option<Lent<'a>>,
}

/// The operands of both gradients of a layer. `Y` converts into [`Activations`] and `X` into an [`Input`];
/// slices of bf16 do.
#[derive(Debug)]
pub struct BackwardOperands<'a, 'w, Y = DeviceSlice<'a, bf16>, X = DeviceSlice<'a, bf16>> {
    /// Gradient of y, `[tokens, outputs]`.
    pub dy: Y,
    /// The weight, in the orientation of [`LinearSpec::dgrad`].
    pub weight: &'w Weight<'a>,
    /// x of the forward pass, `[tokens, input_pitch]`, or what it kept of x.
    pub x: X,
    /// Gradient of x, `[tokens, input_pitch]`, of which the first `inputs` columns are overwritten.
    pub dx: Output<'a>,
    /// Gradient of the weight, `[outputs, inputs]`, overwritten: [`Output::gradient`].
    pub dw: Output<'a>,
}

/// The products of one shape, and the memory they quantize activations in.
///
/// One value serves every weight of the shape and every call of a lane. In FP8 it owns codes and scales of x
/// and of dy, along rows and columns: about `2 · tokens · (inputs + outputs)` bytes.
#[derive(Debug)]
pub struct Linear {
    spec: LinearSpec,
    forward: Product,
    dgrad: Product,
    wgrad: Product,
    /// x and dy, where they are quantized.
    activations: Option<(Activation, Activation)>,
    /// Scales of the weight, rowwise and columnwise, where products read them swizzled.
    swizzled: Option<(Swizzled, Swizzled)>,
    /// Of x; none where the weight's gradient reads x and dy as they are.
    kept_bytes: Option<usize>,
}

impl Linear {
    /// Chooses the algorithms of the three products and reserves memory.
    ///
    /// # Errors
    /// [`CudaFailure::Unsupported`] for a GPU without such products, [`CudaFailure::Dimension`] for a shape
    /// they do not take, [`CudaFailure::Call`] when cuBLASLt has no algorithm or memory is short.
    pub fn new(device: &Device, spec: LinearSpec) -> Result<Self, CudaFailure> {
        shapes::check(&spec)?;
        if let Some(format) = spec.recipe.weight_format() {
            Recipe::native(format, device.capability())?;
        }
        let LinearSpec { recipe, tokens, weight, .. } = spec;
        let blas = &device.blas;
        let activation = |element, features, pitch| match recipe.activation_format(element) {
            None => Ok(None),
            Some(format) => Activation::new(blas, format, Shape::new(tokens, features), pitch).map(Some),
        };
        let of_x = activation(Fp8Element::E4m3, weight.cols, spec.input_pitch)?;
        let of_dy = activation(spec.gradients, weight.rows, weight.rows)?;
        let swizzled = |orientation| match recipe.weight_format().filter(|_| recipe.swizzles()) {
            None => Ok(None),
            Some(format) => Swizzled::new(blas, format, orientation, weight).map(Some),
        };
        let (rowwise, columnwise) = (swizzled(Orientation::Rowwise)?, swizzled(Orientation::Columnwise)?);
        Ok(Self {
            spec,
            forward: Product::new(blas, shapes::forward(&spec)?)?,
            dgrad: Product::new(blas, shapes::dgrad(&spec)?)?,
            wgrad: Product::new(blas, shapes::wgrad(&spec)?)?,
            activations: of_x.zip(of_dy),
            swizzled: rowwise.zip(columnwise),
            kept_bytes: spec.kept_bytes()?,
        })
    }

    /// What the layer computes.
    #[must_use]
    pub const fn spec(&self) -> &LinearSpec {
        &self.spec
    }

    /// y = x Wᵀ: x `[tokens, input_pitch]`, the weight rowwise, y `[tokens, outputs]`.
    ///
    /// # Errors
    /// [`CudaFailure::Weight`] and [`CudaFailure::Operand`] before anything is enqueued,
    /// [`CudaFailure::Gelu`] where GELU is not taken on the way; [`CudaFailure::Call`].
    pub fn forward<'a>(
        &mut self,
        handles: &CudaHandles,
        x: impl Into<Activations<'a>>,
        weight: &Weight<'a>,
        y: impl Into<Output<'a>>,
    ) -> Result<(), CudaFailure> {
        self.multiply(handles, x.into(), weight, y.into(), None)
    }

    /// The same, and stores in `kept` what the weight's gradient reads of x: x is read and quantized once, in
    /// both directions. `kept` has [`LinearSpec::kept_bytes`] bytes and begins at a multiple of 256, as a
    /// declared buffer of [`ElementType::U8`] does.
    ///
    /// # Errors
    /// As [`Linear::forward`]; [`CudaFailure::NothingKept`] where x is multiplied as it is, and
    /// [`CudaFailure::Misaligned`].
    pub fn forward_keeping<'a>(
        &mut self,
        handles: &CudaHandles,
        x: impl Into<Activations<'a>>,
        weight: &Weight<'a>,
        y: impl Into<Output<'a>>,
        kept: DeviceSliceMut<'a, u8>,
    ) -> Result<(), CudaFailure> {
        check_kept(&self.spec, self.kept_bytes, kept.len(), kept.address().number())?;
        self.multiply(handles, x.into(), weight, y.into(), Some(kept.into()))
    }

    fn multiply<'a>(
        &mut self,
        handles: &CudaHandles,
        x: Activations<'a>,
        weight: &Weight<'a>,
        y: Output<'a>,
        kept: Option<LentMut<'a>>,
    ) -> Result<(), CudaFailure> {
        let LinearSpec { tokens, weight: Shape { rows, .. }, output, input_pitch, .. } = self.spec;
        let x = x.source("x", &self.spec, tokens * input_pitch)?;
        let weight = weight.factor(&self.spec, Orientation::Rowwise)?;
        let y = y.lent("y", tokens * rows, output)?;
        let x = match (&mut self.activations, &kept) {
            (None, _) => plain(x),
            (Some((activation, _)), Some(kept)) => activation.enqueue_keeping(handles, x, kept)?,
            (Some((activation, _)), None) => {
                activation.enqueue(handles, x, Directions::Rowwise)?;
                activation.rowwise()
            }
        };
        let weight = match &mut self.swizzled {
            None => weight,
            Some((rowwise, _)) => rowwise.enqueue(handles, weight)?,
        };
        self.forward.enqueue(handles, weight, x, y.addend, y.result)
    }

    /// dx = dy W: dy `[tokens, outputs]`, the weight in the orientation of [`LinearSpec::dgrad`], dx
    /// `[tokens, input_pitch]`.
    ///
    /// # Errors
    /// As [`Linear::forward`].
    pub fn dgrad<'a>(
        &mut self,
        handles: &CudaHandles,
        dy: impl Into<Activations<'a>>,
        weight: &Weight<'a>,
        dx: impl Into<Output<'a>>,
    ) -> Result<(), CudaFailure> {
        let LinearSpec { tokens, weight: Shape { rows, .. }, output, dgrad, input_pitch, .. } = self.spec;
        let dy = dy.into().source("dy", &self.spec, tokens * rows)?;
        let weight = weight.factor(&self.spec, dgrad)?;
        let dx = dx.into().lent("dx", tokens * input_pitch, output)?;
        let dy = match &mut self.activations {
            None => plain(dy),
            Some((_, activation)) => {
                activation.enqueue(handles, dy, Directions::Rowwise)?;
                activation.rowwise()
            }
        };
        data_gradient(&mut self.dgrad, &mut self.swizzled, handles, weight, dy, dx)
    }

    /// dW = dyᵀ x: dy `[tokens, outputs]`, x `[tokens, input_pitch]` or what forward kept of it, dW
    /// `[outputs, inputs]`.
    ///
    /// # Errors
    /// As [`Linear::forward_keeping`].
    pub fn wgrad<'a>(
        &mut self,
        handles: &CudaHandles,
        dy: impl Into<Activations<'a>>,
        x: impl Into<Input<'a>>,
        dw: impl Into<Output<'a>>,
    ) -> Result<(), CudaFailure> {
        let LinearSpec { tokens, weight: Shape { rows, cols }, weight_gradient, input_pitch, .. } = self.spec;
        let dy = dy.into().source("dy", &self.spec, tokens * rows)?;
        let x = x.into().measured(&self.spec, self.kept_bytes, tokens * input_pitch)?;
        let dw = dw.into().lent("dW", rows * cols, weight_gradient)?;
        if let (Some((_, of_dy)), Some(_)) = (&mut self.activations, self.kept_bytes) {
            of_dy.enqueue(handles, dy, Directions::Columnwise)?;
        }
        self.weight_gradient(handles, dy, x, dw)
    }

    /// Both gradients. In FP8 dy is read once, for the codes of both directions.
    ///
    /// # Errors
    /// As [`Linear::forward_keeping`].
    pub fn backward<'a, Y: Into<Activations<'a>>, X: Into<Input<'a>>>(
        &mut self,
        handles: &CudaHandles,
        operands: BackwardOperands<'a, '_, Y, X>,
    ) -> Result<(), CudaFailure> {
        let LinearSpec {
            tokens,
            weight: Shape { rows, cols },
            output,
            dgrad,
            weight_gradient,
            input_pitch,
            ..
        } = self.spec;
        let BackwardOperands { dy, weight, x, dx, dw } = operands;
        let dy = dy.into().source("dy", &self.spec, tokens * rows)?;
        let x = x.into().measured(&self.spec, self.kept_bytes, tokens * input_pitch)?;
        let weight = weight.factor(&self.spec, dgrad)?;
        let dx = dx.lent("dx", tokens * input_pitch, output)?;
        let dw = dw.lent("dW", rows * cols, weight_gradient)?;
        let directions = match self.kept_bytes {
            Some(_) => Directions::Both,
            None => Directions::Rowwise,
        };
        let rowwise = match &mut self.activations {
            None => plain(dy),
            Some((_, of_dy)) => {
                of_dy.enqueue(handles, dy, directions)?;
                of_dy.rowwise()
            }
        };
        data_gradient(&mut self.dgrad, &mut self.swizzled, handles, weight, rowwise, dx)?;
        self.weight_gradient(handles, dy, x, dw)
    }

    /// dW, after the quantization of dy along its columns.
    fn weight_gradient(
        &mut self,
        handles: &CudaHandles,
        dy: Source<'_>,
        x: Measured<'_>,
        dw: Target<'_>,
    ) -> Result<(), CudaFailure> {
        let (x, dy) = match (self.activations.as_mut().filter(|_| self.kept_bytes.is_some()), x) {
            (Some((of_x, of_dy)), Measured::Kept(kept)) => (of_x.kept(kept)?, of_dy.columnwise()),
            (Some((of_x, of_dy)), Measured::Source(x)) => {
                of_x.enqueue(handles, x, Directions::Columnwise)?;
                (of_x.columnwise(), of_dy.columnwise())
            }
            (None, Measured::Source(x)) => (plain(x), plain(dy)),
            (None, Measured::Kept(_)) => {
                return Err(CudaFailure::NothingKept { recipe: self.spec.recipe.to_string() });
            }
        };
        self.wgrad.enqueue(handles, x, dy, dw.addend, dw.result)
    }
}

/// dx, after the quantization of dy along its rows.
fn data_gradient(
    product: &mut Product,
    swizzled: &mut Option<(Swizzled, Swizzled)>,
    handles: &CudaHandles,
    weight: Scaled<'_>,
    dy: Scaled<'_>,
    dx: Target<'_>,
) -> Result<(), CudaFailure> {
    let weight = match swizzled {
        None => weight,
        Some((_, columnwise)) => columnwise.enqueue(handles, weight)?,
    };
    product.enqueue(handles, weight, dy, dx.addend, dx.result)
}
