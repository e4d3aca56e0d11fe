//! Local ops, each alone against a scalar reference, on real rows only.

use half::bf16;
use warpweft_base::id::{BucketId, CallId, RankId, SlotId};
use warpweft_format::{Directions, ElementType, Format, Orientation, Via, quantize};
use warpweft_plan::layout::{Content, PlaneRegions, Region, Residency};
use warpweft_plan::model::{Group, Mesh, WeightSpec};
use warpweft_plan::op::{
    self, Accumulate, AddGradient, AllGather, AllReduce, CastVote, ClearFault, Dequantize, DequantizePart,
    FusedScale, GatherPart, GatherRecords, GradNorm, NormRecord, Op, PartialAmax, PartialCast, Reduction,
    ShardOperand, Vote, ZeroPadding,
};

use super::harness::{COMPUTE, LINK, Plan, QUANTIZE, W, noise, run, sharded};

/// The whole way of a weight: amax, maximum over ranks, scale, cast, gather, and from there
/// dequantized and transposed.
struct Flow {
    plan: Plan,
    master: SlotId,
    gathered: Vec<(Orientation, SlotId)>,
    dense: Vec<(Orientation, ElementType, SlotId)>,
    transposed: Option<SlotId>,
}

fn flow(mesh: Mesh, rows: usize, cols: usize, format: Format, via: Via) -> Flow {
    let mut plan = Plan::over(mesh, &[sharded(rows, cols, format)]);
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
        let amax = Op::PartialAmax(PartialAmax {
            bucket,
            masters: masters.clone(),
            block_amax,
            tensor_amax: local,
            vote,
        });
        plan.op(QUANTIZE, amax);
        plan.fence(QUANTIZE, LINK);
        plan.op(
            LINK,
            Op::AllReduce(AllReduce {
                reduction: Reduction::Max,
                group: Group::World,
                pairs: vec![(local, reduced)],
            }),
        );
        plan.fence(LINK, QUANTIZE);
        let (tensor_amax, shards) = (reduced, shards.clone());
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
    }
    plan.op(QUANTIZE, Op::PartialCast(PartialCast { bucket, masters, encode, shards: shards.clone(), vote }));
    plan.fence(QUANTIZE, LINK);
    let mut gathered = Vec::new();
    let mut dense = Vec::new();
    // What nobody makes whole is dequantized beside the rank's own shard.
    let own = shards.iter().find(|shard| shard.orientation == Orientation::Rowwise).map(|shard| shard.slot);
    if let Some(own) = own {
        let orientation = Orientation::Rowwise;
        let arrived = plan.transient("arrived", Content::Gathered(W, orientation));
        let part = GatherPart { weight: W, orientation, from: own, to: arrived };
        plan.op(LINK, Op::AllGather(AllGather { group: Group::Shard, parts: vec![part] }));
        plan.fence(LINK, COMPUTE);
        for values in [ElementType::F32, ElementType::Bf16] {
            let to = plan.transient("dense of what arrived", Content::Dense(W, orientation, values));
            let tensor_scale = Some(tensor_scale);
            let (from, own) = (arrived, Some(own));
            let part = DequantizePart { weight: W, orientation, values, from, own, tensor_scale, to };
            plan.op(COMPUTE, Op::Dequantize(Dequantize { parts: vec![part] }));
            dense.push((orientation, values, to));
        }
    }
    for ShardOperand { orientation, slot, .. } in shards {
        let to = plan.transient("gathered", Content::Gathered(W, orientation));
        plan.gather(&[GatherPart { weight: W, orientation, from: slot, to }]);
        gathered.push((orientation, to));
    }
    let transposed = format.derives_columnwise().is_ok().then(|| {
        let to = plan.transient("transposed", Content::Transposed(W));
        plan.op(COMPUTE, Op::transpose(W, gathered[0].1, to));
        to
    });
    let derived = transposed.map(|slot| (Orientation::Columnwise, slot));
    for (orientation, from) in gathered.iter().copied().chain(derived) {
        for values in [ElementType::F32, ElementType::Bf16] {
            let to = plan.transient("dense", Content::Dense(W, orientation, values));
            let tensor_scale = Some(tensor_scale);
            let part = DequantizePart { weight: W, orientation, values, from, own: None, tensor_scale, to };
            plan.op(COMPUTE, Op::Dequantize(Dequantize { parts: vec![part] }));
            dense.push((orientation, values, to));
        }
    }
    Flow { plan, master, gathered, dense, transposed }
}

/// FO-3 and FO-6 through the backend: shards quantized rank by rank and gathered are the weight quantized
/// whole, byte for byte, whatever the number of ranks, and whatever lies below a rank's rows.
fn quantized_bytes_do_not_depend_on_the_number_of_ranks() {
    let cases = [
        (48, 96, Format::NVFP4_2D),
        (32, 64, Format::NVFP4_2D),
        (96, 64, Format::Mxfp8),
        (37, 96, Format::NVFP4_2D),
        (3, 64, Format::NVFP4_2D),
        (83, 64, Format::Mxfp8),
        (101, 32, Format::Mxfp8),
        (300, 130, Format::FP8_BLOCK128_F32SCALE),
        (33, 7, Format::FP8_TENSOR_E4M3),
        (33, 7, Format::Bf16),
        (33, 7, Format::F32),
    ];
    for (rows, cols, format) in cases {
        for ranks in 1..=4 {
            for via in [Via::Bf16, Via::None] {
                check_flow(Mesh::new(ranks).unwrap(), rows, cols, format, via);
            }
        }
        // A rank's shard is that of its place in its replica.
        check_flow(Mesh::hybrid(4, 2).unwrap(), rows, cols, format, Via::None);
    }
}

fn check_flow(mesh: Mesh, rows: usize, cols: usize, format: Format, via: Via) {
    let values = noise(rows * cols, 7);
    let Flow { plan, master, gathered, dense, transposed } = flow(mesh, rows, cols, format, via);
    let layout = plan.weights.layout(W).clone();
    let shape = layout.shard.shape;
    let whole = quantize(format, Directions::Both, via, shape, &values).unwrap();
    let source = values.clone();
    let slots = (gathered.clone(), transposed, dense.clone());
    let shard = layout.shard;
    let results = run(plan, move |rank| {
        let own = shard.rows_of(RankId::at(rank.number()));
        rank.put(master, &vec![f32::NAN; rank.plan.region(master).bytes / size_of::<f32>()]);
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
    let (ranks, replicas) = (mesh.ranks(), mesh.replicas());
    let what = format!("{format} {rows}×{cols} on {ranks} ranks, {replicas} replicas, via {via:?}");
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
            warpweft_format::dequantize(format, *orientation, shape, planes, whole.tensor_scale, &mut out)
                .unwrap();
            if *element == ElementType::Bf16 {
                out.iter_mut().for_each(|value| *value = bf16::from_f32(*value).to_f32());
            }
            assert_eq!(*values, out, "{what}, {orientation} in {element:?}");
        }
    }
}

/// `expected` first, and nothing but padding after it.
fn assert_prefix(what: &str, actual: &[u8], expected: &[u8]) {
    assert!(actual.starts_with(expected), "{what}");
    assert!(actual[expected.len()..].iter().all(|byte| *byte == 0), "{what}: padding");
}

fn the_first_contribution_overwrites_and_later_ones_add_the_mean() {
    let mut plan = Plan::new(4, &[sharded(8, 3, Format::F32)]);
    let from = plan.transient("reduced", Content::ReducedGradient(W, CallId::new(0)));
    let into = plan.resident("main grad", Content::MainGrad(W));
    plan.op(QUANTIZE, Op::Accumulate(Accumulate { weight: W, from, into, first: true, squares: None }));
    plan.op(QUANTIZE, Op::Accumulate(Accumulate { weight: W, from, into, first: false, squares: None }));
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
    plan.op(QUANTIZE, Op::AddGradient(AddGradient { weight: W, from, into }));
    let sums = run(plan, move |rank| {
        rank.put(into, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0]);
        rank.put(from, &[0.5_f32, 1e9, -3.0, 0.25, 0.0, 1.0, 0.0, 0.0]);
        rank.step().unwrap();
        rank.get::<f32>(into)
    });
    assert!(sums.iter().all(|sum| *sum == [1.5, 1e9 + 2.0, 0.0, 4.25, 5.0, 7.0, 0.0, 0.0]));
}

/// A session writes no moments before its first step.
fn an_arena_begins_with_zeros() {
    let mut plan = Plan::new(3, &[sharded(4, 2, Format::F32)]);
    let moment = plan.resident("exp_avg", Content::first_moment(W));
    let words = run(plan, move |rank| rank.get::<u32>(moment));
    assert!(words.iter().all(|rank| rank.iter().all(|word| *word == 0)), "{words:?}");
}

fn padding_rows_are_zeroed_and_real_ones_kept() {
    let mut plan = Plan::new(3, &[sharded(4, 2, Format::F32)]);
    let gradient = plan.transient("gradient", Content::Gradient(W, CallId::new(0)));
    plan.op(COMPUTE, Op::ZeroPadding(ZeroPadding { weight: W, gradient }));
    let rows = run(plan, move |rank| {
        rank.put(gradient, &[7.0_f32; 12]);
        rank.step().unwrap();
        rank.get::<f32>(gradient)
    });
    let expected = [7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 0.0, 0.0, 0.0, 0.0];
    assert!(rows.iter().all(|rank| *rank == expected));
}

fn padding_rows_of_a_gradient_in_bf16_are_zeroed_and_real_ones_kept() {
    let mut plan = Plan::new(3, &[sharded(4, 2, Format::F32)]);
    let gradient = plan.transient("gradient", Content::WireGradient(W, CallId::new(0)));
    plan.op(COMPUTE, Op::ZeroPadding(ZeroPadding { weight: W, gradient }));
    let seven = bf16::from_f32(7.0);
    let rows = run(plan, move |rank| {
        rank.put(gradient, &[seven; 12]);
        rank.step().unwrap();
        rank.get::<bf16>(gradient)
    });
    let zero = bf16::ZERO;
    let expected = [seven, seven, seven, seven, seven, seven, seven, seven, zero, zero, zero, zero];
    assert!(rows.iter().all(|rank| *rank == expected));
}

fn a_copy_moves_every_byte_and_the_fault_word_is_cleared() {
    let mut plan = Plan::new(1, &[]);
    let (_, from) = plan.buffer("from", 33, Residency::Resident);
    let (_, to) = plan.buffer("to", 33, Residency::Resident);
    let fault = plan.resident("fault", Content::FaultWord);
    plan.op(COMPUTE, Op::Copy(op::Copy { from, to }));
    plan.op(COMPUTE, Op::ClearFault(ClearFault { fault }));
    run(plan, move |rank| {
        rank.put(from, &noise(33, 1));
        rank.put(fault, &[9_u32]);
        rank.step().unwrap();
        assert_eq!(rank.get::<f32>(to), noise(33, 1));
        assert_eq!(rank.get::<u32>(fault), [0]);
    });
}

/// The state of the weight, and of a replicated one on the first rank alone, which saves it. The arena may change
/// after.
fn a_snapshot_copies_what_the_rank_saves_to_the_host_and_stays() {
    let mut plan = Plan::new(2, &[sharded(4, 8, Format::F32), WeightSpec::replicated("bias", 1, 8)]);
    let bias = warpweft_base::id::WeightId::new(1);
    let master = plan.resident("master", Content::Master(W));
    let moment = plan.resident("moment", Content::first_moment(W));
    let other = plan.resident("bias", Content::Master(bias));
    for (weight, from, to) in [(W, master, 256), (W, moment, 0), (bias, other, 512)] {
        plan.op(QUANTIZE, Op::Snapshot(op::Snapshot { weight, from, to }));
    }
    run(plan, move |rank| {
        let own = 1 + rank.number() as u32;
        let values = [noise(16, own), noise(16, own + 7), noise(8, 5)];
        let put = |rank: &super::harness::Rank<_>, values: [&[f32]; 3]| {
            [master, moment, other].into_iter().zip(values).for_each(|(slot, values)| rank.put(slot, values));
        };
        let read = |rank: &super::harness::Rank<_>, offset, count: usize| {
            let mut found = vec![9.0_f32; count];
            let region = Region { offset, bytes: 4 * count };
            rank.snapshot.as_ref().unwrap().read(region, bytemuck::cast_slice_mut(&mut found)).unwrap();
            found
        };
        put(rank, values.each_ref().map(Vec::as_slice));
        rank.step().unwrap();
        put(rank, [&[3.0; 16], &[4.0; 16], &[5.0; 8]]);
        assert_eq!(read(rank, 256, 16), values[0]);
        assert_eq!(read(rank, 0, 16), values[1]);
        let saved = if rank.number() == 0 { values[2].clone() } else { vec![0.0; 8] };
        assert_eq!(read(rank, 512, 8), saved);
        // Again, and by the host in place of a step.
        rank.step().unwrap();
        assert_eq!(read(rank, 256, 16), [3.0; 16]);
        let region = Region { offset: 0, bytes: 4 };
        rank.snapshot.as_ref().unwrap().write(region, &7.0_f32.to_ne_bytes()).unwrap();
        assert_eq!(read(rank, 0, 2), [7.0, 4.0]);
        assert!(rank.snapshot.as_ref().unwrap().read(region, &mut [0; 5]).is_err());
    });
}

/// Norm, vote and clip of two ranks, with a replicated weight that counts once.
fn the_vote_is_the_same_on_every_rank_and_counts_a_replicated_weight_once() {
    let mut specs = vec![sharded(3, 2, Format::F32)];
    specs.push(WeightSpec::replicated("bias", 3, 2));
    let mut plan = Plan::new(2, &specs);
    plan.settings.optimizer.max_norm = 2.0;
    let bias = warpweft_base::id::WeightId::new(1);
    let main_grads = vec![
        (W, plan.resident("main grad", Content::MainGrad(W))),
        (bias, plan.resident("bias main grad", Content::MainGrad(bias))),
    ];
    let fault = plan.resident("fault", Content::FaultWord);
    let record = plan.transient("record", Content::NormRecord);
    let records = plan.transient("records", Content::NormRecords);
    let step = plan.resident("step", Content::OptimizerStep);
    let gradient_scale = plan.resident("gradient scale", Content::GradientScale);
    let vote = plan.transient("vote", Content::Vote);
    plan.op(
        QUANTIZE,
        Op::GradNorm(GradNorm { main_grads: main_grads.clone(), squares: Vec::new(), fault, record }),
    );
    plan.fence(QUANTIZE, LINK);
    plan.op(LINK, Op::GatherRecords(GatherRecords { from: record, to: records }));
    plan.fence(LINK, QUANTIZE);
    plan.op(QUANTIZE, Op::Vote(CastVote { records, optimizer_step: step, gradient_scale, vote }));
    let votes = run(plan, move |rank| {
        let mut votes = Vec::new();
        for (gradient, word) in [(1.0, 0), (f32::NAN, 0), (1.0, 3)] {
            // Rank 1 holds one real row; the row after it is padding and must not count.
            rank.put(main_grads[0].1, &[[1.0, 1.0, 1.0, 1.0], [gradient, 1.0, 9.0, 9.0]][rank.number()]);
            rank.put(main_grads[1].1, &[1.0_f32; 6]);
            rank.put(gradient_scale, &[1.0_f32]);
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

bodies! {
    quantized_bytes_do_not_depend_on_the_number_of_ranks,
    the_first_contribution_overwrites_and_later_ones_add_the_mean,
    a_gradient_is_added_to_another_whole_and_undivided,
    an_arena_begins_with_zeros,
    padding_rows_are_zeroed_and_real_ones_kept,
    padding_rows_of_a_gradient_in_bf16_are_zeroed_and_real_ones_kept,
    a_copy_moves_every_byte_and_the_fault_word_is_cleared,
    a_snapshot_copies_what_the_rank_saves_to_the_host_and_stays,
    the_vote_is_the_same_on_every_rank_and_counts_a_replicated_weight_once,
}
