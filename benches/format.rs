//! Speed of the formats on one thread, in bytes of f32 input per second, beside a copy of the same bytes and
//! beside the scalar reference.
//!
//! `quantize` is amax, scale and cast, as a training step runs them: masters rounded to bfloat16 first,
//! nothing allocated.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warpweft::format::{
    Format, Orientation, OwnedPlanes, Shape, Via, dequantize, fused_scale, partial_amax, partial_cast,
    reference, transpose,
};

/// 16 MiB of f32: more than the second-level cache holds.
const SHAPE: Shape = Shape::new(2048, 2048);
/// The reference is some hundred times slower.
const SMALL: Shape = Shape::new(256, 256);

fn weight(shape: Shape) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..shape.elements()).map(|_| next() * 0.1).collect()
}

fn bytes(shape: Shape) -> Throughput {
    Throughput::Bytes((shape.elements() * size_of::<f32>()) as u64)
}

/// The memory of one orientation of one weight.
struct Bench {
    format: Format,
    orientation: Orientation,
    master: Vec<f32>,
    block_amax: Vec<f32>,
    encode: Vec<f32>,
    planes: OwnedPlanes,
}

impl Bench {
    fn new(format: Format, orientation: Orientation) -> Self {
        Self {
            format,
            orientation,
            master: weight(SHAPE),
            block_amax: vec![0.0; format.amax_blocks(orientation, SHAPE)],
            encode: vec![0.0; format.encode_blocks(orientation, SHAPE)],
            planes: OwnedPlanes::zeroed(format, orientation, SHAPE),
        }
    }

    fn quantize(&mut self) -> f32 {
        let Self { format, orientation, ref master, ref mut block_amax, ref mut encode, ref mut planes } =
            *self;
        let amax = partial_amax(format, orientation, Via::Bf16, SHAPE, master, block_amax).unwrap();
        let scale = &mut planes.scale;
        let tensor_scale = fused_scale(format, orientation, SHAPE, block_amax, amax, encode, scale).unwrap();
        partial_cast(format, orientation, Via::Bf16, SHAPE, master, encode, &mut planes.data).unwrap();
        tensor_scale
    }
}

fn formats(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("copy");
    group.throughput(bytes(SHAPE));
    let source = weight(SHAPE);
    let mut target = source.clone();
    group.bench_function("memcpy", |bench| bench.iter(|| target.copy_from_slice(black_box(&source))));
    group.finish();

    let orientations = |format: Format| format.stored_orientations().iter().map(move |&o| (format, o));
    for (format, orientation) in Format::CANONICAL.into_iter().flat_map(orientations) {
        let name = |stage: &str| BenchmarkId::new(stage, format!("{format} {orientation}"));
        let mut group = criterion.benchmark_group("format");
        group.throughput(bytes(SHAPE));
        let mut this = Bench::new(format, orientation);
        group.bench_function(name("quantize"), |bench| bench.iter(|| this.quantize()));
        let tensor_scale = this.quantize();
        let planes = this.planes.as_planes();
        let mut values = vec![0.0; SHAPE.elements()];
        group.bench_function(name("dequantize"), |bench| {
            bench.iter(|| dequantize(format, orientation, SHAPE, planes, tensor_scale, &mut values).unwrap());
        });
        if format.derives_columnwise().is_ok() {
            let mut columnwise = OwnedPlanes::zeroed(format, Orientation::Columnwise, SHAPE);
            group.bench_function(name("transpose"), |bench| {
                bench.iter(|| transpose(format, SHAPE, planes, columnwise.as_planes_mut()).unwrap());
            });
        }
        group.throughput(bytes(SMALL));
        let small = weight(SMALL);
        group.bench_function(name("scalar reference"), |bench| {
            bench.iter(|| reference::quantize(format, orientation, SMALL, &small));
        });
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(700));
    targets = formats
}
criterion_main!(benches);
