//! Linear layers in the closure of a session: gathered planes, columnwise ones made on demand, dense slots, captured
//! steps.

use half::bf16;
use warpweft_base::id::{BufferId, RankId, WeightId};
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{BackwardOperands, Device, Input, Linear, LinearSpec, Output, Recipe, Weight};
use warpweft_cuda::{CudaSurface, DeviceOrdinal};
use warpweft_format::{Directions, ElementType, Format, Fp8Element, Orientation, Shape, Via, quantize};
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_plan::op::Op;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::Session;

use super::reference::{Matrix, assert_product, noise};
use super::rig::as_multiplied;
use crate::gpu::Gpu;

const TOKENS: usize = 100;
const WEIGHT: Shape = Shape::new(256, 384);

fn initial() -> Vec<f32> {
    noise(WEIGHT, 5).iter().map(|value| value * 0.02).collect()
}

/// bf16 operands of the step, the same on every rank.
fn inputs() -> (Vec<bf16>, Vec<bf16>) {
    let of =
        |features, seed| noise(Shape::new(TOKENS, features), seed).into_iter().map(bf16::from_f32).collect();
    (of(WEIGHT.cols, 7), of(WEIGHT.rows, 8))
}

#[derive(Clone, Copy)]
struct Names {
    weight: WeightId,
    x: BufferId,
    dy: BufferId,
    y: BufferId,
    dx: BufferId,
    /// Where forward keeps what backward reads in place of x.
    kept: Option<BufferId>,
}

/// By which products, and in what dW is written.
type Computed = (Recipe, ElementType);

fn spec((recipe, weight_gradient): Computed) -> LinearSpec {
    LinearSpec { weight_gradient, ..LinearSpec::new(recipe, TOKENS, WEIGHT) }
}

struct Closure {
    names: Names,
    /// A factory cannot refuse, a call can.
    layer: Result<Linear, CudaFailure>,
}

impl Closure {
    fn new(names: Names, computed: Computed, gpu: DeviceOrdinal) -> Self {
        Self { names, layer: Device::open(gpu).and_then(|device| Linear::new(&device, spec(computed))) }
    }
}

impl Compute<CudaSurface> for Closure {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        let Names { weight, x, dy, y, dx, kept } = self.names;
        let layer = self.layer.as_mut().map_err(|error| error.clone())?;
        let LinearSpec { recipe, dgrad, .. } = *layer.spec();
        if call.name == "forward" {
            let weight = Weight::of(context, weight, Orientation::Rowwise, recipe.form())?;
            let (x, y) = (context.read::<bf16>(x)?, context.write::<bf16>(y)?);
            match kept {
                None => layer.forward(context.handles(), x, &weight, y)?,
                Some(kept) => {
                    let kept = context.write::<u8>(kept)?;
                    layer.forward_keeping(context.handles(), x, &weight, y, kept)?;
                }
            }
            return Ok(());
        }
        let x: Input<'_> = match kept {
            None => context.read::<bf16>(x)?.into(),
            Some(kept) => context.read::<u8>(kept)?.into(),
        };
        let lent = Weight::of(context, weight, dgrad, recipe.form())?;
        let operands = BackwardOperands {
            dy: context.read::<bf16>(dy)?,
            weight: &lent,
            x,
            dx: context.write::<bf16>(dx)?.into(),
            dw: Output::gradient(context, weight)?,
        };
        Ok(layer.backward(context.handles(), operands)?)
    }
}

/// Forward and backward, of which backward may be dynamic and may read what forward kept.
fn declare(format: Format, computed: Computed, keeps: bool, dynamic: bool) -> (Names, StepProgram) {
    let (recipe, element) = computed;
    let mut model = Model::builder();
    let weight = model.sharded("w", WEIGHT.rows, WEIGHT.cols, format).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let (into, out) = (TOKENS * WEIGHT.cols, TOKENS * WEIGHT.rows);
    let bytes = keeps.then(|| spec(computed).kept_bytes().unwrap().unwrap());
    let names = Names {
        kept: bytes.map(|bytes| program.activation_in("x.kept", bytes, ElementType::U8).unwrap()),
        weight,
        x: program.input("x", into, ElementType::Bf16).unwrap(),
        dy: program.input("dy", out, ElementType::Bf16).unwrap(),
        y: program.output("y", out, ElementType::Bf16).unwrap(),
        dx: program.output("dx", into, ElementType::Bf16).unwrap(),
    };
    let call = program.call("forward", Phase::Forward).uses(weight, Orientation::Rowwise, recipe.form());
    let call = call.reads(names.x).writes(names.y);
    names.kept.into_iter().fold(call, |call, kept| call.writes(kept)).add().unwrap();
    let call =
        program.call("backward", Phase::Backward).uses(weight, recipe.dgrad_orientation(), recipe.form());
    let call = call.gradient_in(weight, element).reads(names.kept.unwrap_or(names.x));
    let call = call.reads(names.dy).writes(names.dx);
    if dynamic { call.dynamic().add() } else { call.add() }.unwrap();
    (names, program.build_training().unwrap())
}

/// y, dx and dW of rank 0.
type Found = (Vec<bf16>, Vec<bf16>, Vec<f32>);

async fn run(format: Format, computed: Computed, capture: Capture, gpus: &[DeviceOrdinal]) -> Found {
    run_keeping(format, computed, false, capture, gpus).await
}

async fn run_keeping(
    format: Format,
    computed: Computed,
    keeps: bool,
    capture: Capture,
    gpus: &[DeviceOrdinal],
) -> Found {
    let (names, program) = declare(format, computed, keeps, capture == Capture::Segments);
    let mut config = Config { capture, ..Config::default() };
    // Weights that stay as they are, and a first moment that is the gradient.
    (config.optimizer.lr, config.optimizer.beta1) = (0.0, 0.0);
    let devices = gpus.to_vec();
    let factory = move |rank: RankId| Closure::new(names, computed, devices[rank.index()]);
    let initial = initial();
    let mut session = Session::builder(config, factory)
        .program(program)
        .initialize(move |rows, masters| {
            masters.copy_from_slice(&initial[rows.first_element()..][..masters.len()]);
        })
        .start_cuda(gpus.to_vec())
        .await
        .unwrap();
    let turns = session.plan("train").unwrap().tasks.iter().any(|task| matches!(task.op, Op::Transpose(_)));
    let derived =
        computed.0.form() == warpweft_plan::model::Form::Planes && format.derives_columnwise().is_ok();
    assert_eq!(turns, derived, "columnwise planes are made where dx reads them and they are not gathered");
    let (x, dy) = inputs();
    for rank in 0..gpus.len() as u32 {
        session.write_input("train", RankId::new(rank), "x", &x).unwrap();
        session.write_input("train", RankId::new(rank), "dy", &dy).unwrap();
    }
    let mut found: Option<Found> = None;
    for step in 0..4 {
        let report = session.step("train").await.unwrap();
        let launched = if capture == Capture::Segments { 2 } else { usize::from(capture == Capture::Step) };
        assert_eq!(report.not_captured, [], "{format} {capture:?}");
        assert_eq!(
            report.segments,
            if step == 0 { 0 } else { launched },
            "{format} {capture:?}: step {step}"
        );
        let read = |name| report.output::<bf16>(RankId::new(0), name).unwrap();
        let (y, dx) = (read("y"), read("dx"));
        let dw = session.export().await.unwrap().weights[0].states[0].clone();
        match &found {
            None => found = Some((y, dx, dw)),
            Some(first) => assert_eq!(*first, (y, dx, dw), "{format} {capture:?}: step {step}"),
        }
    }
    session.close().await.unwrap();
    found.unwrap()
}

fn widen(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// What a layer of weights in this format computes by on the GPU: what is given without asking, and the
/// products of the format itself.
fn recipes(format: Format, gpu: DeviceOrdinal) -> Vec<Recipe> {
    let capability = gpu.compute_capability().unwrap();
    let best = Recipe::best_for(format, capability);
    let native = Recipe::native(format, capability).ok().filter(|native| *native != best);
    std::iter::once(best).chain(native).collect()
}

fn check(format: Format, (recipe, element): Computed, (y, dx, dw): &Found) {
    let (x, dy) = inputs();
    let x = Matrix::new(Shape::new(TOKENS, WEIGHT.cols), widen(&x));
    let dy = Matrix::new(Shape::new(TOKENS, WEIGHT.rows), widen(&dy));
    let quantized = quantize(format, Directions::Both, Via::Bf16, WEIGHT, &initial()).unwrap();
    let mut values = quantized.dequantize(Orientation::Rowwise).unwrap();
    if recipe == Recipe::Bf16 {
        values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
    }
    let weight = Matrix::new(WEIGHT, values);
    let turned = match recipe {
        Recipe::Bf16 => weight.transposed(),
        _ => Matrix::new(weight.transposed().shape, quantized.dequantize(Orientation::Columnwise).unwrap()),
    };
    let seen = |matrix: &Matrix| as_multiplied(recipe, Fp8Element::E4m3, matrix);
    let what = |product: &str| format!("{format} by {recipe}, dW {element:?}, in a session: {product}");
    let half = ElementType::Bf16;
    assert_product(&what("y"), recipe, &seen(&x), &weight, &widen(y), half);
    assert_product(&what("dx"), recipe, &seen(&dy), &turned, &widen(dx), half);
    let (dy, x) = (dy.transposed(), x.transposed());
    // The weight's gradient of NVFP4 is that of the values.
    let (recipe, dy, x) = match recipe {
        Recipe::Nvfp4 => (Recipe::Bf16, dy, x),
        _ => (recipe, seen(&dy), seen(&x)),
    };
    assert_product(&what("dW"), recipe, &dy, &x, dw, element);
}

/// LI-1, EX-1
#[test]
fn forward_and_backward_of_a_plan_are_right_captured_whole_in_segments_or_not_on_one_gpu_or_two() {
    let Some(_turn) = Gpu::open("layers in a session") else { return };
    let all = DeviceOrdinal::all().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for format in [
        Format::Bf16,
        Format::F32,
        Format::NVFP4_2D,
        Format::Mxfp8,
        Format::FP8_TENSOR_E4M3,
        Format::FP8_BLOCK128_POW2,
    ] {
        let recipes = recipes(format, all[0]);
        let elements = [ElementType::F32, ElementType::Bf16];
        for computed in recipes.iter().flat_map(|recipe| elements.map(|element| (*recipe, element))) {
            let eager = runtime.block_on(run(format, computed, Capture::Off, &all[..1]));
            check(format, computed, &eager);
            let captured = runtime.block_on(run(format, computed, Capture::Step, &all[..1]));
            assert_eq!(captured, eager, "{format}: a captured step has the bits of an eager one");
            let segments = runtime.block_on(run(format, computed, Capture::Segments, &all[..1]));
            assert_eq!(
                segments, eager,
                "{format}: a step in two segments and a call between them has them too"
            );
            if let [first, second, ..] = all[..] {
                let both = runtime.block_on(run(format, computed, Capture::Off, &[first, second]));
                assert_eq!(both, eager, "{format}: two ranks");
                let segments = runtime.block_on(run(format, computed, Capture::Segments, &[first, second]));
                assert_eq!(segments, eager, "{format}: two ranks in segments");
            }
        }
    }
}

/// LI-5, EX-1
#[test]
fn what_forward_keeps_in_a_buffer_of_the_plan_gives_backward_the_same_bits_captured_or_not() {
    let Some(_turn) = Gpu::open("kept codes in a session") else { return };
    let all = DeviceOrdinal::all().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for format in [Format::FP8_TENSOR_E4M3, Format::FP8_BLOCK128_POW2, Format::Mxfp8] {
        let Some(recipe) = recipes(format, all[0]).into_iter().find(|recipe| *recipe != Recipe::Bf16) else {
            crate::say_skipped(&format_args!("kept codes of {format}: no products of it on this GPU"));
            continue;
        };
        let computed = (recipe, ElementType::F32);
        let anew = runtime.block_on(run(format, computed, Capture::Off, &all[..1]));
        for capture in [Capture::Off, Capture::Step, Capture::Segments] {
            for gpus in (1..=all.len().min(2)).map(|gpus| &all[..gpus]) {
                let kept = runtime.block_on(run_keeping(format, computed, true, capture, gpus));
                assert_eq!(kept, anew, "{format} {capture:?} on {} GPUs", gpus.len());
            }
        }
    }
}
