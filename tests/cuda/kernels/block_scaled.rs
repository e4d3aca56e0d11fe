//! Activations quantized to operands of block-scaled products: codes and swizzled scales, bit for bit as `format`
//! quantizes the matrix and its transpose. Any GPU makes them; only some multiply them.

use half::bf16;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{ActivationOperand, ActivationQuantizer, ActivationSource, ScalarsOperand};
use warpweft_format::{Directions, Format, Orientation, PlaneSpec, Shape, Via, quantize, swizzle_scale};
use warpweft_testing::golden_file::assert_bytes;

use super::values::{Kind, Random, shapes, values};
use crate::gpu::{Buffer, Gpu};

const NULL: DeviceAddress = DeviceAddress::NULL;

/// Columns are multiples of 32; rows anything: one, odd, across blocks and tiles, a whole number of tiles.
const SHAPES: [(usize, usize); 10] = [
    (1, 32),
    (3, 64),
    (32, 96),
    (37, 160),
    (128, 128),
    (129, 288),
    (254, 416),
    (256, 384),
    (303, 544),
    (2, 4096),
];

/// What nothing may have written.
const UNWRITTEN: u8 = 0x5A;

/// Rows of `shape` and zeros after them, up to a multiple of 32; then the transpose of the same.
fn padded(shape: Shape, values: &[f32]) -> [(Shape, Vec<f32>); 2] {
    let whole = Shape::new(shape.rows.next_multiple_of(32), shape.cols);
    let mut rows = values.to_vec();
    rows.resize(whole.elements(), 0.0);
    let column = |column: usize| (0..whole.rows).map(move |row| (row, column));
    let at = |(row, column): (usize, usize)| rows[row * whole.cols + column];
    let turned = (0..whole.cols).flat_map(column).map(at).collect();
    [(whole, rows), (whole.transposed(), turned)]
}

/// Codes of the first rows, and all scales as products read them, padding included.
fn expected(format: Format, rows: usize, (shape, values): &(Shape, Vec<f32>)) -> (Vec<u8>, Vec<u8>) {
    let planes = quantize(format, Directions::Rowwise, Via::None, *shape, values).unwrap().rowwise.unwrap();
    let mut swizzled = vec![UNWRITTEN; planes.scale.len()];
    swizzle_scale(format, Orientation::Rowwise, *shape, &planes.scale, &mut swizzled).unwrap();
    (planes.data[..planes.data.len() / shape.rows * rows].to_vec(), swizzled)
}

/// What the kernels make of one matrix; what they do not write holds [`UNWRITTEN`].
struct Found {
    data: Buffer<u8>,
    scale: Buffer<u8>,
    turned: Buffer<u8>,
    turned_scale: Buffer<u8>,
}

impl Found {
    fn of(gpu: &Gpu, shape: Shape) -> Self {
        let turned = Shape::new(shape.cols, ActivationQuantizer::line(Format::Mxfp8, shape.rows));
        let unwritten = |bytes| gpu.buffer(&vec![UNWRITTEN; bytes]);
        let scales = |shape| Format::Mxfp8.planes(Orientation::Rowwise, shape)[1].bytes();
        Self {
            data: unwritten(shape.elements()),
            scale: unwritten(scales(shape)),
            turned: unwritten(turned.elements()),
            turned_scale: unwritten(scales(turned)),
        }
    }

    fn operand(&self, shape: Shape, values: DeviceAddress, wanted: Directions) -> ActivationOperand {
        let if_wanted = |buffer: &Buffer<u8>, not| if wanted == not { NULL } else { buffer.address() };
        ActivationOperand {
            shape,
            values,
            row_pitch: shape.cols,
            data: if_wanted(&self.data, Directions::Columnwise),
            scale: self.scale.address(),
            columnwise_data: if_wanted(&self.turned, Directions::Rowwise),
            columnwise_scale: self.turned_scale.address(),
        }
    }

    fn read(&self) -> [Vec<u8>; 4] {
        [self.data.read(), self.scale.read(), self.turned.read(), self.turned_scale.read()]
    }
}

fn drawn(shape: Shape, kind: Kind, seed: u64) -> Vec<bf16> {
    values(shape.elements(), kind, seed).into_iter().map(bf16::from_f32).collect()
}

fn widened(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

#[test]
fn mxfp8_activations_along_rows_and_columns_are_the_cpus_with_swizzled_scales() {
    let Some(gpu) = Gpu::open("MXFP8 activations") else { return };
    let quantizer = gpu.kernels.activation_quantizer(Format::Mxfp8).unwrap();
    assert!(!quantizer.needs_amax());
    for (rows, cols) in SHAPES {
        for kind in [Kind::Weights, Kind::Wide, Kind::Special] {
            let shape = Shape::new(rows, cols);
            let values = drawn(shape, kind, rows as u64 + 1);
            let [along, across] = padded(shape, &widened(&values));
            let rowwise = expected(Format::Mxfp8, rows, &along);
            let columnwise = expected(Format::Mxfp8, cols, &across);
            let on_device = gpu.buffer(&values);
            for wanted in [Directions::Both, Directions::Rowwise, Directions::Columnwise] {
                let what = format!("{shape} {kind:?} {wanted:?}");
                let found = Found::of(&gpu, shape);
                gpu.run(quantizer.cast(&found.operand(shape, on_device.address(), wanted)));
                let [data, scale, turned, turned_scale] = found.read();
                for (name, codes, scales, expected, not) in [
                    ("along rows", data, scale, &rowwise, Directions::Columnwise),
                    ("along columns", turned, turned_scale, &columnwise, Directions::Rowwise),
                ] {
                    if wanted == not {
                        assert!(codes.iter().chain(&scales).all(|byte| *byte == UNWRITTEN), "{what}: {name}");
                        continue;
                    }
                    assert_bytes(&format!("{what} codes {name}"), &codes, &expected.0);
                    assert_bytes(&format!("{what} scales {name}"), &scales, &expected.1);
                }
            }
        }
    }
}

#[test]
fn rows_may_lie_further_apart_than_they_are_long() {
    let Some(gpu) = Gpu::open("MXFP8 activations in wider matrices") else { return };
    let quantizer = gpu.kernels.activation_quantizer(Format::Mxfp8).unwrap();
    let (shape, pitch) = (Shape::new(131, 96), 112);
    let values = drawn(shape, Kind::Wide, 5);
    let after = [bf16::NAN; 16];
    let spread: Vec<bf16> = values.chunks(shape.cols).flat_map(|row| [row, &after].concat()).collect();
    let (dense, wide) = (Found::of(&gpu, shape), Found::of(&gpu, shape));
    let (values, spread) = (gpu.buffer(&values), gpu.buffer(&spread));
    let operand = dense.operand(shape, values.address(), Directions::Both);
    gpu.run(quantizer.cast(&operand));
    let operand = wide.operand(shape, spread.address(), Directions::Both);
    gpu.run(quantizer.cast(&ActivationOperand { row_pitch: pitch, ..operand }));
    assert!(wide.read() == dense.read());
}

/// NaNs, infinities and numbers that overflow on the way among the values.
#[test]
fn gelu_and_its_gradient_on_the_way_to_mxfp8_are_those_of_launches_of_their_own() {
    let Some(gpu) = Gpu::open("GELU on the way to MXFP8") else { return };
    let kernels = gpu.kernels.elementwise().unwrap();
    let quantizer = gpu.kernels.activation_quantizer(Format::Mxfp8).unwrap();
    let cast = |shape, values: &Buffer<bf16>, source| {
        let found = Found::of(&gpu, shape);
        gpu.run(quantizer.cast_of(source, &found.operand(shape, values.address(), Directions::Both)));
        found.read()
    };
    for (rows, cols) in SHAPES {
        for kind in [Kind::Weights, Kind::Wide, Kind::Special] {
            let (shape, what) = (Shape::new(rows, cols), format!("{rows}×{cols} {kind:?}"));
            let count = shape.elements();
            let x = gpu.buffer(&drawn(shape, kind, rows as u64 + 1));
            let gradient = gpu.buffer(&drawn(shape, kind, rows as u64 + 7));
            let activated = gpu.buffer(&vec![bf16::ZERO; count]);
            gpu.run(kernels.gelu(x.address(), activated.address(), count));
            let apart = cast(shape, &activated, ActivationSource::Values);
            assert!(cast(shape, &x, ActivationSource::Gelu) == apart, "{what}: GELU");
            let through = gpu.buffer(&gradient.read());
            gpu.run(kernels.gelu_backward(x.address(), through.address(), count));
            let apart = cast(shape, &through, ActivationSource::Values);
            let source = ActivationSource::GeluGradient(gradient.address());
            assert!(cast(shape, &x, source) == apart, "{what}: its gradient");
        }
    }
}

/// What the kernels make of a matrix in NVFP4: codes, scales and amax.
fn in_nvfp4(gpu: &Gpu, shape: Shape, values: &[bf16]) -> (Vec<u8>, Vec<u8>, f32) {
    let unwritten = |bytes| gpu.buffer(&vec![UNWRITTEN; bytes]);
    let planes = Format::NVFP4_1D.planes(Orientation::Rowwise, shape);
    // Two codes a byte, of the rows there are.
    let (data, scale) = (unwritten(shape.elements() / 2), unwritten(planes[1].bytes()));
    let (on_device, amax) = (gpu.buffer(values), gpu.buffer(&[0.0_f32]));
    let operand = ActivationOperand {
        shape,
        values: on_device.address(),
        row_pitch: shape.cols,
        data: data.address(),
        scale: scale.address(),
        columnwise_data: NULL,
        columnwise_scale: amax.address(),
    };
    let quantizer = gpu.kernels.activation_quantizer(Format::NVFP4_1D).unwrap();
    assert!(quantizer.needs_amax());
    gpu.run(quantizer.amax(&operand));
    gpu.run(quantizer.cast(&operand));
    (data.read(), scale.read(), amax.read()[0])
}

/// Also where all are zero, and where nearly all blocks have a scale of 0.
#[test]
fn nvfp4_activations_along_rows_are_the_cpus_with_swizzled_scales() {
    let Some(gpu) = Gpu::open("NVFP4 activations") else { return };
    for (rows, cols) in SHAPES {
        let shape = Shape::new(rows, cols);
        let mut all: Vec<(String, Vec<bf16>)> = [Kind::Weights, Kind::Wide, Kind::Nan]
            .map(|kind| (format!("{kind:?}"), drawn(shape, kind, rows as u64 + 1)))
            .into();
        all.push(("zeros".into(), vec![bf16::ZERO; shape.elements()]));
        let mut uneven = drawn(shape, Kind::Weights, 3);
        uneven[0] = bf16::from_f32(1e30);
        all.push(("uneven".into(), uneven));
        for (name, values) in all {
            let [along, _] = padded(shape, &widened(&values));
            let (codes, scales) = expected(Format::NVFP4_1D, rows, &along);
            let largest = along.1.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            let found = in_nvfp4(&gpu, shape, &values);
            assert_bytes(&format!("{shape} {name} codes"), &found.0, &codes);
            assert_bytes(&format!("{shape} {name} scales"), &found.1, &scales);
            assert_eq!(found.2.to_bits(), largest.to_bits(), "{shape} {name}");
        }
    }
}

/// The CPU refuses such an amax; a launch cannot, but no product of it is finite.
#[test]
fn alpha_is_the_product_of_both_amaxes_and_shows_one_that_is_not_finite() {
    let Some(gpu) = Gpu::open("scalars of products") else { return };
    let kernel = gpu.kernels.product_scalars().unwrap();
    let scalars = |first: f32, second: f32, adds| {
        let (amaxes, found) = ([gpu.buffer(&[first]), gpu.buffer(&[second])], gpu.buffer(&[f32::NAN; 8]));
        let (alpha, beta) = (found.address(), found.address().plus(16));
        let amaxes = [amaxes[0].address(), amaxes[1].address()];
        gpu.run(kernel.launch(&ScalarsOperand { amaxes, alpha, beta }, adds));
        let found = found.read();
        assert!([1, 2, 3, 5, 6, 7].iter().all(|at| found[*at].is_nan()), "two words are written");
        (found[0], found[4])
    };
    for (first, second) in [(2688.0, 2688.0), (0.02, 31.5), (1e-20, 3e-12), (7e30, 2e-9), (0.0, 5.0)] {
        let expected = (first * second * (1.0 / 7_225_344.0_f32), 1.0);
        assert_eq!(scalars(first, second, true), expected);
        assert_eq!(scalars(first, second, false).1.to_bits(), 0);
    }
    assert_eq!(scalars(2688.0, 2688.0, false).0, 1.0);
    let mut values = drawn(Shape::new(3, 64), Kind::Weights, 9);
    values[70] = bf16::NEG_INFINITY;
    let (_, _, amax) = in_nvfp4(&gpu, Shape::new(3, 64), &values);
    assert_eq!(amax, f32::INFINITY);
    assert!([0.0, 1e-30, 4.0].iter().all(|weight| !scalars(amax, *weight, false).0.is_finite()));
    let missing = ScalarsOperand { amaxes: [NULL, NULL], alpha: NULL, beta: NULL };
    assert!(kernel.launch(&missing, false).is_err());
}

#[test]
fn a_weights_scales_swizzled_alone_are_the_cpus() {
    let Some(gpu) = Gpu::open("scales swizzled alone") else { return };
    for format in [Format::NVFP4_2D, Format::Mxfp8] {
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            for (at, shape) in shapes(format).into_iter().enumerate() {
                let bytes = format.planes(orientation, shape).get(1).map_or(0, PlaneSpec::bytes);
                let mut random = Random::new(at as u64);
                let scale: Vec<u8> = (0..bytes).map(|_| random.bits() as u8).collect();
                let (on_device, out) =
                    (gpu.buffer_at(&scale, at % 3 * 4), gpu.buffer(&vec![UNWRITTEN; bytes]));
                let swizzler = gpu.kernels.scale_swizzler(format, orientation, shape).unwrap();
                gpu.run(swizzler.launch(on_device.address(), out.address()));
                let mut expected = vec![0; bytes];
                swizzle_scale(format, orientation, shape, &scale, &mut expected).unwrap();
                assert_bytes(&format!("{format} {orientation} {shape}"), &out.read(), &expected);
                assert!(swizzler.launch(NULL, out.address()).is_err());
                assert!(swizzler.launch(on_device.address(), out.address().plus(8)).is_err());
            }
        }
    }
}

#[test]
fn what_block_scaled_activations_cannot_be_is_refused() {
    let Some(gpu) = Gpu::open("refused block-scaled activations") else { return };
    let quantizer = gpu.kernels.activation_quantizer(Format::Mxfp8).unwrap();
    let (room, shape) = (gpu.buffer(&[0_u8; 8192]), Shape::new(4, 48));
    let operand = ActivationOperand {
        shape,
        values: room.address(),
        row_pitch: 64,
        data: room.address(),
        scale: room.address(),
        columnwise_data: NULL,
        columnwise_scale: NULL,
    };
    let refused = |operand: ActivationOperand| quantizer.cast(&operand).unwrap_err().to_string();
    assert!(refused(operand).contains("multiple of 32"), "{}", refused(operand));
    let operand = ActivationOperand { shape: Shape::new(4, 64), ..operand };
    assert!(refused(ActivationOperand { row_pitch: 48, ..operand }).contains("from 64 on"));
    assert!(refused(ActivationOperand { scale: NULL, ..operand }).contains("has no address"));
    assert!(refused(ActivationOperand { columnwise_data: room.address(), ..operand }).contains("no address"));
    assert!(quantizer.amax(&operand).is_err(), "blocks have amaxes of their own");
    let quantizer = gpu.kernels.activation_quantizer(Format::NVFP4_1D).unwrap();
    let operand = ActivationOperand { columnwise_scale: room.address(), ..operand };
    let refused = |operand: ActivationOperand| quantizer.cast(&operand).unwrap_err().to_string();
    assert!(refused(ActivationOperand { data: NULL, ..operand }).contains("no address"));
    let both = ActivationOperand { columnwise_data: room.address(), ..operand };
    assert!(refused(both).contains("no columnwise codes"));
    assert!(refused(ActivationOperand { shape, ..operand }).contains("multiple of 32"));
    let gelu = quantizer.cast_of(ActivationSource::Gelu, &operand).unwrap_err().to_string();
    assert!(gelu.contains("a launch of its own"), "{gelu}");
    let swizzler = |format, shape| gpu.kernels.scale_swizzler(format, Orientation::Rowwise, shape);
    assert!(swizzler(Format::FP8_BLOCK128_POW2, Shape::new(128, 128)).is_err());
    assert!(swizzler(Format::Mxfp8, Shape::new(64, 48)).is_err());
}
