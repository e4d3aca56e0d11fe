//! Local ops do what their names say, on real rows alone.

use half::bf16;
use safetensors::SafeTensors;
use warpweft::config::{AdamMode, Masters};
use warpweft::format::{
    Directions, ElementType, Format, Orientation, Via, join_master, quantize, split_master,
};
use warpweft::id::{BucketId, CallId, RankId, SlotId};
use warpweft::layout::{Content, PlaneRegions, Region, Residency};
use warpweft::model::{Group, Placement, WeightSpec};
use warpweft::op::{AdamOperand, MasterOperand, NormRecord, Op, Reduction, ShardOperand, Vote};

use crate::device::Device;

use super::harness::{COMPUTE, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, noise, run, sharded};

/// The whole way of a weight: amax, maximum over ranks, scale, cast, gather, and from there
/// dequantized and transposed.
struct Flow {
    plan: Plan,
    master: SlotId,
    gathered: Vec<(Orientation, SlotId)>,
    dense: Vec<(Orientation, ElementType, SlotId)>,
    transposed: Option<SlotId>,
}

fn flow(ranks: u32, rows: usize, cols: usize, format: Format, via: Via) -> Flow {
    let mut plan = Plan::new(ranks, &[sharded(rows, cols, format)]);
    plan.settings.via = via;
    let bucket = BucketId::new(0);
    let master = plan.resident("master", Content::Master(W));
    let block_amax = plan.transient("block amax", Content::BlockAmax(bucket));
    let local = plan.transient("local amax", Content::LocalAmax(bucket));
    let reduced = plan.transient("amax", Content::ReducedAmax(bucket));
    let encode = plan.transient("encode", Content::Encode(bucket));
    let tensor_scale = plan.resident("tensor scale", Content::TensorScale(bucket));
    let mut shards = Vec::new();
    for orientation in format.stored_orientations() {
        let slot = plan.resident("shard", Content::Shard(W, *orientation));
        shards.push(ShardOperand { weight: W, orientation: *orientation, slot });
    }
    let masters = vec![master];
    let vote = None;
    // As the planner does it: no scales, no amax.
    let encode = plan.weights.bucket(bucket).has_scales().then_some(encode);
    if let Some(encode) = encode {
        let amax = Op::PartialAmax { bucket, masters: masters.clone(), block_amax, tensor_amax: local, vote };
        plan.op(QUANTIZE, amax);
        plan.fence(QUANTIZE, LINK);
        plan.op(
            LINK,
            Op::AllReduce { reduction: Reduction::Max, group: Group::World, pairs: vec![(local, reduced)] },
        );
        plan.fence(LINK, QUANTIZE);
        let (tensor_amax, shards) = (reduced, shards.clone());
        plan.op(
            QUANTIZE,
            Op::FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards, vote },
        );
    }
    plan.op(QUANTIZE, Op::PartialCast { bucket, masters, encode, shards: shards.clone(), vote });
    plan.fence(QUANTIZE, LINK);
    let mut gathered = Vec::new();
    for ShardOperand { orientation, slot, .. } in shards {
        let to = plan.transient("gathered", Content::Gathered(W, orientation));
        plan.op(LINK, Op::gather(W, orientation, slot, to));
        gathered.push((orientation, to));
    }
    plan.fence(LINK, COMPUTE);
    let transposed = format.derives_columnwise().is_ok().then(|| {
        let to = plan.transient("transposed", Content::Transposed(W));
        plan.op(COMPUTE, Op::Transpose { weight: W, from: gathered[0].1, to });
        to
    });
    let mut dense = Vec::new();
    let derived = transposed.map(|slot| (Orientation::Columnwise, slot));
    for (orientation, from) in gathered.iter().copied().chain(derived) {
        for values in [ElementType::F32, ElementType::Bf16] {
            let to = plan.transient("dense", Content::Dense(W, orientation, values));
            let tensor_scale = Some(tensor_scale);
            plan.op(COMPUTE, Op::Dequantize { weight: W, orientation, from, tensor_scale, values, to });
            dense.push((orientation, values, to));
        }
    }
    Flow { plan, master, gathered, dense, transposed }
}

/// FO-3 through the backend: shards quantized rank by rank and gathered are the weight quantized
/// whole, byte for byte, whatever the number of ranks.
fn quantized_bytes_do_not_depend_on_the_number_of_ranks() {
    let cases = [
        (48, 96, Format::NVFP4_2D),
        (32, 64, Format::NVFP4_2D),
        (96, 64, Format::Mxfp8),
        (300, 130, Format::FP8_BLOCK128_F32SCALE),
        (33, 7, Format::FP8_TENSOR_E4M3),
        (33, 7, Format::Bf16),
        (33, 7, Format::F32),
    ];
    for (rows, cols, format) in cases {
        for ranks in 1..=4 {
            for via in [Via::Bf16, Via::None] {
                check_flow(ranks, rows, cols, format, via);
            }
        }
    }
}

fn check_flow(ranks: u32, rows: usize, cols: usize, format: Format, via: Via) {
    let values = noise(rows * cols, 7);
    let Flow { plan, master, gathered, dense, transposed } = flow(ranks, rows, cols, format, via);
    let layout = plan.weights.layout(W).clone();
    let shape = layout.shard.shape;
    let whole = quantize(format, Directions::Both, via, shape, &values).unwrap();
    let source = values.clone();
    let slots = (gathered.clone(), transposed, dense.clone());
    let shard = layout.shard;
    let results = run(plan, move |rank| {
        let own = shard.rows_of(RankId::at(rank.number()));
        rank.put(master, &source[own.begin * cols..(own.begin + own.rows) * cols]);
        rank.step().unwrap();
        let planes: Vec<Vec<u8>> = slots.0.iter().map(|(_, slot)| rank.get(*slot)).collect();
        let values = |(_, element, slot): &(_, ElementType, SlotId)| match element {
            ElementType::Bf16 => rank.get::<bf16>(*slot).iter().map(|value| value.to_f32()).collect(),
            _ => rank.get::<f32>(*slot),
        };
        let dense: Vec<Vec<f32>> = slots.2.iter().map(values).collect();
        (planes, slots.1.map(|slot| rank.get::<u8>(slot)), dense)
    });
    let what = format!("{format} {rows}×{cols} on {ranks} ranks via {via:?}");
    for (planes, derived, values) in results {
        let of = |orientation| match orientation {
            Orientation::Rowwise => whole.rowwise.as_ref().unwrap(),
            Orientation::Columnwise => whole.columnwise.as_ref().unwrap(),
        };
        for ((orientation, _), bytes) in gathered.iter().zip(&planes) {
            let padded = layout.gathered_planes(*orientation);
            let placed = PlaneRegions::within(Region { offset: 0, bytes: bytes.len() }, &padded);
            let expected = of(*orientation);
            assert_prefix(&what, &bytes[placed.data.offset..placed.data.end()], &expected.data);
            assert_prefix(&what, &bytes[placed.scale.offset..placed.scale.end()], &expected.scale);
        }
        if let Some(bytes) = derived {
            let expected = of(Orientation::Columnwise);
            let own = layout.transposed_planes();
            let placed = PlaneRegions::within(Region { offset: 0, bytes: bytes.len() }, &own);
            assert_prefix(&what, &bytes[placed.data.offset..placed.data.end()], &expected.data);
            assert_prefix(&what, &bytes[placed.scale.offset..placed.scale.end()], &expected.scale);
        }
        for ((orientation, element, _), values) in dense.iter().zip(&values) {
            let expected = of(*orientation);
            let mut out = vec![0.0; values.len()];
            let planes = expected.as_planes();
            warpweft::format::dequantize(format, *orientation, shape, planes, whole.tensor_scale, &mut out)
                .unwrap();
            if *element == ElementType::Bf16 {
                out.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
            }
            assert_eq!(*values, out, "{what}, {orientation} in {element:?}");
        }
    }
}

/// `expected` first, and nothing but padding behind it.
fn assert_prefix(what: &str, actual: &[u8], expected: &[u8]) {
    assert!(actual.starts_with(expected), "{what}");
    assert!(actual[expected.len()..].iter().all(|byte| *byte == 0), "{what}: padding");
}

fn the_first_contribution_overwrites_and_later_ones_add_the_mean() {
    let mut plan = Plan::new(4, &[sharded(8, 3, Format::F32)]);
    let from = plan.transient("reduced", Content::ReducedGradient(W, CallId::new(0)));
    let into = plan.resident("main grad", Content::MainGrad(W));
    plan.op(QUANTIZE, Op::Accumulate { weight: W, from, into, first: true });
    plan.op(QUANTIZE, Op::Accumulate { weight: W, from, into, first: false });
    let sums = run(plan, move |rank| {
        rank.put(into, &[f32::NAN; 6]);
        rank.put(from, &[4.0_f32, 8.0, -4.0, 0.0, 1.0, 2.0]);
        rank.step().unwrap();
        rank.get::<f32>(into)
    });
    assert!(sums.iter().all(|sum| *sum == [2.0, 4.0, -2.0, 0.0, 0.5, 1.0]));
}

fn a_gradient_is_added_to_another_whole_and_undivided() {
    let mut plan = Plan::new(2, &[sharded(3, 2, Format::F32)]);
    let from = plan.transient("second", Content::Gradient(W, CallId::new(1)));
    let into = plan.transient("first", Content::Gradient(W, CallId::new(0)));
    plan.op(QUANTIZE, Op::AddGradient { weight: W, from, into });
    let sums = run(plan, move |rank| {
        rank.put(into, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]);
        rank.put(from, &[0.5_f32, 1e9, -3.0, 0.25, 0.0, 1.0, 0.0, 0.0]);
        rank.step().unwrap();
        rank.get::<f32>(into)
    });
    assert!(sums.iter().all(|sum| *sum == [1.5, 1e9 + 2.0, 0.0, 4.25, 5.0, 7.0, 0.0, 0.0]));
}

fn padding_rows_are_zeroed_and_real_ones_kept() {
    let mut plan = Plan::new(3, &[sharded(4, 2, Format::F32)]);
    let gradient = plan.transient("gradient", Content::Gradient(W, CallId::new(0)));
    plan.op(COMPUTE, Op::ZeroPadding { weight: W, gradient });
    let rows = run(plan, move |rank| {
        rank.put(gradient, &[7.0_f32; 12]);
        rank.step().unwrap();
        rank.get::<f32>(gradient)
    });
    let expected = [7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 0.0, 0.0, 0.0, 0.0];
    assert!(rows.iter().all(|rank| *rank == expected));
}

fn a_copy_moves_every_byte_and_the_fault_word_is_cleared() {
    let mut plan = Plan::new(1, &[]);
    let (_, from) = plan.buffer("from", 33, Residency::Resident);
    let (_, to) = plan.buffer("to", 33, Residency::Resident);
    let fault = plan.resident("fault", Content::FaultWord);
    plan.op(COMPUTE, Op::Copy { from, to });
    plan.op(COMPUTE, Op::ClearFault { fault });
    run(plan, move |rank| {
        rank.put(from, &noise(33, 1));
        rank.put(fault, &[9_u32]);
        rank.step().unwrap();
        assert_eq!(rank.get::<f32>(to), noise(33, 1));
        assert_eq!(rank.get::<u32>(fault), [0]);
    });
}

/// Norm, vote and clip of two ranks, with a replicated weight that counts once.
fn the_vote_is_the_same_on_every_rank_and_counts_a_replicated_weight_once() {
    let mut specs = vec![sharded(3, 2, Format::F32)];
    specs.push(WeightSpec { name: "bias".into(), placement: Placement::Replicated, ..specs[0].clone() });
    let mut plan = Plan::new(2, &specs);
    plan.settings.optimizer.max_norm = 2.0;
    let bias = warpweft::id::WeightId::new(1);
    let main_grads = vec![
        (W, plan.resident("main grad", Content::MainGrad(W))),
        (bias, plan.resident("bias main grad", Content::MainGrad(bias))),
    ];
    let fault = plan.resident("fault", Content::FaultWord);
    let record = plan.transient("record", Content::NormRecord);
    let records = plan.transient("records", Content::NormRecords);
    let step = plan.resident("step", Content::OptimizerStep);
    let loss_scale = plan.resident("loss scale", Content::LossScale);
    let vote = plan.transient("vote", Content::Vote);
    plan.op(QUANTIZE, Op::GradNorm { main_grads: main_grads.clone(), fault, record });
    plan.fence(QUANTIZE, LINK);
    plan.op(LINK, Op::GatherRecords { from: record, to: records });
    plan.fence(LINK, QUANTIZE);
    plan.op(QUANTIZE, Op::Vote { records, optimizer_step: step, loss_scale, vote });
    let votes = run(plan, move |rank| {
        let mut votes = Vec::new();
        for (gradient, word) in [(1.0, 0), (f32::NAN, 0), (1.0, 3)] {
            // Rank 1 holds one real row; the row behind it is padding and must not count.
            rank.put(main_grads[0].1, &[[1.0, 1.0, 1.0, 1.0], [gradient, 1.0, 9.0, 9.0]][rank.number()]);
            rank.put(main_grads[1].1, &[1.0_f32; 6]);
            rank.put(loss_scale, &[1.0_f32]);
            rank.put(fault, &[if rank.number() == 1 { word } else { 0_u32 }]);
            rank.step().unwrap();
            votes.push((
                rank.get::<Vote>(vote)[0],
                rank.get::<u32>(step)[0],
                rank.get::<NormRecord>(record)[0],
            ));
        }
        votes
    });
    for rank in &votes {
        let [(clean, first, _), (infinite, second, _), (closure, third, _)] = rank[..] else { panic!() };
        assert_eq!((clean.verdict, clean.step, first), (Vote::CLEAN, 1, 1));
        assert_eq!(clean.norm, 12.0_f32.sqrt());
        assert_eq!(clean.clip, 2.0 / (12.0_f32.sqrt() + 1e-6));
        assert_eq!((infinite.verdict, infinite.step, second), (Vote::NON_FINITE, 1, 1));
        assert_eq!(
            (closure.verdict, closure.fault_rank, closure.fault_call, third),
            (Vote::CLOSURE, 1, 2, 1)
        );
    }
    assert_eq!(votes[0][0].2.squares, 10.0);
    assert_eq!(votes[1][0].2.squares, 2.0);
}

struct Optimizer {
    plan: Plan,
    master: MasterOperand,
    exp_avg: SlotId,
    exp_avg_sq: SlotId,
    main_grad: SlotId,
    vote: SlotId,
    learning_rate: SlotId,
}

fn optimizer(elements: usize, masters: Masters) -> Optimizer {
    let mut plan = Plan::new(1, &[sharded(1, elements, Format::Bf16)]);
    plan.weights.state.masters = masters;
    let master = match masters {
        Masters::F32 => MasterOperand::Whole(plan.resident("master", Content::Master(W))),
        Masters::Bf16Remainder => MasterOperand::Split {
            shard: plan.resident("shard", Content::Shard(W, ROWWISE)),
            remainder: plan.resident("remainder", Content::MasterRemainder(W)),
        },
    };
    let exp_avg = plan.resident("exp_avg", Content::ExpAvg(W));
    let exp_avg_sq = plan.resident("exp_avg_sq", Content::ExpAvgSq(W));
    let main_grad = plan.resident("main grad", Content::MainGrad(W));
    let vote = plan.resident("vote", Content::Vote);
    let learning_rate = plan.resident("learning rate", Content::LearningRate);
    let states = vec![AdamOperand { weight: W, master, exp_avg, exp_avg_sq, main_grad }];
    plan.op(QUANTIZE, Op::Adam { bucket: BucketId::new(0), states, vote, learning_rate });
    Optimizer { plan, master, exp_avg, exp_avg_sq, main_grad, vote, learning_rate }
}

/// The first `count` masters, and the halves they are stored in, if they are.
fn masters(rank: &Rank<Device>, master: MasterOperand, count: usize) -> (Vec<f32>, Vec<(u16, i16)>) {
    match master {
        MasterOperand::Whole(master) => (rank.get::<f32>(master)[..count].to_vec(), Vec::new()),
        MasterOperand::Split { shard, remainder } => {
            let halves = rank.get::<u16>(shard).into_iter().zip(rank.get::<i16>(remainder));
            let halves: Vec<_> = halves.take(count).collect();
            (halves.iter().map(|(high, low)| join_master(*high, *low)).collect(), halves)
        }
    }
}

fn put_masters(rank: &Rank<Device>, master: MasterOperand, values: &[f32]) {
    match master {
        MasterOperand::Whole(master) => rank.put(master, values),
        MasterOperand::Split { shard, remainder } => {
            let (high, low): (Vec<u16>, Vec<i16>) = values.iter().copied().map(split_master).unzip();
            rank.put(shard, &high);
            rank.put(remainder, &low);
        }
    }
}

/// Bit for bit, as the specification rounds: op by op in f32. Conformance I1.
fn adam_is_bit_exact_to_every_golden_case() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/adam.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let cases: Vec<serde_json::Value> =
        serde_json::from_str(&header.metadata().as_ref().unwrap()["cases"]).unwrap();
    let mut steps = 0;
    let ways = [Masters::F32, Masters::Bf16Remainder];
    for (case, way) in cases.iter().flat_map(|case| ways.map(|way| (case, way))) {
        let number = |key: &str| case[key].as_f64().unwrap();
        let count = number("n") as usize;
        let mut state = optimizer(count, way);
        state.plan.settings.optimizer.mode = match case["mode"].as_str().unwrap() {
            "adamw" => AdamMode::AdamW,
            "l2" => AdamMode::Adam,
            other => panic!("the golden file has a mode {other}"),
        };
        state.plan.settings.optimizer.bias_correction = case["bias"].as_bool().unwrap();
        state.plan.settings.optimizer.beta1 = number("b1") as f32;
        state.plan.settings.optimizer.beta2 = number("b2") as f32;
        state.plan.settings.optimizer.epsilon = number("eps") as f32;
        state.plan.settings.optimizer.weight_decay = number("wd") as f32;
        let (lr, last) = (number("lr") as f32, number("steps") as u32);
        let (name, bytes) = (case["name"].as_str().unwrap().to_owned(), bytes.clone());
        let Optimizer { plan, master, exp_avg, exp_avg_sq, main_grad, vote, learning_rate } = state;
        run(plan, move |rank| {
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let values = |field: String| {
                let tensor = tensors.tensor(&format!("{name}/{field}")).unwrap();
                let bits = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
                let half = |bytes: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
                match tensor.dtype() {
                    safetensors::Dtype::F32 => tensor.data().as_chunks().0.iter().map(bits).collect(),
                    _ => tensor.data().as_chunks().0.iter().map(half).collect::<Vec<f32>>(),
                }
            };
            put_masters(rank, master, &values("master_0".into()));
            rank.put(learning_rate, &[lr]);
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
            }
            let (_, halves) = masters(rank, master, count);
            for (position, (high, low)) in halves.into_iter().enumerate() {
                let stored = |field: &str| {
                    let tensor = tensors.tensor(&format!("{name}/remainder_{field}_last")).unwrap();
                    tensor.data().as_chunks::<2>().0[position]
                };
                assert_eq!((high.to_le_bytes(), low.to_le_bytes()), (stored("hi"), stored("lo")), "{name}");
            }
        });
        steps += last;
    }
    assert_eq!(steps, 2 * 20, "the golden file has four cases of five steps");
}

fn a_vote_that_skips_leaves_masters_moments_and_shards_alone() {
    let Optimizer { mut plan, master, exp_avg, exp_avg_sq, main_grad, vote, learning_rate } =
        optimizer(5, Masters::F32);
    let MasterOperand::Whole(master) = master else { unreachable!() };
    let shard = plan.resident("shard", Content::Shard(W, ROWWISE));
    let operands = vec![ShardOperand { weight: W, orientation: ROWWISE, slot: shard }];
    plan.op(
        QUANTIZE,
        Op::PartialCast {
            bucket: BucketId::new(0),
            masters: vec![master],
            encode: None,
            shards: operands,
            vote: Some(vote),
        },
    );
    run(plan, move |rank| {
        rank.put(master, &noise(5, 1));
        rank.put(main_grad, &noise(5, 2));
        rank.put(learning_rate, &[0.1_f32]);
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
    let mut state = optimizer(elements, Masters::F32);
    let adam = state.plan.ops.pop().unwrap();
    state.plan.script.pop();
    let fault = state.plan.resident("fault", Content::FaultWord);
    let record = state.plan.resident("record", Content::NormRecord);
    let records = state.plan.resident("records", Content::NormRecords);
    let optimizer_step = state.plan.resident("step", Content::OptimizerStep);
    let loss_scale = state.plan.resident("loss scale", Content::LossScale);
    let norm = Op::GradNorm { main_grads: vec![(W, state.main_grad)], fault, record };
    state.plan.op(QUANTIZE, norm);
    state.plan.fence(QUANTIZE, LINK);
    state.plan.op(LINK, Op::GatherRecords { from: record, to: records });
    state.plan.fence(LINK, QUANTIZE);
    state.plan.op(QUANTIZE, Op::Vote { records, optimizer_step, loss_scale, vote: state.vote });
    state.plan.op(QUANTIZE, adam.0);
    (state, loss_scale)
}

/// Conformance H9: a hundred steps with every scalar in device memory, the loss scale found by doubling and
/// halving. Gradients are what f16 would hold of them: too large a scale makes them infinite.
fn h9_a_loss_scaler_trains_as_no_scaler_does() {
    let count = 64;
    let trained = |scaled: bool| {
        let (state, loss_scale) = tail(count);
        let Optimizer { mut plan, master, main_grad, learning_rate, vote, .. } = state;
        plan.settings.optimizer.max_norm = 1.0;
        plan.settings.optimizer.weight_decay = 0.01;
        run(plan, move |rank| {
            let target = noise(count, 5);
            put_masters(rank, master, &noise(count, 6));
            let (mut scale, mut taken, mut skipped) = (if scaled { 2.0_f32.powi(20) } else { 1.0 }, 0, 0);
            while taken < 100 {
                let (values, _) = masters(rank, master, count);
                let gradient = values.iter().zip(&target).map(|(value, target)| (value - target) * scale);
                let short: Vec<f32> = gradient.map(|value| half::f16::from_f32(value).to_f32()).collect();
                rank.put(main_grad, &short);
                rank.put(loss_scale, &[scale]);
                rank.put(learning_rate, &[1e-2_f32 / (1.0 + taken as f32)]);
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
    quantized_bytes_do_not_depend_on_the_number_of_ranks,
    the_first_contribution_overwrites_and_later_ones_add_the_mean,
    a_gradient_is_added_to_another_whole_and_undivided,
    padding_rows_are_zeroed_and_real_ones_kept,
    a_copy_moves_every_byte_and_the_fault_word_is_cleared,
    the_vote_is_the_same_on_every_rank_and_counts_a_replicated_weight_once,
    adam_is_bit_exact_to_every_golden_case,
    a_vote_that_skips_leaves_masters_moments_and_shards_alone,
    h9_a_loss_scaler_trains_as_no_scaler_does,
}
