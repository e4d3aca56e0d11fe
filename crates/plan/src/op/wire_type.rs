//! The type of gradients on the wire.
//!
//! Law: it follows from [`ReduceDtype`], the columns of the rank's part of the weight, and the element type that
//! the call wrote the gradient in. It is chosen here alone.

use serde::Serialize;

use crate::policy::ReduceDtype;
use warpweft_format::{ElementType, MXFP8_BLOCK};

/// The type of a gradient, or of the sum of a block of ranks, on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum WireType {
    /// Values as they are summed.
    F32,
    /// Values rounded to bf16, to nearest even.
    Bf16,
    /// E4M3 codes with one E8M0 scale for 32 neighbours of a row ([`warpweft_format::quantize_mxfp8`]): codes of a
    /// rank's rows, then their scales, then codes of the next rank's.
    Mxfp8,
}

impl WireType {
    /// Elements that share a scale in [`WireType::Mxfp8`].
    pub const BLOCK: usize = MXFP8_BLOCK;

    /// Of the sums of blocks of ranks, for a weight with this number of columns. Where a row is not whole MXFP8 blocks
    /// it is bf16: a block across two rows would be cut differently on another number of ranks.
    #[must_use]
    pub const fn of_sums(reduce_dtype: ReduceDtype, columns: usize) -> Self {
        match reduce_dtype {
            ReduceDtype::F32 => Self::F32,
            ReduceDtype::Bf16 => Self::Bf16,
            ReduceDtype::Mxfp8 if columns.is_multiple_of(Self::BLOCK) => Self::Mxfp8,
            ReduceDtype::Mxfp8 => Self::Bf16,
        }
    }

    /// Of a gradient that its call wrote in `written`: one in bf16 never widens.
    #[must_use]
    pub const fn of_gradient(reduce_dtype: ReduceDtype, columns: usize, written: ElementType) -> Self {
        match (Self::of_sums(reduce_dtype, columns), written) {
            (Self::F32, ElementType::Bf16) => Self::Bf16,
            (of_sums, _) => of_sums,
        }
    }

    /// Bytes of this number of elements; in MXFP8, of whole blocks. Saturates.
    #[must_use]
    pub const fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements.saturating_mul(ElementType::F32.bytes()),
            Self::Bf16 => elements.saturating_mul(ElementType::Bf16.bytes()),
            Self::Mxfp8 => elements.saturating_add(elements / Self::BLOCK),
        }
    }

    /// Its element type; none in MXFP8, where a value takes a code and a scale.
    #[must_use]
    pub const fn element(self) -> Option<ElementType> {
        match self {
            Self::F32 => Some(ElementType::F32),
            Self::Bf16 => Some(ElementType::Bf16),
            Self::Mxfp8 => None,
        }
    }
}

/// As `reduce_dtype` spells it.
impl std::fmt::Display for WireType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Mxfp8 => "mxfp8",
        })
    }
}
