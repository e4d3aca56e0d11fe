//! The ops at the end of a step: Adam by the golden cases, and the vote that stops it.

use half::bf16;
use safetensors::SafeTensors;
use warpweft_base::id::{BucketId, SlotId};
use warpweft_format::{Format, Via, join_master, split_master};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Hyperparameters, NonNegative, ParameterGroup};
use warpweft_plan::op::{
    Adam, AdamOperand, CastVote, GatherRecords, GradNorm, MasterOperand, Op, PartialCast, ShardOperand, Vote,
};
use warpweft_plan::policy::{AdamMode, Masters};

use self::Way::{Alone, Cast, Split};

use super::harness::{BY, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, noise, run, sharded};
use crate::device::Device;

/// What becomes of masters besides being updated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Alone,
    Cast,
    Split,
}

struct Optimizer {
    plan: Plan,
    master: MasterOperand,
    exp_avg: SlotId,
    exp_avg_sq: SlotId,
    main_grad: SlotId,
    vote: SlotId,
    hyperparameters: SlotId,
}

fn optimizer(elements: usize, way: Way) -> Optimizer {
    let mut plan = Plan::new(1, &[sharded(1, elements, Format::Bf16)]);
    plan.weights.state.masters = if way == Split { Masters::Bf16Remainder } else { Masters::F32 };
    let master = match way {
        Alone => MasterOperand::Whole(plan.resident("master", Content::Master(W))),
        Cast => MasterOperand::Cast {
            master: plan.resident("master", Content::Master(W)),
            shard: plan.resident("shard", Content::Shard(W, ROWWISE)),
        },
        Split => MasterOperand::Split {
            shard: plan.resident("shard", Content::Shard(W, ROWWISE)),
            remainder: plan.resident("remainder", Content::MasterRemainder(W)),
        },
    };
    let exp_avg = plan.resident("exp_avg", Content::first_moment(W));
    let exp_avg_sq = plan.resident("exp_avg_sq", Content::second_moment(W));
    let main_grad = plan.resident("main grad", Content::MainGrad(W));
    let vote = plan.resident("vote", Content::Vote);
    let hyperparameters = plan.resident("hyperparameters", Content::Hyperparameters);
    let states = vec![AdamOperand { weight: W, master, exp_avg, exp_avg_sq, main_grad }];
    let (bucket, tensor_scale) = (BucketId::new(0), None);
    plan.op(QUANTIZE, Op::Adam(Adam { bucket, states, vote, hyperparameters, tensor_scale, amaxes: None }));
    Optimizer { plan, master, exp_avg, exp_avg_sq, main_grad, vote, hyperparameters }
}

/// The first `count` masters, and the halves they are stored in, if they are.
fn masters(rank: &Rank<Device>, master: MasterOperand, count: usize) -> (Vec<f32>, Vec<(u16, i16)>) {
    match master {
        MasterOperand::Whole(master) | MasterOperand::Cast { master, .. } => {
            (rank.get::<f32>(master)[..count].to_vec(), Vec::new())
        }
        MasterOperand::Split { shard, remainder } => {
            let halves = rank.get::<u16>(shard).into_iter().zip(rank.get::<i16>(remainder));
            let halves: Vec<_> = halves.take(count).collect();
            (halves.iter().map(|(high, low)| join_master(*high, *low)).collect(), halves)
        }
    }
}

fn put_masters(rank: &Rank<Device>, master: MasterOperand, values: &[f32]) {
    match master {
        MasterOperand::Whole(master) | MasterOperand::Cast { master, .. } => rank.put(master, values),
        MasterOperand::Split { shard, remainder } => {
            let (high, low): (Vec<u16>, Vec<i16>) = values.iter().copied().map(split_master).unzip();
            rank.put(shard, &high);
            rank.put(remainder, &low);
        }
    }
}

/// The weight that follows its masters: a shard that they are cast to, with the update or after it, or the upper half
/// of masters that are split.
fn model_of(plan: &mut Plan, master: MasterOperand, vote: SlotId) -> SlotId {
    let master = match master {
        MasterOperand::Whole(master) => master,
        MasterOperand::Cast { shard, .. } | MasterOperand::Split { shard, .. } => return shard,
    };
    plan.settings.via = Via::Bf16;
    let slot = plan.resident("shard", Content::Shard(W, ROWWISE));
    let shards = vec![ShardOperand { weight: W, orientation: ROWWISE, slot }];
    let (bucket, masters, vote) = (BucketId::new(0), vec![master], Some(vote));
    plan.op(QUANTIZE, Op::PartialCast(PartialCast { bucket, masters, encode: None, shards, vote }));
    slot
}

/// Bit for bit, as the specification rounds: op by op in f32. Conformance I1, with the bf16 weight of every step
/// and the recurrence in f64.
fn adam_is_bit_exact_to_every_golden_case() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/adam.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(&header.metadata().as_ref().unwrap()["cases"]).unwrap();
    let mut steps = 0;
    let ways = [Alone, Cast, Split];
    let ways = ways.into_iter().flat_map(|way| [(way, false), (way, true)]);
    for (case, (way, own)) in cases.iter().flat_map(|case| ways.clone().map(move |way| (case, way))) {
        let number = |key: &str| case[key].as_f64().unwrap();
        let count = number("n") as usize;
        let mut state = optimizer(count, way);
        state.plan.settings.optimizer.mode = match case["mode"].as_str().unwrap() {
            "adamw" => AdamMode::AdamW,
            "l2" => AdamMode::Adam,
            other => panic!("the golden file has a mode {other}"),
        };
        state.plan.settings.optimizer.bias_correction = case["bias"].as_bool().unwrap();
        state.plan.settings.optimizer.epsilon = number("eps") as f32;
        let last = number("steps") as u32;
        let mut by = Hyperparameters {
            learning_rate: number("lr") as f32,
            weight_decay: number("wd") as f32,
            beta1: number("b1") as f32,
            beta2: number("b2") as f32,
        };
        if own {
            // The weight's own group says what the case does, and what is for all something else.
            let weight_decay = NonNegative::new(by.weight_decay);
            let learning_rate_scale = NonNegative::new(0.5);
            let parameters =
                ParameterGroup { weight_decay, learning_rate_scale, ..ParameterGroup::default() };
            by.weight_decay += 7.0;
            by.learning_rate *= 2.0;
            by = by.of_group(&parameters);
        }
        let (name, bytes) = (case["name"].as_str().unwrap().to_owned(), bytes.clone());
        // What is read may be an ulp below what was written.
        let spread = number("max_abs_spread_f32_vs_fma_vs_f64") * 1.000_001;
        let Optimizer { mut plan, master, exp_avg, exp_avg_sq, main_grad, vote, hyperparameters } = state;
        let model = model_of(&mut plan, master, vote);
        run(plan, move |rank| {
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let tensor = |field: String| tensors.tensor(&format!("{name}/{field}")).unwrap();
            let values = |field: String| {
                let tensor = tensor(field);
                let bits = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
                let half = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                match tensor.dtype() {
                    safetensors::Dtype::F32 => tensor.data().as_chunks().0.iter().map(bits).collect(),
                    _ => tensor.data().as_chunks().0.iter().map(half).collect::<Vec<f32>>(),
                }
            };
            put_masters(rank, master, &values("master_0".into()));
            rank.put(hyperparameters, &[by]);
            for step in 1..=last {
                rank.put(vote, &[Vote { clip: 1.0, unscale: 1.0, step, ..Vote::default() }]);
                rank.put(main_grad, &values(format!("grad_{step}")));
                rank.step().unwrap();
                let found = [
                    ("master", masters(rank, master, count).0),
                    ("exp_avg", rank.get(exp_avg)),
                    ("exp_avg_sq", rank.get(exp_avg_sq)),
                ];
                for (field, actual) in found {
                    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                    let expected = values(format!("{field}_{step}"));
                    assert_eq!(bits(actual), bits(expected), "{name}, {way:?}, {field} of step {step}");
                }
                let (model, expected) = (rank.get::<u16>(model), tensor(format!("model_bf16_{step}")));
                let (_, halves) = masters(rank, master, count);
                for (at, expected) in expected.data().as_chunks().0.iter().enumerate() {
                    // A split master rounds ties away from zero, where the file has the even neighbour.
                    let up = matches!(halves.get(at), Some((high, i16::MIN)) if high % 2 == 1);
                    let expected = u16::from_le_bytes(*expected) + u16::from(up);
                    assert_eq!(model[at], expected, "{name}, {way:?}, weight {at} of step {step}");
                }
            }
            let (found, halves) = masters(rank, master, count);
            let exact = tensor("master_f64_last".into());
            let exact: Vec<_> = exact.data().as_chunks().0.iter().copied().map(f64::from_le_bytes).collect();
            assert_eq!(exact.len(), count);
            for (found, exact) in found.iter().zip(exact) {
                let apart = (f64::from(*found) - exact).abs();
                assert!(apart <= spread && apart <= 1e-7 + 1e-6 * exact.abs(), "{name}: {found}, {exact}");
            }
            for (position, (high, low)) in halves.into_iter().enumerate() {
                let stored = |field: &str| {
                    let tensor = tensor(format!("remainder_{field}_last"));
                    tensor.data().as_chunks::<2>().0[position]
                };
                assert_eq!((high.to_le_bytes(), low.to_le_bytes()), (stored("hi"), stored("lo")), "{name}");
            }
        });
        steps += last;
    }
    assert_eq!(steps, 3 * 2 * 20, "the golden file has four cases of five steps");
}

fn a_vote_that_skips_leaves_masters_moments_and_shards_alone() {
    let Optimizer { mut plan, master, exp_avg, exp_avg_sq, main_grad, vote, hyperparameters } =
        optimizer(5, Alone);
    let MasterOperand::Whole(master) = master else { unreachable!() };
    let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
    let operands = vec![ShardOperand { weight: W, orientation: ROWWISE, slot: shard }];
    plan.op(
        QUANTIZE,
        Op::PartialCast(PartialCast {
            bucket: BucketId::new(0),
            masters: vec![master],
            encode: None,
            shards: operands,
            vote: Some(vote),
        }),
    );
    run(plan, move |rank| {
        rank.put(master, &noise(5, 1));
        rank.put(main_grad, &noise(5, 2));
        rank.put(hyperparameters, &[Hyperparameters { learning_rate: 0.1, ..BY }]);
        rank.put(
            vote,
            &[Vote { verdict: Vote::NON_FINITE, clip: 1.0, unscale: 1.0, step: 1, ..Vote::default() }],
        );
        rank.step().unwrap();
        assert_eq!(rank.get::<f32>(master), noise(5, 1));
        assert_eq!(rank.get::<f32>(exp_avg), [0.0; 5]);
        assert_eq!(rank.get::<f32>(exp_avg_sq), [0.0; 5]);
        assert_eq!(rank.get::<bf16>(shard)[..5], [bf16::ZERO; 5]);
        rank.put(vote, &[Vote { clip: 0.5, unscale: 1.0, step: 1, ..Vote::default() }]);
        rank.step().unwrap();
        assert_ne!(rank.get::<f32>(master), noise(5, 1));
        let cast: Vec<bf16> = rank.get::<f32>(master).into_iter().map(bf16::from_f32).collect();
        assert_eq!(rank.get::<bf16>(shard)[..5], cast);
        let clipped: Vec<f32> =
            noise(5, 2).iter().map(|gradient| (1.0 - 0.9_f32) * (gradient * 0.5)).collect();
        assert_eq!(rank.get::<f32>(exp_avg), clipped);
    });
}

/// Norm, vote and Adam of one rank, as a step ends.
fn tail(elements: usize) -> (Optimizer, SlotId) {
    let mut state = optimizer(elements, Alone);
    let adam = state.plan.ops.pop().unwrap();
    state.plan.script.pop();
    let fault = state.plan.resident("fault", Content::FaultWord);
    let record = state.plan.resident("record", Content::NormRecord);
    let records = state.plan.resident("records", Content::NormRecords);
    let optimizer_step = state.plan.resident("step", Content::OptimizerStep);
    let gradient_scale = state.plan.resident("gradient scale", Content::GradientScale);
    let norm =
        Op::GradNorm(GradNorm { main_grads: vec![(W, state.main_grad)], squares: Vec::new(), fault, record });
    state.plan.op(QUANTIZE, norm);
    state.plan.fence(QUANTIZE, LINK);
    state.plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
    state.plan.fence(LINK, QUANTIZE);
    state.plan.op(QUANTIZE, Op::Vote(CastVote { records, optimizer_step, gradient_scale, vote: state.vote }));
    state.plan.op(QUANTIZE, adam.0);
    (state, gradient_scale)
}

/// Conformance H9: a hundred steps with every scalar in device memory, the loss scale found by doubling and
/// halving. Gradients are what f16 would hold of them: too large a scale makes them infinite.
fn h9_a_loss_scaler_trains_as_no_scaler_does() {
    let count = 64;
    let trained = |scaled: bool| {
        let (state, gradient_scale) = tail(count);
        let Optimizer { mut plan, master, main_grad, hyperparameters, vote, .. } = state;
        plan.settings.optimizer.max_norm = 1.0;
        run(plan, move |rank| {
            let target = noise(count, 5);
            put_masters(rank, master, &noise(count, 6));
            let (mut scale, mut taken, mut skipped) = (if scaled { 2.0_f32.powi(20) } else { 1.0 }, 0, 0);
            while taken < 100 {
                let (values, _) = masters(rank, master, count);
                let gradient = values.iter().zip(&target).map(|(value, target)| (value - target) * scale);
                let short: Vec<f32> = gradient.map(|value| half::f16::from_f32(value).to_f32()).collect();
                rank.put(main_grad, &short);
                rank.put(gradient_scale, &[scale]);
                let learning_rate = 1e-2_f32 / (1.0 + taken as f32);
                rank.put(hyperparameters, &[Hyperparameters { learning_rate, weight_decay: 0.01, ..BY }]);
                rank.step().unwrap();
                let verdict = rank.get::<Vote>(vote)[0];
                if verdict.skips() {
                    assert_eq!(masters(rank, master, count).0, values);
                    (scale, skipped) = (scale / 2.0, skipped + 1);
                } else {
                    taken += 1;
                    assert_eq!(verdict.step, taken);
                    scale *= if scaled && taken % 40 == 0 { 2.0 } else { 1.0 };
                }
            }
            (masters(rank, master, count).0, skipped)
        })
        .remove(0)
    };
    let ((plain, none), (scaled, skipped)) = (trained(false), trained(true));
    assert!(none == 0 && skipped > 2, "{none} and {skipped} steps were skipped");
    for (found, expected) in scaled.iter().zip(&plain) {
        assert!((found - expected).abs() <= 1e-3 + 1e-3 * expected.abs(), "{found} instead of {expected}");
    }
}

bodies! {
    adam_is_bit_exact_to_every_golden_case,
    a_vote_that_skips_leaves_masters_moments_and_shards_alone,
    h9_a_loss_scaler_trains_as_no_scaler_does,
}
