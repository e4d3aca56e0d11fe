//! Kernels against the scalar reference on whole weights: conformance A1, A2, B1, B2, F1, F3.
//!
//! A tensor of the list's bf16 is here a weight that is rounded to bf16 on the way ([`Via::Bf16`]). Its two
//! allocation paths are the two that this library has: planes that [`quantize`] allocates, and planes of the
//! caller's that the stages write.

use warpweft_format::{
    Directions, Epsilon, Format, Fp8Block, Fp8Element, Fp8Tensor, Fp8Tile, Orientation, OwnedPlanes,
    Quantized, ScaleRule, Shape, Via, quantize, reference, transpose,
};
use warpweft_testing::golden_file::{assert_bytes, assert_f32s};
use warpweft_testing::random_weight::{amax, normal, scaled, seen, transposed};
use warpweft_testing::staged;

/// Both orientations of `weight`, its amax, and the dequantized values, against the reference.
fn check(format: Format, via: Via, shape: Shape, weight: &[f32]) -> Quantized {
    let what = |field: &str| format!("{format} {shape} {via:?} {field}");
    let quantized = quantize(format, Directions::Both, via, shape, weight).unwrap();
    let seen = seen(if format == Format::F32 { Via::None } else { via }, weight);

    let (expected, scale) = reference::quantize(format, Orientation::Rowwise, shape, &seen);
    let rowwise = quantized.rowwise.as_ref().unwrap();
    assert_bytes(&what("rowwise data"), &rowwise.data, &expected.data);
    assert_bytes(&what("rowwise scale"), &rowwise.scale, &expected.scale);
    assert_f32s(&what("tensor scale"), &[quantized.tensor_scale], &[scale]);
    if !matches!(format, Format::F32 | Format::Bf16) {
        assert_f32s(&what("amax"), &[quantized.amax], &[amax(Via::None, &seen)]);
    }
    let values = reference::dequantize(format, shape, &expected, scale);
    assert_f32s(&what("values"), &quantized.dequantize(Orientation::Rowwise).unwrap(), &values);

    let (orientation, stored, turned) = match format {
        Format::Mxfp8 => (Orientation::Columnwise, shape, seen),
        _ => {
            let (whole, filled) = filled(format, shape, &seen);
            (Orientation::Rowwise, whole.transposed(), transposed(whole, &filled))
        }
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
    quantized
}

/// [`check`] and [`check_alike`].
fn check_every_way(format: Format, via: Via, shape: Shape, weight: &[f32]) {
    let both = check(format, via, shape, weight);
    check_alike(format, via, shape, weight, &both);
}

/// That rowwise planes alone are those of `both` directions, and so are planes of the caller's.
fn check_alike(format: Format, via: Via, shape: Shape, weight: &[f32], both: &Quantized) {
    let what = |field: &str| format!("{format} {shape} {via:?} {field}");
    let alone = quantize(format, Directions::Rowwise, via, shape, weight).unwrap();
    assert!(alone == Quantized { columnwise: None, ..both.clone() }, "{}", what("rowwise alone"));

    let littered = |orientation, shape| {
        let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
        planes.data.fill(0xEE);
        planes.scale.fill(0xEE);
        planes
    };
    let by_stages = |shape: Shape, weight: &[f32]| {
        let mut planes = littered(Orientation::Rowwise, shape);
        let own = planes.as_planes_mut();
        let (amax, scale) = staged::quantize(format, Orientation::Rowwise, via, shape, weight, None, own);
        assert_f32s(&what("amax and scale by stages"), &[amax, scale], &[both.amax, both.tensor_scale]);
        planes
    };
    let rowwise = by_stages(shape, weight);
    let columnwise = if format.derives_columnwise().is_ok() {
        let mut planes = littered(Orientation::Columnwise, shape);
        transpose(format, shape, rowwise.as_planes(), planes.as_planes_mut()).unwrap();
        planes
    } else {
        by_stages(shape.transposed(), &transposed(shape, weight))
    };
    assert!(both.rowwise == Some(rowwise), "{}", what("rowwise by stages"));
    assert!(both.columnwise == Some(columnwise), "{}", what("columnwise by stages"));
}

/// The matrix that the planes of a weight hold: the weight, and rows of zeros up to the end of the last block.
fn filled(format: Format, shape: Shape, weight: &[f32]) -> (Shape, Vec<f32>) {
    let whole = format.whole_blocks(shape);
    let mut filled = weight.to_vec();
    filled.resize(whole.elements(), 0.0);
    (whole, filled)
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

const NVFP4: [Format; 2] = [Format::NVFP4_2D, Format::NVFP4_1D];

#[test]
fn a1_nvfp4_matches_the_reference_on_every_shape_and_dtype() {
    let small = [(128, 128), (256, 256), (256, 1024), (1024, 256), (256, 272), (304, 304), (320, 256)];
    let large = [(2048, 2048), (1024, 2048), (2048, 1024)];
    for (rows, cols) in small.into_iter().chain(large) {
        let shape = Shape::new(rows, cols);
        let weight = normal(shape, 7);
        for (format, via) in NVFP4.into_iter().flat_map(|format| [(format, Via::None), (format, Via::Bf16)]) {
            check_every_way(format, via, shape, &weight);
        }
    }
}

/// The largest shape, quantized whole; of both orientations, bands of rows at its ends and in its middle against the
/// reference, which would take seconds for all of it.
fn check_largest(format: Format, via: Via) {
    let shape = Shape::new(8192, 8192);
    // About normal, with another deviation every million values. So many normal ones would take as long again.
    let some = normal(Shape::new(1, 1_000_003), 8);
    let mut weight = Vec::with_capacity(shape.elements());
    for part in 0..shape.elements().div_ceil(some.len()) {
        let deviated = scaled(&some, 1.0 + part as f32 / 64.0);
        weight.extend_from_slice(&deviated[..some.len().min(shape.elements() - weight.len())]);
    }
    let both = quantize(format, Directions::Both, via, shape, &weight).unwrap();
    check_bands(format, via, shape, &weight, both.rowwise.as_ref().unwrap(), &both);
    check_bands(
        format,
        via,
        shape.transposed(),
        &transposed(shape, &weight),
        both.columnwise.as_ref().unwrap(),
        &both,
    );
    check_alike(format, via, shape, &weight, &both);
}

/// Three bands of `planes`, those of the rows of `weight`. The reference gets each band and below it one more row of
/// blocks that holds the largest magnitude of the whole weight, so that its tensor scale is that of the whole.
fn check_bands(
    format: Format,
    via: Via,
    shape: Shape,
    weight: &[f32],
    planes: &OwnedPlanes,
    whole: &Quantized,
) {
    const BAND: usize = 128;
    assert_eq!(whole.amax, amax(via, weight));
    for top in [0, shape.rows / 2 - BAND / 2, shape.rows - BAND] {
        let mut band = seen(via, &weight[top * shape.cols..][..BAND * shape.cols]);
        band.push(whole.amax);
        band.resize((BAND + 16) * shape.cols, 0.0);
        let (expected, scale) =
            reference::quantize(format, Orientation::Rowwise, Shape::new(BAND + 16, shape.cols), &band);
        let what = |field: &str| format!("{format} {shape} {via:?}, rows from {top}: {field}");
        assert_f32s(&what("tensor scale"), &[whole.tensor_scale], &[scale]);
        for (field, given, expected) in
            [("data", &planes.data, &expected.data), ("scale", &planes.scale, &expected.scale)]
        {
            let row = given.len() / shape.rows;
            assert_bytes(&what(field), &given[top * row..][..BAND * row], &expected[..BAND * row]);
        }
    }
}

#[test]
fn a1_nvfp4_2d_matches_the_reference_on_the_largest_shape() {
    check_largest(Format::NVFP4_2D, Via::None);
}

#[test]
fn a1_nvfp4_2d_of_bf16_matches_the_reference_on_the_largest_shape() {
    check_largest(Format::NVFP4_2D, Via::Bf16);
}

#[test]
fn a1_nvfp4_1d_matches_the_reference_on_the_largest_shape() {
    check_largest(Format::NVFP4_1D, Via::None);
}

#[test]
fn a1_nvfp4_1d_of_bf16_matches_the_reference_on_the_largest_shape() {
    check_largest(Format::NVFP4_1D, Via::Bf16);
}

/// Pairs on either side of every edge between two codes, and far beyond the largest, in every block.
#[test]
fn nvfp4_values_beside_every_edge_between_codes_match_the_reference() {
    let shape = Shape::new(128, 128);
    let pair = |at: usize| -12.0 + 24.0 * (at / 2) as f32 / (shape.cols / 2 - 1) as f32;
    let apart = |at: usize| if at.is_multiple_of(2) { -1e-3 } else { 1e-3 };
    let weight: Vec<f32> =
        (0..shape.elements()).map(|at| at % shape.cols).map(|at| pair(at) + apart(at)).collect();
    // With an amax of 2688 and 6 in every block, factors are 1, so that the values are those of the edges.
    let mut exact = vec![0.0; shape.elements()];
    for (at, value) in exact.iter_mut().enumerate() {
        let edge = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0][at / 3 % 7];
        let beside = [f32::next_down, |edge| edge, f32::next_up][at % 3](edge);
        *value = match at % 16 {
            0 => 6.0,
            _ if at / 21 % 2 == 0 => beside,
            _ => -beside,
        };
    }
    exact[0] = 2688.0;
    for format in NVFP4 {
        for via in [Via::None, Via::Bf16] {
            check_every_way(format, via, shape, &weight);
        }
        let quantized = check(format, Via::None, shape, &exact);
        let data = &quantized.rowwise.as_ref().unwrap().data;
        // Beyond the tile of the amax.
        for (at, value) in exact.iter().enumerate().filter(|(at, _)| at % 128 >= 16) {
            let code = data[at / 2] >> (at % 2 * 4) & 15;
            assert_eq!(code, reference::e2m1(*value), "{format}, {at}: {value}");
        }
    }
}

const TILES: [Fp8Tile; 2] = [Fp8Tile::Tile128x128, Fp8Tile::Row1x128];
const ELEMENTS: [Fp8Element; 2] = [Fp8Element::E4m3, Fp8Element::E5m2];

fn check_blocks(shapes: &[(usize, usize)], block: Fp8Block) {
    for (rows, cols) in shapes {
        let shape = Shape::new(*rows, *cols);
        let weight = normal(shape, 14);
        for via in [Via::None, Via::Bf16] {
            check_every_way(Format::Fp8Block(block), via, shape, &weight);
        }
    }
}

const SMALL: [(usize, usize); 7] =
    [(128, 128), (256, 256), (256, 1024), (1024, 256), (256, 272), (303, 300), (305, 256)];

fn check_small(scale: ScaleRule, epsilon: f32) {
    let epsilon = Epsilon::new(epsilon).unwrap();
    for (tile, element) in TILES.into_iter().flat_map(|tile| ELEMENTS.map(|element| (tile, element))) {
        check_blocks(&SMALL, Fp8Block { tile, element, scale, epsilon });
    }
}

#[test]
fn f1_fp8_blocks_match_the_reference_on_small_shapes() {
    check_small(ScaleRule::PowerOfTwo, 0.0);
}

#[test]
fn fp8_blocks_with_free_scales_match_the_reference_on_small_shapes() {
    check_small(ScaleRule::Float32, 0.0);
}

/// The amaxes of some blocks lie below this epsilon.
#[test]
fn fp8_blocks_with_epsilon_match_the_reference_on_small_shapes() {
    check_small(ScaleRule::Float32, 0.1);
}

/// The large shapes take 3 s for each kind of block and element, so each is a test.
fn check_large(tile: Fp8Tile, element: Fp8Element) {
    let shapes = [(2000, 2000), (2048, 2000), (2000, 1024), (2048, 1024)];
    check_blocks(&shapes, Fp8Block { tile, element, scale: ScaleRule::PowerOfTwo, epsilon: Epsilon::ZERO });
}

#[test]
fn f1_tiles_of_e4m3_match_the_reference_on_large_shapes() {
    check_large(Fp8Tile::Tile128x128, Fp8Element::E4m3);
}

#[test]
fn f1_tiles_of_e5m2_match_the_reference_on_large_shapes() {
    check_large(Fp8Tile::Tile128x128, Fp8Element::E5m2);
}

#[test]
fn f1_rows_of_e4m3_match_the_reference_on_large_shapes() {
    check_large(Fp8Tile::Row1x128, Fp8Element::E4m3);
}

#[test]
fn f1_rows_of_e5m2_match_the_reference_on_large_shapes() {
    check_large(Fp8Tile::Row1x128, Fp8Element::E5m2);
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
fn b2_every_format_matches_the_reference_on_ragged_shapes() {
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
    check_all(&all_formats(), &[(1, 32), (15, 64), (17, 96), (33, 1056), (129, 32)]);
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
