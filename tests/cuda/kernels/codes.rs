//! Conversions, value by value: every exponent, every tie and its neighbours, and all codes back.

use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{CastOperand, DequantizeOperand, MasterFragment, ScaleRows};
use warpweft_format::{ElementType, Format, Orientation, Planes, Shape, Via, dequantize, partial_cast};
use warpweft_testing::golden_file::{assert_bytes, assert_f32s};

use crate::gpu::Gpu;

/// Every f32 exponent and sign, with mantissas at, beside and between all rounding ties.
fn interesting() -> Vec<f32> {
    let mut values = Vec::new();
    for high in 0..512_u32 {
        for middle in 0..64_u32 {
            for low in [0, 1, 0x8000, 0x1_0000, 0x1_FFFF, 0x7FFF, 0x8001, 0x1_7FFF] {
                values.push(f32::from_bits((high << 23) | (middle << 17) | low));
            }
        }
    }
    values
}

#[test]
fn every_rounding_of_every_element_is_the_cpus() {
    let Some(gpu) = Gpu::open("roundings") else { return };
    let values = interesting();
    let shape = Shape::new(values.len() / 1024, 1024);
    let master = gpu.buffer(&values);
    for name in [
        "nvfp4_2d",
        "fp8_block128_pow2",
        "fp8_block128_e5m2_pow2",
        "mxfp8",
        "fp8_tensor_e4m3",
        "fp8_tensor_e5m2",
        "bf16",
        "f32",
    ] {
        let format: Format = name.parse().unwrap();
        for via in [Via::None, Via::Bf16] {
            let factors = vec![1.0_f32; format.encode_blocks(Orientation::Rowwise, shape)];
            let bytes = format.planes(Orientation::Rowwise, shape)[0].bytes();
            let (encode, data) = (gpu.buffer(&factors), gpu.buffer(&vec![0_u8; bytes]));
            let operand = CastOperand {
                fragment: MasterFragment::whole(master.address(), shape),
                encode: encode.address(),
                columnwise_encode: DeviceAddress::NULL,
                data: data.address(),
                columnwise_data: DeviceAddress::NULL,
            };
            gpu.run(gpu.kernels.partial_cast(format, via, &[operand], DeviceAddress::NULL));
            let mut expected = vec![0; bytes];
            partial_cast(format, Orientation::Rowwise, via, shape, &values, &factors, &mut expected).unwrap();
            assert_bytes(&format!("{format} {via:?}"), &data.read(), &expected);
        }
    }
}

#[test]
fn every_code_with_every_scale_has_the_cpus_value() {
    let Some(gpu) = Gpu::open("values of codes") else { return };
    // 256 codes in every row, and a row or a block for every scale byte.
    let shape = Shape::new(256, 256);
    for name in [
        "nvfp4_1d",
        "fp8_block128_pow2",
        "fp8_block128_e5m2_pow2",
        "mxfp8",
        "fp8_tensor_e4m3",
        "fp8_tensor_e5m2",
    ] {
        let format: Format = name.parse().unwrap();
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            let planes = format.planes(orientation, shape);
            let data: Vec<u8> = (0..planes[0].bytes()).map(|at| at as u8).collect();
            let scale_bytes = planes.get(1).map_or(0, |plane| plane.bytes());
            let scale: Vec<u8> = match format {
                Format::Fp8Block(_) => {
                    let scales = [1.5_f32, 1e-38, 3e38, 0.0].into_iter().cycle().take(scale_bytes / 4);
                    scales.flat_map(f32::to_le_bytes).collect()
                }
                _ => (0..scale_bytes).map(|at| (at / planes[1].cols) as u8).collect(),
            };
            for tensor_scale in [1.0_f32, 3e36, 1e-38] {
                let (on_data, on_scale) = (gpu.buffer(&data), gpu.buffer(&scale));
                let on_tensor = gpu.buffer(&[tensor_scale]);
                let out = gpu.buffer(&vec![0.0_f32; shape.elements()]);
                let operand = DequantizeOperand {
                    shape,
                    data: on_data.address(),
                    scale: on_scale.address(),
                    scale_rows: ScaleRows::Padded,
                    tensor_scale: on_tensor.address(),
                    out: out.address(),
                };
                gpu.run(gpu.kernels.dequantize(format, orientation, ElementType::F32, &[operand]));
                let mut expected = vec![0.0; shape.elements()];
                let planes = Planes { data: &data, scale: &scale };
                dequantize(format, orientation, shape, planes, tensor_scale, &mut expected).unwrap();
                assert_f32s(&format!("{format} {orientation} {tensor_scale:e}"), &out.read(), &expected);
            }
        }
    }
}
