//! A weight, or a row shard of one, quantized stage by stage into the caller's memory.

use warpweft_format::{Format, Orientation, PlanesMut, Shape, Via, fused_scale, partial_amax, partial_cast};

/// Writes `planes`, whose scales may have their padding rows or not. Without a `tensor_amax` over all shards, the
/// amax of `master` is used. Returns the amax of `master` and the tensor scale.
pub fn quantize(
    format: Format,
    orientation: Orientation,
    via: Via,
    shape: Shape,
    master: &[f32],
    tensor_amax: Option<f32>,
    planes: PlanesMut<'_>,
) -> (f32, f32) {
    let mut blocks = vec![f32::NAN; format.amax_blocks(orientation, shape)];
    let mut encode = vec![f32::NAN; format.encode_blocks(orientation, shape)];
    let own = partial_amax(format, orientation, via, shape, master, &mut blocks).unwrap();
    let amax = tensor_amax.unwrap_or(own);
    let scale = fused_scale(format, orientation, shape, &blocks, amax, &mut encode, planes.scale).unwrap();
    partial_cast(format, orientation, via, shape, master, &encode, planes.data).unwrap();
    (own, scale)
}
