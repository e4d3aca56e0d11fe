//! The description of a linear layer: shape, recipe, activation.
//!
//! Law: a specification is plain data; what no product takes is refused when a layer is made from it.

use super::recipe::Recipe;
use warpweft_format::{ElementType, Fp8Element, Orientation, Shape};

/// What a layer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearSpec {
    /// The numbers in which it is computed.
    pub recipe: Recipe,
    /// Rows of x, y, dx and dy.
    pub tokens: usize,
    /// `[outputs, inputs]`.
    pub weight: Shape,
    /// Element type of y and dx, f32 or bf16.
    pub output: ElementType,
    /// In which orientation dx reads the weight.
    pub dgrad: Orientation,
    /// Element type of dW, f32 or bf16: the one in which the call declares the gradient
    /// ([`CallBuilder::gradient_in`](warpweft_plan::model::CallBuilder::gradient_in)). Sums are f32 either way,
    /// rounded once.
    pub weight_gradient: ElementType,
    /// Elements from one token of x and of dx to the next: the inputs, or more where x is the first columns
    /// of a wider matrix and dx goes into such columns.
    pub input_pitch: usize,
    /// What dy is quantized to in FP8; x is always E4M3. cuBLASLt multiplies no E5M2 by E5M2. MXFP8 and NVFP4
    /// have one element for all factors.
    pub gradients: Fp8Element,
}

impl LinearSpec {
    /// y and dx in bf16, dW in f32, x and dx dense, dx from [`Recipe::dgrad_orientation`], gradients in E4M3.
    #[must_use]
    pub const fn new(recipe: Recipe, tokens: usize, weight: Shape) -> Self {
        let (output, dgrad) = (ElementType::Bf16, recipe.dgrad_orientation());
        Self {
            recipe,
            tokens,
            weight,
            output,
            dgrad,
            weight_gradient: ElementType::F32,
            input_pitch: weight.cols,
            gradients: Fp8Element::E4m3,
        }
    }
}
