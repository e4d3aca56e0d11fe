//! The compact wire: scale rows that repeat are sent once.
//!
//! In NVFP4 16×16 tiles the same scale row is repeated 16 times in the plane. A shard may store and send one
//! row per tile ([`Format::compact_planes`], which [`super::fused_scale`] writes): 0.504 instead of 0.5625
//! bytes per element. The shards land one after the other in the first rows of the padded plane, where a
//! plain gather would put them, and [`expand_scale`] spreads them there. That needs no second buffer and
//! changes no address.

use super::FormatError;
use super::format::{Format, Nvfp4Block};
use super::shape::{Orientation, Shape};
use super::stages::check_length;

/// Spreads the compact rows at the beginning of a padded scale plane over the plane, and zeroes its padding.
///
/// `shape` is that of the full weight; `scale_plane` has the bytes of [`Format::planes`]. For formats whose
/// compact plane is the plain one, only the padding rows change.
///
/// # Errors
/// An orientation that is not gathered, columns that do not divide into blocks, a plane of the wrong
/// length.
pub fn expand_scale(
    format: Format,
    orientation: Orientation,
    shape: Shape,
    scale_plane: &mut [u8],
) -> Result<(), FormatError> {
    super::stages::check_stage(format, orientation, shape)?;
    let bytes = format.scale_bytes(orientation, shape);
    check_length("the scale plane", bytes.padded, scale_plane.len())?;
    if format == Format::Nvfp4(Nvfp4Block::Tile16x16) {
        const HEIGHT: usize = 16;
        let pitch = format.scale_row_bytes(orientation, shape);
        // From the last tile up: its rows lie at or below the compact row they come from.
        for tile in (0..shape.rows.div_ceil(HEIGHT)).rev() {
            let source = tile * pitch..(tile + 1) * pitch;
            for row in (tile * HEIGHT..(tile + 1) * HEIGHT).rev() {
                scale_plane.copy_within(source.clone(), row * pitch);
            }
        }
    }
    scale_plane[bytes.shard..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Directions, Via, quantize};

    #[test]
    fn compact_rows_expand_in_place_to_the_plane_of_the_whole_weight() {
        for shape in [Shape::new(16, 16), Shape::new(48, 80), Shape::new(144, 272), Shape::new(256, 64)] {
            let weight: Vec<f32> = (0..shape.elements()).map(|at| (at % 977) as f32).collect();
            let whole = quantize(Format::NVFP4_2D, Directions::Rowwise, Via::None, shape, &weight).unwrap();
            let expected = whole.rowwise.unwrap().scale;
            let pitch = Format::NVFP4_2D.scale_row_bytes(Orientation::Rowwise, shape);
            let mut plane = vec![0xEE; expected.len()];
            for tile in 0..shape.rows / 16 {
                plane[tile * pitch..][..pitch].copy_from_slice(&expected[tile * 16 * pitch..][..pitch]);
            }
            expand_scale(Format::NVFP4_2D, Orientation::Rowwise, shape, &mut plane).unwrap();
            assert_eq!(plane, expected, "{shape}");
        }
    }
}
