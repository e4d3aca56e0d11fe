//! Rules of a format: shapes, alignment, sharding, orientations.
//!
//! Every refusal names the reason and what to change. These are questions about a format and a shape alone,
//! so that a planner can ask them before any memory exists.

use super::format::{Format, Fp8Block, Fp8Tile, Nvfp4Block, ScaleRule};
use super::{FormatError, Orientation, Shape};

impl Format {
    /// What the rows of a row shard must be a multiple of, unless it is the weight's last one, so that no block
    /// spans two shards.
    #[must_use]
    pub const fn row_tile(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::Fp8Tensor(_) => 1,
            Self::Nvfp4(_) => 16,
            Self::Fp8Block(block) => match block.tile {
                Fp8Tile::Tile128x128 => 128,
                Fp8Tile::Row1x128 => 1,
            },
            Self::Mxfp8 => 32,
        }
    }

    /// What a cut between columns must be at a multiple of, so that no block spans two parts of a weight.
    #[must_use]
    pub const fn column_tile(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::Fp8Tensor(_) => 1,
            Self::Nvfp4(_) => 16,
            Self::Fp8Block(_) => 128,
            Self::Mxfp8 => 32,
        }
    }

    /// What both dimensions of planes are a multiple of. Blocks of the other formats may be cut at either edge.
    const fn side_of_planes(self) -> usize {
        match self {
            Self::Nvfp4(_) => 16,
            Self::Mxfp8 => 32,
            Self::F32 | Self::Bf16 | Self::Fp8Block(_) | Self::Fp8Tensor(_) => 1,
        }
    }

    /// The matrix that the planes of a weight of `shape` hold (FO-6): its rows in NVFP4 rounded up to 16, in MXFP8 to
    /// 32, and as they are in the other formats. Saturates.
    #[must_use]
    pub const fn whole_blocks(self, shape: Shape) -> Shape {
        let side = self.side_of_planes();
        Shape { rows: shape.rows.div_ceil(side).saturating_mul(side), cols: shape.cols }
    }

    /// Whether a weight of `shape` can be quantized.
    ///
    /// # Errors
    /// [`FormatError::EmptyShape`], [`FormatError::ShapeTooLarge`], or columns that do not divide into blocks: NVFP4
    /// needs a multiple of 16 and MXFP8 of 32. Any number of rows will do ([`Format::whole_blocks`]).
    pub fn check_shape(self, shape: Shape) -> Result<(), FormatError> {
        if shape.rows == 0 || shape.cols == 0 {
            return Err(FormatError::EmptyShape { shape });
        }
        self.check_blocks(shape)
    }

    /// [`Format::check_shape`] for a shard, which may have zero rows.
    pub(super) fn check_blocks(self, shape: Shape) -> Result<(), FormatError> {
        // Sixteen times the elements bounds the bytes of every plane, padding included, and of every buffer.
        let padded = |n: usize| n.checked_next_multiple_of(128);
        let bytes = padded(shape.rows)
            .zip(padded(shape.cols))
            .and_then(|(rows, cols)| rows.checked_mul(cols))
            .and_then(|elements| elements.checked_mul(16));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(FormatError::ShapeTooLarge { shape });
        }
        let multiple = self.side_of_planes();
        if !shape.cols.is_multiple_of(multiple) {
            return Err(FormatError::ColumnsNotAligned { format: self, shape, multiple });
        }
        Ok(())
    }

    /// Whether a sharded weight may use the format.
    ///
    /// # Errors
    /// [`FormatError::NotAWeightFormat`] for NVFP4 1-D and FP8 1×128, the activation formats: their
    /// columnwise planes do not follow from the gathered rowwise ones.
    pub fn check_weight(self) -> Result<(), FormatError> {
        match self {
            Self::Nvfp4(Nvfp4Block::Row1x16) => Err(FormatError::NotAWeightFormat {
                format: self,
                reason: "its 1×16 blocks are for activations, and a gathered weight could not be used columnwise",
                instead: Self::NVFP4_2D,
            }),
            Self::Fp8Block(block) if block.tile == Fp8Tile::Row1x128 => Err(FormatError::NotAWeightFormat {
                format: self,
                reason: "its 1×128 blocks are for activations, and its scale plane has the rows in the inner dimension, so shards cannot be gathered",
                instead: Self::Fp8Block(Fp8Block { tile: Fp8Tile::Tile128x128, ..block }),
            }),
            _ => Ok(()),
        }
    }

    /// Whether a tensor with this amax has a scale.
    ///
    /// # Errors
    /// [`FormatError::NonFiniteAmax`] for NVFP4, whose scale would be 0 or NaN. The other formats take scale
    /// 1.
    pub fn check_tensor_amax(self, amax: f32) -> Result<(), FormatError> {
        match self {
            Self::Nvfp4(_) if !amax.is_finite() => Err(FormatError::NonFiniteAmax { format: self, amax }),
            _ => Ok(()),
        }
    }

    /// Whether the matrix products of a device of this compute capability can read the format, for code that
    /// multiplies planes by its own kernels. The linear layers of the CUDA backend multiply in bf16 what a device
    /// cannot read.
    ///
    /// # Errors
    /// [`FormatError::NotOnDevice`]: from 10.0 on, FP8 blocks are run as MXFP8, whose scales are powers of
    /// two.
    pub fn check_device(self, compute_capability: (u32, u32)) -> Result<(), FormatError> {
        match self {
            Self::Fp8Block(block) if compute_capability >= (10, 0) && block.scale == ScaleRule::Float32 => {
                Err(FormatError::NotOnDevice {
                    format: self,
                    reason: "it takes power-of-two block scales only",
                    instead: Self::Fp8Block(Fp8Block { scale: ScaleRule::PowerOfTwo, ..block }),
                })
            }
            _ => Ok(()),
        }
    }

    /// The orientations a shard stores and a gather can send. The other one, if any, is derived.
    #[must_use]
    pub const fn stored_orientations(self) -> &'static [Orientation] {
        match self {
            Self::Mxfp8 => &[Orientation::Rowwise, Orientation::Columnwise],
            _ => &[Orientation::Rowwise],
        }
    }

    /// Whether the columnwise planes follow from the rowwise ones, bit for bit.
    ///
    /// # Errors
    /// [`FormatError::CannotDeriveColumnwise`] with the reason.
    pub fn derives_columnwise(self) -> Result<(), FormatError> {
        let reason = match self {
            Self::Nvfp4(Nvfp4Block::Row1x16) => "its 1×16 blocks become 16×1; quantize the transpose",
            Self::Fp8Block(block) if block.tile == Fp8Tile::Row1x128 => {
                "its 1×128 blocks become 128×1; quantize the transpose"
            }
            Self::Mxfp8 => "its 1×32 blocks become 32×1; quantize both orientations from the master",
            _ => return Ok(()),
        };
        Err(FormatError::CannotDeriveColumnwise { format: self, reason })
    }

    /// Whether codes and scales of a block follow from that block alone, in the one orientation that is stored, so that
    /// whoever makes a block can cast it before the rest is there.
    #[must_use]
    pub const fn casts_by_blocks(self) -> bool {
        !self.needs_tensor_amax() && self.stored_orientations().len() == 1
    }

    /// Whether the scales need the amax of the whole tensor, hence a maximum over the ranks.
    #[must_use]
    pub const fn needs_tensor_amax(self) -> bool {
        matches!(self, Self::Nvfp4(_) | Self::Fp8Tensor(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_that_do_not_divide_into_blocks_are_refused_with_the_columns_to_pad_to() {
        let error = Format::NVFP4_2D.check_shape(Shape::new(100, 60)).unwrap_err();
        assert!(error.to_string().contains("pad the columns to 64"), "{error}");
        let error = Format::Mxfp8.check_shape(Shape::new(64, 80)).unwrap_err();
        assert!(error.to_string().contains("pad the columns to 96"), "{error}");
        assert!(Format::FP8_BLOCK128_POW2.check_shape(Shape::new(303, 300)).is_ok());
    }

    #[test]
    fn an_empty_or_unaddressable_shape_is_refused() {
        for format in Format::CANONICAL {
            assert!(matches!(format.check_shape(Shape::new(0, 16)), Err(FormatError::EmptyShape { .. })));
            let huge = Shape::new(usize::MAX / 64, 1 << 10);
            assert!(matches!(format.check_shape(huge), Err(FormatError::ShapeTooLarge { .. })), "{format}");
        }
    }

    /// Conformance B3 and B4.
    #[test]
    fn b3_b4_one_dimensional_blocks_refuse_to_derive_columnwise_and_to_be_sharded() {
        for format in [Format::NVFP4_1D, Format::FP8_BLOCK1X128_POW2] {
            assert!(matches!(format.derives_columnwise(), Err(FormatError::CannotDeriveColumnwise { .. })));
            assert!(matches!(format.check_weight(), Err(FormatError::NotAWeightFormat { .. })));
        }
        assert!(Format::Mxfp8.derives_columnwise().is_err());
        assert!(Format::Mxfp8.check_weight().is_ok());
    }

    /// Conformance F6.
    #[test]
    fn f6_free_block_scales_are_refused_from_compute_capability_10_on() {
        let format = Format::FP8_BLOCK128_F32SCALE;
        assert_eq!(format.check_device((9, 0)), Ok(()));
        for capability in [(10, 0), (10, 3), (12, 0)] {
            let error = format.check_device(capability).unwrap_err();
            assert!(error.to_string().contains("use fp8_block128_pow2"), "{error}");
            assert_eq!(Format::FP8_BLOCK128_POW2.check_device(capability), Ok(()));
        }
    }
}
