//! Sizes of planes: the memory of a weight in a format, per orientation, for a full weight and for a row shard.
//!
//! Laws:
//! - **PN-1** the first rows of a full weight's plane are its row shards' planes, one after the other: a
//!   gather lands in place, and only the padding rows below remain to be written.
//! - **PN-2** a shard's scale plane has no padding rows; padding columns are part of the row pitch and are
//!   sent.
//! - **PN-3** padding bytes are zero.
//!
//! Rows are counted in whole blocks ([`Format::whole_blocks`]), so a data plane may have more rows than the weight.
//!
//! Every multi-byte element is little endian and needs no alignment.

use super::format::{Format, Fp8Tile, Nvfp4Block};
use super::shape::{ElementType, Orientation, PlaneKind, PlaneSpec, Shape};

/// Bytes of a scale plane: one row per tile, without and with its padding rows.
#[derive(Clone, Copy)]
pub(super) struct ScaleBytes {
    pub(super) compact: usize,
    pub(super) shard: usize,
    pub(super) padded: usize,
}

/// Rows of the scale plane: as a GEMM wants them, only the valid ones, or only those that differ.
#[derive(Clone, Copy, PartialEq)]
enum ScaleRows {
    Padded,
    Valid,
    Compact,
}

impl Format {
    /// The planes of a full weight of `shape`, padded as a GEMM wants them: data first, then scales. Of a weight whose
    /// rows end within a block they hold the rows that complete it too, as zeros ([`Format::whole_blocks`]).
    #[must_use]
    pub fn planes(self, orientation: Orientation, shape: Shape) -> Vec<PlaneSpec> {
        self.plane_list(orientation, shape, ScaleRows::Padded)
    }

    /// The planes a row shard of `shape` stores: [`Format::planes`] without padding rows (PN-2). They are
    /// also what it sends, except on the compact wire ([`Format::compact_planes`]).
    #[must_use]
    pub fn shard_planes(self, orientation: Orientation, shape: Shape) -> Vec<PlaneSpec> {
        self.plane_list(orientation, shape, ScaleRows::Valid)
    }

    /// The planes of a row shard as the compact wire sends them: [`Format::shard_planes`], except that of the
    /// 16 equal scale rows of an NVFP4 16×16 tile only one is sent. [`super::expand_scale`] restores the
    /// others after the gather.
    #[must_use]
    pub fn compact_planes(self, orientation: Orientation, shape: Shape) -> Vec<PlaneSpec> {
        self.plane_list(orientation, shape, ScaleRows::Compact)
    }

    fn plane_list(self, orientation: Orientation, shape: Shape, rows: ScaleRows) -> Vec<PlaneSpec> {
        let mut planes = vec![self.data_plane(orientation, shape)];
        planes.extend(self.scale_plane(orientation, shape, rows));
        planes
    }

    /// Bytes per element of the planes of one orientation that a row shard of `shape` stores
    /// ([`Format::shard_planes`]).
    #[must_use]
    pub fn bytes_per_element(self, orientation: Orientation, shape: Shape) -> f64 {
        let scale = self.scale_bytes(orientation, shape).shard;
        let bytes = self.data_plane(orientation, shape).bytes() + scale;
        bytes as f64 / shape.elements().max(1) as f64
    }

    /// The data plane; it has no padding but the rows that complete the last blocks.
    pub(super) fn data_plane(self, orientation: Orientation, shape: Shape) -> PlaneSpec {
        let Shape { rows, cols } = self.stored_shape(orientation, self.whole_blocks(shape));
        let (cols, element) = match self {
            Self::F32 => (cols, ElementType::F32),
            Self::Bf16 => (cols, ElementType::Bf16),
            Self::Nvfp4(_) => (cols / 2, ElementType::U8),
            Self::Fp8Block(_) | Self::Mxfp8 | Self::Fp8Tensor(_) => (cols, ElementType::U8),
        };
        PlaneSpec { kind: PlaneKind::Data, rows, cols, element }
    }

    fn scale_plane(self, orientation: Orientation, shape: Shape, scale_rows: ScaleRows) -> Option<PlaneSpec> {
        let Shape { rows, cols } = self.stored_shape(orientation, self.whole_blocks(shape));
        let pad = |rows: usize, multiple: usize| match scale_rows {
            ScaleRows::Padded => round_up(rows, multiple),
            ScaleRows::Valid | ScaleRows::Compact => rows,
        };
        let (rows, cols, element) = match self {
            Self::F32 | Self::Bf16 | Self::Fp8Tensor(_) => return None,
            Self::Nvfp4(block) => {
                let rows = match (block, scale_rows) {
                    (Nvfp4Block::Tile16x16, ScaleRows::Compact) => rows / 16,
                    _ => pad(rows, 128),
                };
                (rows, round_up(cols.div_ceil(16), 4), ElementType::U8)
            }
            Self::Fp8Block(block) => match block.tile {
                Fp8Tile::Tile128x128 => {
                    (rows.div_ceil(128), round_up(cols.div_ceil(128), 4), ElementType::F32)
                }
                Fp8Tile::Row1x128 => (cols.div_ceil(128), round_up(rows, 4), ElementType::F32),
            },
            Self::Mxfp8 => match orientation {
                Orientation::Rowwise => (pad(rows, 128), round_up(cols / 32, 4), ElementType::U8),
                Orientation::Columnwise => (pad(rows / 32, 4), round_up(cols, 128), ElementType::U8),
            },
        };
        Some(PlaneSpec { kind: PlaneKind::Scale, rows, cols, element })
    }

    pub(super) fn scale_bytes(self, orientation: Orientation, shape: Shape) -> ScaleBytes {
        let bytes = |rows| self.scale_plane(orientation, shape, rows).map_or(0, |plane| plane.bytes());
        ScaleBytes {
            compact: bytes(ScaleRows::Compact),
            shard: bytes(ScaleRows::Valid),
            padded: bytes(ScaleRows::Padded),
        }
    }

    /// Bytes of one row of the scale plane, padding columns included; 0 without a scale plane.
    pub(super) fn scale_row_bytes(self, orientation: Orientation, shape: Shape) -> usize {
        self.scale_plane(orientation, shape, ScaleRows::Valid).map_or(0, |plane| plane.row_bytes())
    }

    /// The matrix whose rows are stored: the transpose for columnwise planes, except in MXFP8.
    pub(super) fn stored_shape(self, orientation: Orientation, shape: Shape) -> Shape {
        match (self, orientation) {
            (Self::Mxfp8, _) | (_, Orientation::Rowwise) => shape,
            (_, Orientation::Columnwise) => shape.transposed(),
        }
    }

    /// Number of block amaxes of a (shard of a) weight of `shape`; 0 for a format without blocks.
    #[must_use]
    pub fn amax_blocks(self, orientation: Orientation, shape: Shape) -> usize {
        let Shape { rows, cols } = self.stored_shape(orientation, shape);
        match self {
            Self::F32 | Self::Bf16 | Self::Fp8Tensor(_) => 0,
            Self::Nvfp4(Nvfp4Block::Tile16x16) => rows.div_ceil(16).saturating_mul(cols.div_ceil(16)),
            Self::Nvfp4(Nvfp4Block::Row1x16) => rows.saturating_mul(cols.div_ceil(16)),
            Self::Fp8Block(block) => match block.tile {
                Fp8Tile::Tile128x128 => rows.div_ceil(128).saturating_mul(cols.div_ceil(128)),
                Fp8Tile::Row1x128 => rows.saturating_mul(cols.div_ceil(128)),
            },
            Self::Mxfp8 => match orientation {
                Orientation::Rowwise => rows.saturating_mul(cols.div_ceil(32)),
                Orientation::Columnwise => rows.div_ceil(32).saturating_mul(cols),
            },
        }
    }

    /// Number of encode factors the cast multiplies by: one per block, one per tensor, or none.
    #[must_use]
    pub fn encode_blocks(self, orientation: Orientation, shape: Shape) -> usize {
        match self {
            Self::Fp8Tensor(_) => 1,
            _ => self.amax_blocks(orientation, shape),
        }
    }
}

const fn round_up(n: usize, multiple: usize) -> usize {
    n.div_ceil(multiple).saturating_mul(multiple)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(format: Format, orientation: Orientation, shape: Shape) -> Vec<(usize, usize)> {
        format.planes(orientation, shape).iter().map(|plane| (plane.rows, plane.cols)).collect()
    }

    /// Conformance A9.
    #[test]
    fn a9_planes_have_the_padded_shapes_of_the_specification() {
        use Orientation::{Columnwise, Rowwise};
        let shape = Shape::new(144, 272);
        assert_eq!(stored(Format::NVFP4_2D, Rowwise, shape), [(144, 136), (256, 20)]);
        assert_eq!(stored(Format::NVFP4_2D, Columnwise, shape), [(272, 72), (384, 12)]);
        assert_eq!(stored(Format::NVFP4_1D, Columnwise, shape), [(272, 72), (384, 12)]);
        assert_eq!(stored(Format::FP8_BLOCK128_POW2, Rowwise, shape), [(144, 272), (2, 4)]);
        assert_eq!(stored(Format::FP8_BLOCK128_POW2, Columnwise, shape), [(272, 144), (3, 4)]);
        assert_eq!(stored(Format::FP8_BLOCK1X128_POW2, Rowwise, shape), [(144, 272), (3, 144)]);
        assert_eq!(stored(Format::FP8_BLOCK1X128_POW2, Columnwise, shape), [(272, 144), (2, 272)]);
        assert_eq!(stored(Format::FP8_TENSOR_E4M3, Columnwise, shape), [(272, 144)]);
        let shape = Shape::new(160, 288);
        assert_eq!(stored(Format::Mxfp8, Rowwise, shape), [(160, 288), (256, 12)]);
        assert_eq!(stored(Format::Mxfp8, Columnwise, shape), [(160, 288), (8, 384)]);
    }

    /// PN-1, PN-2: the sizes; the bytes are compared by `tests/format/gather.rs`.
    #[test]
    fn shards_laid_end_to_end_are_the_first_rows_of_the_full_planes() {
        for format in Format::CANONICAL {
            if format.check_weight().is_err() {
                continue;
            }
            let rows = format.row_tile() * 3;
            let full = Shape::new(rows * 5, 272 + 16);
            for &orientation in format.stored_orientations() {
                let shard = format.shard_planes(orientation, Shape::new(rows, full.cols));
                for (shard, full) in shard.iter().zip(format.planes(orientation, full)) {
                    assert_eq!((shard.cols, shard.element), (full.cols, full.element), "{format}");
                    assert!(shard.rows * 5 <= full.rows, "{format}");
                    if shard.kind == PlaneKind::Data {
                        assert_eq!(shard.rows * 5, full.rows, "{format}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_compact_wire_of_nvfp4_takes_0_504_bytes_per_element() {
        let shape = Shape::new(4096, 4096);
        let bytes = |format: Format| {
            let planes = format.compact_planes(Orientation::Rowwise, shape);
            planes.iter().map(PlaneSpec::bytes).sum::<usize>() as f64 / shape.elements() as f64
        };
        assert_eq!(bytes(Format::NVFP4_2D), 0.5 + 1.0 / 256.0);
        for format in Format::CANONICAL {
            if format != Format::NVFP4_2D {
                assert_eq!(bytes(format), format.bytes_per_element(Orientation::Rowwise, shape));
            }
        }
    }

    #[test]
    fn bytes_per_element_are_those_of_the_specification() {
        let shape = Shape::new(4096, 4096);
        let cost = |format: Format| format.bytes_per_element(Orientation::Rowwise, shape);
        assert_eq!(cost(Format::F32), 4.0);
        assert_eq!(cost(Format::Bf16), 2.0);
        assert_eq!(cost(Format::NVFP4_2D), 0.5625);
        assert_eq!(cost(Format::FP8_BLOCK128_POW2), 1.0 + 4.0 / 16384.0);
        assert_eq!(cost(Format::FP8_BLOCK1X128_POW2), 1.0 + 4.0 / 128.0);
        assert_eq!(cost(Format::Mxfp8), 1.03125);
        assert_eq!(cost(Format::FP8_TENSOR_E4M3), 1.0);
    }
}
