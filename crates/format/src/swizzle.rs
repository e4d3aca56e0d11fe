//! The scale layout a block-scaled GEMM reads.
//!
//! The padded scale matrix `[R, C]` (R a multiple of 128, C of 4) is cut into tiles of 128×4. A tile becomes
//! 512 contiguous bytes, tiles follow in row-major order, and scale (i, j) is at
//!
//! ```text
//! ((i / 128) · (C / 4) + j / 4) · 512 + (i % 32) · 16 + (i % 128) / 32 · 4 + j % 4
//! ```
//!
//! i runs along the rows of the stored data and j along its blocks; MXFP8 columnwise scales, which are not
//! stored transposed, are transposed on the way. A swizzled plane cannot be cut or joined along its rows, so
//! it is made last and used by the GEMM alone.

use super::FormatError;
use super::format::Format;
use super::shape::{Orientation, Shape};

/// How a scale plane is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScaleLayout {
    /// As [`Format::planes`] says.
    #[default]
    RowMajor,
    /// As a GEMM reads it; see [`swizzle_scale`].
    Swizzled,
}

/// Writes the swizzled copy of the padded scale plane of a weight of `shape`. Padding becomes zero, whatever
/// the source holds there. Both slices have the bytes of the padded plane.
///
/// # Errors
/// [`FormatError::NoSwizzledLayout`] for formats other than NVFP4 and MXFP8; columns that do not divide
/// into blocks; a slice of the wrong length.
pub fn swizzle_scale(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    scale: &[u8],
    swizzled: &mut [u8],
) -> Result<(), FormatError> {
    let block = match format {
        Format::Nvfp4(_) => 16,
        Format::Mxfp8 => 32,
        _ => return Err(FormatError::NoSwizzledLayout { format }),
    };
    format.check_blocks(shape)?;
    let shape = format.whole_blocks(shape);
    let expected = format.scale_bytes(orientation, shape).padded;
    for (what, actual) in [("the scale plane", scale.len()), ("the swizzled plane", swizzled.len())] {
        if actual != expected {
            return Err(FormatError::Length { what, expected, actual });
        }
    }
    swizzled.fill(0);
    let pitch = format.scale_row_bytes(orientation, shape);
    if (format, orientation) == (Format::Mxfp8, Orientation::Columnwise) {
        let layout = Layout::new(shape.rows / block);
        for (j, row) in scale.chunks_exact(pitch.max(1)).take(shape.rows / block).enumerate() {
            for (i, &byte) in row.iter().take(shape.cols).enumerate() {
                swizzled[layout.offset(i, j)] = byte;
            }
        }
    } else {
        let stored = format.stored_shape(orientation, shape);
        let layout = Layout::new(stored.cols / block);
        for (i, row) in scale.chunks_exact(pitch.max(1)).take(stored.rows).enumerate() {
            // Four neighbours of a row stay neighbours.
            for (tile, group) in row[..stored.cols / block].chunks(4).enumerate() {
                let at = layout.offset(i, tile * 4);
                swizzled[at..at + group.len()].copy_from_slice(group);
            }
        }
    }
    Ok(())
}

/// The swizzled layout of a matrix.
struct Layout {
    /// 128×4 tiles side by side.
    tile_cols: usize,
}

impl Layout {
    fn new(cols: usize) -> Self {
        Self { tile_cols: cols.div_ceil(4) }
    }

    fn offset(&self, i: usize, j: usize) -> usize {
        let tile = i / 128 * self.tile_cols + j / 4;
        tile * 512 + i % 32 * 16 + i % 128 / 32 * 4 + j % 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_a_tile_appear_in_row_order_0_32_64_96_1() {
        let layout = Layout::new(4);
        let order = [0, 32, 64, 96, 1, 33].map(|row| layout.offset(row, 0));
        assert_eq!(order, [0, 4, 8, 12, 16, 20]);
        assert_eq!(layout.offset(127, 3), 511);
        assert_eq!(layout.offset(128, 0), 512);
    }

    #[test]
    fn a_garbage_padding_does_not_reach_the_swizzled_plane() {
        let shape = Shape::new(48, 80);
        let mut scale = vec![0xEE; 128 * 8];
        for row in scale.chunks_exact_mut(8).take(48) {
            row[..5].fill(1);
        }
        let mut swizzled = vec![0x55; scale.len()];
        swizzle_scale(Format::NVFP4_2D, Orientation::Rowwise, shape, &scale, &mut swizzled).unwrap();
        assert!(swizzled.iter().all(|&byte| byte < 2));
        assert_eq!(swizzled.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 48 * 5);
    }

    #[test]
    fn a_format_with_f32_scales_has_no_swizzled_layout() {
        let error = swizzle_scale(
            Format::FP8_BLOCK128_POW2,
            Orientation::Rowwise,
            Shape::new(128, 128),
            &[0; 16],
            &mut [0; 16],
        );
        assert!(matches!(error, Err(FormatError::NoSwizzledLayout { .. })));
    }
}
