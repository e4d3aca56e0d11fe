//! Sizes of a stack, its layers, and the cost of its parts.
//!
//! Law: what layers cost is theirs to say ([`LinearSpec::forward_cost`]); what stands between them is said
//! here and nowhere else.

use std::fmt;

use warpweft_cuda::linear::{LinearSpec, Recipe};
use warpweft_format::{ElementType, Shape};
use warpweft_plan::model::CostHint;

/// Sizes of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackShape {
    /// Width of the residual stream, H.
    pub hidden: usize,
    /// Width between fc1 and fc2, F.
    pub ffn: usize,
    /// Blocks.
    pub layers: usize,
    /// Tokens of one rank in a step.
    pub tokens: usize,
}

/// One matrix of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Projection {
    Qkv,
    Proj,
    Fc1,
    Fc2,
}

impl Projection {
    pub(super) const ALL: [Self; 4] = [Self::Qkv, Self::Proj, Self::Fc1, Self::Fc2];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Qkv => "qkv",
            Self::Proj => "proj",
            Self::Fc1 => "fc1",
            Self::Fc2 => "fc2",
        }
    }
}

impl StackShape {
    /// `[outputs, inputs]`.
    pub(super) const fn weight(&self, projection: Projection) -> Shape {
        let Self { hidden, ffn, .. } = *self;
        match projection {
            Projection::Qkv => Shape::new(3 * hidden, hidden),
            Projection::Proj => Shape::new(hidden, hidden),
            Projection::Fc1 => Shape::new(ffn, hidden),
            Projection::Fc2 => Shape::new(hidden, ffn),
        }
    }

    /// Elements of all weights.
    #[must_use]
    pub fn parameters(&self) -> usize {
        self.layers
            * Projection::ALL.iter().map(|projection| self.weight(*projection).elements()).sum::<usize>()
    }

    /// Multiplications and additions of a step on one rank: each weight meets every token three times.
    #[must_use]
    pub fn flops(&self) -> u64 {
        6 * self.tokens as u64 * self.parameters() as u64
    }

    /// What one weight costs forward: its layer, and after fc1 a pass of GELU where fc2 does not take it on
    /// the way.
    pub(super) fn forward_cost(&self, projection: Projection, recipe: Recipe) -> Vec<CostHint> {
        let layer = self.layer(projection, recipe, ElementType::F32);
        if recipe.fuses_gelu() {
            return layer.forward_keeping_cost();
        }
        let mut parts = layer.forward_cost();
        if projection == Projection::Fc1 {
            // What fc1 wrote is read, and its GELU written.
            parts.push(CostHint::pass(2 * self.wide_bytes()));
        }
        parts
    }

    /// What one weight costs backward, whose gradient has elements of that type: its layer, and GELU's
    /// gradient, after fc2 or on the way to what fc1 multiplies.
    pub(super) fn backward_cost(
        &self,
        projection: Projection,
        recipe: Recipe,
        weight_gradient: ElementType,
    ) -> Vec<CostHint> {
        let layer = self.layer(projection, recipe, weight_gradient);
        let fused = recipe.fuses_gelu();
        let mut parts = if fused { layer.backward_kept_cost() } else { layer.backward_cost() };
        match projection {
            // What fc1 wrote is read, and the gradient changed where it lies.
            Projection::Fc2 if !fused => parts.push(CostHint::pass(3 * self.wide_bytes())),
            // What fc1 wrote is read by the kernel that quantizes the gradient.
            Projection::Fc1 if fused => {
                parts.push(CostHint { kernels: 0, ..CostHint::pass(self.wide_bytes()) });
            }
            _ => {}
        }
        parts
    }

    /// What the loss costs: the last output is read.
    pub(super) fn loss_cost(&self) -> CostHint {
        CostHint::pass(2 * (self.tokens * self.hidden) as u64)
    }

    /// What the products with one weight compute, its gradient in elements of that type. proj reads the
    /// queries where qkv left them.
    pub(super) fn layer(
        &self,
        projection: Projection,
        recipe: Recipe,
        weight_gradient: ElementType,
    ) -> LinearSpec {
        let spec = LinearSpec::new(recipe, self.tokens, self.weight(projection));
        let input_pitch = match projection {
            Projection::Proj => 3 * self.hidden,
            _ => spec.input_pitch,
        };
        LinearSpec { weight_gradient, input_pitch, ..spec }
    }

    /// Bytes of the activations between fc1 and fc2.
    const fn wide_bytes(&self) -> u64 {
        2 * (self.tokens * self.ffn) as u64
    }
}

impl fmt::Display for StackShape {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hidden, ffn, layers, tokens } = self;
        write!(formatter, "hidden {hidden}, ffn {ffn}, {layers} layers, {tokens} tokens")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_format::Format;

    #[test]
    fn a_step_multiplies_every_weight_three_times() {
        let shape = StackShape { hidden: 4, ffn: 16, layers: 2, tokens: 3 };
        assert_eq!(shape.parameters(), 2 * (48 + 16 + 64 + 64));
        let flops = |parts: Vec<CostHint>| parts.iter().map(|part| part.flops).sum::<u64>();
        let of = |projection: Projection| {
            let forward = flops(shape.forward_cost(projection, Recipe::Bf16));
            (forward, flops(shape.backward_cost(projection, Recipe::Bf16, ElementType::F32)))
        };
        let costs = Projection::ALL.map(of);
        assert!(costs.iter().all(|(forward, backward)| *backward == 2 * forward));
        let step: u64 = costs.iter().map(|(forward, backward)| forward + backward).sum();
        assert_eq!(shape.flops(), shape.layers as u64 * step);
    }

    /// Elementwise passes are parts of their own, which no product hides: forward 4 bytes of every value
    /// between fc1 and fc2, backward 6.
    #[test]
    fn gelu_is_a_pass_beside_the_products() {
        let shape = StackShape { hidden: 4, ffn: 16, layers: 2, tokens: 3 };
        let values = (shape.tokens * shape.ffn) as u64;
        assert_eq!(shape.forward_cost(Projection::Fc1, Recipe::Bf16).pop(), Some(CostHint::pass(4 * values)));
        assert_eq!(
            shape.backward_cost(Projection::Fc2, Recipe::Bf16, ElementType::F32).pop(),
            Some(CostHint::pass(6 * values))
        );
        for projection in [Projection::Qkv, Projection::Proj, Projection::Fc2] {
            let parts = shape.forward_cost(projection, Recipe::Bf16);
            assert_eq!(parts, shape.layer(projection, Recipe::Bf16, ElementType::F32).forward_cost());
        }
    }

    /// The gradient of GELU reads a second operand where fc1 quantizes it: 2 bytes of every value, in no
    /// kernel of their own.
    #[test]
    fn gelu_on_the_way_to_codes_is_no_pass_of_its_own() {
        let shape = StackShape { hidden: 128, ffn: 256, layers: 2, tokens: 128 };
        let Format::Fp8Block(block) = Format::FP8_BLOCK128_POW2 else { panic!() };
        let recipe = Recipe::Fp8Block(block);
        for projection in Projection::ALL {
            let layer = shape.layer(projection, recipe, ElementType::F32);
            assert_eq!(shape.forward_cost(projection, recipe), layer.forward_keeping_cost());
            let (mut backward, kept) =
                (shape.backward_cost(projection, recipe, ElementType::F32), layer.backward_kept_cost());
            if projection == Projection::Fc1 {
                let bytes = 2 * (shape.tokens * shape.ffn) as u64;
                assert_eq!(backward.pop(), Some(CostHint { bytes, ..CostHint::default() }));
            }
            assert_eq!(backward, kept, "{}", projection.name());
        }
    }
}
