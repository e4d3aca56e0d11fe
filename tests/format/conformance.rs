//! Conformance cases with shapes of their own: A4, C3, G1. The scales of lists, D1, are in
//! `scale_lists`.

use half::bf16;
use warpweft_format::{
    Directions, FlatShard, Format, Orientation, OwnedPlanes, Planes, Quantized, Shape, Via, dequantize,
    dequantize_bf16, flat_amax, flat_cast, fused_scale, partial_amax, partial_cast, quantize, reference,
    transpose,
};
use warpweft_testing::random_weight::{normal, seen, to_bf16, transposed, transposed_bytes, wild};

/// There are no strided inputs here: a transposed view is the caller's to make contiguous. What is quantized from
/// it has the planes of the original, with the orientations exchanged. MXFP8 turns its data, which is stored in
/// the same order in both orientations.
#[test]
fn a4_a_transposed_input_has_the_planes_of_the_original_in_the_other_orientation() {
    let shape = Shape::new(32, 128);
    let weight = normal(shape, 4);
    let turned = transposed(shape, &weight);
    for (format, via) in
        Format::CANONICAL.into_iter().flat_map(|format| [(format, Via::None), (format, Via::Bf16)])
    {
        let view = quantize(format, Directions::Both, via, shape.transposed(), &turned).unwrap();
        let original = quantize(format, Directions::Both, via, shape, &weight).unwrap();
        assert_eq!(view.amax.to_bits(), original.amax.to_bits(), "{format} {via:?}");
        assert_eq!(view.tensor_scale.to_bits(), original.tensor_scale.to_bits(), "{format} {via:?}");
        if format == Format::Mxfp8 {
            let data = |planes: &Option<OwnedPlanes>| planes.as_ref().unwrap().data.clone();
            assert_eq!(
                transposed_bytes(shape.transposed(), &data(&view.rowwise)),
                data(&original.columnwise)
            );
            assert_eq!(
                transposed_bytes(shape.transposed(), &data(&view.columnwise)),
                data(&original.rowwise)
            );
            let values = |weight: &Quantized, orientation| weight.dequantize(orientation).unwrap();
            let (rowwise, columnwise) = (Orientation::Rowwise, Orientation::Columnwise);
            assert_eq!(values(&view, rowwise), values(&original, columnwise));
            assert_eq!(values(&view, columnwise), values(&original, rowwise));
        } else {
            assert_eq!(view.rowwise, original.columnwise, "{format} {via:?}");
            assert_eq!(view.columnwise, original.rowwise, "{format} {via:?}");
        }
    }
}

/// The slices (length, rows, columns, start) and both orientations. One 32×64 weight of three elements, one
/// whole weight, and starts at block and row boundaries and beside them.
#[test]
fn c3_mxfp8_amax_and_cast_of_a_slice_equal_a_simple_reference() {
    for (len, rows, cols, start) in [
        (3, 32, 64, 31),
        (4094, 64, 64, 1),
        (16384 * 6144, 16384, 6144, 0),
        (32768, 256, 128, 0),
        (131_072, 768, 256, 0),
        (65536, 768, 256, 131_072),
        (98304, 128, 768, 0),
    ] {
        let (shape, shard) = (Shape::new(rows, cols), FlatShard { start, len });
        // The largest repeats what a million elements are, which is no multiple of its rows.
        let some = normal(Shape::new(1, shape.elements().min(1_000_003)), len as u64);
        let some = seen(Via::Bf16, &some);
        let mut master = Vec::with_capacity(len);
        while master.len() < len {
            let rest = &some[(start + master.len()) % some.len()..];
            master.extend_from_slice(&rest[..rest.len().min(len - master.len())]);
        }
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            let block = |element: usize| match orientation {
                Orientation::Rowwise => element / 32,
                Orientation::Columnwise => element / cols / 32 * cols + element % cols,
            };
            let mut expected = vec![0.0f32; rows * cols / 32];
            for (at, value) in master.iter().enumerate() {
                let amax = &mut expected[block(start + at)];
                *amax = amax.max(value.abs());
            }
            let mut amaxes = vec![f32::NAN; expected.len()];
            let format = Format::Mxfp8;
            flat_amax(format, orientation, Via::Bf16, shape, shard, &master, &mut amaxes).unwrap();
            assert_eq!(amaxes, expected, "{shape} {shard:?} {orientation}");

            let mut encode = vec![0.0; amaxes.len()];
            let mut scale = vec![0; format.planes(orientation, shape)[1].bytes()];
            fused_scale(format, orientation, shape, &amaxes, 0.0, &mut encode, &mut scale).unwrap();
            let mut codes = vec![0; len];
            flat_cast(format, orientation, Via::Bf16, shape, shard, &master, &encode, &mut codes).unwrap();
            let factor =
                |amax: f32| (1.0 / reference::e8m0_value(reference::e8m0(amax * (1.0 / 448.0)))) as f32;
            // The reference is asked once for each amax, of which there are no more than values of bf16.
            let mut known = vec![None; 1 << 16];
            let of_known = |amax: &f32| {
                assert_eq!(amax.to_bits() & 0xFFFF, 0);
                *known[amax.to_bits() as usize >> 16].get_or_insert_with(|| factor(*amax))
            };
            let factors: Vec<f32> = expected.iter().map(of_known).collect();
            // A bf16 value times a power of two has 16 significant bits again, so the reference is asked once
            // for each.
            let mut known = vec![None; 1 << 16];
            // Of the largest slice, one run of 512 in 32, and the last.
            let apart = if len < 1 << 20 { 512 } else { 32 * 512 };
            let runs = (0..len).step_by(apart).chain([len.saturating_sub(512)]);
            for at in runs.flat_map(|begin| begin..len.min(begin + 512)) {
                let (code, value) = (codes[at], master[at]);
                let scaled = value * factors[block(start + at)];
                let expected = match scaled.to_bits() {
                    bits if bits & 0xFFFF == 0 => {
                        *known[bits as usize >> 16].get_or_insert_with(|| reference::e4m3(scaled))
                    }
                    _ => reference::e4m3(scaled),
                };
                assert_eq!(code, expected, "{shape} {at} {orientation}");
            }
        }
    }
}

#[test]
fn g1_extreme_mxfp8_scales_dequantize_to_subnormals_and_nan() {
    let shape = Shape::new(32, 32);
    // Code 0x38 is 1.0.
    let data = [0x38; 32 * 32];
    for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
        let bytes = Format::Mxfp8.planes(orientation, shape)[1].bytes();
        for (code, expected) in [(0, 2f32.powi(-127)), (1, 2f32.powi(-126)), (254, 2f32.powi(127))] {
            let planes = Planes { data: &data, scale: &vec![code; bytes] };
            let mut values = [0.0; 32 * 32];
            dequantize(Format::Mxfp8, orientation, shape, planes, 1.0, &mut values).unwrap();
            assert_eq!(values, [expected; 32 * 32], "code {code}");
        }
        let planes = Planes { data: &data, scale: &vec![255; bytes] };
        let mut values = [0.0; 32 * 32];
        dequantize(Format::Mxfp8, orientation, shape, planes, 1.0, &mut values).unwrap();
        assert!(values.iter().all(|value| value.is_nan()));
    }
}

/// What a weight is before anything is written to it.
#[test]
fn planes_of_zeros_dequantize_to_zeros_in_every_format() {
    let shape = Shape::new(96, 160);
    for format in Format::CANONICAL {
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            let planes = OwnedPlanes::zeroed(format, orientation, shape);
            for tensor_scale in [0.0, 1.0] {
                let mut values = vec![f32::NAN; shape.elements()];
                dequantize(format, orientation, shape, planes.as_planes(), tensor_scale, &mut values)
                    .unwrap();
                assert!(values.iter().all(|value| *value == 0.0), "{format} {orientation}");
            }
        }
    }
}

/// Of any values: subnormal ones, those that round up to infinity, infinities and NaN.
#[test]
fn values_dequantized_to_bf16_are_the_f32_ones_rounded_to_nearest_even() {
    let shape = Shape::new(96, 160);
    for (format, seed) in Format::CANONICAL.into_iter().flat_map(|format| [(format, 5), (format, 6)]) {
        let weight = if seed == 5 { normal(shape, seed) } else { wild(shape, seed) };
        let mut weight = quantize(format, Directions::Both, Via::None, shape, &weight).unwrap();
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            for spoiled in [false, true] {
                let planes = match orientation {
                    Orientation::Rowwise => weight.rowwise.as_mut().unwrap(),
                    Orientation::Columnwise => weight.columnwise.as_mut().unwrap(),
                };
                if spoiled {
                    // Any bytes, so any codes and scales.
                    let litter = planes.data.iter_mut().chain(&mut planes.scale).enumerate();
                    litter.for_each(|(at, byte)| *byte = (at * 167 + at / 256) as u8);
                }
                let (scale, elements) = (weight.tensor_scale, shape.elements());
                let planes = planes.as_planes();
                let (mut exact, mut short) = (vec![0.0; elements], vec![bf16::ZERO; elements]);
                dequantize(format, orientation, shape, planes, scale, &mut exact).unwrap();
                dequantize_bf16(format, orientation, shape, planes, scale, &mut short).unwrap();
                for (short, exact) in short.iter().zip(&exact) {
                    let expected = bf16::from_f32(*exact);
                    let same = short.to_bits() == expected.to_bits() || (short.is_nan() && exact.is_nan());
                    assert!(same, "{format} {orientation}: {exact:e} gives {short:e}");
                }
            }
        }
    }
}

/// AM-3: rounding to bf16 is monotone, so it may come after the maximum.
#[test]
fn am3_the_amax_of_rounded_values_is_the_rounded_amax() {
    let shape = Shape::new(64, 128);
    let weight = normal(shape, 21);
    let rounded: Vec<f32> = weight.iter().copied().map(to_bf16).collect();
    assert_ne!(weight, rounded);
    for format in Format::CANONICAL.into_iter().filter(|format| format.check_shape(shape).is_ok()) {
        for &orientation in format.stored_orientations() {
            let amaxes = |via, weight: &[f32]| {
                let mut blocks = vec![f32::NAN; format.amax_blocks(orientation, shape)];
                let whole = partial_amax(format, orientation, via, shape, weight, &mut blocks).unwrap();
                (whole, blocks)
            };
            assert_eq!(amaxes(Via::Bf16, &weight), amaxes(Via::None, &rounded), "{format} {orientation}");
        }
    }
}

/// ST-1: whichever operand has a length that does not fit, the outputs keep their bytes.
#[test]
fn st1_a_stage_that_refuses_an_operand_writes_nothing() {
    const LITTER: u8 = 0xEE;
    let shape = Shape::new(128, 128);
    let weight = normal(shape, 22);
    for format in Format::CANONICAL.into_iter().filter(|format| format.check_shape(shape).is_ok()) {
        for &orientation in format.stored_orientations() {
            let blocks = vec![7.0_f32; format.amax_blocks(orientation, shape)];
            let encode = vec![7.0_f32; format.encode_blocks(orientation, shape)];
            let mut planes = OwnedPlanes::zeroed(format, orientation, shape);
            planes.data.fill(LITTER);
            planes.scale.fill(LITTER);
            let littered = planes.clone();

            let mut written = blocks.clone();
            let short = &weight[1..];
            partial_amax(format, orientation, Via::None, shape, short, &mut written).unwrap_err();
            assert_eq!(written, blocks, "{format} {orientation}");

            let mut factors = encode.clone();
            let too_many = vec![1.0; blocks.len() + 1];
            let scale = &mut planes.scale;
            fused_scale(format, orientation, shape, &too_many, 1.0, &mut factors, scale).unwrap_err();
            assert_eq!((&factors, &planes), (&encode, &littered), "{format} {orientation}");

            let factors = vec![1.0; encode.len() + 1];
            let data = &mut planes.data;
            partial_cast(format, orientation, Via::None, shape, &weight, &factors, data).unwrap_err();
            assert_eq!(planes, littered, "{format} {orientation}");

            let mut values = vec![7.0; shape.elements()];
            let torn = Planes { data: &littered.data[1..], scale: &littered.scale };
            dequantize(format, orientation, shape, torn, 1.0, &mut values).unwrap_err();
            assert!(values.iter().all(|value| *value == 7.0), "{format} {orientation}");

            if orientation == Orientation::Rowwise && format.derives_columnwise().is_ok() {
                let mut columnwise = OwnedPlanes::zeroed(format, Orientation::Columnwise, shape);
                let zeros = columnwise.clone();
                transpose(format, shape, torn, columnwise.as_planes_mut()).unwrap_err();
                assert_eq!(columnwise, zeros, "{format}");
            }
        }
    }
}
