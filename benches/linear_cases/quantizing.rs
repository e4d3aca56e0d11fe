//! Benchmark of quantizing activations into operands: the time of a launch, beside a copy of as many bytes.

use half::bf16;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{ActivationOperand, ActivationSource};
use warpweft_format::{Format, Shape};

use crate::cuda_device::Device;

const RUNS: usize = 31;
/// Tokens, features: of a small layer and of a large one.
const SHAPES: [Shape; 4] =
    [Shape::new(4096, 1024), Shape::new(4096, 3072), Shape::new(4096, 4096), Shape::new(8192, 16384)];

const NULL: DeviceAddress = DeviceAddress::NULL;

/// One row for each shape and what is made of it; codes in 1×128 blocks.
pub(crate) fn run(device: &Device) {
    println!();
    println!(
        "{:<18} {:<34} {:>8} {:>8} {:>12}",
        "tokens×features", "codes in 1×128 blocks", "µs", "GB/s", "copy, µs"
    );
    for shape in SHAPES {
        device.clear();
        let half = || device.take(shape.elements() * size_of::<bf16>());
        let codes = || device.take(shape.cols * shape.rows.next_multiple_of(16));
        let scales = || device.take(shape.elements().div_ceil(128) * size_of::<f32>());
        let places = (|| Some((half()?, half()?, half()?, codes()?, scales()?, codes()?, scales()?)))();
        let Some((x, gradient, activated, data, scale, columnwise_data, columnwise_scale)) = places else {
            println!("skipped: {shape} does not fit into the memory that is free");
            continue;
        };
        let both = ActivationOperand {
            shape,
            values: x,
            row_pitch: shape.cols,
            data,
            scale,
            columnwise_data,
            columnwise_scale,
        };
        let rowwise = ActivationOperand { columnwise_data: NULL, ..both };
        let columnwise = ActivationOperand { data: NULL, ..both };
        let quantizer = device.kernels.activation_quantizer(Format::FP8_BLOCK1X128_POW2).unwrap();
        let elementwise = device.kernels.elementwise().unwrap();
        let cast = |source, operand: &ActivationOperand| quantizer.cast_of(source, operand).unwrap();
        let (values, through) = (ActivationSource::Values, ActivationSource::GeluGradient(gradient));
        let count = shape.elements();
        let of_activated = |operand| ActivationOperand { values: activated, ..operand };
        let gelu = elementwise.gelu(x, activated, count).unwrap();
        let backward = elementwise.gelu_backward(x, gradient, count).unwrap();
        // Bytes an element, but for scales: bf16 is read, codes are written.
        let rows = [
            ("along rows", vec![cast(values, &rowwise)], 3),
            ("along columns", vec![cast(values, &columnwise)], 3),
            ("both", vec![cast(values, &both)], 4),
            ("GELU, then both", vec![gelu, cast(values, &of_activated(both))], 8),
            ("GELU on the way to both", vec![cast(ActivationSource::Gelu, &both)], 4),
            ("its gradient, then both", vec![backward, cast(values, &of_activated(both))], 10),
            ("its gradient on the way to both", vec![cast(through, &both)], 6),
        ];
        for (what, launches, bytes) in rows {
            let (time, bytes) = (device.time(&launches, RUNS), bytes * count);
            println!(
                "{:<18} {what:<34} {time:>8.1} {:>8.0} {:>12.1}",
                shape.to_string(),
                bytes as f64 / time / 1e3,
                device.time_of_copy(bytes, RUNS)
            );
        }
    }
}
