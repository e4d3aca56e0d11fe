//! Operands of products that stand for x and for dy.
//!
//! Law (LI-5): however a product's operand is made, its codes are those of the bf16 values that it stands
//! for. GELU on the way to codes rounds to bf16 first. Codes that forward kept are the ones that backward
//! would make anew.

use half::bf16;

use super::shapes;
use super::spec::LinearSpec;
use crate::CudaFailure;
use crate::DeviceSlice;
use crate::gemm::{Kept, Lent, Scaled, Source};
use warpweft_format::{ElementType, Fp8Element, Shape};

impl LinearSpec {
    /// Bytes of what [`Linear::forward_keeping`](super::Linear::forward_keeping) keeps of x: codes of its
    /// transpose `[inputs, tokens rounded up to 16, or to 32 in MXFP8]` and, from the next multiple of 256 on,
    /// their scales.
    /// That is about half of x in bf16. `None` where the weight's gradient multiplies x as it is.
    ///
    /// # Errors
    /// What [`Linear::new`](super::Linear::new) says of a shape that no product of the recipe takes.
    pub fn kept_bytes(&self) -> Result<Option<usize>, CudaFailure> {
        shapes::check(self)?;
        let x = Shape::new(self.tokens, self.weight.cols);
        Ok(self.recipe.weight_gradient_format(Fp8Element::E4m3).map(|format| Kept::of(format, x).bytes()))
    }
}

/// bf16 `[tokens, features]`, or what they are made into where they are quantized, in which case they are
/// never written in bf16.
#[derive(Clone, Copy, Debug)]
pub enum Activations<'a> {
    /// As they are.
    Values(DeviceSlice<'a, bf16>),
    /// Their GELU, as [`Elementwise::gelu`](super::Elementwise::gelu) computes it. Where
    /// [`Recipe::fuses_gelu`](super::Recipe::fuses_gelu).
    Gelu(DeviceSlice<'a, bf16>),
    /// The gradient of `x`, as [`Elementwise::gelu_backward`](super::Elementwise::gelu_backward) computes it
    /// from the gradient of GELU(x). Where [`Recipe::fuses_gelu`](super::Recipe::fuses_gelu).
    GeluGradient {
        /// The argument of GELU.
        x: DeviceSlice<'a, bf16>,
        /// The gradient of GELU(x), laid out as `x`.
        gradient: DeviceSlice<'a, bf16>,
    },
}

/// x of a product for the weight's gradient.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// As forward read it.
    Activations(Activations<'a>),
    /// What [`Linear::forward_keeping`](super::Linear::forward_keeping) kept of the same x:
    /// [`LinearSpec::kept_bytes`] bytes.
    Kept(DeviceSlice<'a, u8>),
}

impl<'a> From<DeviceSlice<'a, bf16>> for Activations<'a> {
    fn from(values: DeviceSlice<'a, bf16>) -> Self {
        Self::Values(values)
    }
}

impl<'a> From<Activations<'a>> for Input<'a> {
    fn from(activations: Activations<'a>) -> Self {
        Self::Activations(activations)
    }
}

impl<'a> From<DeviceSlice<'a, bf16>> for Input<'a> {
    fn from(values: DeviceSlice<'a, bf16>) -> Self {
        Self::Activations(values.into())
    }
}

impl<'a> From<DeviceSlice<'a, u8>> for Input<'a> {
    fn from(kept: DeviceSlice<'a, u8>) -> Self {
        Self::Kept(kept)
    }
}

impl<'a> Activations<'a> {
    /// The memory, if it has `expected` elements and the recipe takes it in this form.
    pub(super) fn source(
        self,
        what: &'static str,
        spec: &LinearSpec,
        expected: usize,
    ) -> Result<Source<'a>, CudaFailure> {
        let lent = |slice| operand(what, slice, expected);
        if !matches!(self, Self::Values(_)) && !spec.recipe.fuses_gelu() {
            return Err(CudaFailure::Gelu { what, recipe: spec.recipe.to_string() });
        }
        Ok(match self {
            Self::Values(values) => Source::Values(lent(values)?),
            Self::Gelu(x) => Source::Gelu(lent(x)?),
            Self::GeluGradient { x, gradient } => {
                Source::GeluGradient { x: lent(x)?, gradient: lent(gradient)? }
            }
        })
    }
}

/// x of the weight's gradient, with its size checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Measured<'a> {
    Source(Source<'a>),
    Kept(Lent<'a>),
}

impl<'a> Input<'a> {
    /// The memory, if it has `expected` elements, or what the layer keeps.
    pub(super) fn measured(
        self,
        spec: &LinearSpec,
        kept_bytes: Option<usize>,
        expected: usize,
    ) -> Result<Measured<'a>, CudaFailure> {
        match self {
            Self::Activations(activations) => activations.source("x", spec, expected).map(Measured::Source),
            Self::Kept(kept) => {
                check_kept(spec, kept_bytes, kept.len(), kept.address().number())?;
                Ok(Measured::Kept(kept.into()))
            }
        }
    }
}

/// Refuses memory that is not what a layer keeps: `kept_bytes` bytes, as [`LinearSpec::kept_bytes`] said when
/// the layer was made.
pub(super) fn check_kept(
    spec: &LinearSpec,
    kept_bytes: Option<usize>,
    actual: usize,
    address: u64,
) -> Result<(), CudaFailure> {
    let what = "what is kept of x";
    let Some(expected) = kept_bytes else {
        return Err(CudaFailure::NothingKept { recipe: spec.recipe.to_string() });
    };
    if actual != expected {
        let (element, wanted) = (ElementType::U8, ElementType::U8);
        return Err(CudaFailure::Operand { what, actual, element, expected, wanted });
    }
    if !address.is_multiple_of(Kept::ALIGNMENT as u64) {
        return Err(CudaFailure::Misaligned { what, address, multiple: Kept::ALIGNMENT });
    }
    Ok(())
}

pub(super) fn operand<'a>(
    what: &'static str,
    slice: DeviceSlice<'a, bf16>,
    expected: usize,
) -> Result<Lent<'a>, CudaFailure> {
    if slice.len() == expected {
        return Ok(slice.into());
    }
    let (actual, element, wanted) = (slice.len(), ElementType::Bf16, ElementType::Bf16);
    Err(CudaFailure::Operand { what, actual, element, expected, wanted })
}

/// A factor without scales, for products that quantize nothing and were therefore given values
/// ([`Activations::source`]).
pub(super) const fn plain(source: Source<'_>) -> Scaled<'_> {
    let (Source::Values(values) | Source::Gelu(values) | Source::GeluGradient { x: values, .. }) = source;
    Scaled { values, scale: None, amax: None }
}
