//! Conformance C4 and C6 by their layers: 128→288→768→128, and 128→320→768→128 in NVFP4, on two ranks that see
//! inputs of their own, a hundred steps, with columnwise planes made on demand and kept.
//!
//! The optimizer is AdamW, for this library has no SGD, and the batch is one row. The 500 steps of C6 are run on
//! the square layers of `unsharded_reference`.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{AmaxChoice, DelayedScaling, ElementType, Format, Orientation, Shape, Via};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_plan::policy::{Columnwise, ReduceDtype};
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Config, Scaling};
use warpweft_session::session::Session;
use warpweft_testing::products::{outer, times};
use warpweft_testing::random_weight::amax;
use warpweft_testing::reference::{Parameter, RATE, mean, scaling, stored_values, stored_values_delayed};
use warpweft_testing::trainer::{initial, within_a_minute};

const RANKS: u32 = 2;
const STEPS: u32 = 100;
const LAYERS: usize = 3;

/// What a layer takes, and what the last one gives.
type Widths = [usize; LAYERS + 1];
const C4: Widths = [128, 288, 768, 128];
const C6: Widths = [128, 320, 768, 128];

const HISTORY: u32 = 16;

fn shape(widths: Widths, layer: usize) -> Shape {
    Shape::new(widths[layer + 1], widths[layer])
}

fn name(layer: usize) -> String {
    format!("layer{layer}")
}

/// A rank's input of one step.
fn input(step: u32, rank: u32, width: usize) -> Vec<f32> {
    (0..width).map(|at| ((step * 31 + rank * 7 + at as u32 * 3) as f32 * 0.37).sin()).collect()
}

/// Loss and gradients of layers that learn to turn their input around. `rows` are the weights, `columns` their
/// transposes.
fn learn(rows: &[&[f32]], columns: &[&[f32]], input: &[f32]) -> (f32, Vec<Vec<f32>>) {
    let mut activations = vec![input.to_vec()];
    for weight in rows {
        let x = &activations[activations.len() - 1];
        activations.push(times(weight, x));
    }
    let output = &activations[rows.len()];
    let errors: Vec<f32> = output.iter().zip(input.iter().rev()).map(|(y, target)| y - target).collect();
    let loss = errors.iter().map(|error| error * error).sum();
    let mut above: Vec<f32> = errors.iter().map(|error| 2.0 * error).collect();
    let mut gradients = vec![Vec::new(); rows.len()];
    for layer in (0..rows.len()).rev() {
        let x = &activations[layer];
        gradients[layer] = outer(&above, x);
        above = times(columns[layer], &above);
    }
    (loss, gradients)
}

/// Losses of every step and masters after the last, of whole weights in one place.
fn unsharded(widths: Widths, format: Format, delayed: bool) -> (Vec<u32>, Vec<Vec<f32>>) {
    let parameter = |layer| {
        let shape = shape(widths, layer);
        Parameter::new(&name(layer), shape.cols, shape.elements())
    };
    let mut layers: Vec<Parameter> = (0..LAYERS).map(parameter).collect();
    let mut scalings: Vec<Option<DelayedScaling>> =
        vec![delayed.then(|| scaling(format, AmaxChoice::Largest, HISTORY)); LAYERS];
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let values = |(layer, (parameter, scaling)): (usize, (&Parameter, &mut Option<DelayedScaling>))| {
            let (shape, master) = (shape(widths, layer), &parameter.master);
            match scaling {
                Some(scaling) => stored_values_delayed(
                    format,
                    shape,
                    master,
                    scaling,
                    (step > 0).then(|| amax(Via::Bf16, master)),
                ),
                None => [Orientation::Rowwise, Orientation::Columnwise]
                    .map(|orientation| stored_values(format, orientation, shape, master)),
            }
        };
        let stored: Vec<[Vec<f32>; 2]> = layers.iter().zip(&mut scalings).enumerate().map(values).collect();
        let [rows, columns] =
            [0, 1].map(|way| stored.iter().map(|both| both[way].as_slice()).collect::<Vec<_>>());
        let ranks = (0..RANKS).map(|rank| learn(&rows, &columns, &input(step, rank, widths[0])));
        let ranks: Vec<(f32, Vec<Vec<f32>>)> = ranks.collect();
        let sum: f64 = ranks.iter().map(|(loss, _)| f64::from(*loss)).sum();
        losses.push(((sum / f64::from(RANKS)) as f32).to_bits());
        for (number, layer) in layers.iter_mut().enumerate() {
            let of_ranks: Vec<_> = ranks.iter().map(|(_, all)| vec![all[number].clone()]).collect();
            layer.update(&mean(&of_ranks, 1, ReduceDtype::F32), step as i32 + 1);
        }
    }
    (losses, layers.into_iter().map(|layer| layer.master).collect())
}

/// The same by a session.
async fn sharded(
    widths: Widths,
    format: Format,
    delayed: bool,
    columnwise: Columnwise,
) -> (Vec<u32>, Checkpoint) {
    let mut config = Config { check: true, columnwise, ..Config::default() };
    config.optimizer.lr = f64::from(RATE);
    if delayed {
        config.quantize.scaling = Scaling::Delayed;
        (config.quantize.amax_choice, config.quantize.amax_history) = (AmaxChoice::Largest, HISTORY);
    }
    let mut model = Model::builder();
    let declare = |layer| {
        let Shape { rows, cols } = shape(widths, layer);
        model.sharded(&name(layer), rows, cols, format).unwrap()
    };
    let weights: Vec<WeightId> = (0..LAYERS).map(declare).collect();
    let mut program = StepProgram::builder("train", &model.build());
    let x = program.input("input", widths[0], ElementType::F32).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut call = program.call("learn", Phase::Backward).reads(x).writes(loss);
    for weight in &weights {
        for orientation in [Orientation::Rowwise, Orientation::Columnwise] {
            call = call.uses(*weight, orientation, Form::Dense);
        }
        call = call.gradient(*weight);
    }
    call.add().unwrap();
    let closures = move |_: RankId| {
        let weights = weights.clone();
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
            let dense = |orientation| {
                weights
                    .iter()
                    .map(|weight| context.dense(*weight, orientation))
                    .collect::<Result<Vec<_>, _>>()
            };
            let (rows, columns) = (dense(Orientation::Rowwise)?, dense(Orientation::Columnwise)?);
            let rows: Vec<&[f32]> = rows.iter().map(|values| &values[..]).collect();
            let columns: Vec<&[f32]> = columns.iter().map(|values| &values[..]).collect();
            let (found, gradients) = learn(&rows, &columns, &context.read::<f32>(x)?);
            context.write::<f32>(loss)?[0] = found;
            for (weight, gradient) in weights.iter().zip(&gradients) {
                context.gradient(*weight)?.copy_from_slice(gradient);
            }
            Ok(())
        }
    };
    let builder = Session::builder(config, closures).program(program.build_training().unwrap());
    let mut session = builder.initialize(initial).start_cpu(RANKS).await.unwrap();
    let mut losses = Vec::new();
    for step in 0..STEPS {
        for rank in 0..RANKS {
            let values = input(step, rank, widths[0]);
            session.write_input("train", RankId::new(rank), "input", &values).unwrap();
        }
        losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap().to_bits());
    }
    (losses, session.export().await.unwrap())
}

fn check(widths: Widths, format: Format, delayed: bool) {
    within_a_minute(async move {
        let (expected, masters) = unsharded(widths, format, delayed);
        for columnwise in [Columnwise::OnDemand, Columnwise::Keep] {
            let (found, state) = sharded(widths, format, delayed, columnwise).await;
            assert_eq!(found, expected, "{format}, {columnwise:?}");
            for (state, master) in state.weights.iter().zip(&masters) {
                assert!(state.master == *master, "{format}, {columnwise:?}: the master of {}", state.name);
            }
        }
        let loss = |step: u32| f32::from_bits(expected[step as usize]);
        assert!(loss(STEPS - 1) < 0.5 * loss(0), "{format} learns: {} and {}", loss(0), loss(STEPS - 1));
    });
}

#[test]
fn c4_layers_of_fp8_with_delayed_scaling_give_the_losses_of_unsharded_ones_exactly() {
    check(C4, Format::FP8_TENSOR_E4M3, true);
}

#[test]
fn c4_layers_of_fp8_with_current_scaling_give_the_losses_of_unsharded_ones_exactly() {
    check(C4, Format::FP8_TENSOR_E4M3, false);
}

#[test]
fn c4_layers_of_fp8_blocks_give_the_losses_of_unsharded_ones_exactly() {
    check(C4, Format::FP8_BLOCK128_POW2, false);
}

#[test]
fn c4_layers_of_mxfp8_give_the_losses_of_unsharded_ones_exactly() {
    check(C4, Format::Mxfp8, false);
}

#[test]
fn c6_layers_of_nvfp4_give_the_losses_of_unsharded_ones_exactly() {
    check(C6, Format::NVFP4_2D, false);
}
