//! The words for shapes and bytes: matrix, orientation, element, plane.
//!
//! Plain data. `planes.rs` says which planes a format has, `rules.rs` what a format accepts.

use std::fmt;

/// Rows and columns of a logical row-major matrix `[M, K]`. Leading dimensions count as rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Shape {
    /// M, the outer dimension, which sharding splits.
    pub rows: usize,
    /// K, the contiguous dimension.
    pub cols: usize,
}

impl Shape {
    /// A matrix of `rows` × `cols`.
    #[must_use]
    pub const fn new(rows: usize, cols: usize) -> Self {
        Self { rows, cols }
    }

    /// The shape of the transposed matrix.
    #[must_use]
    pub const fn transposed(self) -> Self {
        Self { rows: self.cols, cols: self.rows }
    }

    /// Number of elements. Saturates; [`super::Format::check_shape`] refuses shapes for which it would.
    #[must_use]
    pub const fn elements(self) -> usize {
        self.rows.saturating_mul(self.cols)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}", self.rows, self.cols)
    }
}

/// Along which axis of the weight the contraction of a matrix product runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orientation {
    /// Blocks along the rows of `[M, K]`, contraction over K: forward.
    Rowwise,
    /// Blocks along the columns, contraction over M: the data gradient. Stored as `[K, M]`, except MXFP8.
    Columnwise,
}

impl fmt::Display for Orientation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Rowwise => "rowwise",
            Self::Columnwise => "columnwise",
        })
    }
}

/// Type of one stored element of a plane or a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum ElementType {
    /// binary32, little endian.
    F32,
    /// bfloat16, little endian.
    Bf16,
    /// One byte: an FP8 code, two FP4 codes, or an E4M3 or E8M0 scale; in a buffer, whatever the closures
    /// mean by it.
    U8,
    /// 32 unsigned bits, little endian, such as a token id. Only for buffers, never for weights, their planes
    /// or their gradients.
    U32,
}

impl ElementType {
    /// Size of one element in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }
}

/// The name of the Rust type: `f32`, `bf16`, `u8`, `u32`.
impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::U8 => "u8",
            Self::U32 => "u32",
        })
    }
}

/// What a plane holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub enum PlaneKind {
    /// Element codes.
    Data,
    /// Decode scales of the blocks.
    Scale,
}

/// Kind, stored shape and element type of one plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct PlaneSpec {
    /// What the plane holds.
    pub kind: PlaneKind,
    /// Stored rows, padding included.
    pub rows: usize,
    /// Stored elements per row, padding included. NVFP4 data counts bytes, two codes each.
    pub cols: usize,
    /// Type of a stored element.
    pub element: ElementType,
}

impl PlaneSpec {
    /// Bytes of the plane.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.rows.saturating_mul(self.row_bytes())
    }

    /// Bytes of one row of the plane.
    #[must_use]
    pub const fn row_bytes(&self) -> usize {
        self.cols.saturating_mul(self.element.bytes())
    }
}

/// The bytes of one orientation of a weight. `scale` is empty for a format without a scale plane.
#[derive(Clone, Copy, Debug)]
pub struct Planes<'a> {
    /// The data plane.
    pub data: &'a [u8],
    /// The scale plane.
    pub scale: &'a [u8],
}

/// [`Planes`] to be written.
#[derive(Debug)]
pub struct PlanesMut<'a> {
    /// The data plane.
    pub data: &'a mut [u8],
    /// The scale plane.
    pub scale: &'a mut [u8],
}
