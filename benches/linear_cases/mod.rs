//! The linear-layer benchmark: shapes, recipes, and products on operands of the pool.

#![allow(unsafe_code, reason = "slices of the benchmark's own pool")]

mod quantizing;

use half::bf16;
use warpweft_cuda::kernels::ActivationOperand;
use warpweft_cuda::linear::{self, Linear, LinearSpec, Recipe, Weight};
use warpweft_cuda::{CudaHandles, DeviceAddress, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
use warpweft_format::{Format, Fp8Element, Orientation, Shape};
use warpweft_plan::compute::PlanesView;

use crate::cuda_device::Device;

const GPU: DeviceOrdinal = DeviceOrdinal::new(0);
const RUNS: usize = 15;
/// Tokens, inputs, outputs.
const SHAPES: [(usize, usize, usize); 2] = [(2048, 4096, 16384), (8192, 4096, 16384)];

pub(crate) fn run(device: &Device) {
    let gpu = linear::Device::open(GPU).unwrap();
    println!("{} (compute capability {})", device.name, gpu.capability());
    println!(
        "{:<22} {:<20} {:>4} {:>10} {:>12} {:>10} {:>10}",
        "tokens×inputs×outputs", "recipe", "", "µs", "quantizing", "TFLOP/s", "alone"
    );
    for shape in SHAPES {
        for format in [Format::Bf16, Format::FP8_TENSOR_E4M3, Format::FP8_BLOCK128_POW2] {
            match Recipe::native(format, gpu.capability()) {
                Ok(recipe) => measure(device, &gpu, recipe, shape),
                Err(error) => println!("skipped: {error}"),
            }
        }
    }
    quantizing::run(device);
}

fn lend<'a, T>(address: DeviceAddress, len: usize) -> DeviceSlice<'a, T> {
    // SAFETY: ranges of the pool, which lives until the process ends.
    unsafe { DeviceSlice::from_address(address, len) }
}

fn lend_mut<'a, T>(address: DeviceAddress, len: usize) -> DeviceSliceMut<'a, T> {
    // SAFETY: as above; results are apart from operands.
    unsafe { DeviceSliceMut::from_address(address, len) }
}

/// A weight whose codes are those of some values; its scales are any.
fn weight<'a>(device: &Device, recipe: Recipe, shape: Shape, orientation: Orientation) -> Weight<'a> {
    let values = device.take(shape.elements() * size_of::<bf16>()).unwrap();
    let (Some(format), Some(of_codes)) = (recipe.weight_format(), recipe.activation_format(Fp8Element::E4m3))
    else {
        return Weight::values(orientation, lend(values, shape.elements()));
    };
    let stored = if orientation == Orientation::Rowwise { shape } else { shape.transposed() };
    let planes = format.planes(orientation, shape);
    let scale_bytes = planes.get(1).map_or(0, |plane| plane.bytes());
    let (data, room) = (device.take(shape.elements()).unwrap(), device.take(shape.elements()).unwrap());
    let (scale, amax) =
        (device.take_positive(scale_bytes.max(256)).unwrap(), device.take_positive(256).unwrap());
    let operand = ActivationOperand {
        shape: stored,
        values,
        row_pitch: stored.cols,
        data,
        scale: room,
        columnwise_data: DeviceAddress::NULL,
        columnwise_scale: amax,
    };
    let launch = device.kernels.activation_quantizer(of_codes).unwrap().cast(&operand).unwrap();
    device.time(&[launch], 1);
    let view = PlanesView {
        format,
        shape,
        data: lend(data, shape.elements()),
        scale: lend(scale, scale_bytes),
        tensor_scale: Some(lend(amax, 1)),
    };
    Weight::planes(orientation, view)
}

fn measure(
    device: &Device,
    gpu: &linear::Device,
    recipe: Recipe,
    (tokens, inputs, outputs): (usize, usize, usize),
) {
    device.clear();
    let shape = Shape::new(outputs, inputs);
    let mut layer = Linear::new(gpu, LinearSpec::new(recipe, tokens, shape)).unwrap();
    // SAFETY: the stream is the device's, which lives until the process ends, and its context is current.
    let handles = unsafe { CudaHandles::new(device.stream(), GPU) };
    let half = |elements: usize| device.take(elements * size_of::<bf16>()).unwrap();
    let (x, y) = (half(tokens * inputs), half(tokens * outputs));
    let (dy, dx) = (half(tokens * outputs), half(tokens * inputs));
    let dw = device.take(shape.elements() * size_of::<f32>()).unwrap();
    let rowwise = weight(device, recipe, shape, Orientation::Rowwise);
    let turned = weight(device, recipe, shape, recipe.dgrad_orientation());
    let (x, dy) = (lend::<bf16>(x, tokens * inputs), lend::<bf16>(dy, tokens * outputs));
    let quantizing = |features: usize, columnwise: bool| {
        quantizing(device, recipe, Shape::new(tokens, features), columnwise)
    };
    let forward = device.median(RUNS, || {
        layer.forward(&handles, x, &rowwise, lend_mut::<bf16>(y, tokens * outputs)).unwrap();
    });
    let dgrad = device.median(RUNS, || {
        layer.dgrad(&handles, dy, &turned, lend_mut::<bf16>(dx, tokens * inputs)).unwrap();
    });
    let wgrad = device.median(RUNS, || {
        layer.wgrad(&handles, dy, x, lend_mut::<f32>(dw, shape.elements())).unwrap();
    });
    let flops = 2.0 * tokens as f64 * shape.elements() as f64;
    let of_wgrad = quantizing(inputs, true) + quantizing(outputs, true);
    for (name, time, quantizing) in [
        ("y", forward, quantizing(inputs, false)),
        ("dx", dgrad, quantizing(outputs, false)),
        ("dW", wgrad, of_wgrad),
    ] {
        let rate = |microseconds: f64| flops / microseconds / 1e6;
        println!(
            "{:<22} {:<20} {name:>4} {time:>10.1} {quantizing:>12.1} {:>10.0} {:>10.0}",
            format!("{tokens}×{inputs}×{outputs}"),
            recipe.to_string(),
            rate(time),
            rate(time - quantizing)
        );
    }
}

/// Microseconds of making an activation an operand, in one direction; 0 in bf16.
fn quantizing(device: &Device, recipe: Recipe, shape: Shape, columnwise: bool) -> f64 {
    let Some(format) = recipe.activation_format(Fp8Element::E4m3) else { return 0.0 };
    let quantizer = device.kernels.activation_quantizer(format).unwrap();
    let values = device.take(shape.elements() * size_of::<bf16>()).unwrap();
    let codes = device.take(shape.cols * shape.rows.next_multiple_of(16)).unwrap();
    let scales = device.take(shape.elements()).unwrap();
    let amax = device.take_positive(shape.elements()).unwrap();
    let null = DeviceAddress::NULL;
    let operand = ActivationOperand {
        shape,
        values,
        row_pitch: shape.cols,
        data: if columnwise { null } else { codes },
        scale: scales,
        columnwise_data: if columnwise { codes } else { null },
        columnwise_scale: amax,
    };
    let mut launches = vec![quantizer.cast(&operand).unwrap()];
    if quantizer.needs_amax() {
        launches.insert(0, quantizer.amax(&operand).unwrap());
    }
    device.time(&launches, RUNS)
}
