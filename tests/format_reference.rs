//! Kernels against the scalar reference on whole weights: conformance A1, A2, B1, B2, F1, F3.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod golden_file;
mod random_weight;

use golden_file::{assert_bytes, assert_f32s};
use random_weight::{normal, to_bf16};
use warpweft::format::{
    Directions, Epsilon, Format, Fp8Block, Fp8Element, Fp8Tensor, Fp8Tile, Orientation, ScaleRule, Shape,
    Via, quantize, reference,
};

/// Both orientations of `weight`, and the dequantized values, against the reference.
fn check(format: Format, via: Via, shape: Shape, weight: &[f32]) {
    let what = |field: &str| format!("{format} {shape} {via:?} {field}");
    let quantized = quantize(format, Directions::Both, via, shape, weight).unwrap();
    let seen: Vec<f32> = match via {
        Via::Bf16 if format != Format::F32 => weight.iter().copied().map(to_bf16).collect(),
        Via::Bf16 | Via::None => weight.to_vec(),
    };

    let (expected, scale) = reference::quantize(format, Orientation::Rowwise, shape, &seen);
    let rowwise = quantized.rowwise.as_ref().unwrap();
    assert_bytes(&what("rowwise data"), &rowwise.data, &expected.data);
    assert_bytes(&what("rowwise scale"), &rowwise.scale, &expected.scale);
    assert_f32s(&what("tensor scale"), &[quantized.tensor_scale], &[scale]);
    let values = reference::dequantize(format, shape, &expected, scale);
    assert_f32s(&what("values"), &quantized.dequantize(Orientation::Rowwise).unwrap(), &values);

    let (orientation, stored, turned) = match format {
        Format::Mxfp8 => (Orientation::Columnwise, shape, seen),
        _ => (Orientation::Rowwise, shape.transposed(), transposed(shape, &seen)),
    };
    let (expected, _) = reference::quantize(format, orientation, stored, &turned);
    let columnwise = quantized.columnwise.as_ref().unwrap();
    assert_bytes(&what("columnwise data"), &columnwise.data, &expected.data);
    assert_bytes(&what("columnwise scale"), &columnwise.scale, &expected.scale);
    if format.derives_columnwise().is_ok() {
        let values = transposed(shape, &values);
        assert_f32s(
            &what("columnwise values"),
            &quantized.dequantize(Orientation::Columnwise).unwrap(),
            &values,
        );
    }
}

fn transposed(shape: Shape, values: &[f32]) -> Vec<f32> {
    let mut turned = Vec::with_capacity(values.len());
    for column in 0..shape.cols {
        turned.extend((0..shape.rows).map(|row| values[row * shape.cols + column]));
    }
    turned
}

/// Every option of the FP8 formats, beside the canonical formats.
fn all_formats() -> Vec<Format> {
    let mut formats = Format::CANONICAL.to_vec();
    for element in [Fp8Element::E4m3, Fp8Element::E5m2] {
        for scale in [ScaleRule::PowerOfTwo, ScaleRule::Float32] {
            for epsilon in [0.0, 0.05] {
                let epsilon = Epsilon::new(epsilon).unwrap();
                for tile in [Fp8Tile::Tile128x128, Fp8Tile::Row1x128] {
                    formats.push(Format::Fp8Block(Fp8Block { tile, element, scale, epsilon }));
                }
                formats.push(Format::Fp8Tensor(Fp8Tensor { element, scale, epsilon }));
            }
        }
    }
    formats
}

#[test]
fn a1_nvfp4_matches_the_reference_on_every_shape_and_dtype() {
    let small = [(128, 128), (256, 256), (256, 1024), (1024, 256), (256, 272), (304, 304), (320, 256)];
    let large = [(2048, 2048), (1024, 2048), (2048, 1024)];
    let shapes = small.into_iter().chain(large);
    for format in [Format::NVFP4_2D, Format::NVFP4_1D] {
        for (rows, cols) in shapes.clone() {
            let shape = Shape::new(rows, cols);
            let weight = normal(shape, 7);
            check(format, Via::None, shape, &weight);
            check(format, Via::Bf16, shape, &weight);
        }
    }
}

#[test]
fn a1_nvfp4_2d_matches_the_reference_on_the_largest_shape() {
    let shape = Shape::new(8192, 8192);
    check(Format::NVFP4_2D, Via::Bf16, shape, &normal(shape, 8));
}

#[test]
fn a1_nvfp4_1d_matches_the_reference_on_the_largest_shape() {
    let shape = Shape::new(8192, 8192);
    check(Format::NVFP4_1D, Via::None, shape, &normal(shape, 9));
}

#[test]
fn f1_fp8_blocks_match_the_reference_on_large_ragged_shapes() {
    for (rows, cols) in [(2000, 2000), (2048, 2000), (2000, 1024), (2048, 1024)] {
        let shape = Shape::new(rows, cols);
        let weight = normal(shape, 14);
        for element in [Fp8Element::E4m3, Fp8Element::E5m2] {
            for tile in [Fp8Tile::Tile128x128, Fp8Tile::Row1x128] {
                let (scale, epsilon) = (ScaleRule::PowerOfTwo, Epsilon::new(0.0).unwrap());
                let format = Format::Fp8Block(Fp8Block { tile, element, scale, epsilon });
                check(format, Via::None, shape, &weight);
                check(format, Via::Bf16, shape, &weight);
            }
        }
    }
}

#[test]
fn a2_f3_tensors_of_zeros_and_of_the_largest_value_match_the_reference() {
    let shape = Shape::new(128, 128);
    let largest_bf16 = f32::from_bits(0x7F7F_0000);
    for format in all_formats() {
        for value in [0.0, -0.0, f32::MAX, largest_bf16, -largest_bf16] {
            check(format, Via::None, shape, &[value; 128 * 128]);
        }
        check(format, Via::Bf16, shape, &[largest_bf16; 128 * 128]);
    }
}

#[test]
fn b1_derived_columnwise_planes_equal_quantizing_the_transpose() {
    for shape in [Shape::new(512, 1280), Shape::new(2048, 5120)] {
        check(Format::NVFP4_2D, Via::Bf16, shape, &normal(shape, 11));
    }
}

/// CA-2, FO-1: the reference multiplies and rounds each element by itself.
#[test]
fn b2_f1_every_format_matches_the_reference_on_ragged_shapes() {
    let check_all = |formats: &[Format], shapes: &[(usize, usize)]| {
        for &(rows, cols) in shapes {
            let shape = Shape::new(rows, cols);
            let weight = normal(shape, 13);
            for &format in formats {
                if format.check_shape(shape).is_ok() {
                    check(format, Via::None, shape, &weight);
                    check(format, Via::Bf16, shape, &weight);
                }
            }
        }
    };
    check_all(&all_formats(), &[(128, 128), (1, 1), (7, 15), (1, 311), (150, 140)]);
    check_all(&Format::CANONICAL, &[(256, 272), (303, 300), (305, 256), (250, 500), (256, 512)]);
    let blocks = [Format::FP8_BLOCK128_POW2, Format::FP8_BLOCK128_F32SCALE, Format::FP8_BLOCK1X128_POW2];
    check_all(&blocks, &[(256, 1024), (1024, 256)]);
}

#[test]
fn nan_and_infinity_convert_as_the_reference_says() {
    let shape = Shape::new(32, 32);
    let mut weight = normal(shape, 17);
    weight[5] = f32::NAN;
    weight[77] = -f32::NAN;
    for format in all_formats() {
        check(format, Via::None, shape, &weight);
    }
    weight[300] = f32::INFINITY;
    weight[301] = f32::NEG_INFINITY;
    for format in all_formats() {
        if !matches!(format, Format::Nvfp4(_)) {
            check(format, Via::None, shape, &weight);
        }
    }
}
