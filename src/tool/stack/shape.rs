//! Sizes of a stack.

use std::fmt;

use crate::format::Shape;
use crate::model::{CostHint, Math};

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

    /// What `products` products with one weight cost.
    pub(super) fn cost(&self, projection: Projection, products: u64, math: Math) -> CostHint {
        let Shape { rows, cols } = self.weight(projection);
        let (tokens, elements) = (self.tokens as u64, (rows * cols) as u64);
        let activations = tokens * (rows + cols) as u64;
        CostHint {
            flops: 2 * products * tokens * elements,
            bytes: 2 * products * (elements + activations),
            math,
        }
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

    #[test]
    fn a_step_multiplies_every_weight_three_times() {
        let shape = StackShape { hidden: 4, ffn: 16, layers: 2, tokens: 3 };
        assert_eq!(shape.parameters(), 2 * (48 + 16 + 64 + 64));
        let costs = Projection::ALL.map(|projection| shape.cost(projection, 3, Math::Bf16).flops);
        assert_eq!(shape.flops(), 2 * costs.iter().sum::<u64>());
    }
}
