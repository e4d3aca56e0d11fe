//! LI-4: an operand that does not fit is refused before anything is enqueued.

use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{Device, Linear, LinearSpec, Recipe};
use warpweft_format::{Directions, ElementType, Format, Orientation, Shape, Via, quantize};

use super::rig::{GPU, OnDevice, handles, lend, lend_mut};
use crate::gpu::Gpu;

#[test]
fn shapes_a_recipe_does_not_take_are_refused_with_what_to_do() {
    let Some(gpu) = Gpu::open("refused shapes") else { return };
    let device = Device::open(GPU).unwrap();
    let _turn = gpu;
    let refused = |recipe, tokens, outs, ins| {
        Linear::new(&device, LinearSpec::new(recipe, tokens, Shape::new(outs, ins))).unwrap_err()
    };
    let dimension = |error: CudaFailure, name: &str, of: usize| match &error {
        CudaFailure::Dimension { what, multiple, .. } if (*what, *multiple) == (name, of) => {
            assert!(error.to_string().contains("pad them"), "{error}");
        }
        other => panic!("{other}"),
    };
    assert!(matches!(refused(Recipe::Bf16, 0, 16, 16), CudaFailure::Empty { .. }));
    if let Ok(tensor) = Recipe::native(Format::FP8_TENSOR_E4M3, device.capability()) {
        dimension(refused(tensor, 32, 24, 16), "outputs", 16);
        dimension(refused(tensor, 32, 16, 40), "inputs", 16);
        let spec =
            LinearSpec { dgrad: Orientation::Rowwise, ..LinearSpec::new(tensor, 16, Shape::new(16, 16)) };
        assert!(matches!(Linear::new(&device, spec), Err(CudaFailure::DataGradient { .. })));
    }
    if let Ok(block) = Recipe::native(Format::FP8_BLOCK128_POW2, device.capability()) {
        dimension(refused(block, 33, 128, 128), "tokens", 4);
    }
    // LI-4: neither does a layer fall back that requests products of another GPU.
    for (format, recipe) in [(Format::Mxfp8, Recipe::Mxfp8), (Format::NVFP4_2D, Recipe::Nvfp4)] {
        if let Err(error) = Recipe::native(format, device.capability()) {
            assert_eq!(refused(recipe, 32, 64, 64), error);
        }
    }
    let bytes =
        LinearSpec { output: ElementType::U8, ..LinearSpec::new(Recipe::Bf16, 16, Shape::new(16, 16)) };
    assert!(matches!(Linear::new(&device, bytes), Err(CudaFailure::Result { .. })));
}

/// GE-2
#[test]
fn operands_that_do_not_fit_are_refused_and_nothing_is_written() {
    let Some(gpu) = Gpu::open("refused operands") else { return };
    let device = Device::open(GPU).unwrap();
    let shape = Shape::new(32, 64);
    let mut layer = Linear::new(&device, LinearSpec::new(Recipe::Bf16, 16, shape)).unwrap();
    let handles = handles(&gpu);
    let one = bf16::ONE;
    let (x, y) = (gpu.buffer(&[one; 16 * 64]), gpu.buffer(&[one; 16 * 32]));
    let weight = OnDevice::values(&gpu, shape, &[one; 32 * 64]);
    let rowwise = weight.weight(Orientation::Rowwise);

    let short = layer.forward(&handles, lend(&x, 16 * 63), &rowwise, lend_mut(&y, 16 * 32)).unwrap_err();
    assert!(matches!(short, CudaFailure::Operand { what: "x", actual: 1008, expected: 1024, .. }), "{short}");
    let short = layer.forward(&handles, lend(&x, 16 * 64), &rowwise, lend_mut(&y, 16 * 31)).unwrap_err();
    assert!(matches!(short, CudaFailure::Operand { what: "y", .. }), "{short}");
    let values = gpu.buffer(&[0.0_f32; 16 * 32]);
    let wide = layer.forward(&handles, lend(&x, 16 * 64), &rowwise, lend_mut(&values, 16 * 32)).unwrap_err();
    assert!(matches!(wide, CudaFailure::Operand { element: ElementType::F32, .. }), "{wide}");
    let columnwise = weight.weight(Orientation::Columnwise);
    let turned = layer.forward(&handles, lend(&x, 16 * 64), &columnwise, lend_mut(&y, 16 * 32)).unwrap_err();
    assert!(matches!(turned, CudaFailure::Weight { .. }), "{turned}");
    let quantized =
        quantize(Format::FP8_TENSOR_E4M3, Directions::Both, Via::Bf16, shape, &[1.0; 32 * 64]).unwrap();
    let planes = OnDevice::planes(&gpu, &quantized);
    let planes = planes.weight(Orientation::Rowwise);
    let other = layer.forward(&handles, lend(&x, 16 * 64), &planes, lend_mut(&y, 16 * 32)).unwrap_err();
    assert!(other.to_string().contains("fp8_tensor_e4m3 planes"), "{other}");
    assert!(y.read().iter().all(|value| *value == one));
    layer.forward(&handles, lend(&x, 16 * 64), &rowwise, lend_mut(&y, 16 * 32)).unwrap();
    cudarc::driver::result::ctx::synchronize().unwrap();
    assert!(y.read().iter().all(|value| value.to_f32() == 64.0));
}
