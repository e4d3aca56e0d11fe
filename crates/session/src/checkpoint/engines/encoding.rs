//! Encodings of a linear layer's weight, in the engines' terms.

use warpweft_format::{Format, Fp8Element, Fp8Tile};

/// An encoding that a dialect has tensors for. What differs between two of them is where scales are and what they are
/// of, not which values they were chosen by: an engine reads what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Encoding {
    /// E2M1 codes, an E4M3 scale for 16 columns of a row, an f32 scale for the tensor.
    Nvfp4,
    /// E4M3 codes, an f32 scale for 128 rows of 128 columns.
    Fp8Block,
    /// E4M3 codes, an f32 scale for the tensor.
    Fp8Tensor,
    /// E4M3 codes, an f32 scale for every row. It is read; no format of ours is written as it.
    Fp8Channel,
    /// E4M3 codes, an E8M0 scale for 32 columns of a row.
    Mxfp8,
}

impl Encoding {
    /// That of a format; `None` where no engine has one.
    pub(crate) const fn of(format: Format) -> Option<Self> {
        match format {
            Format::Nvfp4(_) => Some(Self::Nvfp4),
            Format::Fp8Block(block) => match (block.tile, block.element) {
                (Fp8Tile::Tile128x128, Fp8Element::E4m3) => Some(Self::Fp8Block),
                (Fp8Tile::Row1x128, _) | (_, Fp8Element::E5m2) => None,
            },
            Format::Mxfp8 => Some(Self::Mxfp8),
            Format::Fp8Tensor(tensor) => match tensor.element {
                Fp8Element::E4m3 => Some(Self::Fp8Tensor),
                Fp8Element::E5m2 => None,
            },
            Format::F32 | Format::Bf16 => None,
        }
    }

    /// Do the parts that an engine fuses need one scale?
    pub(crate) const fn shares_a_scale(self) -> bool {
        matches!(self, Self::Nvfp4 | Self::Fp8Tensor)
    }

    /// What the rows of a part that an engine fuses must be a multiple of.
    pub(crate) const fn rows_of_a_part(self) -> usize {
        match self {
            Self::Fp8Block => 128,
            Self::Nvfp4 | Self::Fp8Tensor | Self::Fp8Channel | Self::Mxfp8 => 1,
        }
    }
}
