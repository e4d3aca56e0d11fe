//! Costs of a linear layer, for the calls that use it.
//!
//! Law: one part for every kernel that [`Linear`](super::Linear) enqueues, and one more for what a product
//! writes: activations are quantized by kernels of their own, then multiplied. A product reads while it
//! multiplies, but a tile of its result is written when the last multiplication of the tile is done. Bytes
//! are those of the operands, each moved once; what a product adds to ([`Output::Sum`](super::Output::Sum))
//! is not counted. GELU on the way to codes reads its argument in place of its result, so it costs nothing
//! more. Its gradient reads two operands in place of one, and a call that passes
//! [`Activations::GeluGradient`](super::Activations::GeluGradient) adds the second.

use super::spec::LinearSpec;
use warpweft_format::{Directions, ElementType, Format, Fp8Element, Orientation, Shape};
use warpweft_plan::model::{CostHint, Math};

impl LinearSpec {
    /// What [`Linear::forward`](super::Linear::forward) costs.
    #[must_use]
    pub fn forward_cost(&self) -> Vec<CostHint> {
        self.forward_with(Directions::Rowwise)
    }

    /// What [`Linear::forward_keeping`](super::Linear::forward_keeping) costs: x is read once, for the codes
    /// of both directions.
    #[must_use]
    pub fn forward_keeping_cost(&self) -> Vec<CostHint> {
        self.forward_with(Directions::Both)
    }

    fn forward_with(&self, of_x: Directions) -> Vec<CostHint> {
        let x = self.quantized(Fp8Element::E4m3, self.weight.cols, of_x);
        let weight = self.swizzled(Orientation::Rowwise);
        x.chain(weight)
            .chain(self.scalars())
            .chain(self.product(self.math(), self.output, self.y()))
            .collect()
    }

    /// What [`Linear::backward`](super::Linear::backward) costs when it is given x.
    #[must_use]
    pub fn backward_cost(&self) -> Vec<CostHint> {
        let x = self.quantized(Fp8Element::E4m3, self.weight.cols, Directions::Columnwise);
        x.filter(|_| self.quantizes_weight_gradient()).chain(self.backward_kept_cost()).collect()
    }

    /// What it costs when it is given what forward kept of x.
    #[must_use]
    pub fn backward_kept_cost(&self) -> Vec<CostHint> {
        let (directions, math) = match self.quantizes_weight_gradient() {
            true => (Directions::Both, self.math()),
            false => (Directions::Rowwise, Math::Bf16),
        };
        let dy = self.quantized(self.gradients, self.weight.rows, directions);
        let weight = self.swizzled(self.dgrad).into_iter().chain(self.scalars());
        let dgrad = self.product(self.math(), self.output, self.x());
        let wgrad = self.product(math, self.weight_gradient, self.weight);
        dy.chain(weight).chain(dgrad).chain(wgrad).collect()
    }

    /// What y and dx are computed in; dW too, except in NVFP4, where it is in bf16.
    #[must_use]
    pub const fn math(&self) -> Math {
        match self.recipe.weight_format() {
            None => Math::Bf16,
            Some(Format::Nvfp4(_)) => Math::Fp4,
            Some(_) => Math::Fp8,
        }
    }

    const fn quantizes_weight_gradient(&self) -> bool {
        self.recipe.weight_gradient_format(self.gradients).is_some()
    }

    const fn x(&self) -> Shape {
        Shape::new(self.tokens, self.weight.cols)
    }

    const fn y(&self) -> Shape {
        Shape::new(self.tokens, self.weight.rows)
    }

    /// One of the three products, and what it writes. Each has x, y and the weight, or their gradients, as
    /// factors or result.
    fn product(&self, math: Math, element: ElementType, result: Shape) -> [CostHint; 2] {
        let Shape { rows, cols } = self.weight;
        let all = [self.x(), self.y(), self.weight].map(|of| of.elements() as u64);
        let all = all.into_iter().fold(0, u64::saturating_add);
        let result = result.elements() as u64;
        let read = match (all - result, math) {
            (factors, Math::F32) => factors.saturating_mul(4),
            (factors, Math::Bf16) => factors.saturating_mul(2),
            (factors, Math::Fp8) => factors,
            (factors, Math::Fp4) => factors / 2,
        };
        let product = CostHint { bytes: read, ..CostHint::product(self.tokens, cols, rows, math) };
        let written = CostHint::pass(result.saturating_mul(element.bytes() as u64));
        [product, CostHint { kernels: 0, ..written }]
    }

    /// The kernel that swizzles the scales of the weight; none where products read them as they are.
    fn swizzled(&self, orientation: Orientation) -> Option<CostHint> {
        let format = self.recipe.weight_format().filter(|_| self.recipe.swizzles())?;
        let planes = format.planes(orientation, self.weight);
        planes.get(1).map(|scale| CostHint::pass((scale.bytes() as u64).saturating_mul(2)))
    }

    /// The kernel that makes alpha of two amaxes, where scales are relative to them.
    fn scalars(&self) -> Option<CostHint> {
        (self.math() == Math::Fp4).then_some(CostHint::pass(4 * size_of::<f32>() as u64))
    }

    /// The kernels that quantize activations with that many features; none where they stay in bf16.
    fn quantized(
        &self,
        element: Fp8Element,
        features: usize,
        directions: Directions,
    ) -> impl Iterator<Item = CostHint> + use<> {
        let shape = Shape::new(self.tokens, features);
        let format = self.recipe.activation_format(element);
        // Scales depend on the amax of the whole matrix: another kernel finds it first.
        let amax = match format {
            Some(Format::Fp8Tensor(_) | Format::Nvfp4(_)) => {
                Some(CostHint::pass((shape.elements() as u64).saturating_mul(2)))
            }
            _ => None,
        };
        amax.into_iter().chain(format.map(|format| CostHint::quantizing(format, shape, directions)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linear::Recipe;

    const TOKENS: usize = 256;
    const WEIGHT: Shape = Shape::new(384, 512);

    fn flops(parts: &[CostHint]) -> u64 {
        parts.iter().map(|part| part.flops).sum()
    }

    fn kernels(parts: &[CostHint]) -> u32 {
        parts.iter().map(|part| part.kernels).sum()
    }

    #[test]
    fn products_in_bf16_are_all_there_is_of_a_layer_in_bf16() {
        let spec = LinearSpec::new(Recipe::Bf16, TOKENS, WEIGHT);
        let (forward, backward) = (spec.forward_cost(), spec.backward_cost());
        let product = 2 * (TOKENS * WEIGHT.elements()) as u64;
        assert_eq!((kernels(&forward), flops(&forward)), (1, product));
        assert_eq!((kernels(&backward), flops(&backward)), (2, 2 * product));
        assert!(forward.iter().chain(&backward).all(|part| part.flops == 0 || part.math == Math::Bf16));
        let (x, y, weight) = (TOKENS * WEIGHT.cols, TOKENS * WEIGHT.rows, WEIGHT.elements());
        let bytes = |parts: &[CostHint]| parts.iter().map(|part| part.bytes as usize).collect::<Vec<_>>();
        assert_eq!(bytes(&forward), [2 * (x + weight), 2 * y]);
        // dW is written in f32.
        assert_eq!(bytes(&backward), [2 * (y + weight), 2 * x, 2 * (x + y), 4 * weight]);
    }

    /// Only what is read hides behind operations.
    #[test]
    fn what_a_product_writes_is_a_part_of_no_operations_and_no_kernel() {
        let backward = LinearSpec::new(Recipe::Bf16, TOKENS, WEIGHT).backward_cost();
        for [product, written] in backward.as_chunks::<2>().0 {
            assert!(product.flops > 0 && product.kernels == 1);
            assert_eq!((written.flops, written.kernels), (0, 0));
        }
    }

    #[test]
    fn activations_are_quantized_by_kernels_of_their_own_before_products_in_fp8() {
        let Format::Fp8Block(block) = Format::FP8_BLOCK128_POW2 else { panic!() };
        let spec = LinearSpec::new(Recipe::Fp8Block(block), TOKENS, WEIGHT);
        let (forward, backward) = (spec.forward_cost(), spec.backward_cost());
        assert_eq!((kernels(&forward), kernels(&backward)), (2, 4));
        assert!(forward[0].flops == 0 && backward[0].flops == 0 && backward[1].flops == 0);
        assert_eq!(forward[1].math, Math::Fp8);
        let with_scales = |elements: usize| elements + 4 * elements / 128;
        let (x, dy) = (TOKENS * WEIGHT.cols, TOKENS * WEIGHT.rows);
        assert_eq!(forward[0].bytes, (2 * x + with_scales(x)) as u64);
        assert_eq!(backward[0].bytes, forward[0].bytes);
        assert_eq!(backward[1].bytes, (2 * dy + 2 * with_scales(dy)) as u64);
    }

    #[test]
    fn what_forward_keeps_is_written_there_and_not_made_again() {
        let Format::Fp8Block(block) = Format::FP8_BLOCK128_POW2 else { panic!() };
        let spec = LinearSpec::new(Recipe::Fp8Block(block), TOKENS, WEIGHT);
        let (plain, keeping) = (spec.forward_cost(), spec.forward_keeping_cost());
        let codes = (TOKENS * WEIGHT.cols + 4 * TOKENS * WEIGHT.cols / 128) as u64;
        assert_eq!(keeping[0].bytes, plain[0].bytes + codes);
        assert_eq!(keeping[1..], plain[1..]);
        assert_eq!(spec.backward_kept_cost(), spec.backward_cost()[1..]);
    }

    #[test]
    fn one_scale_for_all_activations_costs_a_kernel_that_finds_it() {
        let Format::Fp8Tensor(tensor) = Format::FP8_TENSOR_E4M3 else { panic!() };
        let forward = LinearSpec::new(Recipe::Fp8Tensor(tensor), TOKENS, WEIGHT).forward_cost();
        assert_eq!(kernels(&forward), 3);
        assert_eq!(forward[0], CostHint::pass(2 * (TOKENS * WEIGHT.cols) as u64));
    }
    #[test]
    fn scales_of_a_weight_in_mxfp8_are_swizzled_by_a_kernel_before_each_product_that_reads_it() {
        let spec = LinearSpec::new(Recipe::Mxfp8, TOKENS, WEIGHT);
        let (forward, backward) = (spec.forward_cost(), spec.backward_cost());
        assert_eq!((kernels(&forward), kernels(&backward)), (3, 5));
        let with_scales = |elements: usize| (elements + elements / 32) as u64;
        let (x, dy) = (TOKENS * WEIGHT.cols, TOKENS * WEIGHT.rows);
        let scales = CostHint::pass(2 * (WEIGHT.elements() / 32) as u64);
        assert_eq!(forward[0], CostHint::pass(2 * x as u64 + with_scales(x)));
        assert_eq!((forward[1], forward[2].math), (scales, Math::Fp8));
        assert_eq!(backward[0], forward[0]);
        assert_eq!(backward[1], CostHint::pass(2 * dy as u64 + 2 * with_scales(dy)));
        assert_eq!((backward[2], backward[3].math), (scales, Math::Fp8));
    }

    /// An amax and codes of dy, for dx alone; x of the weight's gradient is read as it is.
    #[test]
    fn in_nvfp4_the_weights_gradient_is_in_bf16_and_nothing_is_quantized_for_it() {
        let spec = LinearSpec::new(Recipe::Nvfp4, TOKENS, WEIGHT);
        let (forward, backward) = (spec.forward_cost(), spec.backward_cost());
        assert_eq!((kernels(&forward), kernels(&backward)), (5, 6));
        assert_eq!(backward, spec.backward_kept_cost());
        let (x, y, weight) =
            ((TOKENS * WEIGHT.cols) as u64, (TOKENS * WEIGHT.rows) as u64, WEIGHT.elements() as u64);
        let codes = |elements: u64| elements / 2 + elements / 16;
        assert_eq!(forward[..2], [CostHint::pass(2 * x), CostHint::pass(2 * x + codes(x))]);
        assert_eq!(forward[2..4], [CostHint::pass(2 * weight / 16), CostHint::pass(16)]);
        assert_eq!((forward[4].math, forward[4].bytes), (Math::Fp4, (x + weight) / 2));
        assert_eq!(backward[1].bytes, 2 * y + codes(y));
        assert_eq!((backward[6].math, backward[6].bytes), (Math::Bf16, 2 * (x + y)));
    }
}
