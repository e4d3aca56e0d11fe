//! Activations into operands of block-scaled products: codes and swizzled scales, bit for bit what `format` makes
//! of the matrix and of its transpose. Any GPU makes them; only some multiply them.

use half::bf16;
use warpweft::backend::cuda::DeviceAddress;
use warpweft::backend::cuda::kernels::{ActivationOperand, ActivationQuantizer, ActivationSource};
use warpweft::format::{Directions, Format, Orientation, PlaneSpec, Shape, Via, quantize, swizzle_scale};

use crate::golden_file::assert_bytes;
use crate::gpu::{Buffer, Gpu};
use crate::values::{Kind, Random, shapes, values};

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

/// Rows of `shape` and zeros behind them, up to a multiple of 32; then the transpose of the same.
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
    let behind = [bf16::NAN; 16];
    let spread: Vec<bf16> = values.chunks(shape.cols).flat_map(|row| [row, &behind].concat()).collect();
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
    let swizzler = |format, shape| gpu.kernels.scale_swizzler(format, Orientation::Rowwise, shape);
    assert!(swizzler(Format::FP8_BLOCK128_POW2, Shape::new(128, 128)).is_err());
    assert!(swizzler(Format::Mxfp8, Shape::new(48, 64)).is_err());
}
