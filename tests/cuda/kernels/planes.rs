//! Kernels from planes to planes and to values: transpose, expand, swizzle, dequantize, many weights in one launch.

use half::bf16;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{DequantizeOperand, ExpandOperand, ScaleRows, SwizzleOperand, TransposeOperand};
use warpweft_format::{
    ElementType, Format, Nvfp4Block, Orientation, PlaneSpec, Planes, PlanesMut, Shape, dequantize,
    expand_scale, swizzle_scale, transpose,
};
use warpweft_testing::golden_file::{assert_bytes, assert_f32s};

use super::values::{Random, formats, shapes};
use crate::gpu::{Buffer, Gpu};

/// Bytes without meaning: moving them must not depend on what they are.
fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.bits() as u8).collect()
}

struct Part {
    shape: Shape,
    data: Vec<u8>,
    scale: Vec<u8>,
    on_data: Buffer<u8>,
    on_scale: Buffer<u8>,
}

/// Planes of every shape of a format. Every other data plane lies on an address that words cannot be read from.
fn parts(gpu: &Gpu, format: Format, orientation: Orientation) -> Vec<Part> {
    let part = |(at, shape): (usize, Shape)| {
        let planes = format.planes(orientation, shape);
        let data = noise(planes[0].bytes(), at as u64);
        let scale = match format {
            // Finite scales; NaN has no bits to compare.
            Format::Fp8Block(_) => {
                (0..planes[1].bytes() / 4).flat_map(|at| (at as f32 + 0.5).to_le_bytes()).collect()
            }
            _ => noise(planes.get(1).map_or(0, PlaneSpec::bytes), at as u64 + 100),
        };
        let (on_data, on_scale) =
            (gpu.buffer_at(&data, at % 2 * planes[0].element.bytes()), gpu.buffer_at(&scale, at % 3 * 4));
        Part { shape, data, scale, on_data, on_scale }
    };
    shapes(format).into_iter().enumerate().map(part).collect()
}

#[test]
fn transposes_are_the_cpus_and_padding_is_zero() {
    let Some(gpu) = Gpu::open("transposes") else { return };
    for format in formats().into_iter().filter(|format| format.derives_columnwise().is_ok()) {
        let parts = parts(&gpu, format, Orientation::Rowwise);
        let out = |shape: Shape, plane: usize, shift: usize| {
            let planes = format.planes(Orientation::Columnwise, shape);
            gpu.buffer_at(&vec![0xEE_u8; planes.get(plane).map_or(0, PlaneSpec::bytes)], shift)
        };
        let outs: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(at, part)| {
                let element = format.planes(Orientation::Rowwise, part.shape)[0].element.bytes();
                (out(part.shape, 0, at % 3 * element), out(part.shape, 1, 0))
            })
            .collect();
        let operands: Vec<_> = parts
            .iter()
            .zip(&outs)
            .map(|(part, (data, scale))| TransposeOperand {
                shape: part.shape,
                data: part.on_data.address(),
                scale: part.on_scale.address(),
                columnwise_data: data.address(),
                columnwise_scale: scale.address(),
            })
            .collect();
        gpu.run(gpu.kernels.transpose(format, &operands));
        for (part, (on_data, on_scale)) in parts.iter().zip(&outs) {
            let (found_data, found_scale) = (on_data.read(), on_scale.read());
            let mut data = vec![0; found_data.len()];
            let mut scale = vec![0; found_scale.len()];
            let from = Planes { data: &part.data, scale: &part.scale };
            transpose(format, part.shape, from, PlanesMut { data: &mut data, scale: &mut scale }).unwrap();
            assert_bytes(&format!("{format} {} data", part.shape), &found_data, &data);
            assert_bytes(&format!("{format} {} scale", part.shape), &found_scale, &scale);
        }
    }
}

#[test]
fn values_of_planes_are_the_cpus_also_rounded_to_bf16() {
    let Some(gpu) = Gpu::open("values of planes") else { return };
    for format in formats() {
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            let parts = parts(&gpu, format, orientation);
            values(&gpu, format, orientation, ScaleRows::Padded, &parts);
        }
    }
}

/// What a gather brings: of scale rows that repeat one, and no padding.
#[test]
fn values_of_compact_planes_are_the_cpus_also_rounded_to_bf16() {
    let Some(gpu) = Gpu::open("values of compact planes") else { return };
    for format in formats().into_iter().filter(|format| format.check_weight().is_ok()) {
        let mut parts = parts(&gpu, format, Orientation::Rowwise);
        for (at, part) in parts.iter_mut().enumerate() {
            let compact = format.compact_planes(Orientation::Rowwise, part.shape);
            part.scale.truncate(compact.get(1).map_or(0, PlaneSpec::bytes));
            part.on_scale = gpu.buffer_at(&part.scale, at % 3 * 4);
        }
        values(&gpu, format, Orientation::Rowwise, ScaleRows::Compact, &parts);
    }
    let operand = DequantizeOperand {
        shape: Shape::new(16, 16),
        data: DeviceAddress::NULL,
        scale: DeviceAddress::NULL,
        scale_rows: ScaleRows::Compact,
        tensor_scale: DeviceAddress::NULL,
        out: DeviceAddress::NULL,
    };
    let columns =
        gpu.kernels.dequantize(Format::NVFP4_2D, Orientation::Columnwise, ElementType::F32, &[operand]);
    assert!(columns.unwrap_err().to_string().contains("never compact"));
}

fn values(gpu: &Gpu, format: Format, orientation: Orientation, scale_rows: ScaleRows, parts: &[Part]) {
    let tensor_scale = gpu.buffer(&[1.7_f32]);
    for element in [ElementType::F32, ElementType::Bf16] {
        let outs: Vec<_> = parts
            .iter()
            .enumerate()
            .map(|(at, part)| {
                gpu.buffer_at(
                    &vec![0xEE_u8; part.shape.elements() * element.bytes()],
                    at % 3 * element.bytes(),
                )
            })
            .collect();
        let operands: Vec<_> = parts
            .iter()
            .zip(&outs)
            .map(|(part, out)| DequantizeOperand {
                shape: part.shape,
                data: part.on_data.address(),
                scale: part.on_scale.address(),
                scale_rows,
                tensor_scale: tensor_scale.address(),
                out: out.address(),
            })
            .collect();
        gpu.run(gpu.kernels.dequantize(format, orientation, element, &operands));
        for (part, out) in parts.iter().zip(&outs) {
            let mut expected = vec![0.0; part.shape.elements()];
            let planes = Planes { data: &part.data, scale: &part.scale };
            dequantize(format, orientation, part.shape, planes, 1.7, &mut expected).unwrap();
            let found: Vec<f32> = match element {
                ElementType::Bf16 => {
                    expected.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
                    out.read()
                        .as_chunks()
                        .0
                        .iter()
                        .map(|bytes| bf16::from_le_bytes(*bytes).to_f32())
                        .collect()
                }
                _ => out.read().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            };
            assert_f32s(&format!("{format} {orientation} {} {element:?}", part.shape), &found, &expected);
        }
    }
}

#[test]
fn compact_scale_rows_spread_over_their_plane_in_place_or_from_outside() {
    let Some(gpu) = Gpu::open("expanded scales") else { return };
    for format in formats().into_iter().filter(|format| format.check_weight().is_ok()) {
        for orientation in format.stored_orientations() {
            let mut shapes = shapes(format);
            if format == Format::NVFP4_2D {
                // Several closing blocks; rows wider than what a block holds.
                shapes.extend(
                    [
                        (16 * 5000, 64),
                        (16 * 5000, 256),
                        (16 * 1100, 1280),
                        (16 * 300, 9216),
                        (320, 16 * 17_004),
                    ]
                    .map(|(rows, cols)| Shape::new(rows, cols)),
                );
            }
            let planes: Vec<Vec<u8>> = shapes
                .iter()
                .enumerate()
                .map(|(at, shape)| {
                    let bytes = format.planes(*orientation, *shape).get(1).map_or(0, PlaneSpec::bytes);
                    noise(bytes, at as u64)
                })
                .collect();
            for outside in [false, true] {
                let is_spread = format == Format::Nvfp4(Nvfp4Block::Tile16x16);
                if (outside && !is_spread) || planes.iter().all(Vec::is_empty) {
                    continue;
                }
                expand(&gpu, format, *orientation, outside, &shapes, &planes);
                if is_spread {
                    // Larger launches, in which a block takes more.
                    for times in [3, 7] {
                        let shapes = vec![shapes.clone(); times].concat();
                        let planes = vec![planes.clone(); times].concat();
                        expand(&gpu, format, *orientation, outside, &shapes, &planes);
                    }
                }
                for (shape, plane) in shapes.iter().zip(&planes).filter(|(_, plane)| !plane.is_empty()) {
                    let (shape, plane) = (std::slice::from_ref(shape), std::slice::from_ref(plane));
                    expand(&gpu, format, *orientation, outside, shape, plane);
                }
            }
        }
    }
}

fn expand(
    gpu: &Gpu,
    format: Format,
    orientation: Orientation,
    outside: bool,
    shapes: &[Shape],
    planes: &[Vec<u8>],
) {
    // Some begin where only words are aligned.
    let buffer = |(at, plane): (usize, &Vec<u8>)| gpu.buffer_at(plane, at % 3 / 2 * 4);
    let buffers: Vec<_> = planes.iter().enumerate().map(buffer).collect();
    let compact: Vec<_> = planes.iter().map(|plane| gpu.buffer(plane)).collect();
    let operands: Vec<_> = (0..shapes.len())
        .map(|at| ExpandOperand {
            shape: shapes[at],
            compact: if outside { compact[at].address() } else { buffers[at].address() },
            plane: buffers[at].address(),
        })
        .collect();
    let launch = gpu.kernels.expand_scale(format, orientation, &operands);
    // A launch finds its counters at zero, in the middle, and at zero again.
    for time in 0..3 {
        buffers.iter().zip(planes).for_each(|(buffer, plane)| buffer.write(plane));
        gpu.run(launch.clone());
        for ((shape, plane), buffer) in shapes.iter().zip(planes).zip(&buffers) {
            let mut expected = plane.clone();
            expand_scale(format, orientation, *shape, &mut expected).unwrap();
            let what = format!("{format} {orientation} {shape} {outside}, launch {time}");
            assert_bytes(&what, &buffer.read(), &expected);
        }
    }
}

#[test]
fn swizzled_scales_are_the_cpus_and_padding_is_zero() {
    let Some(gpu) = Gpu::open("swizzled scales") else { return };
    for format in [Format::NVFP4_2D, Format::NVFP4_1D, Format::Mxfp8] {
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            let parts = parts(&gpu, format, orientation);
            let outs: Vec<_> = parts
                .iter()
                .enumerate()
                .map(|(at, part)| gpu.buffer_at(&vec![0xEE_u8; part.scale.len()], at % 2 * 16))
                .collect();
            let operands: Vec<_> = parts
                .iter()
                .zip(&outs)
                .map(|(part, out)| SwizzleOperand {
                    shape: part.shape,
                    scale: part.on_scale.address(),
                    swizzled: out.address(),
                })
                .collect();
            gpu.run(gpu.kernels.swizzle_scale(format, orientation, &operands));
            for (part, out) in parts.iter().zip(&outs) {
                let mut expected = vec![0; part.scale.len()];
                swizzle_scale(format, orientation, part.shape, &part.scale, &mut expected).unwrap();
                assert_bytes(&format!("{format} {orientation} {}", part.shape), &out.read(), &expected);
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_launched() {
    let Some(gpu) = Gpu::open("refusals") else { return };
    let buffer = gpu.buffer(&[0.0_f32; 64]);
    let operand = TransposeOperand {
        shape: Shape::new(16, 16),
        data: buffer.address(),
        scale: buffer.address(),
        columnwise_data: buffer.address(),
        columnwise_scale: buffer.address(),
    };
    let refusal = |operand: TransposeOperand, format| {
        gpu.kernels.transpose(format, &[operand]).unwrap_err().to_string()
    };
    assert!(refusal(operand, Format::Mxfp8).contains("quantize both orientations"));
    let odd = TransposeOperand { shape: Shape::new(16, 15), ..operand };
    assert!(refusal(odd, Format::NVFP4_2D).contains("pad the columns"));
    let missing = TransposeOperand { columnwise_scale: DeviceAddress::NULL, ..operand };
    assert!(refusal(missing, Format::NVFP4_2D).contains("no address"));
    let misaligned = TransposeOperand { data: buffer.address().plus(2), ..operand };
    assert!(refusal(misaligned, Format::F32).contains("multiple of 4"));
}
