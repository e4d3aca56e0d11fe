//! What ranks send each other of a gradient.
//!
//! Law: what a gradient of a weight travels in follows from what was asked for ([`ReduceDtype`]), the columns of the
//! rank's part of the weight, and what its call wrote; nobody chooses it anywhere else.

use serde::Serialize;

use crate::policy::ReduceDtype;
use warpweft_format::ElementType;

/// In what a gradient, or a sum of a block of ranks, travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum WireType {
    /// Values as they are summed.
    F32,
    /// Values rounded to bf16, to nearest even.
    Bf16,
    /// E4M3 codes with one E8M0 scale for 32 neighbours of a row: of every rank's rows the codes, then the scales
    /// ([`warpweft_format::quantize_run`]).
    Mxfp8,
}

impl WireType {
    /// Elements that share a scale in [`WireType::Mxfp8`].
    pub const BLOCK: usize = 32;

    /// In what sums of blocks of ranks travel of a weight with so many columns. Rows that blocks do not divide travel
    /// in bf16 where MXFP8 is asked for: a block that lies across rows would be another one on other ranks.
    #[must_use]
    pub const fn of_sums(asked: ReduceDtype, columns: usize) -> Self {
        match asked {
            ReduceDtype::F32 => Self::F32,
            ReduceDtype::Bf16 => Self::Bf16,
            ReduceDtype::Mxfp8 if columns.is_multiple_of(Self::BLOCK) => Self::Mxfp8,
            ReduceDtype::Mxfp8 => Self::Bf16,
        }
    }

    /// The same of a gradient that its call wrote in `written`; in bf16 there are no more bits to send.
    #[must_use]
    pub const fn of_gradient(asked: ReduceDtype, columns: usize, written: ElementType) -> Self {
        match (Self::of_sums(asked, columns), written) {
            (Self::F32, ElementType::Bf16) => Self::Bf16,
            (of_sums, _) => of_sums,
        }
    }

    /// Bytes of so many elements, whole blocks where there are blocks. Saturates.
    #[must_use]
    pub const fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F32 => elements.saturating_mul(ElementType::F32.bytes()),
            Self::Bf16 => elements.saturating_mul(ElementType::Bf16.bytes()),
            Self::Mxfp8 => elements.saturating_add(elements / Self::BLOCK),
        }
    }

    /// The type of its elements, where they are values by themselves.
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
