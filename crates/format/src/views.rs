//! Other shapes of the same bytes.
//!
//! A quantized weight is not an array of numbers: blocks and packed nibbles fix how it may be looked at. What
//! needs no new bytes is an alias. Everything else is refused with the reason, and the caller dequantizes or
//! quantizes anew. Nothing here silently falls back to high precision.
//!
//! | operation | alias | refused |
//! |---|---|---|
//! | [`Quantized::view`] | the same shape; other leading dimensions over the same last one | another last dimension; FP8 128×128: other last two |
//! | [`Quantized::as_strided`] | the same shape, contiguous, offset 0 | anything else |
//! | [`Quantized::slice`] | a whole dimension | a part of one |
//! | [`Quantized::split_rows`] | – (copies, MXFP8 only, whole blocks) | other formats, parts of blocks |

use std::ops::Range;

use super::FormatError;
use super::format::{Format, Fp8Tile};
use super::quantized::{OwnedPlanes, Quantized};
use super::shape::{Orientation, Shape};
use super::swizzle::ScaleLayout;

/// A quantized weight under other dimensions. Holds no bytes of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct View<'a> {
    weight: &'a Quantized,
    dimensions: Vec<usize>,
}

impl<'a> View<'a> {
    /// The weight whose bytes these are.
    #[must_use]
    pub fn weight(&self) -> &'a Quantized {
        self.weight
    }

    /// The dimensions of the view.
    #[must_use]
    pub fn dimensions(&self) -> &[usize] {
        &self.dimensions
    }
}

impl Quantized {
    /// The weight with other dimensions of the same element count. The last one stays, and 128×128 blocks
    /// keep the last two; f32, bf16 and per-tensor FP8 take any.
    ///
    /// # Errors
    /// [`FormatError::ViewRefused`]; [`FormatError::Swizzled`], before anything else is checked.
    pub fn view(&self, dimensions: &[usize]) -> Result<View<'_>, FormatError> {
        if self.scale_layout == ScaleLayout::Swizzled {
            return Err(FormatError::Swizzled { format: self.format, what: "viewed" });
        }
        let elements = dimensions.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        if elements != Some(self.shape.elements()) || dimensions.is_empty() {
            return Err(self.refused("the number of elements differs"));
        }
        let Shape { rows, cols } = self.shape;
        let keeps_last = dimensions.last() == Some(&cols);
        match self.format {
            Format::F32 | Format::Bf16 | Format::Fp8Tensor(_) => {}
            _ if !keeps_last => {
                return Err(self.refused("blocks run along the last dimension, which must stay"));
            }
            Format::Fp8Block(block) if block.tile == Fp8Tile::Tile128x128 => {
                if !dimensions.ends_with(&[rows, cols]) {
                    return Err(
                        self.refused("blocks of 128×128 span the last two dimensions, which must stay")
                    );
                }
            }
            Format::Nvfp4(_) | Format::Fp8Block(_) | Format::Mxfp8 => {}
        }
        Ok(View { weight: self, dimensions: dimensions.to_vec() })
    }

    /// The weight itself, if the arguments describe it: its shape, row-major strides in elements, offset 0.
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn as_strided(
        &self,
        dimensions: [usize; 2],
        strides: [usize; 2],
        offset: usize,
    ) -> Result<View<'_>, FormatError> {
        let Shape { rows, cols } = self.shape;
        if dimensions == [rows, cols] && strides == [cols, 1] && offset == 0 {
            self.view(&dimensions)
        } else {
            Err(self.refused("only the identity can be expressed with strides over packed blocks"))
        }
    }

    /// The weight itself, if `range` covers `dimension` (0 rows, 1 columns).
    ///
    /// # Errors
    /// As [`Self::view`].
    pub fn slice(&self, dimension: usize, range: Range<usize>) -> Result<View<'_>, FormatError> {
        let Shape { rows, cols } = self.shape;
        match [rows, cols].get(dimension) {
            Some(&length) if range == (0..length) => self.view(&[rows, cols]),
            Some(_) => {
                Err(self.refused("a part of a dimension would need other padding, or part of a block"))
            }
            None => Err(self.refused("a weight has two dimensions, 0 and 1")),
        }
    }

    /// The weight cut into quantized chunks of `rows` rows; the last may have fewer. Their scales are padded
    /// anew.
    ///
    /// # Errors
    /// [`FormatError::ViewRefused`] for a format other than MXFP8, or when `rows` is not a positive multiple
    /// of 32; [`FormatError::Swizzled`].
    pub fn split_rows(&self, rows: usize) -> Result<Vec<Self>, FormatError> {
        if self.format != Format::Mxfp8 {
            return Err(self.refused("only mxfp8 can be split; quantize row shards instead"));
        }
        if rows == 0 || !rows.is_multiple_of(self.format.row_tile()) {
            return Err(self.refused("chunks must be whole blocks of 32 rows"));
        }
        let mut chunks = vec![];
        for start in (0..self.shape.rows).step_by(rows) {
            let shape = Shape::new(rows.min(self.shape.rows - start), self.shape.cols);
            let mut chunk = Self { shape, rowwise: None, columnwise: None, ..*self };
            for (orientation, whole, part) in [
                (Orientation::Rowwise, &self.rowwise, &mut chunk.rowwise),
                (Orientation::Columnwise, &self.columnwise, &mut chunk.columnwise),
            ] {
                if whole.is_some() {
                    let whole = self.row_major(orientation, "split")?;
                    *part = Some(self.rows_of(orientation, whole, start, shape));
                }
            }
            chunks.push(chunk);
        }
        Ok(chunks)
    }

    /// Copies the planes both weights have.
    ///
    /// # Errors
    /// [`FormatError::ViewRefused`] unless format, shape and scale layout are the same: padded planes of
    /// different shapes do not correspond.
    pub fn copy_from(&mut self, source: &Self) -> Result<(), FormatError> {
        if (self.format, self.shape, self.scale_layout) != (source.format, source.shape, source.scale_layout)
        {
            return Err(self.refused("the source has another format, shape or scale layout"));
        }
        for (target, source) in
            [(&mut self.rowwise, &source.rowwise), (&mut self.columnwise, &source.columnwise)]
        {
            if let (Some(target), Some(source)) = (target, source) {
                target.data.copy_from_slice(&source.data);
                target.scale.copy_from_slice(&source.scale);
            }
        }
        (self.amax, self.tensor_scale) = (source.amax, source.tensor_scale);
        Ok(())
    }

    fn rows_of(
        &self,
        orientation: Orientation,
        whole: &OwnedPlanes,
        start: usize,
        shape: Shape,
    ) -> OwnedPlanes {
        let before = Shape::new(start, shape.cols);
        let mut part = OwnedPlanes::zeroed(self.format, orientation, shape);
        let from = self.format.data_plane(orientation, before).bytes();
        let len = part.data.len();
        part.data.copy_from_slice(&whole.data[from..from + len]);
        let from = self.format.scale_bytes(orientation, before).shard;
        let len = self.format.scale_bytes(orientation, shape).shard;
        part.scale[..len].copy_from_slice(&whole.scale[from..from + len]);
        part
    }

    fn refused(&self, reason: &'static str) -> FormatError {
        FormatError::ViewRefused { format: self.format, shape: self.shape, reason }
    }
}
