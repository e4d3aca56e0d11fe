//! The formats and their names.
//!
//! A [`Format`] says how the numbers of one weight are encoded: element type, block shape, scale type. It is
//! plain data: it names no rank, no buffer and no orientation. A name and a format determine each other:
//! `name.parse::<Format>()?.to_string()` is the canonical spelling.

use super::FormatError;

/// How the numbers of a weight are encoded.
///
/// | name | element | block | scale |
/// |---|---|---|---|
/// | `f32`, `bf16` | itself | – | – |
/// | `nvfp4_2d`, `nvfp4_1d` | E2M1 | 16×16, 1×16 | E4M3 per block, f32 amax per tensor |
/// | `fp8_block128_pow2`, `fp8_block128_f32scale` | E4M3 | 128×128 | f32 per block |
/// | `fp8_block1x128_pow2` | E4M3 | 1×128 | f32 per block |
/// | `mxfp8` | E4M3 | 1×32, and 32×1 columnwise | E8M0 per block |
/// | `fp8_tensor_e4m3`, `fp8_tensor_e5m2_pow2` | E4M3, E5M2 | whole tensor | one f32 |
///
/// The FP8 formats with an f32 scale have three options, spelled into the name in this order: `_e4m3` or
/// `_e5m2` (block formats omit E4M3), `_pow2` or `_f32scale` (per-tensor formats omit `_f32scale`) and `_eps`
/// with a number (0 is omitted), as in `fp8_block128_e5m2_f32scale_eps1e-6`.
///
/// The family names `nvfp4`, `fp8_block` and `fp8_tensor` parse as `nvfp4_2d`, `fp8_block128_pow2` and
/// `fp8_tensor_e4m3`: the variant of the family meant for weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Format {
    /// IEEE-754 binary32, four bytes.
    F32,
    /// bfloat16, two bytes.
    Bf16,
    /// FP4 (E2M1) with one E4M3 scale per block and one f32 amax per tensor.
    Nvfp4(Nvfp4Block),
    /// FP8 with one f32 scale per block of 128.
    Fp8Block(Fp8Block),
    /// FP8 (E4M3) with one E8M0 scale per 32 elements, quantized once along rows and once along columns.
    Mxfp8,
    /// FP8 with one f32 scale for the whole tensor.
    Fp8Tensor(Fp8Tensor),
}

/// Which elements share one NVFP4 block scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nvfp4Block {
    /// 16×16 tiles: the scales are the same in both directions. For weights.
    Tile16x16,
    /// 16 neighbours of a row. For activations.
    Row1x16,
}

/// An FP8 format with one f32 scale per block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fp8Block {
    /// Which elements share a scale.
    pub tile: Fp8Tile,
    /// Encoding of one element.
    pub element: Fp8Element,
    /// Which scales are allowed.
    pub scale: ScaleRule,
    /// Lower bound of a block's amax.
    pub epsilon: Epsilon,
}

/// Which elements share one FP8 block scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fp8Tile {
    /// 128×128 tiles. For weights.
    Tile128x128,
    /// 128 neighbours of a row. For activations.
    Row1x128,
}

/// An FP8 format with one f32 scale per tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fp8Tensor {
    /// Encoding of one element.
    pub element: Fp8Element,
    /// Which scales are allowed.
    pub scale: ScaleRule,
    /// Lower bound of the tensor's amax.
    pub epsilon: Epsilon,
}

/// Encoding of one FP8 element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fp8Element {
    /// 4 exponent bits, 3 mantissa bits, largest value 448.
    E4m3,
    /// 5 exponent bits, 2 mantissa bits, largest finite value 57344.
    E5m2,
}

/// Which values an f32 scale may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaleRule {
    /// Rounded towards zero to a power of two.
    PowerOfTwo,
    /// Any f32.
    Float32,
}

/// A lower bound for an amax: finite and not negative, so that it has a total order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epsilon(u32);

impl Epsilon {
    /// No lower bound.
    pub const ZERO: Self = Self(0);

    /// A lower bound of `value`.
    ///
    /// # Errors
    /// [`FormatError::BadEpsilon`] when `value` is negative, infinite or not a number.
    pub fn new(value: f32) -> Result<Self, FormatError> {
        if value >= 0.0 && value.is_finite() {
            // Adding +0 turns −0 into +0, so equal values have equal bits.
            Ok(Self((value + 0.0).to_bits()))
        } else {
            Err(FormatError::BadEpsilon { value })
        }
    }

    /// The bound as a number.
    #[must_use]
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl Format {
    /// NVFP4 for weights.
    pub const NVFP4_2D: Self = Self::Nvfp4(Nvfp4Block::Tile16x16);
    /// NVFP4 for activations.
    pub const NVFP4_1D: Self = Self::Nvfp4(Nvfp4Block::Row1x16);
    /// FP8 in 128×128 tiles, power-of-two scales.
    pub const FP8_BLOCK128_POW2: Self =
        Self::Fp8Block(Fp8Block { tile: Fp8Tile::Tile128x128, ..Fp8Block::E4M3_POW2 });
    /// FP8 in 128×128 tiles, free f32 scales.
    pub const FP8_BLOCK128_F32SCALE: Self = Self::Fp8Block(Fp8Block {
        tile: Fp8Tile::Tile128x128,
        scale: ScaleRule::Float32,
        ..Fp8Block::E4M3_POW2
    });
    /// FP8 in rows of 128, power-of-two scales.
    pub const FP8_BLOCK1X128_POW2: Self =
        Self::Fp8Block(Fp8Block { tile: Fp8Tile::Row1x128, ..Fp8Block::E4M3_POW2 });
    /// E4M3 with one free f32 scale.
    pub const FP8_TENSOR_E4M3: Self = Self::Fp8Tensor(Fp8Tensor {
        element: Fp8Element::E4m3,
        scale: ScaleRule::Float32,
        epsilon: Epsilon::ZERO,
    });
    /// E5M2 with one power-of-two scale.
    pub const FP8_TENSOR_E5M2_POW2: Self = Self::Fp8Tensor(Fp8Tensor {
        element: Fp8Element::E5m2,
        scale: ScaleRule::PowerOfTwo,
        epsilon: Epsilon::ZERO,
    });

    /// One format per canonical name, in the order help texts list them.
    pub const CANONICAL: [Self; 10] = [
        Self::F32,
        Self::Bf16,
        Self::NVFP4_2D,
        Self::NVFP4_1D,
        Self::FP8_BLOCK128_POW2,
        Self::FP8_BLOCK128_F32SCALE,
        Self::FP8_BLOCK1X128_POW2,
        Self::Mxfp8,
        Self::FP8_TENSOR_E4M3,
        Self::FP8_TENSOR_E5M2_POW2,
    ];

    /// Short names, and the weight format of its family that each means.
    pub const FAMILIES: [(&'static str, Self); 3] = [
        ("nvfp4", Self::NVFP4_2D),
        ("fp8_block", Self::FP8_BLOCK128_POW2),
        ("fp8_tensor", Self::FP8_TENSOR_E4M3),
    ];
}

impl Fp8Block {
    const E4M3_POW2: Self = Self {
        tile: Fp8Tile::Tile128x128,
        element: Fp8Element::E4m3,
        scale: ScaleRule::PowerOfTwo,
        epsilon: Epsilon::ZERO,
    };
}
