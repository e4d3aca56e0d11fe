//! ST-2 and MW-3: the stages allocate nothing, and the multi-tensor call nothing once its workspace has grown.
//! Conformance A5: no plane is allocated that nobody requested.

use std::convert::Infallible;

use warpweft_format::{
    Directions, FlatShard, Format, MasterWeight, Orientation, OwnedPlanes, Shape, Via, Workspace, dequantize,
    expand_scale, fused_scale, partial_amax, partial_cast, quantize, quantize_master_weights, transpose,
};
use warpweft_testing::of_thread::{allocations_of, allocations_of_bytes};
use warpweft_testing::random_weight::normal;

warpweft_testing::alone! {
    the_counter_counts,
    st2_no_stage_allocates,
    mw3_the_second_step_of_a_list_of_weights_allocates_nothing,
    a5_columnwise_planes_alone_are_quantized_without_a_rowwise_plane,
}

fn the_counter_counts() {
    assert_eq!(allocations_of(|| drop(std::hint::black_box(vec![0u8; 64]))), 1);
}

fn st2_no_stage_allocates() {
    let shape = Shape::new(64, 96);
    let weight = normal(shape, 1);
    for format in Format::CANONICAL {
        for &orientation in format.stored_orientations() {
            let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
            let mut columnwise = OwnedPlanes::zeroed(format, Orientation::Columnwise, shape);
            let mut blocks = vec![0.0; format.amax_blocks(orientation, shape)];
            let mut encode = vec![0.0; format.encode_blocks(orientation, shape)];
            let mut values = vec![0.0; shape.elements()];
            let allocations = allocations_of(|| {
                let amax = partial_amax(format, orientation, Via::Bf16, shape, &weight, &mut blocks).unwrap();
                let scale = &mut planes.scale;
                let tensor_scale =
                    fused_scale(format, orientation, shape, &blocks, amax, &mut encode, scale).unwrap();
                partial_cast(format, orientation, Via::Bf16, shape, &weight, &encode, &mut planes.data)
                    .unwrap();
                dequantize(format, orientation, shape, planes.as_planes(), tensor_scale, &mut values)
                    .unwrap();
                if format.derives_columnwise().is_ok() {
                    transpose(format, shape, planes.as_planes(), columnwise.as_planes_mut()).unwrap();
                }
                expand_scale(format, orientation, shape, &mut planes.scale).unwrap();
                // Nor does an error.
                assert!(partial_amax(format, orientation, Via::Bf16, shape, &[], &mut blocks).is_err());
            });
            assert_eq!(allocations, 0, "{format} {orientation}");
        }
    }
}

fn mw3_the_second_step_of_a_list_of_weights_allocates_nothing() {
    let shape = Shape::new(64, 96);
    let master = normal(shape, 1);
    let shard = FlatShard { start: 0, len: shape.elements() };
    let formats: Vec<Format> =
        Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()).collect();
    let mut targets: Vec<(OwnedPlanes, Option<OwnedPlanes>, f32)> = formats
        .iter()
        .map(|&format| {
            let planes = |orientation| OwnedPlanes::zeroed(format, orientation, shape);
            let columnwise = (format == Format::Mxfp8).then(|| planes(Orientation::Columnwise));
            (planes(Orientation::Rowwise), columnwise, 0.0)
        })
        .collect();
    let mut weights: Vec<MasterWeight<'_>> = formats
        .iter()
        .zip(&mut targets)
        .map(|(&format, (rowwise, columnwise, tensor_scale))| MasterWeight {
            format,
            shape,
            shard,
            master: &master,
            rowwise: rowwise.as_planes_mut(),
            columnwise: columnwise.as_mut().map(OwnedPlanes::as_planes_mut),
            tensor_scale,
            delayed: None,
        })
        .collect();
    let mut workspace = Workspace::default();
    let mut step = || {
        let alone = |_: &mut [f32]| Ok::<(), Infallible>(());
        allocations_of(|| quantize_master_weights(&mut weights, Via::Bf16, &mut workspace, alone).unwrap())
    };
    let first = step();
    assert!(first <= 2, "two buffers, not one per weight: {first}");
    assert_eq!(step(), 0);
}

/// Conformance A5, of the shapes whose planes have sizes of their own in each orientation.
fn a5_columnwise_planes_alone_are_quantized_without_a_rowwise_plane() {
    for shape in [Shape::new(256, 272), Shape::new(320, 256)] {
        let weight = normal(shape, 2);
        for format in [Format::NVFP4_2D, Format::NVFP4_1D] {
            let [data, scale] = [0, 1].map(|plane| format.planes(Orientation::Rowwise, shape)[plane].bytes());
            let [same, other] =
                [0, 1].map(|plane| format.planes(Orientation::Columnwise, shape)[plane].bytes());
            assert!(data == same && scale != other, "data planes are of one size, scale planes are not");
            for (directions, planes, scales) in
                [(Directions::Rowwise, 1, 1), (Directions::Columnwise, 1, 0), (Directions::Both, 2, 1)]
            {
                let work = || drop(quantize(format, directions, Via::Bf16, shape, &weight).unwrap());
                assert_eq!(allocations_of_bytes(data, work), planes, "{format} {shape} {directions:?}");
                assert_eq!(allocations_of_bytes(scale, work), scales, "{format} {shape} {directions:?}");
            }
        }
    }
}
