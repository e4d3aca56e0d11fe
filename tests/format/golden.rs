//! Conformance I1: every case of every quantizer file, bit for bit. Also A1, A2, F1, F3, G4 on those cases.

use warpweft_format::{
    Directions, Format, Orientation, OwnedPlanes, Quantized, ScaleLayout, Shape, Via, dequantize, quantize,
};
use warpweft_testing::golden_file::{Case, GoldenFile, assert_bytes, assert_f32s};

fn quantized(case: &Case<'_>, format: Format, directions: Directions) -> Quantized {
    let shape = Shape::new(case.dimension("M"), case.dimension("K"));
    quantize(format, directions, Via::None, shape, &case.f32s("input")).unwrap()
}

/// The scale plane of a block format; per tensor the one scale, which has no plane.
fn scale_bytes(quantized: &Quantized, scale: &[u8]) -> Vec<u8> {
    match quantized.format {
        Format::Fp8Tensor(_) => quantized.tensor_scale.to_le_bytes().to_vec(),
        _ => scale.to_vec(),
    }
}

/// Formats whose golden cases hold swizzled scales.
const SWIZZLED: [&str; 3] = ["nvfp4_2d", "nvfp4_1d", "mxfp8"];

/// FO-1, bit for bit.
fn check_file(file: &str) {
    let format: Format = file.parse().unwrap();
    for case in GoldenFile::open(file).cases() {
        let name = |field: &str| format!("{file}: {}/{field}", case.name);
        let both = quantized(&case, format, Directions::Both);
        let (rowwise, columnwise) = (both.rowwise.as_ref().unwrap(), both.columnwise.as_ref().unwrap());
        assert_f32s(&name("amax"), &[both.amax], &case.f32s("amax"));
        assert_bytes(&name("rowwise_data"), &rowwise.data, case.bytes("rowwise_data"));
        assert_bytes(
            &name("rowwise_scale"),
            &scale_bytes(&both, &rowwise.scale),
            case.bytes("rowwise_scale"),
        );
        assert_bytes(&name("columnwise_data"), &columnwise.data, case.bytes("columnwise_data"));
        let columnwise_scale = scale_bytes(&both, &columnwise.scale);
        assert_bytes(&name("columnwise_scale"), &columnwise_scale, case.bytes("columnwise_scale"));

        let mut values = vec![0.0; both.shape.elements()];
        let planes = rowwise.as_planes();
        dequantize(format, Orientation::Rowwise, both.shape, planes, both.tensor_scale, &mut values).unwrap();
        assert_f32s(&name("dequantized"), &values, &case.f32s("dequantized"));

        // Conformance A6, A8, G2: quantize, then swizzle.
        assert_eq!(case.has("rowwise_scale_swizzled"), SWIZZLED.contains(&file));
        if case.has("rowwise_scale_swizzled") {
            let mut swizzled = both.clone();
            swizzled.swizzle().unwrap();
            assert_eq!(swizzled.scale_layout, ScaleLayout::Swizzled);
            let scale = |planes: &Option<OwnedPlanes>| planes.as_ref().unwrap().scale.clone();
            for (field, scale) in [
                ("rowwise_scale_swizzled", scale(&swizzled.rowwise)),
                ("columnwise_scale_swizzled", scale(&swizzled.columnwise)),
            ] {
                assert_bytes(&name(field), &scale, case.bytes(field));
            }
        }

        // Conformance A5: one orientation alone equals its half of both.
        assert_eq!(quantized(&case, format, Directions::Rowwise).rowwise, both.rowwise, "{}", case.name);
        let alone = quantized(&case, format, Directions::Columnwise);
        assert_eq!((&alone.columnwise, alone.rowwise), (&both.columnwise, None), "{}", case.name);
        assert_eq!(alone.tensor_scale.to_bits(), both.tensor_scale.to_bits(), "{}", case.name);
    }
}

#[test]
fn i1_nvfp4_2d_matches_the_golden_vectors() {
    check_file("nvfp4_2d");
}

#[test]
fn i1_nvfp4_1d_matches_the_golden_vectors() {
    check_file("nvfp4_1d");
}

#[test]
fn i1_fp8_block128_pow2_matches_the_golden_vectors() {
    check_file("fp8_block128_pow2");
}

#[test]
fn i1_fp8_block128_f32scale_matches_the_golden_vectors() {
    check_file("fp8_block128_f32scale");
}

#[test]
fn i1_fp8_block1x128_pow2_matches_the_golden_vectors() {
    check_file("fp8_block1x128_pow2");
}

#[test]
fn i1_mxfp8_matches_the_golden_vectors() {
    check_file("mxfp8");
}

#[test]
fn i1_fp8_tensor_e4m3_matches_the_golden_vectors() {
    check_file("fp8_tensor_e4m3");
}

#[test]
fn i1_fp8_tensor_e5m2_pow2_matches_the_golden_vectors() {
    check_file("fp8_tensor_e5m2_pow2");
}
