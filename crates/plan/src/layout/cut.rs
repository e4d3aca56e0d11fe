//! The cut of a weight's planes into shards.
//!
//! Law: planes of a whole weight are those of its shards one after the other (PN-1), so a shard is one range of
//! bytes of each, or one for each segment of a fused weight, from which the copies of rows that the format repeats are
//! left out, and of a row-parallel weight the columns of other ranks. Nothing is rounded or scaled again. Rows of the
//! shard beyond the weight are what zeros are quantized to.

use std::ops::Range;

use super::plane_columns::PlaneColumns;
use super::weight::WeightLayout;
use warpweft_base::id::RankId;
use warpweft_format::{FormatError, Orientation, OwnedPlanes, PlaneSpec, Via, quantize_shard};

/// Bytes of a whole plane that are read at once where a rank has some columns of it.
const PIECE: usize = 1 << 20;

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
        let (format, stored) = (layout.format, layout.shard.stored());
        let mut shard = if layout.shard.rows_of(rank).rows < stored.rows {
            let zeros = vec![0.0; stored.elements()];
            let (planes, _) =
                quantize_shard(format, Via::None, stored, &zeros, |_| Ok::<_, E>(tensor_scale))?;
            let sides = format.stored_orientations().iter().zip(planes);
            sides.filter(|(side, _)| **side == orientation).map(|(_, planes)| planes).next()
        } else {
            None
        }
        .unwrap_or(OwnedPlanes { data: Vec::new(), scale: Vec::new() });
        let whole = format.planes(orientation, layout.shard.whole());
        let valid = format.shard_planes(orientation, stored);
        let compact = layout.shard_planes(orientation);
        let tiles = stored.rows / format.row_tile();
        let first_column = layout.shard.columns_of(rank).start;
        let targets = [&mut shard.data, &mut shard.scale];
        for (target, ((whole, valid), compact)) in
            targets.into_iter().zip(whole.iter().zip(&valid).zip(&compact))
        {
            let columns = PlaneColumns::new(layout, orientation, whole.kind, first_column);
            let (rows, kept) = (valid.rows / tiles, compact.bytes() / tiles);
            let [tile, own] = [columns.of_whole(), columns.of_part()].map(|bytes| rows * bytes);
            target.resize(compact.bytes(), 0);
            let mut before = 0;
            for block in layout.shard.blocks_of(rank) {
                let first = block.first.rows / format.row_tile();
                let held = block.shape.rows.div_ceil(format.row_tile());
                // All of it at once, unless most of what is read belongs to others.
                let at_once = if columns.has_all() { held } else { PIECE / tile.max(1) }.max(1);
                for begin in (0..held).step_by(at_once) {
                    let end = (begin + at_once).min(held);
                    let place = |tiles: usize| ((first + tiles) * tile).min(whole.bytes());
                    let bytes = columns.take(read(whole, place(begin)..place(end))?);
                    let to = target.get_mut((before + begin) * kept..).unwrap_or_default();
                    for (from, to) in bytes.chunks(own.max(1)).zip(to.chunks_mut(kept.max(1))) {
                        let length = from.len().min(to.len());
                        to[..length].copy_from_slice(&from[..length]);
                    }
                }
                before += held;
            }
        }
        Ok(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Weights;
    use crate::model::{Block, Mesh, Segments, TensorParallel, WeightSpec};
    use warpweft_format::{Directions, Format, PlaneKind, quantize};

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
                            PlaneKind::Data => &planes.data,
                            PlaneKind::Scale => &planes.scale,
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

    /// FW-1 with tensor parallelism: a rank's planes are those of its block, and the planes of all blocks are those of
    /// the whole, with scale columns that are padded otherwise in parts than in the whole.
    #[test]
    fn planes_of_the_parts_of_a_cut_weight_are_those_of_the_whole() {
        let cases = [
            (Format::Bf16, 40, 24),
            (Format::NVFP4_2D, 64, 160),
            (Format::Mxfp8, 128, 192),
            (Format::FP8_BLOCK128_POW2, 512, 256),
            (Format::FP8_TENSOR_E4M3, 40, 24),
        ];
        let meshes = [(2, 1, 2), (4, 1, 2), (8, 2, 2)];
        let column = TensorParallel::ColumnParallel;
        let hows = [(column, false), (column, true), (TensorParallel::RowParallel, false)];
        for ((format, rows, cols), (mesh, (how, fused))) in
            cases.into_iter().flat_map(|case| meshes.map(|mesh| (case, mesh))).flat_map(|(case, mesh)| {
                hows.map(|how| (case, (Mesh::of(mesh.0, mesh.1, mesh.2, None).unwrap(), how)))
            })
        {
            let segments = if fused { [rows / 2, rows / 2] } else { [0; 2] };
            let segments = Segments::new(&segments).unwrap_or_default();
            let spec =
                WeightSpec { tensor: Some(how), segments, ..WeightSpec::sharded("w", rows, cols, format) };
            let weights = Weights::new(std::slice::from_ref(&spec), mesh);
            let layout = &weights.layouts[0];
            let values: Vec<f32> = (0..rows * cols)
                .map(|at| ((at * 37 % 1009) as f32 - 500.0) * (1 + at / cols) as f32)
                .collect();
            let directions = match format.stored_orientations() {
                [_] => Directions::Rowwise,
                _ => Directions::Both,
            };
            let whole = quantize(format, directions, Via::None, spec.shape, &values).unwrap();
            let sides = [&whole.rowwise, &whole.columnwise];
            for (number, orientation) in format.stored_orientations().iter().enumerate() {
                let planes = sides[number].as_ref().unwrap();
                let plane = |spec: &PlaneSpec| match spec.kind {
                    PlaneKind::Data => &planes.data,
                    PlaneKind::Scale => &planes.scale,
                };
                for rank in mesh.iter() {
                    let row =
                        |row: usize| &values[row * cols..(row + 1) * cols][layout.shard.columns_of(rank)];
                    let rows = |Block { first, shape }: Block| first.rows..first.rows + shape.rows;
                    let rows = layout.shard.blocks_of(rank).flat_map(rows);
                    let mut own: Vec<f32> = rows.flat_map(row).copied().collect();
                    own.resize(layout.stored_elements(), 0.0);
                    let amax = |_| Ok::<_, FormatError>(whole.amax);
                    let (expected, _) =
                        quantize_shard(format, Via::None, layout.shard.stored(), &own, amax).unwrap();
                    let read = |spec: &PlaneSpec, range: Range<usize>| {
                        Ok::<_, FormatError>(plane(spec)[range].to_vec())
                    };
                    let found =
                        PlaneCut::new(layout, *orientation, rank).shard(whole.tensor_scale, read).unwrap();
                    assert!(
                        found.data == expected[number].data,
                        "{format} {orientation}, {rank} of {mesh}, {how:?}"
                    );
                    assert_eq!(
                        found.scale, expected[number].scale,
                        "{format} {orientation}, {rank} of {mesh}, {how:?}"
                    );
                }
                for spec in format.planes(*orientation, spec.shape) {
                    let mut found = vec![0; spec.bytes()];
                    for part in 0..2 {
                        let first = layout.shard.columns_of(RankId::new(part)).start;
                        let columns = PlaneColumns::new(layout, *orientation, spec.kind, first);
                        columns.put(&columns.take(plane(&spec).clone()), &mut found);
                    }
                    assert!(found == *plane(&spec), "{format} {orientation} {how:?}");
                }
            }
        }
    }
}
