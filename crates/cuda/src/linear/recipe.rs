//! The number formats in which the products of a layer are computed.
//!
//! Law: [`Recipe::best_for`] gives only recipes that have been seen running on some GPU. [`Recipe::native`] also
//! gives those that NVIDIA documents for a GPU and that no such GPU was at hand for: who wants them says so.

use std::fmt;

use crate::ComputeCapability;
use crate::CudaFailure;
use warpweft_format::{Format, Fp8Block, Fp8Element, Fp8Tensor, Fp8Tile, Nvfp4Block, Orientation};
use warpweft_plan::model::Form;

/// In what numbers the products of a layer are computed, and so how a call declares its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Recipe {
    /// bf16 by bf16. Weights of any format, dequantized into a planned bf16 slot; those in bf16 are read in
    /// place.
    Bf16,
    /// FP8 by FP8 with one scale each. Activations and their gradients use the weight's scale rule and
    /// epsilon, with an amax of their own, found when they are quantized. From compute capability 8.9 on, as
    /// NVIDIA documents it; seen running on 9.0 only.
    Fp8Tensor(Fp8Tensor),
    /// FP8 activations in 1×128 blocks by weights in 128×128 blocks; the weight's gradient from 1×128 blocks
    /// by 1×128 blocks. Activations use the weight's scale rule and epsilon. Compute capability 9.0 only.
    Fp8Block(Fp8Block),
    /// MXFP8 by MXFP8, as NVIDIA documents it for compute capability 10.x. Activations and their gradients are
    /// quantized in 1×32 blocks along each contraction. Never seen running: no such GPU was at hand, so only
    /// [`Recipe::native`] gives it.
    Mxfp8,
    /// NVFP4 by NVFP4 for y and dx, as NVIDIA documents it for compute capability 10.x: weights in 16×16 tiles,
    /// activations and their gradients in 1×16 blocks with an amax of their own. dW is bf16 by bf16, because a
    /// weight gradient of FP4 factors needs random Hadamard transforms and stochastic rounding, which are not
    /// here. FP4 has no NaN: one in x or dy becomes the largest code, and shows in dW alone. Never seen running,
    /// as [`Recipe::Mxfp8`].
    Nvfp4,
}

impl Recipe {
    /// Products of weights in their own format.
    ///
    /// # Errors
    /// [`CudaFailure::Unsupported`] for a GPU without such products.
    pub fn native(format: Format, capability: ComputeCapability) -> Result<Self, CudaFailure> {
        let unsupported = |needs| CudaFailure::Unsupported { format, capability, needs };
        match format {
            Format::Bf16 => Ok(Self::Bf16),
            Format::Fp8Tensor(tensor) if capability >= ComputeCapability::new(8, 9) => {
                Ok(Self::Fp8Tensor(tensor))
            }
            Format::Fp8Tensor(_) => Err(unsupported("8.9 or newer is needed")),
            Format::Fp8Block(block) if block.tile == Fp8Tile::Tile128x128 => {
                match capability == ComputeCapability::new(9, 0) {
                    true => Ok(Self::Fp8Block(block)),
                    false => {
                        Err(unsupported("9.0 is needed, where scales of 128×128 blocks are the hardware's"))
                    }
                }
            }
            Format::Fp8Block(_) => Err(unsupported("1×128 blocks are for activations")),
            Format::F32 => Err(unsupported("f32 products are not this layer's")),
            Format::Nvfp4(Nvfp4Block::Row1x16) => Err(unsupported("1×16 blocks are for activations")),
            // Before cuBLAS 13.6, 12.x takes FP8 only with factors along the contraction, and columnwise MXFP8 planes
            // are not. NVFP4 is refused there only because less is known of it.
            Format::Mxfp8 if capability.major == 10 => Ok(Self::Mxfp8),
            Format::Nvfp4(Nvfp4Block::Tile16x16) if capability.major == 10 => Ok(Self::Nvfp4),
            Format::Mxfp8 | Format::Nvfp4(_) => {
                Err(unsupported("10.x is needed, where scales of 32 or 16 elements are the hardware's"))
            }
        }
    }

    /// [`Recipe::native`] where there is one that has been seen running, otherwise [`Recipe::Bf16`].
    #[must_use]
    pub fn best_for(format: Format, capability: ComputeCapability) -> Self {
        Self::native(format, capability).ok().filter(|recipe| recipe.has_run()).unwrap_or(Self::Bf16)
    }

    /// Whether its products have been seen running on some GPU.
    const fn has_run(self) -> bool {
        match self {
            Self::Bf16 | Self::Fp8Tensor(_) | Self::Fp8Block(_) => true,
            Self::Mxfp8 | Self::Nvfp4 => false,
        }
    }

    /// In what form a call declares the weight.
    #[must_use]
    pub const fn form(self) -> Form {
        match self {
            Self::Bf16 => Form::DenseBf16,
            Self::Fp8Tensor(_) | Self::Fp8Block(_) | Self::Mxfp8 | Self::Nvfp4 => Form::Planes,
        }
    }

    /// In which orientation the data gradient reads the weight. Quantized products contract along neighbours or along
    /// blocks, so they need columnwise planes. bf16 products also take the rowwise values, which saves the
    /// transposition.
    #[must_use]
    pub const fn dgrad_orientation(self) -> Orientation {
        match self {
            Self::Bf16 => Orientation::Rowwise,
            Self::Fp8Tensor(_) | Self::Fp8Block(_) | Self::Mxfp8 | Self::Nvfp4 => Orientation::Columnwise,
        }
    }

    /// The format of a weight whose planes are read; `None` where values are.
    #[must_use]
    pub const fn weight_format(self) -> Option<Format> {
        match self {
            Self::Bf16 => None,
            Self::Fp8Tensor(tensor) => Some(Format::Fp8Tensor(tensor)),
            Self::Fp8Block(block) => Some(Format::Fp8Block(block)),
            Self::Mxfp8 => Some(Format::Mxfp8),
            Self::Nvfp4 => Some(Format::NVFP4_2D),
        }
    }

    /// Whether GELU and its gradient may be computed on the way to codes
    /// ([`Activations`](super::Activations)). They may where a block's scale follows from the block. One
    /// scale for all needs an amax first, over values that would have to be in memory.
    #[must_use]
    pub const fn fuses_gelu(self) -> bool {
        matches!(self, Self::Fp8Block(_) | Self::Mxfp8)
    }

    /// Whether products read the scales of blocks in a layout of their own
    /// ([`swizzle_scale`](warpweft_format::swizzle_scale)).
    pub(super) const fn swizzles(self) -> bool {
        matches!(self, Self::Mxfp8 | Self::Nvfp4)
    }

    /// The format activations or their gradients are quantized to, in `element`, which MXFP8 and NVFP4 do
    /// not request; `None` where they stay in bf16.
    #[must_use]
    pub const fn activation_format(self, element: Fp8Element) -> Option<Format> {
        match self {
            Self::Bf16 => None,
            Self::Fp8Tensor(tensor) => Some(Format::Fp8Tensor(Fp8Tensor { element, ..tensor })),
            Self::Fp8Block(block) => {
                Some(Format::Fp8Block(Fp8Block { tile: Fp8Tile::Row1x128, element, ..block }))
            }
            Self::Mxfp8 => Some(Format::Mxfp8),
            Self::Nvfp4 => Some(Format::NVFP4_1D),
        }
    }

    /// The same of the products for the weight's gradient.
    pub(super) const fn weight_gradient_format(self, element: Fp8Element) -> Option<Format> {
        match self {
            Self::Nvfp4 => None,
            _ => self.activation_format(element),
        }
    }
}

impl fmt::Display for Recipe {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.weight_format() {
            None => formatter.write_str("bf16"),
            Some(format) => write!(formatter, "{format}"),
        }
    }
}
