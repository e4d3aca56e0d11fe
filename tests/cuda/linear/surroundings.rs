//! Products within wider matrices, with residuals, GELU and sums.

use cudarc::driver::result;
use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{
    BackwardOperands, Device, Elementwise, Linear, LinearSpec, Output, Recipe, Weight,
};
use warpweft_format::{Directions, ElementType, Format, Orientation, Shape, Via, quantize};

use super::reference::noise;
use super::rig::{GPU, OnDevice, handles, lend, lend_mut};
use crate::gpu::{Buffer, Gpu};

const TOKENS: usize = 132;
const WEIGHT: Shape = Shape::new(256, 128);
const PITCH: usize = 384;

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

/// The same rows in lines of `PITCH` elements; what is after a row is NaN.
fn spread(rows: &[bf16], columns: usize) -> Vec<bf16> {
    let padded = |row: &[bf16]| [row, &vec![bf16::NAN; PITCH - columns][..]].concat();
    rows.chunks(columns).flat_map(padded).collect()
}

/// The first columns of lines of `PITCH` elements, whose other columns must still be NaN.
fn gathered(rows: &[bf16], columns: usize) -> Vec<bf16> {
    assert!(rows.chunks(PITCH).all(|row| row[columns..].iter().all(|value| value.is_nan())));
    rows.chunks(PITCH).flat_map(|row| row[..columns].to_vec()).collect()
}

fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= 0.01 * largest, "{what}: {found} for {expected} at {at}");
    }
}

fn widened(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

fn weight_of(gpu: &Gpu, recipe: Recipe) -> OnDevice {
    let values: Vec<f32> = noise(WEIGHT, 3).iter().map(|value| value * 0.1).collect();
    match recipe.weight_format() {
        None => OnDevice::values(gpu, WEIGHT, &rounded(&values)),
        Some(format) => {
            let quantized = quantize(format, Directions::Both, Via::Bf16, WEIGHT, &values).unwrap();
            OnDevice::planes(gpu, &quantized)
        }
    }
}

/// y, dx and dW of a layer whose x and dx lie `pitch` elements a token.
fn run(
    gpu: &Gpu,
    spec: LinearSpec,
    x: &[bf16],
    dy: &[bf16],
    dx: &[bf16],
) -> (Vec<bf16>, Vec<bf16>, Vec<f32>) {
    let device = Device::open(GPU).unwrap();
    let (mut layer, on_device) = (Linear::new(&device, spec).unwrap(), weight_of(gpu, spec.recipe));
    let handles = handles(gpu);
    let (x, dy, dx) = (gpu.buffer(x), gpu.buffer(dy), gpu.buffer(dx));
    let y: Buffer<bf16> = gpu.buffer(&vec![bf16::NAN; TOKENS * WEIGHT.rows]);
    let dw: Buffer<f32> = gpu.buffer(&vec![f32::NAN; WEIGHT.elements()]);
    let (outputs, inputs) = (TOKENS * WEIGHT.rows, TOKENS * spec.input_pitch);
    let forward = on_device.weight(Orientation::Rowwise);
    let backward: Weight<'_> = on_device.weight(spec.dgrad);
    layer.forward(&handles, lend(&x, inputs), &forward, lend_mut(&y, outputs)).unwrap();
    let operands = BackwardOperands {
        dy: lend(&dy, outputs),
        weight: &backward,
        x: lend(&x, inputs),
        dx: lend_mut(&dx, inputs).into(),
        dw: lend_mut(&dw, WEIGHT.elements()).into(),
    };
    layer.backward(&handles, operands).unwrap();
    result::ctx::synchronize().unwrap();
    (y.read(), dx.read(), dw.read())
}

#[test]
fn x_and_dx_may_be_the_first_columns_of_wider_matrices() {
    let Some(gpu) = Gpu::open("products within wider matrices") else { return };
    let device = Device::open(GPU).unwrap();
    let x = rounded(&noise(Shape::new(TOKENS, WEIGHT.cols), 1));
    let dy = rounded(&noise(Shape::new(TOKENS, WEIGHT.rows), 2));
    for format in
        [Format::Bf16, Format::FP8_TENSOR_E4M3, Format::FP8_BLOCK128_POW2, Format::Mxfp8, Format::NVFP4_2D]
    {
        let recipe = match Recipe::native(format, device.capability()) {
            Ok(recipe) => recipe,
            Err(error) => {
                crate::say_skipped(&error);
                continue;
            }
        };
        let spec = LinearSpec::new(recipe, TOKENS, WEIGHT);
        let dense = run(&gpu, spec, &x, &dy, &vec![bf16::NAN; x.len()]);
        let wide = LinearSpec { input_pitch: PITCH, ..spec };
        let empty = vec![bf16::NAN; TOKENS * PITCH];
        let (y, dx, dw) = run(&gpu, wide, &spread(&x, WEIGHT.cols), &dy, &empty);
        assert_close(&format!("{format}: y"), &widened(&y), &widened(&dense.0));
        assert_close(&format!("{format}: dx"), &widened(&gathered(&dx, WEIGHT.cols)), &widened(&dense.1));
        assert_close(&format!("{format}: dW"), &dw, &dense.2);
    }
}

#[test]
fn a_pitch_that_overlaps_rows_is_refused() {
    let Some(_gpu) = Gpu::open("pitches") else { return };
    let device = Device::open(GPU).unwrap();
    let spec = LinearSpec { input_pitch: 64, ..LinearSpec::new(Recipe::Bf16, TOKENS, WEIGHT) };
    let error = Linear::new(&device, spec).unwrap_err();
    assert_eq!(error, CudaFailure::Pitch { pitch: 64, inputs: 128 });
}

#[test]
fn a_residual_is_added_before_the_result_is_rounded() {
    let Some(gpu) = Gpu::open("products with residuals") else { return };
    let device = Device::open(GPU).unwrap();
    let x = rounded(&noise(Shape::new(TOKENS, WEIGHT.cols), 1));
    let residual = rounded(&noise(Shape::new(TOKENS, WEIGHT.rows), 5));
    for format in [Format::Bf16, Format::FP8_BLOCK128_POW2, Format::Mxfp8, Format::NVFP4_2D] {
        let recipe = match Recipe::native(format, device.capability()) {
            Ok(recipe) => recipe,
            Err(error) => {
                crate::say_skipped(&error);
                continue;
            }
        };
        let on_device = weight_of(&gpu, recipe);
        let (handles, outputs) = (handles(&gpu), TOKENS * WEIGHT.rows);
        let f32s = LinearSpec { output: ElementType::F32, ..LinearSpec::new(recipe, TOKENS, WEIGHT) };
        let bf16s = LinearSpec::new(recipe, TOKENS, WEIGHT);
        let (held, addend) = (gpu.buffer(&x), gpu.buffer(&residual));
        let exact: Buffer<f32> = gpu.buffer(&vec![f32::NAN; outputs]);
        let summed: Buffer<bf16> = gpu.buffer(&vec![bf16::NAN; outputs]);
        let weight = on_device.weight(Orientation::Rowwise);
        let mut layer = Linear::new(&device, f32s).unwrap();
        layer.forward(&handles, lend(&held, x.len()), &weight, lend_mut(&exact, outputs)).unwrap();
        let mut layer = Linear::new(&device, bf16s).unwrap();
        let sum = Output::Sum { result: lend_mut(&summed, outputs), addend: lend(&addend, outputs) };
        layer.forward(&handles, lend(&held, x.len()), &weight, sum).unwrap();
        result::ctx::synchronize().unwrap();
        let expected: Vec<f32> = exact.read().iter().zip(&residual).map(|(y, r)| y + r.to_f32()).collect();
        for (found, expected) in summed.read().iter().zip(&expected) {
            let allowed = 2f32.powi(-8) * expected.abs() + 1e-3;
            assert!((found.to_f32() - expected).abs() <= allowed, "{format}: {found} for {expected}");
        }
        assert_eq!(addend.read(), residual, "{format}: the addend is only read");
    }
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

#[test]
fn gelu_and_its_gradient_are_right() {
    let Some(gpu) = Gpu::open("GELU") else { return };
    let kernels = Elementwise::new(&Device::open(GPU).unwrap()).unwrap();
    // An odd number, so that the last vector is not full; and both tails.
    let mut x = rounded(&noise(Shape::new(1, 5003), 7));
    x.extend(rounded(&[0.0, -0.0, 30.0, -30.0, 8.0, -8.0, 1e4, -1e4]));
    let dy = rounded(&noise(Shape::new(1, x.len()), 8));
    let (held, gradient) = (gpu.buffer(&x), gpu.buffer(&dy));
    let y: Buffer<bf16> = gpu.buffer(&vec![bf16::NAN; x.len()]);
    kernels.gelu(&handles(&gpu), lend(&held, x.len()), lend_mut(&y, x.len())).unwrap();
    kernels.gelu_backward(&handles(&gpu), lend(&held, x.len()), lend_mut(&gradient, x.len())).unwrap();
    result::ctx::synchronize().unwrap();
    let step = 1e-4;
    for ((x, dy), (y, dx)) in x.iter().zip(&dy).zip(y.read().iter().zip(gradient.read())) {
        let (x, dy) = (x.to_f64(), dy.to_f64());
        let expected = gelu(x);
        assert!((y.to_f64() - expected).abs() <= 2f64.powi(-8) * expected.abs() + 1e-5, "gelu({x}) is {y}");
        let slope = (gelu(x + step) - gelu(x - step)) / (2.0 * step);
        let expected = dy * slope;
        assert!(
            (dx.to_f64() - expected).abs() <= 2f64.powi(-8) * expected.abs() + 1e-4,
            "gelu'({x}) · {dy} is {dx}"
        );
    }
}

#[test]
fn sums_are_those_of_all_elements() {
    let Some(gpu) = Gpu::open("sums") else { return };
    let mut kernels = Elementwise::new(&Device::open(GPU).unwrap()).unwrap();
    let len = 3_000_001;
    let values: Buffer<bf16> = gpu.buffer(&vec![bf16::NAN; len]);
    let sum: Buffer<f32> = gpu.buffer(&[f32::NAN]);
    let handles = handles(&gpu);
    kernels.uniform(&handles, 9, 0.5, lend_mut(&values, len)).unwrap();
    kernels.sum(&handles, lend(&values, len), lend_mut(&sum, 1)).unwrap();
    result::ctx::synchronize().unwrap();
    let drawn = values.read();
    let expected: f64 = drawn.iter().map(|value| value.to_f64()).sum();
    let squares: f64 = drawn.iter().map(|value| value.to_f64().powi(2)).sum();
    let found = f64::from(sum.read()[0]);
    assert!((found - expected).abs() <= 1e-6 * len as f64, "{found} for {expected}");
    kernels.sum_of_squares(&handles, lend(&values, len), lend_mut(&sum, 1)).unwrap();
    result::ctx::synchronize().unwrap();
    let found = f64::from(sum.read()[0]);
    assert!((found / squares - 1.0).abs() <= 1e-5, "{found} for {squares}");
    assert!((squares / len as f64 - 0.25 / 3.0).abs() < 1e-3, "{squares}");

    kernels.fill(&handles, 2.0, lend_mut(&values, len)).unwrap();
    kernels.sum(&handles, lend(&values, len), lend_mut(&sum, 1)).unwrap();
    result::ctx::synchronize().unwrap();
    assert_eq!(sum.read(), [2.0 * len as f32]);
}
