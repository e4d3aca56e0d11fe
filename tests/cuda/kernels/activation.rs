//! Activations quantized to FP8 operands, bit for bit as `format` quantizes the matrix and its transpose.

use half::bf16;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{ActivationOperand, ActivationSource};
use warpweft_format::{Directions, Format, Quantized, Shape, Via, quantize};
use warpweft_testing::golden_file::{assert_bytes, assert_f32s};

use super::values::{Kind, values};
use crate::gpu::{Buffer, Gpu};

const NULL: DeviceAddress = DeviceAddress::NULL;

/// Columns are multiples of 16; rows anything: one, odd, across tiles, a whole number of tiles.
const SHAPES: [(usize, usize); 9] =
    [(1, 16), (3, 32), (37, 80), (128, 128), (129, 272), (254, 144), (256, 384), (303, 304), (2, 4096)];

fn turned(shape: Shape, values: &[f32]) -> Vec<f32> {
    let column = |column: usize| (0..shape.rows).map(move |row| values[row * shape.cols + column]);
    (0..shape.cols).flat_map(column).collect()
}

/// What the kernels make of one matrix.
struct Found {
    shape: Shape,
    data: Buffer<u8>,
    scale: Buffer<f32>,
    turned: Buffer<u8>,
    turned_scale: Buffer<f32>,
}

/// Everything that is not written holds 0x5A, or a NaN.
fn run(gpu: &Gpu, format: Format, shape: Shape, values: &[bf16], wanted: Directions, whole: bool) -> Found {
    let scales = |shape: Shape| match whole {
        true => 1,
        false => shape.cols.div_ceil(128) * shape.rows.next_multiple_of(4),
    };
    // A tensor's word begins as zero and becomes its amax.
    let unset = if whole { 0.0 } else { f32::NAN };
    let found = Found {
        shape,
        data: gpu.buffer(&vec![0x5A_u8; shape.elements()]),
        scale: gpu.buffer(&vec![f32::NAN; scales(shape)]),
        turned: gpu.buffer(&vec![0x5A_u8; shape.cols * shape.rows.next_multiple_of(16)]),
        turned_scale: gpu.buffer(&vec![unset; scales(shape.transposed())]),
    };
    let on_device = gpu.buffer(values);
    let if_wanted = |buffer: &Buffer<u8>, not| if wanted == not { NULL } else { buffer.address() };
    let operand = ActivationOperand {
        shape,
        values: on_device.address(),
        row_pitch: shape.cols,
        data: if_wanted(&found.data, Directions::Columnwise),
        scale: found.scale.address(),
        columnwise_data: if_wanted(&found.turned, Directions::Rowwise),
        columnwise_scale: found.turned_scale.address(),
    };
    let quantizer = gpu.kernels.activation_quantizer(format).unwrap();
    assert_eq!(quantizer.needs_amax(), whole);
    if whole {
        gpu.run(quantizer.amax(&operand));
    }
    gpu.run(quantizer.cast(&operand));
    found
}

/// Codes and, for blocks, scales of one direction.
fn check(what: &str, expected: &Quantized, data: &[u8], scale: Option<Vec<f32>>) {
    let planes = expected.rowwise.as_ref().unwrap();
    assert_bytes(&format!("{what} codes"), data, &planes.data);
    if let Some(scale) = scale {
        let expected: Vec<f32> = bytemuck::pod_collect_to_vec(&planes.scale);
        assert_f32s(&format!("{what} scales"), &scale, &expected);
    }
}

/// Lines without their padding, which is zero.
fn unpadded(found: &Found) -> Vec<u8> {
    let pitch = found.shape.rows.next_multiple_of(16);
    let mut codes = Vec::new();
    for line in found.turned.read().chunks(pitch) {
        codes.extend(&line[..found.shape.rows]);
        assert!(line[found.shape.rows..].iter().all(|code| *code == 0), "padding of a line is zero");
    }
    codes
}

#[test]
fn activations_along_rows_and_columns_are_the_cpus() {
    let Some(gpu) = Gpu::open("activations") else { return };
    for name in [
        "fp8_block1x128_pow2",
        "fp8_block1x128_f32scale",
        "fp8_block1x128_e5m2_f32scale",
        "fp8_block1x128_e5m2_pow2_eps1e-3",
        "fp8_tensor_e4m3",
        "fp8_tensor_e5m2",
        "fp8_tensor_e4m3_pow2_eps1e2",
    ] {
        let format: Format = name.parse().unwrap();
        let whole = matches!(format, Format::Fp8Tensor(_));
        for (rows, cols) in SHAPES {
            for kind in [Kind::Weights, Kind::Wide, Kind::Special] {
                let shape = Shape::new(rows, cols);
                let values: Vec<bf16> =
                    values(shape.elements(), kind, rows as u64 + 1).into_iter().map(bf16::from_f32).collect();
                let seen: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
                let along = |shape, values: &[f32]| {
                    quantize(format, Directions::Rowwise, Via::None, shape, values).unwrap()
                };
                let (rowwise, columnwise) =
                    (along(shape, &seen), along(shape.transposed(), &turned(shape, &seen)));
                for wanted in [Directions::Both, Directions::Rowwise, Directions::Columnwise] {
                    let what = format!("{format} {shape} {kind:?} {wanted:?}");
                    let found = run(&gpu, format, shape, &values, wanted, whole);
                    let scale = |buffer: &Buffer<f32>| (!whole).then(|| buffer.read());
                    match wanted {
                        Directions::Columnwise => {
                            assert!(found.data.read().iter().all(|code| *code == 0x5A), "{what}");
                        }
                        _ => check(&what, &rowwise, &found.data.read(), scale(&found.scale)),
                    }
                    match wanted {
                        Directions::Rowwise => {
                            assert!(found.turned.read().iter().all(|code| *code == 0x5A), "{what}");
                        }
                        _ => check(&what, &columnwise, &unpadded(&found), scale(&found.turned_scale)),
                    }
                    if whole {
                        assert_f32s(&what, &found.scale.read(), &[rowwise.tensor_scale]);
                        assert_f32s(&what, &found.turned_scale.read(), &[rowwise.amax]);
                    }
                }
            }
        }
    }
}

/// Everything the kernels make of one matrix, in both directions.
fn cast(
    gpu: &Gpu,
    format: Format,
    shape: Shape,
    values: &Buffer<bf16>,
    source: ActivationSource,
) -> (Vec<u8>, Vec<u32>, Vec<u8>, Vec<u32>) {
    let scales = |shape: Shape| shape.cols.div_ceil(128) * shape.rows.next_multiple_of(4);
    let found = Found {
        shape,
        data: gpu.buffer(&vec![0x5A_u8; shape.elements()]),
        scale: gpu.buffer(&vec![f32::NAN; scales(shape)]),
        turned: gpu.buffer(&vec![0x5A_u8; shape.cols * shape.rows.next_multiple_of(16)]),
        turned_scale: gpu.buffer(&vec![f32::NAN; scales(shape.transposed())]),
    };
    let operand = ActivationOperand {
        shape,
        values: values.address(),
        row_pitch: shape.cols,
        data: found.data.address(),
        scale: found.scale.address(),
        columnwise_data: found.turned.address(),
        columnwise_scale: found.turned_scale.address(),
    };
    gpu.run(gpu.kernels.activation_quantizer(format).unwrap().cast_of(source, &operand));
    let bits = |scale: &Buffer<f32>| scale.read().into_iter().map(f32::to_bits).collect();
    (found.data.read(), bits(&found.scale), found.turned.read(), bits(&found.turned_scale))
}

/// NaNs, infinities and numbers that overflow on the way among the values.
#[test]
fn gelu_and_its_gradient_on_the_way_to_codes_are_those_of_launches_of_their_own() {
    let Some(gpu) = Gpu::open("GELU on the way to codes") else { return };
    let kernels = gpu.kernels.elementwise().unwrap();
    for name in ["fp8_block1x128_pow2", "fp8_block1x128_f32scale", "fp8_block1x128_e5m2_pow2_eps1e-3"] {
        let format: Format = name.parse().unwrap();
        for (rows, cols) in SHAPES {
            for kind in [Kind::Weights, Kind::Wide, Kind::Special] {
                let (shape, what) = (Shape::new(rows, cols), format!("{format} {rows}×{cols} {kind:?}"));
                let count = shape.elements();
                let drawn = |seed| {
                    let values = values(count, kind, seed).into_iter().map(bf16::from_f32);
                    gpu.buffer(&values.collect::<Vec<_>>())
                };
                let (x, gradient) = (drawn(rows as u64 + 1), drawn(rows as u64 + 7));
                let activated = gpu.buffer(&vec![bf16::ZERO; count]);
                gpu.run(kernels.gelu(x.address(), activated.address(), count));
                let apart = cast(&gpu, format, shape, &activated, ActivationSource::Values);
                assert!(cast(&gpu, format, shape, &x, ActivationSource::Gelu) == apart, "{what}: GELU");
                let through = gpu.buffer(&gradient.read());
                gpu.run(kernels.gelu_backward(x.address(), through.address(), count));
                let apart = cast(&gpu, format, shape, &through, ActivationSource::Values);
                let source = ActivationSource::GeluGradient(gradient.address());
                assert!(cast(&gpu, format, shape, &x, source) == apart, "{what}: its gradient");
            }
        }
    }
}

#[test]
fn what_activations_cannot_be_is_refused() {
    let Some(gpu) = Gpu::open("refused activations") else { return };
    let refused = |name: &str| gpu.kernels.activation_quantizer(name.parse().unwrap()).unwrap_err();
    for name in ["nvfp4_2d", "fp8_block128_pow2", "bf16"] {
        assert!(refused(name).to_string().contains("1×128 blocks or with one scale"), "{name}");
    }
    let quantizer = gpu.kernels.activation_quantizer(Format::FP8_BLOCK1X128_POW2).unwrap();
    let room = gpu.buffer(&[0_u8; 4096]);
    let operand = ActivationOperand {
        shape: Shape::new(4, 24),
        values: room.address(),
        row_pitch: 32,
        data: room.address(),
        scale: room.address(),
        columnwise_data: NULL,
        columnwise_scale: NULL,
    };
    assert!(quantizer.cast(&operand).unwrap_err().to_string().contains("multiple of 16"));
    let misaligned =
        ActivationOperand { shape: Shape::new(4, 16), values: room.address().plus(2), ..operand };
    assert!(quantizer.cast(&misaligned).unwrap_err().to_string().contains("multiple of 16 bytes"));
    let aligned = ActivationOperand { shape: Shape::new(4, 16), ..operand };
    assert!(quantizer.amax(&aligned).is_err(), "blocks have amaxes of their own");
    for (gradient, reason) in [(NULL, "has no address"), (room.address().plus(8), "multiple of 16 bytes")] {
        let refused = quantizer.cast_of(ActivationSource::GeluGradient(gradient), &aligned).unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
    }
    let whole = gpu.kernels.activation_quantizer(Format::FP8_TENSOR_E4M3).unwrap();
    let aligned = ActivationOperand { columnwise_scale: room.address(), ..aligned };
    let refused = whole.cast_of(ActivationSource::Gelu, &aligned).unwrap_err();
    assert!(refused.to_string().contains("blocks of 128 or 32 alone"), "{refused}");
}
