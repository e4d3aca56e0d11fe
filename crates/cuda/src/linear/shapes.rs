//! The three products of a layer as cuBLASLt knows them.
//!
//! A row-major matrix is its transpose, column by column. So each product is written for the transposed
//! result: yᵀ = W xᵀ, dxᵀ = Wᵀ dyᵀ, dWᵀ = xᵀ dy. FP8 factors run along the contraction: rowwise codes in y,
//! columnwise planes of the weight in dx, columnwise codes in dW, whose lines are padded with zeros to a
//! multiple of 16 tokens, or of 32 in MXFP8. Columnwise planes of MXFP8 alone are not transposed: their codes lie
//! across the contraction, as products on compute capability 10.x take them, and their scales along it. Of NVFP4
//! dW is in bf16.

use super::recipe::Recipe;
use super::spec::LinearSpec;
use crate::CudaFailure;
use crate::gemm::{Element, Factor, Kept, ProductSpec, Scale};
use warpweft_format::{ElementType, Fp8Element, Orientation, Shape};

/// What the factors of a layer are made of.
#[derive(Clone, Copy)]
struct Factors {
    weight: (Element, Scale),
    x: (Element, Scale),
    dy: (Element, Scale),
    /// Whether the contraction must run along neighbours.
    along: bool,
}

impl Factors {
    const BF16: Self = Self::alike((Element::Bf16, Scale::None), false);

    const fn alike(factor: (Element, Scale), along: bool) -> Self {
        Self { weight: factor, x: factor, dy: factor, along }
    }

    const fn of(spec: &LinearSpec) -> Self {
        let (weight, of_weight, of_activation) = match spec.recipe {
            Recipe::Bf16 => return Self::BF16,
            Recipe::Nvfp4 => return Self::alike((Element::E2m1, Scale::Lines16), true),
            Recipe::Fp8Tensor(tensor) => (tensor.element, Scale::Whole, Scale::Whole),
            Recipe::Fp8Block(block) => (block.element, Scale::Tiles128, Scale::Lines128),
            Recipe::Mxfp8 => (Fp8Element::E4m3, Scale::Lines32, Scale::Lines32),
        };
        Self {
            weight: (fp8(weight), of_weight),
            x: (Element::E4m3, of_activation),
            dy: (fp8(spec.gradients), of_activation),
            along: true,
        }
    }
}

/// A factor whose contraction runs along neighbours, or across them.
const fn factor((element, scale): (Element, Scale), contiguous: bool, pitch: usize) -> Factor {
    Factor { element, contiguous, pitch, scale }
}

const fn fp8(element: Fp8Element) -> Element {
    match element {
        Fp8Element::E4m3 => Element::E4m3,
        Fp8Element::E5m2 => Element::E5m2,
    }
}

fn result(element: ElementType) -> Result<Element, CudaFailure> {
    match element {
        ElementType::F32 => Ok(Element::F32),
        ElementType::Bf16 => Ok(Element::Bf16),
        ElementType::U8 | ElementType::U32 => Err(CudaFailure::Result { element }),
    }
}

/// Refuses what no product of the recipe takes.
pub(super) fn check(spec: &LinearSpec) -> Result<(), CudaFailure> {
    let LinearSpec { recipe, tokens, weight, input_pitch, .. } = *spec;
    if tokens == 0 || weight.elements() == 0 {
        return Err(CudaFailure::Empty { tokens, weight });
    }
    // Beyond this, sizes in bytes would not be addresses.
    let largest = 1_usize << 31;
    for (what, size) in
        [("tokens", tokens), ("outputs", weight.rows), ("columns that hold the inputs", input_pitch)]
    {
        if size > largest {
            return Err(CudaFailure::TooLarge { what, size, largest });
        }
    }
    if input_pitch < weight.cols {
        return Err(CudaFailure::Pitch { pitch: input_pitch, inputs: weight.cols });
    }
    // FP8 and FP4 want lines of 16 bytes. Scales of 1×128 blocks are stored token by token, four at a time. Blocks of
    // 32 are whole; along tokens they are made whole with zeros.
    let (features, of_tokens) = match recipe {
        Recipe::Bf16 => (1, 1),
        Recipe::Fp8Tensor(_) => (16, 1),
        Recipe::Fp8Block(_) => (16, 4),
        Recipe::Mxfp8 | Recipe::Nvfp4 => (32, 1),
    };
    let dimensions = [
        ("tokens", tokens, of_tokens),
        ("outputs", weight.rows, features),
        ("inputs", weight.cols, features),
        ("columns that hold the inputs", input_pitch, features),
    ];
    for (what, size, multiple) in dimensions {
        if !size.is_multiple_of(multiple) {
            return Err(CudaFailure::Dimension { what, size, multiple, recipe: recipe.to_string() });
        }
    }
    if matches!(recipe, Recipe::Mxfp8 | Recipe::Nvfp4) && spec.gradients != Fp8Element::E4m3 {
        return Err(CudaFailure::Gradients { recipe: recipe.to_string(), element: spec.gradients });
    }
    let columnwise_only = recipe != Recipe::Bf16;
    if columnwise_only && spec.dgrad == Orientation::Rowwise {
        return Err(CudaFailure::DataGradient {
            recipe: recipe.to_string(),
            expected: recipe.dgrad_orientation(),
            actual: spec.dgrad,
        });
    }
    Ok(())
}

/// yᵀ `[outputs, tokens]` = W · xᵀ.
pub(super) fn forward(spec: &LinearSpec) -> Result<ProductSpec, CudaFailure> {
    let (factors, Shape { rows: outputs, cols: inputs }) = (Factors::of(spec), spec.weight);
    Ok(ProductSpec {
        rows: outputs,
        cols: spec.tokens,
        inner: inputs,
        a: factor(factors.weight, true, inputs),
        b: factor(factors.x, true, if factors.along { inputs } else { spec.input_pitch }),
        d: result(spec.output)?,
        pitch: outputs,
    })
}

/// dxᵀ `[inputs, tokens]` = Wᵀ · dyᵀ.
pub(super) fn dgrad(spec: &LinearSpec) -> Result<ProductSpec, CudaFailure> {
    let (factors, Shape { rows: outputs, cols: inputs }) = (Factors::of(spec), spec.weight);
    let a = match (spec.dgrad, spec.recipe) {
        (Orientation::Rowwise, _) | (_, Recipe::Mxfp8) => factor(factors.weight, false, inputs),
        (Orientation::Columnwise, _) => factor(factors.weight, true, outputs),
    };
    Ok(ProductSpec {
        rows: inputs,
        cols: spec.tokens,
        inner: outputs,
        a,
        b: factor(factors.dy, true, outputs),
        d: result(spec.output)?,
        pitch: spec.input_pitch,
    })
}

/// dWᵀ `[inputs, outputs]` = xᵀ · dy.
pub(super) fn wgrad(spec: &LinearSpec) -> Result<ProductSpec, CudaFailure> {
    let Shape { rows: outputs, cols: inputs } = spec.weight;
    let (inner, a, b) = match spec.recipe.weight_gradient_format(spec.gradients) {
        Some(format) => {
            let factors = Factors::of(spec);
            let pitch = Kept::pitch(format, spec.tokens);
            (pitch, factor(factors.x, true, pitch), factor(factors.dy, true, pitch))
        }
        None => {
            let Factors { x, dy, .. } = Factors::BF16;
            (spec.tokens, factor(x, false, spec.input_pitch), factor(dy, false, outputs))
        }
    };
    let d = result(spec.weight_gradient)?;
    Ok(ProductSpec { rows: inputs, cols: outputs, inner, a, b, d, pitch: inputs })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INPUTS: usize = 96;
    const OUTPUTS: usize = 160;

    /// a and b of y, dx and dW: element, scale, whether it lies along the contraction, pitch.
    fn factors(recipe: Recipe) -> [[Factor; 2]; 3] {
        let spec =
            LinearSpec { input_pitch: 128, ..LinearSpec::new(recipe, 37, Shape::new(OUTPUTS, INPUTS)) };
        check(&spec).unwrap();
        [forward(&spec), dgrad(&spec), wgrad(&spec)].map(|product| {
            let ProductSpec { a, b, .. } = product.unwrap();
            [a, b]
        })
    }

    #[test]
    fn columnwise_planes_of_mxfp8_lie_across_the_contraction_and_all_other_factors_along_it() {
        let mxfp8 = |along, pitch| factor((Element::E4m3, Scale::Lines32), along, pitch);
        // Lines of transposed codes are whole blocks of 32 tokens.
        let expected =
            [[INPUTS, INPUTS], [INPUTS, OUTPUTS], [64, 64]].map(|[a, b]| [mxfp8(true, a), mxfp8(true, b)]);
        let [y, [weight, dy], dw] = expected;
        assert_eq!(factors(Recipe::Mxfp8), [y, [Factor { contiguous: false, ..weight }, dy], dw]);
    }

    #[test]
    fn y_and_dx_of_nvfp4_are_of_four_bits_and_dw_is_of_the_values_as_they_lie() {
        let nvfp4 = |pitch| factor((Element::E2m1, Scale::Lines16), true, pitch);
        let bf16 = |pitch| factor((Element::Bf16, Scale::None), false, pitch);
        assert_eq!(
            factors(Recipe::Nvfp4),
            [[nvfp4(INPUTS), nvfp4(INPUTS)], [nvfp4(OUTPUTS), nvfp4(OUTPUTS)], [bf16(128), bf16(OUTPUTS)],]
        );
        let spec = LinearSpec::new(Recipe::Nvfp4, 37, Shape::new(OUTPUTS, INPUTS));
        assert_eq!(wgrad(&spec).unwrap().inner, 37);
    }
}
