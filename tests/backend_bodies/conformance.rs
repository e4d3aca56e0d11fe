//! Conformance cases of the ops that follow a step's gradients: D3, G5, H2, H4, H13, H15.
//!
//! H12 requests Adam on 2 359 332 864 elements and is skipped below 60 GiB of free memory. What that size can
//! break is the arithmetic of sizes and offsets; that is tested at full size, without the memory, in
//! `tests/plan/plans`, and with slices of masters in `tests/plan/sizes.rs`.

use half::{bf16, f16};
use warpweft_base::id::{BucketId, CallId, RankId, SlotId, WeightId};
use warpweft_format::{Format, Via};
use warpweft_plan::layout::{Content, Residency};
use warpweft_plan::model::{Hyperparameters, WeightSpec};
use warpweft_plan::op::{
    Accumulate, Adam, AdamOperand, CastVote, FusedScale, GatherRecords, GradNorm, MasterOperand, Op,
    PartialAmax, PartialCast, ShardOperand, Vote,
};
use warpweft_plan::policy::AdamMode;
use warpweft_testing::noise::{value, values};

use crate::device::Device;

use super::harness::{BY, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, noise, run, sharded};

/// A rounding of values, as a tensor of some element type would hold them.
const ROUNDINGS: [fn(f32) -> f32; 3] =
    [|value| value, |value| f16::from_f32(value).to_f32(), |value| bf16::from_f32(value).to_f32()];

fn weight(number: usize) -> WeightId {
    WeightId::at(number)
}

fn specs(shapes: &[(usize, usize)], format: Format) -> Vec<WeightSpec> {
    let named = |(number, (rows, cols)): (usize, &(usize, usize))| {
        WeightSpec::sharded(&format!("w{number}"), *rows, *cols, format)
    };
    shapes.iter().enumerate().map(named).collect()
}

/// What the end of a step needs, beside the slots of its weights.
struct Verdict {
    records: SlotId,
    vote: SlotId,
}

/// Norm, records and vote over these main grads.
fn vote(plan: &mut Plan, main_grads: Vec<(WeightId, SlotId)>, gradient_scale: SlotId) -> Verdict {
    let fault = plan.resident("fault", Content::FaultWord);
    let record = plan.resident("record", Content::NormRecord);
    let records = plan.resident("records", Content::NormRecords);
    let optimizer_step = plan.resident("step", Content::OptimizerStep);
    let vote = plan.resident("vote", Content::Vote);
    plan.op(QUANTIZE, Op::GradNorm(GradNorm { main_grads, squares: Vec::new(), fault, record }));
    plan.fence(QUANTIZE, LINK);
    plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
    plan.fence(LINK, QUANTIZE);
    plan.op(QUANTIZE, Op::Vote(CastVote { records, optimizer_step, gradient_scale, vote }));
    Verdict { records, vote }
}

fn close(found: f32, expected: f64, relative: f64, absolute: f64) -> bool {
    (f64::from(found) - expected).abs() <= absolute + relative * expected.abs()
}

/// Conformance D3: many tensors of many sizes, whose values are those of f32, f16 and bf16 tensors, scaled
/// into main grads and again on top of them; the verdict over the result is clean. What scales here is the
/// mean over the ranks.
fn d3_contributions_of_any_size_and_precision_are_scaled_and_no_fault_is_raised() {
    for ranks in [1, 3, 4] {
        let ranks_of = ranks as usize;
        let mut sizes = vec![1, 2, 777, 4096, 33_333, 65_537, 299_999];
        sizes.extend([5; 55]);
        let shapes: Vec<_> = sizes.iter().map(|size| (ranks_of, *size)).collect();
        let mut plan = Plan::new(ranks, &specs(&shapes, Format::F32));
        let call = CallId::new(0);
        let mut slots = Vec::new();
        for number in 0..sizes.len() {
            let from = plan.transient("reduced", Content::ReducedGradient(weight(number), call));
            let into = plan.resident("main grad", Content::MainGrad(weight(number)));
            for first in [true, false] {
                plan.op(
                    QUANTIZE,
                    Op::Accumulate(Accumulate { weight: weight(number), from, into, first, squares: None }),
                );
            }
            slots.push((from, into));
        }
        let gradient_scale = plan.resident("gradient scale", Content::GradientScale);
        let main_grads = slots.iter().enumerate().map(|(number, (_, into))| (weight(number), *into));
        let verdict = vote(&mut plan, main_grads.collect(), gradient_scale);
        run(plan, move |rank| {
            let values = |number: usize| -> Vec<f32> {
                let noise = noise(sizes[number], number as u32);
                noise.into_iter().map(ROUNDINGS[number % 3]).collect()
            };
            rank.put(gradient_scale, &[1.0_f32]);
            for (number, (from, into)) in slots.iter().enumerate() {
                rank.put(*from, &values(number));
                rank.put(*into, &vec![f32::NAN; sizes[number]]);
            }
            rank.step().unwrap();
            for (number, (_, into)) in slots.iter().enumerate() {
                for (found, value) in rank.get::<f32>(*into).iter().zip(values(number)) {
                    assert!(close(*found, 2.0 * f64::from(value) / ranks_of as f64, 1e-6, 1e-12), "{number}");
                }
            }
            assert_eq!(rank.get::<Vote>(verdict.vote)[0].verdict, Vote::CLEAN);
        });
    }
}

/// Conformance G5: after a vote that skips, amax, scale and cast leave every byte of every format as it was;
/// after a clean one they do not.
fn g5_a_skipped_step_leaves_every_output_of_the_quantizer_untouched() {
    for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
        let mut plan = Plan::new(1, &[sharded(128, 160, format)]);
        let bucket = BucketId::new(0);
        let masters = vec![plan.resident("master", Content::Master(W))];
        let skip = plan.resident("vote", Content::Vote);
        let block_amax = plan.resident("block amax", Content::BlockAmax(bucket));
        let tensor_amax = plan.resident("amax", Content::LocalAmax(bucket));
        let encode = plan.resident("encode", Content::Encode(bucket));
        let tensor_scale = plan.resident("tensor scale", Content::TensorScale(bucket));
        let mut shards = Vec::new();
        for orientation in format.stored_orientations() {
            let slot = plan.resident("shard", Content::Shard(W, *orientation));
            shards.push(ShardOperand { weight: W, orientation: *orientation, slot });
        }
        let mut outputs: Vec<SlotId> = shards.iter().map(|shard| shard.slot).collect();
        let vote = Some(skip);
        let scaled = plan.weights.bucket(bucket).has_scales();
        if scaled {
            let masters = masters.clone();
            plan.op(
                QUANTIZE,
                Op::PartialAmax(PartialAmax { bucket, masters, block_amax, tensor_amax, vote }),
            );
            let shards = shards.clone();
            plan.op(
                QUANTIZE,
                Op::FusedScale(FusedScale {
                    bucket,
                    block_amax,
                    tensor_amax,
                    encode,
                    tensor_scale,
                    shards,
                    vote,
                }),
            );
            outputs.extend([block_amax, tensor_amax, encode, tensor_scale]);
        }
        let (sources, encode) = (masters.clone(), scaled.then_some(encode));
        plan.op(QUANTIZE, Op::PartialCast(PartialCast { bucket, masters: sources, encode, shards, vote }));
        run(plan, move |rank| {
            rank.put(masters[0], &noise(128 * 160, 3));
            let bytes =
                |rank: &Rank<Device>| outputs.iter().map(|slot| rank.get::<u8>(*slot)).collect::<Vec<_>>();
            for slot in &outputs {
                rank.put(*slot, &vec![0xA5_u8; rank.plan.region(*slot).bytes]);
            }
            let before = bytes(rank);
            for verdict in [Vote::NON_FINITE, Vote::CLOSURE] {
                rank.put(skip, &[Vote { verdict, ..Vote::default() }]);
                rank.step().unwrap();
                assert_eq!(bytes(rank), before, "{format}");
            }
            rank.put(skip, &[Vote { clip: 1.0, unscale: 1.0, ..Vote::default() }]);
            rank.step().unwrap();
            let after = bytes(rank);
            assert!(after.iter().zip(&before).all(|(after, before)| after.is_empty() || after != before));
        });
    }
}

/// State of several weights, updated by one launch.
struct Updated {
    states: Vec<AdamOperand>,
    vote: SlotId,
    hyperparameters: SlotId,
}

fn adam(plan: &mut Plan, weights: usize) -> Updated {
    let vote = plan.resident("vote", Content::Vote);
    let hyperparameters = plan.resident("hyperparameters", Content::Hyperparameters);
    let state = |number| AdamOperand {
        weight: weight(number),
        master: MasterOperand::Whole(plan.resident("master", Content::Master(weight(number)))),
        exp_avg: plan.resident("exp_avg", Content::first_moment(weight(number))),
        exp_avg_sq: plan.resident("exp_avg_sq", Content::second_moment(weight(number))),
        main_grad: plan.resident("main grad", Content::MainGrad(weight(number))),
    };
    let states: Vec<_> = (0..weights).map(state).collect();
    let (bucket, tensor_scale) = (BucketId::new(0), None);
    let op = Adam { bucket, states: states.clone(), vote, hyperparameters, tensor_scale, amaxes: None };
    plan.op(QUANTIZE, Op::Adam(op));
    Updated { states, vote, hyperparameters }
}

fn master(state: &AdamOperand) -> SlotId {
    match state.master {
        MasterOperand::Whole(master) => master,
        MasterOperand::Cast { .. } | MasterOperand::Split { .. } => {
            unreachable!("these plans neither cast nor split masters")
        }
    }
}

impl Updated {
    /// One step with these gradients, all scalars written anew.
    fn step(&self, rank: &mut Rank<Device>, step: u32, rate: f32, gradients: impl Fn(usize) -> Vec<f32>) {
        rank.put(self.vote, &[Vote { clip: 1.0, unscale: 1.0, step, ..Vote::default() }]);
        let by = Hyperparameters { learning_rate: rate, weight_decay: 0.0, ..BY };
        rank.put(self.hyperparameters, &vec![by; self.states.len()]);
        for (number, state) in self.states.iter().enumerate() {
            rank.put(state.main_grad, &gradients(number));
        }
        rank.step().unwrap();
    }
}

/// Adam by its paper, in f64, with the constants of the harness but for weight decay, which is 0.
fn textbook(start: f32, rate: f32, gradients: impl Iterator<Item = f32>) -> f64 {
    let [b1, b2, epsilon] = [0.9_f32, 0.999, 1e-8].map(f64::from);
    let (mut p, mut m, mut v, mut t) = (f64::from(start), 0.0, 0.0, 0);
    for gradient in gradients.map(f64::from) {
        t += 1;
        m = b1 * m + (1.0 - b1) * gradient;
        v = b2 * v + (1.0 - b2) * gradient * gradient;
        p -= f64::from(rate) * (m / (1.0 - b1.powi(t))) / ((v / (1.0 - b2.powi(t))).sqrt() + epsilon);
    }
    p
}

/// Conformance H2: the five tensors, one launch, seven steps. Every element is updated; one in 97 is compared,
/// and both ends of every tensor.
fn h2_five_tensors_from_one_element_to_a_vocabulary_follow_the_textbook() {
    const RATE: f32 = 5e-4;
    let shapes = [(4096, 1024), (4096, 1), (4096, 2048), (32_320, 1024), (1, 1)];
    let count = move |number: usize| shapes[number].0 * shapes[number].1;
    let mut plan = Plan::new(1, &specs(&shapes, Format::F32));
    let updated = adam(&mut plan, shapes.len());
    run(plan, move |rank| {
        for (number, state) in updated.states.iter().enumerate() {
            rank.put(master(state), &values(count(number), number));
        }
        for step in 1..=7 {
            updated.step(rank, step, RATE, |number| values(count(number), number + 8 * step as usize));
        }
        for (number, state) in updated.states.iter().enumerate() {
            let found = rank.get::<f32>(master(state));
            assert_eq!(found.len(), count(number));
            for element in (0..count(number)).step_by(97).chain([count(number) - 1]) {
                let gradients = (1..=7).map(|step| value(element, number + 8 * step));
                let expected = textbook(value(element, number), RATE, gradients);
                assert!(close(found[element], expected, 1.3e-6, 1e-5), "tensor {number}, element {element}");
            }
        }
    });
}

/// Conformance H4: the last weight has one row, so every rank but the first has none of it.
fn h4_a_rank_without_rows_of_the_last_weight_updates_the_others_as_ever() {
    let shapes = [(6, 5), (4, 3), (1, 7)];
    let trained = |ranks: u32| {
        let mut plan = Plan::new(ranks, &specs(&shapes, Format::F32));
        let layouts = plan.weights.layouts.clone();
        let updated = adam(&mut plan, shapes.len());
        let all = run(plan, move |rank| {
            let id = RankId::at(rank.number());
            let own = |number: usize, seed: usize| {
                let rows = layouts[number].shard.rows_of(id);
                let cols = shapes[number].1;
                let whole = values(shapes[number].0 * cols, seed);
                whole[rows.begin * cols..(rows.begin + rows.rows) * cols].to_vec()
            };
            // What is no real row must keep these bytes.
            for state in &updated.states {
                for slot in [master(state), state.exp_avg, state.exp_avg_sq] {
                    let foreign = if slot == master(state) { 0xA5_u8 } else { 0 };
                    rank.put(slot, &vec![foreign; rank.plan.region(slot).bytes]);
                }
            }
            let starts: Vec<_> = (0..shapes.len()).map(|number| own(number, number)).collect();
            for (state, start) in updated.states.iter().zip(&starts) {
                rank.put(master(state), start);
            }
            for step in 1..=7 {
                let gradients: Vec<_> =
                    (0..shapes.len()).map(|number| own(number, number + 8 * step as usize)).collect();
                updated.step(rank, step, 1e-2, |number| gradients[number].clone());
            }
            let mut found = Vec::new();
            for (state, start) in updated.states.iter().zip(&starts) {
                let stored = rank.get::<f32>(master(state));
                let (real, foreign) = stored.split_at(start.len());
                assert!(foreign.iter().all(|value| value.to_bits() == 0xA5A5_A5A5));
                found.push(real.to_vec());
            }
            found
        });
        (0..shapes.len())
            .map(|number| all.iter().flat_map(|rank| rank[number].clone()).collect::<Vec<f32>>())
            .collect::<Vec<_>>()
    };
    let whole = trained(1);
    assert_ne!(whole[2], values(7, 2), "the last weight is trained");
    for ranks in 2..=4 {
        assert_eq!(trained(ranks), whole, "{ranks} ranks");
    }
}

/// Conformance H13: norms of tensors whose values are those of f32, f16 and bf16 tensors, each alone and all
/// together, and the fault that an infinite one raises.
fn h13_the_norm_is_close_to_the_one_in_f64_for_one_tensor_and_for_many() {
    let sizes = [1, 7, 4096, 65_537, 278_011];
    let shapes = sizes.map(|size| (1, size));
    let alone = (0..sizes.len()).map(|number| vec![number]);
    for (rounding, tensors) in (0..ROUNDINGS.len())
        .flat_map(|rounding| alone.clone().chain([(0..sizes.len()).collect()]).map(move |t| (rounding, t)))
    {
        let mut plan = Plan::new(1, &specs(&shapes, Format::F32));
        let main_grads: Vec<_> = tensors
            .iter()
            .map(|number| (weight(*number), plan.resident("main grad", Content::MainGrad(weight(*number)))))
            .collect();
        let gradient_scale = plan.resident("gradient scale", Content::GradientScale);
        let verdict = vote(&mut plan, main_grads.clone(), gradient_scale);
        run(plan, move |rank| {
            rank.put(gradient_scale, &[1.0_f32]);
            let mut squares = 0.0;
            for (number, (_, slot)) in tensors.iter().zip(&main_grads) {
                let values: Vec<f32> =
                    values(sizes[*number], *number).into_iter().map(ROUNDINGS[rounding]).collect();
                squares += values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>();
                rank.put(*slot, &values);
            }
            rank.step().unwrap();
            let found = rank.get::<Vote>(verdict.vote)[0];
            assert_eq!(found.verdict, Vote::CLEAN);
            assert!(close(found.norm, squares.sqrt(), 1e-6, 0.0), "{tensors:?}: {}", found.norm);
            for value in [f32::INFINITY, f32::NAN] {
                rank.put(main_grads[0].1, &[value]);
                rank.step().unwrap();
                assert_eq!(rank.get::<Vote>(verdict.vote)[0].verdict, Vote::NON_FINITE);
                assert!(!rank.get::<warpweft_plan::op::NormRecord>(verdict.records)[0].squares.is_finite());
            }
        });
    }
}

/// Conformance H15: the bf16 weight is the cast of its master after every one of seven steps.
fn h15_a_bf16_weight_follows_its_master_and_the_textbook() {
    const RATE: f32 = 1e-2;
    for mode in [AdamMode::AdamW, AdamMode::Adam] {
        let count = 4099;
        let mut plan = Plan::new(1, &[sharded(1, count, Format::Bf16)]);
        plan.settings.via = Via::Bf16;
        plan.settings.optimizer.mode = mode;
        let updated = adam(&mut plan, 1);
        let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
        let own = master(&updated.states[0]);
        plan.op(
            QUANTIZE,
            Op::PartialCast(PartialCast {
                bucket: BucketId::new(0),
                masters: vec![own],
                encode: None,
                shards: vec![ShardOperand { weight: W, orientation: ROWWISE, slot: shard }],
                vote: Some(updated.vote),
            }),
        );
        assert!(plan.arena.slots.iter().all(|slot| slot.residency == Residency::Resident));
        run(plan, move |rank| {
            rank.put(own, &values(count, 0));
            for step in 1..=7 {
                updated.step(rank, step, RATE, |_| values(count, step as usize));
                let masters = rank.get::<f32>(own);
                for (element, weight) in rank.get::<bf16>(shard)[..count].iter().enumerate() {
                    assert_eq!(*weight, bf16::from_f32(masters[element]), "step {step}, element {element}");
                    let gradients = (1..=step).map(|step| value(element, step as usize));
                    let expected = textbook(value(element, 0), RATE, gradients);
                    assert!(close(masters[element], expected, 1e-3, 1e-3), "step {step}, element {element}");
                }
            }
        });
    }
}

bodies! {
    d3_contributions_of_any_size_and_precision_are_scaled_and_no_fault_is_raised,
    g5_a_skipped_step_leaves_every_output_of_the_quantizer_untouched,
    h2_five_tensors_from_one_element_to_a_vocabulary_follow_the_textbook,
    h4_a_rank_without_rows_of_the_last_weight_updates_the_others_as_ever,
    h13_the_norm_is_close_to_the_one_in_f64_for_one_tensor_and_for_many,
    h15_a_bf16_weight_follows_its_master_and_the_textbook,
}
