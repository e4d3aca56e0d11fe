//! Flat partial casts over simulated ranks, one rank after the other.
//!
//! Each rank owns an equal slice of the flattened weight, cut wherever that falls: inside a row, a block, a
//! byte. The result has the bytes of the whole weight (FO-3), and takes the memory of one rank at a time.

use warpweft_format::{
    FlatShard, Format, FormatError, MasterWeight, MasterWeightsError, Orientation, OwnedPlanes, PlanesMut,
    Quantized, ScaleLayout, Shape, Via, Workspace, place_fragment, quantize_master_weights,
};

/// Quantizes a weight as `ranks` ranks do that own slices of it.
pub(super) fn quantize(
    format: Format,
    via: Via,
    shape: Shape,
    weight: &[f32],
    ranks: usize,
) -> Result<Quantized, FormatError> {
    format.check_shape(shape)?;
    let stored = |orientation| {
        let stored = format.stored_orientations().contains(&orientation);
        stored.then(|| OwnedPlanes::zeroed(format, orientation, shape))
    };
    let mut gathered = Gathered {
        format,
        via,
        shape,
        rowwise: OwnedPlanes::zeroed(format, Orientation::Rowwise, shape),
        columnwise: stored(Orientation::Columnwise),
        workspace: Workspace::default(),
    };
    // No rank goes on before all have brought their amaxes to the collective. So each runs up to there,
    // leaves with nothing changed (MW-1), and runs again when the maximum is known.
    let mut maximum = Vec::new();
    for shard in shards(weight.len(), ranks) {
        gathered.run(shard, weight, |amaxes| {
            maximum.resize(amaxes.len(), 0.0);
            maximum.iter_mut().zip(amaxes).for_each(|(most, amax)| *most = amax.max(*most));
            Err(Waiting)
        })?;
    }
    let mut tensor_scale = 1.0;
    for shard in shards(weight.len(), ranks) {
        tensor_scale = gathered.run(shard, weight, |amaxes| {
            amaxes.copy_from_slice(&maximum);
            Ok(())
        })?;
    }
    let Gathered { rowwise, columnwise, .. } = gathered;
    let mut quantized = Quantized {
        format,
        shape,
        amax: maximum.iter().copied().fold(0.0, f32::max),
        tensor_scale,
        scale_layout: ScaleLayout::RowMajor,
        rowwise: Some(rowwise),
        columnwise,
    };
    if quantized.columnwise.is_none() {
        quantized.derive_columnwise()?;
    }
    Ok(quantized)
}

/// The slice of every rank; some are empty when there are more ranks than elements.
fn shards(elements: usize, ranks: usize) -> impl Iterator<Item = FlatShard> {
    let cut = move |rank: usize| (elements as u128 * rank as u128 / ranks as u128) as usize;
    (0..ranks).map(move |rank| FlatShard { start: cut(rank), len: cut(rank + 1) - cut(rank) })
}

/// The other ranks have not brought their amaxes yet.
struct Waiting;

/// What the gathers have brought together so far.
struct Gathered {
    format: Format,
    via: Via,
    shape: Shape,
    rowwise: OwnedPlanes,
    columnwise: Option<OwnedPlanes>,
    workspace: Workspace,
}

impl Gathered {
    /// One rank's part: its slice of the weight into fragments, and these into the gathered planes. Returns
    /// the tensor scale, once there is one.
    fn run(
        &mut self,
        shard: FlatShard,
        weight: &[f32],
        max_over_ranks: impl FnOnce(&mut [f32]) -> Result<(), Waiting>,
    ) -> Result<f32, FormatError> {
        let Self { format, via, shape, rowwise, columnwise, workspace } = self;
        let (format, shape) = (*format, *shape);
        let mut rowwise_fragment = vec![0; shard.fragment(format).len()];
        let mut columnwise_fragment = rowwise_fragment.clone();
        let mut tensor_scale = 1.0;
        let mut weights = [MasterWeight {
            format,
            shape,
            shard,
            master: &weight[shard.start..shard.start + shard.len],
            rowwise: PlanesMut { data: &mut rowwise_fragment, scale: &mut rowwise.scale },
            columnwise: columnwise
                .as_mut()
                .map(|planes| PlanesMut { data: &mut columnwise_fragment, scale: &mut planes.scale }),
            tensor_scale: &mut tensor_scale,
            delayed: None,
        }];
        match quantize_master_weights(&mut weights, *via, workspace, max_over_ranks) {
            Ok(()) => {}
            Err(MasterWeightsError::Weight { source, .. }) => return Err(source),
            // The collective, which is `Waiting` for the other ranks.
            Err(_) => return Ok(tensor_scale),
        }
        place_fragment(format, shape, shard, &rowwise_fragment, &mut rowwise.data)?;
        if let Some(planes) = columnwise {
            place_fragment(format, shape, shard, &columnwise_fragment, &mut planes.data)?;
        }
        Ok(tensor_scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_format::{Directions, quantize as quantize_whole};

    /// FO-3.
    #[test]
    fn any_number_of_ranks_gives_the_bytes_of_the_whole_weight() {
        for format in Format::CANONICAL {
            if format.check_weight().is_err() || matches!(format, Format::F32 | Format::Bf16) {
                continue;
            }
            for shape in [Shape::new(32, 32), Shape::new(160, 96), Shape::new(37, 96)] {
                let value = |at: usize| ((at * 7919) % 1013) as f32 - 500.0;
                let weight: Vec<f32> = (0..shape.elements()).map(value).collect();
                for via in [Via::None, Via::Bf16] {
                    let whole = quantize_whole(format, Directions::Both, via, shape, &weight).unwrap();
                    for ranks in [1, 2, 3, 7, 61, 1500] {
                        let sharded = quantize(format, via, shape, &weight, ranks).unwrap();
                        assert_eq!(sharded, whole, "{format} {shape} {via:?} over {ranks}");
                    }
                }
            }
        }
    }
}
