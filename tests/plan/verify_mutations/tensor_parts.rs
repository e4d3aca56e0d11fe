//! Parts of a weight of the plainest trainer, as tensor parallelism cuts it.
//!
//! Law: as of [`super::reference`]. A part is the same values in the same blocks as in the whole weight, so it has the
//! same codes and scales.

use warpweft_format::{
    Format, Orientation, OwnedPlanes, Planes, PlanesMut, Quantized, ScaleLayout, Shape, Via, fused_scale,
    partial_amax, partial_cast, quantize, transpose,
};
use warpweft_plan::model::{TensorParallel, WeightSpec};

/// Does each rank of a tensor-parallel group have its own part?
pub(crate) fn is_cut(spec: &WeightSpec) -> bool {
    matches!(spec.tensor, Some(TensorParallel::ColumnParallel | TensorParallel::RowParallel))
}

/// The shape of what one of `ranks` ranks has.
pub(crate) fn shape(spec: &WeightSpec, ranks: usize) -> Shape {
    let Shape { rows, cols } = spec.shape;
    match spec.tensor {
        Some(TensorParallel::ColumnParallel) => Shape { rows: rows / ranks, cols },
        Some(TensorParallel::RowParallel) => Shape { rows, cols: cols / ranks },
        _ => spec.shape,
    }
}

/// Of each matrix that a weight stacks, its first row and the rows that each rank has of it.
fn segments(spec: &WeightSpec, ranks: usize) -> Vec<(usize, usize)> {
    let mut all: Vec<usize> = spec.segments.iter().collect();
    if all.is_empty() {
        all.push(spec.shape.rows);
    }
    let mut first = 0;
    let mut found = Vec::new();
    for rows in all {
        found.push((first, rows / ranks));
        first += rows;
    }
    found
}

/// One part of the values of a weight.
fn part(spec: &WeightSpec, values: &[f32], (part, ranks): (usize, usize)) -> Vec<f32> {
    let Shape { rows, cols } = shape(spec, ranks);
    match spec.tensor {
        Some(TensorParallel::ColumnParallel) => {
            assert_eq!(segments(spec, ranks).iter().map(|(_, own)| own).sum::<usize>(), rows);
            let of_segment = |(first, own): (usize, usize)| {
                values[(first + part * own) * cols..(first + (part + 1) * own) * cols].to_vec()
            };
            segments(spec, ranks).into_iter().flat_map(of_segment).collect()
        }
        _ => values
            .chunks(spec.shape.cols)
            .flat_map(|row| &row[part * cols..(part + 1) * cols])
            .copied()
            .collect(),
    }
}

/// The weight of which these are all parts.
pub(crate) fn joined(spec: &WeightSpec, parts: &[Vec<f32>]) -> Vec<f32> {
    let Shape { rows, cols } = shape(spec, parts.len());
    if spec.tensor == Some(TensorParallel::ColumnParallel) {
        let mut joined = Vec::new();
        let mut done = 0;
        for (_, own) in segments(spec, parts.len()) {
            parts.iter().for_each(|part| joined.extend(&part[done * cols..(done + own) * cols]));
            done += own;
        }
        return joined;
    }
    let row = |row: usize| parts.iter().flat_map(move |part| part[row * cols..(row + 1) * cols].to_vec());
    (0..rows).flat_map(row).collect()
}

/// One part as it would be stored, in both orientations; `amax` is that of all weights that share its scale.
pub(crate) fn quantized(spec: &WeightSpec, master: &[f32], of: (usize, usize), amax: f32) -> Quantized {
    let (format, via, shape) = (spec.format, Via::Bf16, shape(spec, of.1));
    let values = part(spec, master, of);
    if !format.needs_tensor_amax() {
        return quantize(format, warpweft_format::Directions::Both, via, shape, &values).unwrap();
    }
    by_amax(format, via, shape, &values, amax)
}

/// A weight of a format with a scale of the tensor, stage by stage, as it would be stored if `amax` was its largest
/// magnitude.
fn by_amax(format: Format, via: Via, shape: Shape, values: &[f32], amax: f32) -> Quantized {
    const ROWS: Orientation = Orientation::Rowwise;
    assert_eq!(format.stored_orientations(), [ROWS], "columnwise planes are derived");
    let mut rowwise = zeroed(format, ROWS, shape);
    let mut blocks = vec![0.0; format.amax_blocks(ROWS, shape)];
    partial_amax(format, ROWS, via, shape, values, &mut blocks).unwrap();
    let mut factors = vec![0.0; format.encode_blocks(ROWS, shape)];
    let tensor_scale =
        fused_scale(format, ROWS, shape, &blocks, amax, &mut factors, &mut rowwise.scale).unwrap();
    partial_cast(format, ROWS, via, shape, values, &factors, &mut rowwise.data).unwrap();
    let mut columnwise = zeroed(format, Orientation::Columnwise, shape);
    let from = Planes { data: &rowwise.data, scale: &rowwise.scale };
    let to = PlanesMut { data: &mut columnwise.data, scale: &mut columnwise.scale };
    transpose(format, shape, from, to).unwrap();
    Quantized {
        format,
        shape,
        amax,
        tensor_scale,
        scale_layout: ScaleLayout::RowMajor,
        rowwise: Some(rowwise),
        columnwise: Some(columnwise),
    }
}

fn zeroed(format: Format, orientation: Orientation, shape: Shape) -> OwnedPlanes {
    let planes = format.planes(orientation, shape);
    let of = |plane: usize| vec![0; planes.get(plane).map_or(0, |spec| spec.bytes())];
    OwnedPlanes { data: of(0), scale: of(1) }
}
