//! Sharded training against the plainest trainer there is: one process, whole weights, no schedule.
//!
//! Conformance C4, C6: a trainer whose weights are sharded, quantized from shards and gathered gives
//! exactly the losses of one that quantizes whole weights in place, at every step and for every
//! format. The reference below shares nothing with planner, actors and backend but the quantizer's
//! whole-tensor entry point, which has golden vectors of its own.
//!
//! The numbers of steps are those of the cases: 100, and 500 in NVFP4. The rest is a stand-in: C4 requests
//! layers 128→288→768→128 under SGD on two ranks, C6 for 128→320→768→128 at batch 2048. Here the layers are
//! square, the batch is one row a rank, there are three ranks, and the optimizer is AdamW. Batch 2048 would
//! take 500 steps of 5 GFLOP per rank in plain loops, twice; what it adds is in the closures, not in the
//! library. Layers of those widths, on two ranks, are in `unsharded_widths`.

use warpweft_format::{AmaxChoice, DelayedScaling, Format, Orientation, Shape, Via};
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::op::WireType;
use warpweft_plan::policy::{AcrossMicroBatches, Backward, ReduceDtype, ReduceEvery};
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_testing::products::{outer, times};
use warpweft_testing::random_weight::amax;
use warpweft_testing::reference::{
    Parameter, RATE, Reducing, mean_over, scaling, stored_values, stored_values_by, stored_values_delayed,
    sum, sum_in_levels,
};
use warpweft_testing::trainer::{self, SIZE, Shaped, Trainer, losses, within_a_minute};

const SQUARE: Shape = Shape::new(SIZE, SIZE);
const RANKS: u32 = 3;
const LAYERS: usize = 2;
const STEPS: u32 = 100;

/// In NVFP4.
const LONG: u32 = 500;

/// Loss and gradients of one rank: per layer, then of the bias from each layer, last layer first.
fn one_rank(
    weights: &[Vec<f32>],
    transposed: &[Vec<f32>],
    bias: &[f32],
    input: &[f32],
) -> (f32, Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let mut activations = vec![input.to_vec()];
    for weight in weights {
        let x = activations.last().unwrap();
        activations.push(times(weight, x).iter().zip(bias).map(|(y, bias)| bias + y).collect());
    }
    let layers = weights.len();
    let errors: Vec<f32> = activations[layers].iter().zip(input).map(|(y, target)| y - target).collect();
    let loss = errors.iter().map(|error| error * error).sum();
    let mut above: Vec<f32> = errors.iter().map(|error| 2.0 * error).collect();
    let (mut gradients, mut of_bias) = (vec![Vec::new(); layers], Vec::new());
    for layer in (0..layers).rev() {
        let x = &activations[layer];
        gradients[layer] = outer(&above, x);
        of_bias.push(above.clone());
        above = times(&transposed[layer], &above);
    }
    (loss, gradients, of_bias)
}

/// A replicated gradient: each rank scales and adds its contributions, then ranks are summed in the levels of the
/// world.
fn replicated_mean(mesh: Mesh, ranks: &[Vec<Vec<f32>>], micro_batches: u32) -> Vec<f32> {
    let factor = 1.0 / (ranks.len() as u32 * micro_batches) as f32;
    let scaled = |values: &Vec<f32>| values.iter().map(|value| value * factor).collect::<Vec<f32>>();
    let own = ranks.iter().map(|contributions| sum(contributions.iter().map(scaled))).collect();
    sum_in_levels(mesh, Group::World, own, WireType::F32)
}

fn reference(format: Format, delayed: Option<(AmaxChoice, u32)>, steps: u32) -> Vec<u32> {
    repeated_reference(format, delayed, steps, Shaped::default(), Reducing::default())
}

/// The same with weights replayed, calls repeated and gradients accumulated over steps.
fn repeated_reference(
    format: Format,
    delayed: Option<(AmaxChoice, u32)>,
    steps: u32,
    shaped: Shaped,
    reducing: Reducing,
) -> Vec<u32> {
    let Shaped { layers: depth, weights: count, micro_batches, one_scale, .. } = shaped;
    let mut scalings: Vec<Option<DelayedScaling>> =
        vec![delayed.map(|(choice, history)| scaling(format, choice, history)); count];
    let mut layers: Vec<Parameter> =
        (0..count).map(|layer| Parameter::new(&format!("layer{layer}"), SIZE, SIZE * SIZE)).collect();
    let mut bias = Parameter::new("bias", SIZE, SIZE);
    let mut found = Vec::new();
    for step in 0..steps / reducing.steps {
        let (mut weights, mut transposed) = (Vec::new(), Vec::new());
        let amax_of = |layers: &[Parameter]| {
            layers.iter().map(|layer| amax(Via::Bf16, &layer.master)).fold(0.0, f32::max)
        };
        let amaxes: Vec<f32> = match one_scale {
            true => vec![amax_of(&layers); count],
            false => layers.chunks(1).map(amax_of).collect(),
        };
        for ((Parameter { master, .. }, scaling), amax) in layers.iter().zip(&mut scalings).zip(amaxes) {
            let [rows, columns] = match scaling {
                None if one_scale && format.needs_tensor_amax() => {
                    stored_values_by(amax, format, SQUARE, master)
                }
                None => [Orientation::Rowwise, Orientation::Columnwise]
                    .map(|orientation| stored_values(format, orientation, SQUARE, master)),
                Some(scaling) => {
                    stored_values_delayed(format, SQUARE, master, scaling, (step > 0).then_some(amax))
                }
            };
            weights.push(rows);
            transposed.push(columns);
        }
        let replay = |all: &[Vec<f32>]| all.iter().cycle().take(depth).cloned().collect::<Vec<_>>();
        let (weights, transposed) = (replay(&weights), replay(&transposed));
        // Per rank, per step whose gradients are accumulated, per micro-batch.
        let added = step * reducing.steps..(step + 1) * reducing.steps;
        let ranks: Vec<Vec<Vec<_>>> = (0..reducing.ranks)
            .map(|rank| {
                let batch = |step, number| {
                    one_rank(&weights, &transposed, &bias.master, &trainer::input(step, rank, number))
                };
                let of_step = |step| (0..micro_batches).map(|number| batch(step, number)).collect();
                added.clone().map(of_step).collect()
            })
            .collect();
        for number in 0..reducing.steps as usize {
            let losses = ranks.iter().flat_map(|steps| &steps[number]).map(|(loss, ..)| loss);
            let mean =
                losses.map(|loss| f64::from(*loss)).sum::<f64>() / f64::from(reducing.ranks * micro_batches);
            found.push((mean as f32).to_bits());
        }
        // Sums of several steps become means where the optimizer reads them.
        let of_steps = |mut sum: Vec<f32>| {
            let factor = 1.0 / reducing.steps as f32;
            sum.iter_mut().for_each(|value| *value *= factor);
            sum
        };
        for (number, layer) in layers.iter_mut().enumerate() {
            // Layers are replayed forward, so the last of them has its backward first.
            let replays = |gradients: &Vec<Vec<f32>>| {
                gradients.iter().skip(number).step_by(count).rev().cloned().collect::<Vec<_>>()
            };
            let of_step = |batches: &Vec<(_, Vec<Vec<f32>>, _)>| {
                let batches = batches.iter().map(|(_, gradients, _)| replays(gradients));
                match reducing.every {
                    ReduceEvery::Call => batches.flatten().collect(),
                    ReduceEvery::MicroBatch => batches.map(|calls| sum(calls.into_iter())).collect(),
                    ReduceEvery::Step => vec![sum(batches.flatten())],
                }
            };
            let contributions: Vec<Vec<_>> =
                ranks.iter().map(|steps| steps.iter().flat_map(of_step).collect()).collect();
            let gradient = mean_over(reducing.mesh(), &contributions, micro_batches, reducing.dtype);
            layer.update(&of_steps(gradient), step as i32 + 1);
        }
        let of_bias = ranks
            .iter()
            .map(|steps| steps.iter().flatten().flat_map(|(_, _, of_bias)| of_bias.clone()).collect())
            .collect::<Vec<_>>();
        bias.update(&of_steps(replicated_mean(reducing.mesh(), &of_bias, micro_batches)), step as i32 + 1);
    }
    found
}

/// C4, delayed scaling.
#[test]
fn with_delayed_scaling_too_a_sharded_trainer_gives_the_losses_of_an_unsharded_one_exactly() {
    within_a_minute(async {
        for format in [Format::FP8_TENSOR_E4M3, Format::FP8_TENSOR_E5M2_POW2] {
            for (amax_choice, amax_history) in [(AmaxChoice::Largest, 16), (AmaxChoice::Latest, 2)] {
                let mut config = Config { check: true, ..Config::default() };
                config.optimizer.lr = f64::from(RATE);
                config.quantize.scaling = Scaling::Delayed;
                (config.quantize.amax_choice, config.quantize.amax_history) = (amax_choice, amax_history);
                let mut session = Trainer::new(LAYERS, format).start(config, RANKS).await.unwrap();
                let found = losses(&mut session, RANKS, 0..STEPS).await;
                assert_eq!(found, reference(format, Some((amax_choice, amax_history)), STEPS), "{format}");
                // Until an amax crosses a power of two the codes are the same ones, and so are the values.
                let powers_of_two = format == Format::FP8_TENSOR_E5M2_POW2;
                let is_current = found[..12] == reference(format, None, 12);
                assert_eq!(is_current, powers_of_two, "{format}: delayed, not current");
                assert!(
                    f32::from_bits(found[STEPS as usize - 1]) < f32::from_bits(found[0]),
                    "{format} learns"
                );
            }
        }
    });
}

/// AD-1: the reference rounds Adam operation by operation, and its bits are those of the plan. C4, C6.
#[test]
fn a_sharded_trainer_gives_the_losses_of_an_unsharded_one_exactly_at_every_step_in_every_format() {
    within_a_minute(async {
        for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
            let mut config = Config { check: true, ..Config::default() };
            config.optimizer.lr = f64::from(RATE);
            config.prefetch.depth = Some(2);
            let mut session = Trainer::new(LAYERS, format).start(config, RANKS).await.unwrap();
            let steps = if matches!(format, Format::Nvfp4(_)) { LONG } else { STEPS };
            let found = losses(&mut session, RANKS, 0..steps).await;
            assert_eq!(found, reference(format, None, steps), "{format}");
            assert!(f32::from_bits(found[steps as usize - 1]) < f32::from_bits(found[0]), "{format} learns");
        }
    });
}

/// A step of any shape gives the reference's losses, at every depth, issued and replayed, kept and gathered again.
fn equals_the_reference(shaped: Shaped, reducing: Reducing) {
    const STEPS: u32 = 12;
    within_a_minute(async move {
        for format in [Format::F32, Format::NVFP4_2D, Format::Mxfp8] {
            let expected = repeated_reference(format, None, STEPS, shaped, reducing);
            for (depth, capture, kept) in
                [(0, Capture::Off, false), (1, Capture::Step, false), (3, Capture::Off, true)]
            {
                let mut config = Config { check: true, capture, ..Config::default() };
                (config.reduce_every, config.reduce_dtype) = (reducing.every, reducing.dtype);
                (config.mesh.dp_replicate, config.mesh.levels) = (Some(reducing.replicas), reducing.levels);
                if kept {
                    (config.backward, config.across_micro_batches) =
                        (Backward::Keep, AcrossMicroBatches::Keep);
                }
                config.optimizer.lr = f64::from(RATE);
                config.prefetch.depth = Some(depth);
                let mut trainer = Trainer::shaped(shaped, format, &config);
                if reducing.steps > 1 {
                    trainer.train = trainer.train.accumulating().unwrap();
                }
                let mut session = trainer.start(config, reducing.ranks).await.unwrap();
                let mut found = Vec::new();
                for step in 0..STEPS {
                    if (step + 1) % reducing.steps == 0 {
                        found.extend(losses(&mut session, reducing.ranks, step..step + 1).await);
                    } else {
                        trainer::feed(&mut session, "train", reducing.ranks, step);
                        let report = session.accumulate("train").await.unwrap();
                        found.push(report.mean_output("loss").unwrap().to_bits());
                    }
                }
                assert_eq!(found, expected, "{format}, depth {depth}, {capture:?}");
            }
        }
    });
}

/// What all layers share is made of all of them, also where a layer is replayed or computed by several replicas.
#[test]
fn layers_of_a_scale_group_train_as_an_unsharded_trainer_quantizes_them_by_one_amax() {
    let shaped = Shaped { layers: 3, weights: 2, one_scale: true, ..Shaped::default() };
    let reference = |shaped| repeated_reference(Format::NVFP4_2D, None, 12, shaped, Reducing::default());
    assert_ne!(reference(shaped), reference(Shaped { one_scale: false, ..shaped }), "the scale has a say");
    equals_the_reference(shaped, Reducing::default());
    equals_the_reference(shaped, Reducing { ranks: 4, replicas: 2, ..Reducing::default() });
}

/// DS-1. The factor follows from the amaxes of all layers, current and delayed.
#[test]
fn layers_of_a_scale_group_in_per_tensor_fp8_share_one_factor_current_and_delayed() {
    let shaped = Shaped { one_scale: true, ..Shaped::default() };
    within_a_minute(async move {
        let format = Format::FP8_TENSOR_E4M3;
        for delayed in [None, Some((AmaxChoice::Largest, 3)), Some((AmaxChoice::Latest, 2))] {
            let mut config = Config { check: true, capture: Capture::Step, ..Config::default() };
            config.optimizer.lr = f64::from(RATE);
            if let Some((choice, history)) = delayed {
                config.quantize.scaling = Scaling::Delayed;
                (config.quantize.amax_choice, config.quantize.amax_history) = (choice, history);
            }
            let trainer = Trainer::shaped(shaped, format, &config);
            let mut session = trainer.start(config, RANKS).await.unwrap();
            let found = losses(&mut session, RANKS, 0..STEPS).await;
            let expected = |shaped| repeated_reference(format, delayed, STEPS, shaped, Reducing::default());
            assert_eq!(found, expected(shaped), "{delayed:?}");
            assert_ne!(found, expected(Shaped::default()), "{delayed:?}: the scale has a say");
            let weights = session.export().await.unwrap().weights;
            assert_eq!(weights[0].tensor_scale.to_bits(), weights[1].tensor_scale.to_bits());
        }
    });
}

/// A layer replayed, as looped and tied models do: its gradients sum.
#[test]
fn a_replayed_layer_learns_from_the_sum_of_its_gradients() {
    let shaped = Shaped { layers: 5, weights: 2, ..Shaped::default() };
    for every in [ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step] {
        equals_the_reference(shaped, Reducing { every, ..Reducing::default() });
    }
}

#[test]
fn activations_computed_again_in_backward_change_no_bit() {
    let shaped = Shaped { layers: 3, weights: 3, recomputes: true, ..Shaped::default() };
    equals_the_reference(shaped, Reducing::default());
}

#[test]
fn gradients_of_micro_batches_are_averaged_like_those_of_ranks() {
    let shaped = Shaped { micro_batches: 3, ..Shaped::default() };
    for every in [ReduceEvery::Call, ReduceEvery::Step] {
        equals_the_reference(shaped, Reducing { every, ..Reducing::default() });
    }
}

/// What leaves a rank is rounded once; sums are f32 in rank order.
#[test]
fn gradients_that_travel_in_fewer_bits_are_summed_in_f32() {
    for dtype in [ReduceDtype::Bf16, ReduceDtype::Mxfp8] {
        equals_the_reference(Shaped::default(), Reducing { dtype, ..Reducing::default() });
        let shaped = Shaped { layers: 3, weights: 2, micro_batches: 2, ..Shaped::default() };
        equals_the_reference(shaped, Reducing { every: ReduceEvery::Step, dtype, ..Reducing::default() });
    }
}

#[test]
fn replay_recompute_and_micro_batches_go_together() {
    let shaped = Shaped { layers: 3, weights: 2, recomputes: true, micro_batches: 2, ..Shaped::default() };
    equals_the_reference(shaped, Reducing { every: ReduceEvery::MicroBatch, ..Reducing::default() });
}

/// PL-4. Gradients are summed over the ranks of a replica, then over the replicas, in f32; whatever the shape
/// of the mesh.
#[test]
fn replicas_of_a_sharded_model_learn_what_an_unsharded_one_does() {
    for (ranks, replicas) in [(2, 1), (2, 2), (4, 2), (6, 3)] {
        equals_the_reference(Shaped::default(), Reducing { ranks, replicas, ..Reducing::default() });
    }
}

/// PL-4. What travels in bf16 is rounded once, before the first of both sums.
#[test]
fn replicas_go_together_with_tied_weights_micro_batches_and_gradients_in_bf16() {
    let shaped = Shaped { layers: 3, weights: 2, recomputes: true, micro_batches: 2, ..Shaped::default() };
    for (every, dtype) in [(ReduceEvery::Call, ReduceDtype::Bf16), (ReduceEvery::Step, ReduceDtype::F32)] {
        let reducing = Reducing { every, dtype, ranks: 4, replicas: 2, ..Reducing::default() };
        equals_the_reference(shaped, reducing);
    }
}

/// PL-4. Every step's gradients are in the sum once, a mean comes of it, and weights stay as they are until then.
#[test]
fn gradients_added_up_over_steps_train_as_their_mean_does() {
    let shaped = Shaped { layers: 3, weights: 2, micro_batches: 2, ..Shaped::default() };
    for (every, dtype) in [(ReduceEvery::Call, ReduceDtype::Bf16), (ReduceEvery::Step, ReduceDtype::F32)] {
        equals_the_reference(
            shaped,
            Reducing { every, dtype, ranks: 4, replicas: 2, steps: 3, ..Reducing::default() },
        );
    }
}

/// PL-4. Ranks of a block are added first, then blocks: in every schedule, with replicas, in each type on the wire.
#[test]
fn ranks_that_sum_in_levels_learn_what_an_unsharded_trainer_does_that_adds_in_their_order() {
    let levels = |blocks: &[u32]| Some(Levels::new(blocks).unwrap());
    for (ranks, replicas, blocks, dtype) in [
        (4, 1, &[2][..], ReduceDtype::F32),
        (6, 1, &[3], ReduceDtype::Bf16),
        (8, 1, &[2, 4], ReduceDtype::F32),
        (8, 2, &[2], ReduceDtype::Bf16),
        (8, 2, &[2], ReduceDtype::Mxfp8),
    ] {
        let levels = levels(blocks);
        equals_the_reference(
            Shaped::default(),
            Reducing { ranks, replicas, levels, dtype, ..Reducing::default() },
        );
    }
}

/// PL-4. Without a word a mesh of more than eight ranks sums in blocks of eight, and a word turns that off.
#[test]
fn sixteen_ranks_sum_in_blocks_of_eight_by_themselves() {
    let reducing = Reducing { ranks: 16, ..Reducing::default() };
    let flat = Reducing { levels: Some(Levels::FLAT), ..reducing };
    assert_eq!((reducing.mesh().depth(Group::Shard), flat.mesh().depth(Group::Shard)), (2, 1));
    let shaped = Shaped { layers: 3, weights: 2, micro_batches: 2, ..Shaped::default() };
    let reference = |reducing| repeated_reference(Format::F32, None, 12, shaped, reducing);
    assert_ne!(reference(reducing), reference(flat), "the order of a sum has a say in its bits");
    equals_the_reference(shaped, reducing);
    equals_the_reference(shaped, flat);
}
