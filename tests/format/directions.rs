//! One orientation of planes alone, and the other one on request: conformance A5, A6, B3, B4, and round trips of
//! columnwise planes alone.

use warpweft_format::{
    Directions, Format, FormatError, Fp8Block, Fp8Tile, Orientation, OwnedPlanes, Quantized, ScaleLayout,
    Shape, Via, fused_scale, partial_amax, quantize, transpose,
};
use warpweft_plan::model::{DeclareError, Model};
use warpweft_session::config::Config;
use warpweft_testing::random_weight::{self, normal};

/// The list's dtypes: f32, and bf16, to which a weight is rounded on the way.
const DTYPES: [Via; 2] = [Via::None, Via::Bf16];

/// As in the list, and every other format on its shapes. That no rowwise plane is allocated on the way is seen in
/// `tests/alone/format_allocations.rs`.
#[test]
fn a5_columnwise_planes_alone_are_the_columnwise_half_of_both() {
    let square = [128, 256, 512, 2048].map(|side| (side, side));
    for (rows, cols) in square.into_iter().chain([(256, 272), (304, 304), (320, 256)]) {
        let shape = Shape::new(rows, cols);
        let weight = normal(shape, 31);
        for (format, via) in Format::CANONICAL.into_iter().flat_map(|format| DTYPES.map(|via| (format, via)))
        {
            if format.check_shape(shape).is_err() {
                continue;
            }
            let both = quantize(format, Directions::Both, via, shape, &weight).unwrap();
            let alone = quantize(format, Directions::Columnwise, via, shape, &weight).unwrap();
            assert!(alone.rowwise.is_none(), "{format} {shape} {via:?}");
            assert!(alone == Quantized { rowwise: None, ..both }, "{format} {shape} {via:?}");
        }
    }
}

/// Scales as a GEMM reads them, by the other wording of the specification: the padded matrix viewed as
/// `[R/128, 4, 32, C/4, 4]`, axes permuted to (0, 3, 2, 1, 4). `padded` is row-major, `[rows, cols]`.
fn permuted(padded: &[u8], rows: usize, cols: usize) -> Vec<u8> {
    let mut found = Vec::with_capacity(padded.len());
    for (tile_row, tile_col) in (0..rows / 128).flat_map(|row| (0..cols / 4).map(move |col| (row, col))) {
        for (within, quarter) in (0..32).flat_map(|within| (0..4).map(move |quarter| (within, quarter))) {
            let at = (tile_row * 128 + quarter * 32 + within) * cols + tile_col * 4;
            found.extend_from_slice(&padded[at..at + 4]);
        }
    }
    found
}

/// The padded scale matrix whose rows lie along the rows of the product: MXFP8 stores that of its columns transposed.
fn matrix(format: Format, orientation: Orientation, shape: Shape, scale: &[u8]) -> (Vec<u8>, usize, usize) {
    let plane = format.planes(orientation, shape)[1];
    if (format, orientation) == (Format::Mxfp8, Orientation::Columnwise) {
        let turned = random_weight::transposed_bytes(Shape::new(plane.rows, plane.cols), scale);
        return (turned, plane.cols, plane.rows);
    }
    (scale.to_vec(), plane.rows, plane.cols)
}

/// There is no quantizer that swizzles at once: planes are made, then swizzled in place. The list's shapes, and
/// some that are not a multiple of the swizzled tile.
#[test]
fn a6_swizzled_scales_of_one_orientation_or_both_are_the_permuted_ones_and_data_stays() {
    let aligned = [(128, 128), (256, 256), (1024, 1024), (2048, 2048), (8192, 1024)];
    for (rows, cols) in aligned.into_iter().chain([(64, 128), (96, 32), (160, 288), (320, 1056)]) {
        let shape = Shape::new(rows, cols);
        let weight = normal(shape, 32);
        for format in [Format::NVFP4_2D, Format::NVFP4_1D, Format::Mxfp8] {
            for directions in [Directions::Rowwise, Directions::Columnwise, Directions::Both] {
                let plain = quantize(format, directions, Via::Bf16, shape, &weight).unwrap();
                let mut swizzled = plain.clone();
                swizzled.swizzle().unwrap();
                assert_eq!(swizzled.scale_layout, ScaleLayout::Swizzled);
                let expected = |orientation, planes: &Option<OwnedPlanes>| {
                    planes.as_ref().map(|planes| {
                        let (scale, rows, cols) = matrix(format, orientation, shape, &planes.scale);
                        OwnedPlanes { data: planes.data.clone(), scale: permuted(&scale, rows, cols) }
                    })
                };
                let rowwise = expected(Orientation::Rowwise, &plain.rowwise);
                let columnwise = expected(Orientation::Columnwise, &plain.columnwise);
                assert!(swizzled.rowwise == rowwise, "{format} {shape} {directions:?} rowwise");
                assert!(swizzled.columnwise == columnwise, "{format} {shape} {directions:?} columnwise");
            }
        }
    }
}

/// Asks a weight that has rowwise planes alone for columnwise ones, in every way there is.
fn check_refused(format: Format, hint: &str) {
    for shape in [Shape::new(128, 128), Shape::new(256, 384), Shape::new(32, 64)] {
        let weight = normal(shape, 33);
        let rowwise = quantize(format, Directions::Rowwise, Via::Bf16, shape, &weight).unwrap();
        let values = rowwise.dequantize(Orientation::Rowwise).unwrap();

        let mut requested = rowwise.clone();
        let error = requested.derive_columnwise().unwrap_err();
        assert!(matches!(error, FormatError::CannotDeriveColumnwise { .. }), "{error}");
        let text = error.to_string();
        let begin = format!("columnwise planes of {format} cannot be derived from rowwise planes: its 1×");
        assert!(text.starts_with(&begin) && text.ends_with(hint), "{text}");
        assert_eq!(requested, rowwise, "what refuses changes nothing");
        assert_eq!(requested.dequantize(Orientation::Rowwise).unwrap(), values);

        let missing = FormatError::MissingPlanes { orientation: Orientation::Columnwise };
        assert_eq!(requested.dequantize(Orientation::Columnwise).unwrap_err(), missing);
        assert_eq!(requested.sent_planes(Orientation::Columnwise).unwrap_err(), missing);

        let mut target = OwnedPlanes::zeroed(format, Orientation::Columnwise, shape);
        target.data.fill(0xEE);
        target.scale.fill(0xEE);
        let littered = target.clone();
        let planes = rowwise.rowwise.as_ref().unwrap().as_planes();
        assert_eq!(transpose(format, shape, planes, target.as_planes_mut()).unwrap_err(), error);
        assert_eq!(target, littered);
    }
}

/// The stages and the model say what to use instead.
fn check_not_for_weights(format: Format, instead: Format) {
    let shape = Shape::new(256, 384);
    let (mut blocks, mut encode) = (vec![7.0; format.amax_blocks(Orientation::Rowwise, shape)], vec![7.0]);
    let weight = normal(shape, 34);
    let columnwise = Orientation::Columnwise;
    let amax = partial_amax(format, columnwise, Via::None, shape, &weight, &mut blocks).unwrap_err();
    let scale = fused_scale(format, columnwise, shape, &blocks, 1.0, &mut encode, &mut []).unwrap_err();
    for error in [amax, scale] {
        assert!(matches!(error, FormatError::OrientationNotStored { .. }), "{error}");
        assert!(error.to_string().ends_with("quantize the transposed weight rowwise"), "{error}");
    }
    assert!(blocks.iter().chain(&encode).all(|value| *value == 7.0));

    let error = Model::builder().sharded("up", 256, 384, format).unwrap_err();
    assert!(matches!(error, DeclareError::Format { reason: FormatError::NotAWeightFormat { .. }, .. }));
    let text = format!(
        "{error}: {}",
        std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
    );
    assert!(text.contains("`up`") && text.contains(&format!("use {instead}")), "{text}");

    let mut model = Model::builder();
    model.sharded("up", 256, 384, instead).unwrap();
    let rule = format!("[[weights]]\nmatch = \"up\"\nformat = \"{format}\"");
    let refused = match Config::from_toml_str(&rule, "rules.toml") {
        Err(error) => error.to_string(),
        Ok(config) => config.apply_weight_rules(&model.build()).unwrap_err().to_string(),
    };
    assert!(refused.contains(&format!("use {instead}")), "{refused}");
}

#[test]
fn b3_columnwise_planes_of_fp8_rows_of_128_are_refused_by_everyone_who_is_asked_for_them() {
    let Format::Fp8Block(block) = Format::FP8_BLOCK1X128_POW2 else { unreachable!() };
    let e5m2: Format = "fp8_block1x128_e5m2_f32scale_eps0.5".parse().unwrap();
    for format in [Format::FP8_BLOCK1X128_POW2, e5m2] {
        check_refused(format, "quantize the transpose");
    }
    let tiles = Fp8Block { tile: Fp8Tile::Tile128x128, ..block };
    check_not_for_weights(Format::FP8_BLOCK1X128_POW2, Format::Fp8Block(tiles));
}

#[test]
fn b4_columnwise_planes_of_nvfp4_rows_of_16_are_refused_by_everyone_who_is_asked_for_them() {
    check_refused(Format::NVFP4_1D, "quantize the transpose");
    check_not_for_weights(Format::NVFP4_1D, Format::NVFP4_2D);
}

/// Neither list entry, but the same question: MXFP8 stores what it cannot derive.
#[test]
fn columnwise_planes_of_mxfp8_are_not_derived_from_rowwise_ones() {
    check_refused(Format::Mxfp8, "quantize both orientations from the master");
    assert!(Model::builder().sharded("up", 256, 384, Format::Mxfp8).is_ok());
}
