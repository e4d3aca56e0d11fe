//! Benchmark of the formats: GB/s of each stage, beside memcpy of the same f32 matrix and beside the naive scalar loop.
//!
//! The matrix is larger than the last cache. Every round times memcpy and every stage once, one right after the
//! other, and a ratio is the median over rounds of *memcpy's time / the stage's time* within a round: so
//! other work on the machine falls on both sides. 1.00 means as fast as copying the matrix.
//!
//! - *quantize*: amax, scale and cast on one thread, as a training step runs them: masters rounded to bfloat16
//!   first, nothing allocated.
//! - *all cores*: [`quantize`] of the whole matrix, its planes allocated anew, as a tool runs it.
//! - *dequantize* and *transpose*: on one thread, into memory that exists.
//! - *naive*: [`reference`], one element at a time by search; on a smaller matrix, for it is some hundred times
//!   slower.
//!
//! GB/s counts input bytes: f32 for quantize, the planes for dequantize. Arguments: `--quick` for three rounds,
//! and any part of a format's name to run only that.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

use std::hint::black_box;
use std::time::Instant;

use warpweft_format::{
    Directions, Format, Orientation, OwnedPlanes, Shape, Via, dequantize, fused_scale, partial_amax,
    partial_cast, quantize, reference, transpose,
};

/// 64 MiB of f32.
const SHAPE: Shape = Shape::new(4096, 4096);
/// 256 KiB of f32, for the naive loop.
const SMALL: Shape = Shape::new(256, 256);

fn matrix(shape: Shape) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..shape.elements()).map(|_| next() * 0.1).collect()
}

fn bytes(shape: Shape) -> f64 {
    (shape.elements() * size_of::<f32>()) as f64
}

/// Seconds that `work` takes.
fn seconds<T>(work: impl FnOnce() -> T) -> f64 {
    let begin = Instant::now();
    black_box(work());
    begin.elapsed().as_secs_f64()
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// What one run has for all formats.
struct Memory {
    master: Vec<f32>,
    copy: Vec<f32>,
    values: Vec<f32>,
    small: Vec<f32>,
    rounds: usize,
}

/// One stage of one format: a sample per round.
#[derive(Default)]
struct Samples {
    seconds: Vec<f64>,
    to_memcpy: Vec<f64>,
}

impl Samples {
    fn add(&mut self, seconds: f64, memcpy: f64) {
        self.seconds.push(seconds);
        self.to_memcpy.push(memcpy / seconds);
    }

    /// GB/s for `input` bytes, and the ratio to memcpy.
    fn summary(self, input: f64) -> String {
        if self.seconds.is_empty() {
            return format!("{:>7} {:>6}", "-", "-");
        }
        format!("{:>7.2} {:>6.2}", input / median(self.seconds) / 1e9, median(self.to_memcpy))
    }
}

/// The memory of one orientation of one weight.
struct Stages {
    format: Format,
    orientation: Orientation,
    block_amax: Vec<f32>,
    encode: Vec<f32>,
    planes: OwnedPlanes,
}

impl Stages {
    fn new(format: Format, orientation: Orientation) -> Self {
        Self {
            format,
            orientation,
            block_amax: vec![0.0; format.amax_blocks(orientation, SHAPE)],
            encode: vec![0.0; format.encode_blocks(orientation, SHAPE)],
            planes: OwnedPlanes::zeroed(format, orientation, SHAPE),
        }
    }

    fn quantize(&mut self, master: &[f32]) -> f32 {
        let Self { format, orientation, ref mut block_amax, ref mut encode, ref mut planes } = *self;
        let amax = partial_amax(format, orientation, Via::Bf16, SHAPE, master, block_amax).unwrap();
        let scale = &mut planes.scale;
        let tensor_scale = fused_scale(format, orientation, SHAPE, block_amax, amax, encode, scale).unwrap();
        partial_cast(format, orientation, Via::Bf16, SHAPE, master, encode, &mut planes.data).unwrap();
        tensor_scale
    }
}

/// Measures one orientation of one format and returns its line of the table.
fn line(format: Format, orientation: Orientation, memory: &mut Memory) -> String {
    let Memory { master, copy, values, small, rounds } = memory;
    let mut stages = Stages::new(format, orientation);
    let mut columnwise = format
        .derives_columnwise()
        .is_ok()
        .then(|| OwnedPlanes::zeroed(format, Orientation::Columnwise, SHAPE));
    let directions = match orientation {
        Orientation::Rowwise => Directions::Rowwise,
        Orientation::Columnwise => Directions::Columnwise,
    };
    let [mut one, mut all, mut back, mut turned]: [Samples; 4] = Default::default();
    let [mut naive, mut naive_back] = [Vec::new(), Vec::new()];
    // The first round warms up.
    for round in 0..=*rounds {
        let memcpy = seconds(|| copy.copy_from_slice(black_box(master)));
        let mut tensor_scale = 0.0;
        let quantized = seconds(|| tensor_scale = stages.quantize(master));
        let parallel = seconds(|| quantize(format, directions, Via::Bf16, SHAPE, master).unwrap());
        let planes = stages.planes.as_planes();
        let dequantized =
            seconds(|| dequantize(format, orientation, SHAPE, planes, tensor_scale, values).unwrap());
        let transposed = columnwise
            .as_mut()
            .map(|columnwise| seconds(|| transpose(format, SHAPE, planes, columnwise.as_planes_mut())));
        let mut made = None;
        let slow = seconds(|| made = Some(reference::quantize(format, orientation, SMALL, small)));
        let (small_planes, small_scale) = made.unwrap();
        let slow_back = (orientation == Orientation::Rowwise)
            .then(|| seconds(|| reference::dequantize(format, SMALL, &small_planes, small_scale)));
        if round == 0 {
            continue;
        }
        one.add(quantized, memcpy);
        all.add(parallel, memcpy);
        back.add(dequantized, memcpy);
        transposed.into_iter().for_each(|time| turned.add(time, memcpy));
        naive.push(slow);
        naive_back.extend(slow_back);
    }
    let plane_bytes = |planes: &OwnedPlanes| (planes.data.len() + planes.scale.len()) as f64;
    let input = plane_bytes(&stages.planes);
    let naive = bytes(SMALL) / median(naive) / 1e9;
    let naive_back = match naive_back.as_slice() {
        [] => format!("{:>7}", "-"),
        _ => format!("{:>7.4}", input * (bytes(SMALL) / bytes(SHAPE)) / median(naive_back) / 1e9),
    };
    let name = format!("{format} {orientation}");
    format!(
        "{name:<32}| {} {naive:>7.4} | {} | {} {naive_back} | {}",
        one.summary(bytes(SHAPE)),
        all.summary(bytes(SHAPE)),
        back.summary(input),
        turned.summary(input),
    )
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rounds = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { 11 };
    let wanted: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let master = matrix(SHAPE);
    let mut memory =
        Memory { copy: master.clone(), values: master.clone(), small: matrix(SMALL), master, rounds };
    let memcpy: Vec<f64> =
        (0..=rounds).map(|_| seconds(|| memory.copy.copy_from_slice(black_box(&memory.master)))).collect();
    println!(
        "f32 [{}, {}]; memcpy on one thread: {:.2} GB/s; {} rounds; GB/s of input bytes, and times memcpy",
        SHAPE.rows,
        SHAPE.cols,
        bytes(SHAPE) / median(memcpy) / 1e9,
        rounds
    );
    println!("{:<32}|{:^24}|{:^16}|{:^24}|{:^16}", "", "quantize", "all cores", "dequantize", "transpose");
    println!(
        "{:<32}| {:>7} {:>6} {:>7} | {:>7} {:>6} | {:>7} {:>6} {:>7} | {:>7} {:>6}",
        "format", "GB/s", "ratio", "naive", "GB/s", "ratio", "GB/s", "ratio", "naive", "GB/s", "ratio"
    );
    for format in Format::CANONICAL {
        if !wanted.is_empty() && !wanted.iter().any(|part| format.to_string().contains(part.as_str())) {
            continue;
        }
        for orientation in format.stored_orientations() {
            println!("{}", line(format, *orientation, &mut memory));
        }
    }
}
