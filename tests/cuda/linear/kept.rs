//! LI-5: codes kept from forward, and GELU fused into quantizing, give the bits of separate launches.

use cudarc::driver::result;
use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{
    Activations, BackwardOperands, Device, Elementwise, Input, Linear, LinearSpec, Recipe,
};
use warpweft_format::{Directions, ElementType, Format, Fp8Element, Orientation, Shape, Via, quantize};

use super::reference::noise;
use super::rig::{GPU, OnDevice, handles, lend, lend_mut};
use crate::gpu::{Buffer, Gpu};

/// Tokens, outputs, inputs: whole tiles, and tokens and features that are none, of 16, 32 or 128.
const SHAPES: [(usize, usize, usize); 6] =
    [(128, 256, 384), (36, 128, 256), (4, 384, 128), (300, 144, 272), (132, 16, 48), (44, 96, 160)];

/// Those that the recipe takes.
fn shapes(recipe: Recipe) -> impl Iterator<Item = (usize, usize, usize)> {
    let spec = move |(tokens, outs, ins)| LinearSpec::new(recipe, tokens, Shape::new(outs, ins));
    SHAPES.into_iter().filter(move |shape| spec(*shape).kept_bytes().is_ok())
}

/// What memory holds that nothing may write.
const UNWRITTEN: u8 = 0x5A;

fn rounded(values: &[f32]) -> Vec<bf16> {
    values.iter().copied().map(bf16::from_f32).collect()
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The recipe of a format on this GPU; says that it is skipped where there is none.
fn native(device: &Device, name: &str) -> Option<Recipe> {
    let format: Format = name.parse().unwrap();
    Recipe::native(format, device.capability()).map_err(|error| crate::say_skipped(&error)).ok()
}

fn weight_of(gpu: &Gpu, spec: &LinearSpec) -> OnDevice {
    let values: Vec<f32> = noise(spec.weight, 3).iter().map(|value| value * 0.05).collect();
    match spec.recipe.weight_format() {
        None => OnDevice::values(gpu, spec.weight, &rounded(&values)),
        Some(format) => OnDevice::planes(
            gpu,
            &quantize(format, Directions::Both, Via::Bf16, spec.weight, &values).unwrap(),
        ),
    }
}

/// A layer, its weight, and room for everything: before a run results hold NaN, what is kept [`UNWRITTEN`].
struct Bench<'g> {
    gpu: &'g Gpu,
    spec: LinearSpec,
    layer: Linear,
    weight: OnDevice,
    y: Buffer<bf16>,
    dx: Buffer<bf16>,
    dw: Buffer<f32>,
    kept: Buffer<u8>,
}

/// Bits of y, dx and dW.
type Found = (Vec<u16>, Vec<u16>, Vec<u32>);

impl<'g> Bench<'g> {
    fn new(gpu: &'g Gpu, device: &Device, spec: LinearSpec) -> Self {
        let LinearSpec { tokens, weight: Shape { rows, .. }, input_pitch, .. } = spec;
        let zeros = |len| gpu.buffer(&vec![bf16::ZERO; len]);
        Self {
            gpu,
            spec,
            layer: Linear::new(device, spec).unwrap(),
            weight: weight_of(gpu, &spec),
            y: zeros(tokens * rows),
            dx: zeros(tokens * input_pitch),
            dw: gpu.buffer(&vec![0.0; spec.weight.elements()]),
            kept: gpu.buffer(&vec![0; spec.kept_bytes().unwrap().unwrap()]),
        }
    }

    /// Elements of x and of dy.
    fn elements(&self) -> (usize, usize) {
        (self.spec.tokens * self.spec.input_pitch, self.spec.tokens * self.spec.weight.rows)
    }

    fn kept_bytes(&self) -> usize {
        self.spec.kept_bytes().unwrap().unwrap()
    }

    /// Whatever a run does not write, it does not have from a run before.
    fn clear(&self) {
        let ((inputs, outputs), nan) = (self.elements(), bf16::NAN);
        self.y.write(&vec![nan; outputs]);
        self.dx.write(&vec![nan; inputs]);
        self.dw.write(&vec![f32::NAN; self.spec.weight.elements()]);
        self.kept.write(&vec![UNWRITTEN; self.kept_bytes()]);
    }

    /// Forward and backward; `keeps` says whether backward reads what forward kept, or is given x.
    fn run(&mut self, x: Activations<'_>, dy: Activations<'_>, keeps: bool) -> Found {
        self.clear();
        let handles = handles(self.gpu);
        let ((inputs, outputs), kept_bytes) = (self.elements(), self.kept_bytes());
        let Self { layer, weight, y, dx, dw, kept, .. } = self;
        let (rowwise, turned) = (weight.weight(Orientation::Rowwise), weight.weight(self.spec.dgrad));
        let y_room = lend_mut(y, outputs);
        let x = if keeps {
            layer.forward_keeping(&handles, x, &rowwise, y_room, lend_mut(kept, kept_bytes)).unwrap();
            Input::Kept(lend(kept, kept_bytes))
        } else {
            layer.forward(&handles, x, &rowwise, y_room).unwrap();
            x.into()
        };
        let (dx_room, dw_room) =
            (lend_mut(dx, inputs).into(), lend_mut(dw, self.spec.weight.elements()).into());
        layer
            .backward(&handles, BackwardOperands { dy, weight: &turned, x, dx: dx_room, dw: dw_room })
            .unwrap();
        result::ctx::synchronize().unwrap();
        let dw = dw.read().into_iter().map(f32::to_bits).collect();
        (bits(&y.read()), bits(&dx.read()), dw)
    }
}

#[test]
fn li5_codes_kept_from_forward_give_the_bits_of_quantizing_anew() {
    let Some(gpu) = Gpu::open("codes kept from forward") else { return };
    let device = Device::open(GPU).unwrap();
    for name in ["fp8_block128_pow2", "fp8_block128_f32scale", "fp8_tensor_e4m3", "mxfp8"] {
        let Some(recipe) = native(&device, name) else { continue };
        for (tokens, outs, ins) in shapes(recipe) {
            let dense = LinearSpec::new(recipe, tokens, Shape::new(outs, ins));
            let wide = LinearSpec { input_pitch: ins + 32, ..dense };
            let coarse = LinearSpec { gradients: Fp8Element::E5m2, ..dense };
            for spec in [dense, wide, coarse].into_iter().filter(|spec| spec.kept_bytes().is_ok()) {
                let what = format!("{name} {tokens} tokens by {}, {}", spec.weight, spec.input_pitch);
                let mut bench = Bench::new(&gpu, &device, spec);
                let (inputs, outputs) = bench.elements();
                let x = gpu.buffer(&rounded(&noise(Shape::new(1, inputs), 1)));
                let dy = gpu.buffer(&rounded(&noise(Shape::new(1, outputs), 2)));
                let (x, dy) = (lend(&x, inputs).into(), lend(&dy, outputs).into());
                let anew = bench.run(x, dy, false);
                assert!(
                    bench.kept.read().iter().all(|byte| *byte == UNWRITTEN),
                    "{what}: nothing is kept unasked"
                );
                assert!(anew.2.iter().all(|dw| f32::from_bits(*dw).is_finite()), "{what}");
                assert_eq!(bench.run(x, dy, true), anew, "{what}");
                // The guards around what is kept are checked here; the bytes between codes and scales are
                // theirs too.
                let kept = bench.kept.read();
                let codes = ins * tokens.next_multiple_of(if recipe == Recipe::Mxfp8 { 32 } else { 16 });
                let between = &kept[codes..codes.next_multiple_of(256)];
                assert!(between.iter().all(|byte| *byte == UNWRITTEN), "{what}: between codes and scales");
                assert!(kept[..codes].iter().any(|byte| *byte != UNWRITTEN), "{what}: codes are kept");
            }
        }
    }
}

/// What another layer of the shape quantizes in between is not what backward reads.
#[test]
fn li5_what_is_kept_outlives_other_calls_of_the_layer() {
    let Some(gpu) = Gpu::open("codes kept over other calls") else { return };
    let device = Device::open(GPU).unwrap();
    let Some(recipe) = native(&device, "fp8_block128_pow2") else { return };
    let spec = LinearSpec::new(recipe, 132, Shape::new(256, 128));
    let mut bench = Bench::new(&gpu, &device, spec);
    let (inputs, outputs) = bench.elements();
    let [x, other] = [1, 9].map(|seed| gpu.buffer(&rounded(&noise(Shape::new(1, inputs), seed))));
    let dy = gpu.buffer(&rounded(&noise(Shape::new(1, outputs), 2)));
    let (x, other, dy) = (lend(&x, inputs), lend(&other, inputs), lend(&dy, outputs));
    let expected = bench.run(x.into(), dy.into(), true).2;
    let first = gpu.buffer(&bench.kept.read());
    let others = bench.run(other.into(), dy.into(), true).2;
    assert_ne!(others, expected);
    let dw: Buffer<f32> = gpu.buffer(&vec![f32::NAN; spec.weight.elements()]);
    let kept = lend(&first, bench.kept_bytes());
    bench.layer.wgrad(&handles(&gpu), dy, kept, lend_mut(&dw, spec.weight.elements())).unwrap();
    result::ctx::synchronize().unwrap();
    assert_eq!(dw.read().into_iter().map(f32::to_bits).collect::<Vec<_>>(), expected);
}

#[test]
fn li5_gelu_on_the_way_to_codes_gives_the_bits_of_gelu_and_then_quantizing() {
    let Some(gpu) = Gpu::open("GELU on the way to codes") else { return };
    let device = Device::open(GPU).unwrap();
    let kernels = Elementwise::new(&device).unwrap();
    let handles = handles(&gpu);
    for name in ["fp8_block128_pow2", "fp8_block128_f32scale", "mxfp8"] {
        let Some(recipe) = native(&device, name) else { continue };
        for (tokens, outs, ins) in shapes(recipe) {
            for gradients in [Fp8Element::E4m3, Fp8Element::E5m2] {
                let spec = LinearSpec { gradients, ..LinearSpec::new(recipe, tokens, Shape::new(outs, ins)) };
                if spec.kept_bytes().is_err() {
                    continue;
                }
                let what = format!("{name} {tokens} tokens by {}, {gradients:?} gradients", spec.weight);
                let mut bench = Bench::new(&gpu, &device, spec);
                let (inputs, outputs) = bench.elements();
                // Both tails of GELU and its dip.
                let wide = |seed| {
                    noise(Shape::new(1, inputs.max(outputs)), seed)
                        .iter()
                        .map(|x| x * 3.0)
                        .collect::<Vec<_>>()
                };
                let [x, hidden] = [4, 5].map(wide);
                let (x, hidden) =
                    (gpu.buffer(&rounded(&x[..inputs])), gpu.buffer(&rounded(&hidden[..outputs])));
                let gradient = rounded(&noise(Shape::new(1, outputs), 6));
                let (activated, through) = (gpu.buffer(&vec![bf16::NAN; inputs]), gpu.buffer(&gradient));
                kernels.gelu(&handles, lend(&x, inputs), lend_mut(&activated, inputs)).unwrap();
                kernels.gelu_backward(&handles, lend(&hidden, outputs), lend_mut(&through, outputs)).unwrap();
                let apart = bench.run(lend(&activated, inputs).into(), lend(&through, outputs).into(), true);
                let kept = bench.kept.read();
                let gradient = gpu.buffer(&gradient);
                let dy = Activations::GeluGradient {
                    x: lend(&hidden, outputs),
                    gradient: lend(&gradient, outputs),
                };
                assert_eq!(bench.run(Activations::Gelu(lend(&x, inputs)), dy, true), apart, "{what}");
                assert_eq!(bench.kept.read(), kept, "{what}: what is kept");
                assert_eq!(
                    bench.run(Activations::Gelu(lend(&x, inputs)), dy, false),
                    apart,
                    "{what}: not kept"
                );
                // Sources are only read.
                assert_eq!(
                    bits(&gradient.read()),
                    bits(&rounded(&noise(Shape::new(1, outputs), 6))),
                    "{what}"
                );
            }
        }
    }
}

/// LI-4: of what does not fit nothing is enqueued.
#[test]
fn what_cannot_be_kept_or_taken_on_the_way_is_refused_and_nothing_is_written() {
    let Some(gpu) = Gpu::open("refused codes") else { return };
    let device = Device::open(GPU).unwrap();
    let handles = handles(&gpu);
    let (tokens, shape) = (32, Shape::new(48, 64));
    let values = gpu.buffer(&vec![bf16::ONE; tokens * 64]);
    let (x, dy) = (lend(&values, tokens * 64), lend(&values, tokens * 48));
    let room = gpu.buffer(&[UNWRITTEN; 8192]);

    let plain = LinearSpec::new(Recipe::Bf16, tokens, shape);
    assert_eq!(plain.kept_bytes(), Ok(None));
    let weight = weight_of(&gpu, &plain);
    let mut layer = Linear::new(&device, plain).unwrap();
    let (y, rowwise) = (gpu.buffer(&vec![bf16::ONE; tokens * 48]), weight.weight(Orientation::Rowwise));
    let y_room = || lend_mut(&y, tokens * 48);
    let refused = layer.forward_keeping(&handles, x, &rowwise, y_room(), lend_mut(&room, 0)).unwrap_err();
    assert!(matches!(refused, CudaFailure::NothingKept { .. }), "{refused}");
    let refused = layer.forward(&handles, Activations::Gelu(x), &rowwise, y_room()).unwrap_err();
    assert!(matches!(refused, CudaFailure::Gelu { what: "x", .. }), "{refused}");
    let dw: Buffer<f32> = gpu.buffer(&vec![1.0; shape.elements()]);
    let refused = layer.wgrad(&handles, dy, lend(&room, 256), lend_mut(&dw, shape.elements())).unwrap_err();
    assert!(matches!(refused, CudaFailure::NothingKept { .. }), "{refused}");

    if let Some(recipe) = native(&device, "fp8_tensor_e4m3") {
        let spec = LinearSpec::new(recipe, tokens, shape);
        let (mut layer, weight) = (Linear::new(&device, spec).unwrap(), weight_of(&gpu, &spec));
        let rowwise = weight.weight(Orientation::Rowwise);
        let refused = layer.forward(&handles, Activations::Gelu(x), &rowwise, y_room()).unwrap_err();
        assert!(refused.to_string().contains("Elementwise"), "{refused}");
    }
    if let Some(recipe) = native(&device, "fp8_block128_pow2") {
        let spec = LinearSpec::new(recipe, tokens, shape);
        let bytes = spec.kept_bytes().unwrap().unwrap();
        assert_eq!(bytes, 64 * 32 + 64 * 4);
        let (mut layer, weight) = (Linear::new(&device, spec).unwrap(), weight_of(&gpu, &spec));
        let rowwise = weight.weight(Orientation::Rowwise);
        for wrong in [bytes - 1, bytes + 1, 0] {
            let kept = lend_mut(&room, wrong);
            let refused = layer.forward_keeping(&handles, x, &rowwise, y_room(), kept).unwrap_err();
            let CudaFailure::Operand { actual, expected, element: ElementType::U8, .. } = refused else {
                panic!("{refused}")
            };
            assert_eq!((actual, expected), (wrong, bytes));
            let refused = layer.wgrad(&handles, dy, lend(&room, wrong), lend_mut(&dw, shape.elements()));
            assert!(matches!(refused, Err(CudaFailure::Operand { .. })), "{refused:?}");
        }
        let shifted = gpu.buffer_at(&vec![UNWRITTEN; bytes], 16);
        let kept = lend_mut(&shifted, bytes);
        let refused = layer.forward_keeping(&handles, x, &rowwise, y_room(), kept).unwrap_err();
        assert!(matches!(refused, CudaFailure::Misaligned { multiple: 256, .. }), "{refused}");
        let (short, hidden) = (lend(&values, tokens * 48 - 1), dy);
        let dy = Activations::GeluGradient { x: hidden, gradient: short };
        let refused = layer.wgrad(&handles, dy, x, lend_mut(&dw, shape.elements())).unwrap_err();
        assert!(matches!(refused, CudaFailure::Operand { what: "dy", .. }), "{refused}");
        result::ctx::synchronize().unwrap();
        assert!(shifted.read().iter().all(|byte| *byte == UNWRITTEN));
    }
    result::ctx::synchronize().unwrap();
    assert!(room.read().iter().all(|byte| *byte == UNWRITTEN));
    assert!(y.read().iter().all(|value| *value == bf16::ONE));
    assert!(dw.read().iter().all(|value| *value == 1.0));
}
