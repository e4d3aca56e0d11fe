//! The cut of a weight's planes into shards.
//!
//! Law: planes of a whole weight are those of its shards one after the other (PN-1), so a shard is one range of
//! bytes of each, from which the copies of rows that the format repeats are left out. Nothing is rounded or scaled
//! again. Rows of the shard beyond the weight are what zeros are quantized to.

use std::ops::Range;

use super::weight::WeightLayout;
use warpweft_base::id::RankId;
use warpweft_format::{FormatError, Orientation, OwnedPlanes, PlaneSpec, Via, quantize_shard};

/// A rank's shard in the planes of the whole weight, in one orientation.
#[derive(Clone, Copy, Debug)]
pub struct PlaneCut<'layout> {
    layout: &'layout WeightLayout,
    orientation: Orientation,
    rank: RankId,
}

impl<'layout> PlaneCut<'layout> {
    /// That of `rank`.
    #[must_use]
    pub const fn new(layout: &'layout WeightLayout, orientation: Orientation, rank: RankId) -> Self {
        Self { layout, orientation, rank }
    }

    /// The shard, with `read` giving a range of bytes of a plane of the whole weight as [`Format::planes`] lays it out.
    ///
    /// # Errors
    /// What `read` fails with.
    ///
    /// [`Format::planes`]: warpweft_format::Format::planes
    pub fn shard<E: From<FormatError>>(
        self,
        tensor_scale: f32,
        mut read: impl FnMut(&PlaneSpec, Range<usize>) -> Result<Vec<u8>, E>,
    ) -> Result<OwnedPlanes, E> {
        let Self { layout, orientation, rank } = self;
        let (format, stored, rows) = (layout.format, layout.shard.stored(), layout.shard.rows_of(rank));
        let mut shard = if rows.rows < stored.rows {
            let zeros = vec![0.0; stored.elements()];
            let (planes, _) =
                quantize_shard(format, Via::None, stored, &zeros, |_| Ok::<_, E>(tensor_scale))?;
            let sides = format.stored_orientations().iter().zip(planes);
            sides.filter(|(side, _)| **side == orientation).map(|(_, planes)| planes).next()
        } else {
            None
        }
        .unwrap_or(OwnedPlanes { data: Vec::new(), scale: Vec::new() });
        let whole = format.planes(orientation, layout.shard.shape);
        let valid = format.shard_planes(orientation, stored);
        let compact = layout.shard_planes(orientation);
        let tiles = stored.rows / format.row_tile();
        let first = rows.begin / format.row_tile();
        let targets = [&mut shard.data, &mut shard.scale];
        for (target, ((whole, valid), compact)) in
            targets.into_iter().zip(whole.iter().zip(&valid).zip(&compact))
        {
            let (tile, kept) = (valid.bytes() / tiles, compact.bytes() / tiles);
            let held = rows.rows.div_ceil(format.row_tile());
            let begin = (first * tile).min(whole.bytes());
            let bytes = read(whole, begin..((first + held) * tile).min(whole.bytes()))?;
            target.resize(compact.bytes(), 0);
            for (from, to) in bytes.chunks(tile.max(1)).zip(target.chunks_mut(kept.max(1))) {
                let length = from.len().min(to.len());
                to[..length].copy_from_slice(&from[..length]);
            }
        }
        Ok(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Weights;
    use crate::model::{Mesh, WeightSpec};
    use warpweft_format::{Directions, Format, quantize};

    /// FW-1, for any number of ranks and rows that end within a block, with shards that are padded and ranks without a
    /// row.
    #[test]
    fn a_shard_cut_of_a_whole_weights_planes_is_what_its_own_rows_are_quantized_to() {
        let formats = [
            Format::F32,
            Format::Bf16,
            Format::NVFP4_2D,
            Format::Mxfp8,
            Format::FP8_BLOCK128_POW2,
            Format::FP8_BLOCK128_F32SCALE,
            Format::FP8_TENSOR_E4M3,
        ];
        let meshes = [1, 2, 3, 5].map(|ranks| Mesh::new(ranks).unwrap()).into_iter();
        let meshes: Vec<Mesh> = meshes.chain([Mesh::hybrid(4, 2).unwrap()]).collect();
        let cases = formats.into_iter().flat_map(|format| [288, 83].map(|rows| (format, rows)));
        for (format, rows, mesh) in
            cases.flat_map(|(format, rows)| meshes.iter().map(move |mesh| (format, rows, *mesh)))
        {
            let spec = WeightSpec::sharded("w", rows, 160, format);
            let weights = Weights::new(std::slice::from_ref(&spec), mesh);
            let (layout, shape) = (&weights.layouts[0], spec.shape);
            let value = |at: usize| ((at * 37 % 1009) as f32 - 500.0) * (1.0 + (at / 160) as f32);
            let values: Vec<f32> = (0..shape.elements()).map(value).collect();
            let directions = match format.stored_orientations() {
                [_] => Directions::Rowwise,
                _ => Directions::Both,
            };
            let whole = quantize(format, directions, Via::None, shape, &values).unwrap();
            let sides = [&whole.rowwise, &whole.columnwise];
            for rank in mesh.iter() {
                let rows = layout.shard.rows_of(rank);
                let mut own = values[rows.begin * 160..(rows.begin + rows.rows) * 160].to_vec();
                own.resize(layout.stored_elements(), 0.0);
                let amax = |_| Ok::<_, FormatError>(whole.amax);
                let (expected, scale) =
                    quantize_shard(format, Via::None, layout.shard.stored(), &own, amax).unwrap();
                assert_eq!(scale, whole.tensor_scale, "{format}");
                for (number, orientation) in format.stored_orientations().iter().enumerate() {
                    let planes = sides[number].as_ref().unwrap();
                    let read = |spec: &PlaneSpec, range: Range<usize>| {
                        let plane = match spec.kind {
                            warpweft_format::PlaneKind::Data => &planes.data,
                            warpweft_format::PlaneKind::Scale => &planes.scale,
                        };
                        Ok::<_, FormatError>(plane[range].to_vec())
                    };
                    let cut = PlaneCut::new(layout, *orientation, rank);
                    let found = cut.shard(whole.tensor_scale, read).unwrap();
                    assert_eq!(found, expected[number], "{format} {orientation}, {rank} of {mesh}, {shape}");
                }
            }
        }
    }
}
