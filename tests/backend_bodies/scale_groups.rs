//! Scale groups: weights that are quantized by their largest magnitude, against whole weights quantized by
//! it.
//!
//! Law: the amaxes are taken of masters by a task of their own, or by their update. Weights of a group have
//! other shapes and magnitudes, are cut or not, and weights without a group are declared between them.

use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{
    AmaxChoice, Format, FormatError, Shape, Via, delayed_scale, quantize_shard, record_amax,
};
use warpweft_plan::layout::{Content, Delayed, PlaneRegions, Region, StateLayout};
use warpweft_plan::model::{Block, Hyperparameters, Mesh, TensorParallel, WeightSpec};
use warpweft_plan::op::{
    Adam, AdamOperand, AllReduce, AmaxesOperand, DelayedScale, FusedScale, MasterOperand, Op, PartialAmax,
    PartialCast, RecordAmax, Reduction, ShardOperand, Vote,
};

use warpweft_backend::Backend;

use super::harness::{LINK, Plan, QUANTIZE, ROWWISE, noise, run};

/// Rows, columns, magnitude and scale group of each weight.
const WEIGHTS: [(usize, usize, f32, Option<&str>); 6] = [
    (64, 32, 1.0, Some("a")),
    (96, 64, 5.0, None),
    (37, 96, 3.0, Some("b")),
    (32, 64, 0.25, Some("a")),
    (16, 32, 7.0, Some("b")),
    (160, 32, 0.5, Some("a")),
];

fn specs(format: Format) -> Vec<WeightSpec> {
    let spec = |(number, (rows, cols, _, group)): (usize, (usize, usize, f32, Option<&str>))| {
        let mut spec = WeightSpec::sharded(&format!("w{number}"), rows, cols, format);
        spec.scale_group = group.map(str::to_owned);
        spec.tensor = Some(match number {
            0 => TensorParallel::ColumnParallel,
            1 | 3 => TensorParallel::RowParallel,
            _ => TensorParallel::SplitTokens,
        });
        spec
    };
    WEIGHTS.into_iter().enumerate().map(spec).collect()
}

fn values(weight: WeightId) -> Vec<f32> {
    let (rows, cols, magnitude, _) = WEIGHTS[weight.index()];
    noise(rows * cols, 3 + weight.number()).into_iter().map(|value| magnitude * value).collect()
}

/// The largest magnitude of all weights that share a scale with one.
fn amax(format: Format, via: Via, weight: WeightId) -> f32 {
    let group = WEIGHTS[weight.index()].3;
    let shares = |other: &WeightId| *other == weight || group.is_some() && WEIGHTS[other.index()].3 == group;
    let all = (0..WEIGHTS.len()).map(WeightId::at).filter(shares).flat_map(values);
    all.fold(0.0, |amax: f32, value| amax.max(via.round(format, value).abs()))
}

/// How the amaxes come to be.
#[derive(Clone, Copy, Debug)]
enum Amaxes {
    OfMasters,
    OfUpdate,
}

/// A plan that quantizes all weights, and its slots: masters and shards by weight, and the tensor scales.
struct Flow {
    plan: Plan,
    masters: Vec<SlotId>,
    shards: Vec<SlotId>,
    tensor_scale: SlotId,
    /// What an update needs: vote, hyperparameters.
    update: Option<(SlotId, SlotId)>,
}

fn flow(mesh: Mesh, format: Format, via: Via, amaxes: Amaxes) -> Flow {
    let mut plan = Plan::over(mesh, &specs(format));
    plan.settings.via = via;
    let bucket = BucketId::new(0);
    let masters: Vec<_> = all().map(|weight| plan.resident("master", Content::Master(weight))).collect();
    let shards: Vec<_> =
        all().map(|weight| plan.resident("shard", Content::Shard(weight, ROWWISE))).collect();
    let block_amax = plan.transient("block amaxes", Content::BlockAmax(bucket));
    let local = plan.transient("local amaxes", Content::LocalAmax(bucket));
    let tensor_amax = plan.transient("amaxes", Content::ReducedAmax(bucket));
    let encode = plan.transient("encode factors", Content::Encode(bucket));
    let tensor_scale = plan.resident("tensor scales", Content::TensorScale(bucket));
    // In the order of the bucket, which is not that of the declaration.
    let order = plan.weights.bucket(bucket).weights.clone();
    let ordered: Vec<_> = order.iter().map(|weight| masters[weight.index()]).collect();
    let update = match amaxes {
        Amaxes::OfMasters => {
            let (masters, vote) = (ordered.clone(), None);
            let op = PartialAmax { bucket, masters, block_amax, tensor_amax: local, vote };
            plan.op(QUANTIZE, Op::PartialAmax(op));
            None
        }
        Amaxes::OfUpdate => {
            let vote = plan.resident("vote", Content::Vote);
            let hyperparameters = plan.resident("hyperparameters", Content::Hyperparameters);
            let states = order.iter().map(|weight| AdamOperand {
                weight: *weight,
                master: MasterOperand::Whole(masters[weight.index()]),
                exp_avg: plan.resident("exp_avg", Content::first_moment(*weight)),
                exp_avg_sq: plan.resident("exp_avg_sq", Content::second_moment(*weight)),
                main_grad: plan.resident("main grad", Content::MainGrad(*weight)),
            });
            let states = states.collect();
            let amaxes = Some(AmaxesOperand { block_amax, tensor_amax: local });
            let op = Adam { bucket, states, vote, hyperparameters, tensor_scale: None, amaxes };
            plan.op(QUANTIZE, Op::Adam(op));
            Some((vote, hyperparameters))
        }
    };
    plan.fence(QUANTIZE, LINK);
    let group = mesh.replica_group();
    let pairs = vec![(local, tensor_amax)];
    plan.op(LINK, Op::AllReduce(AllReduce { reduction: Reduction::Max, group, pairs }));
    plan.fence(LINK, QUANTIZE);
    let shard = |weight: &WeightId| ShardOperand {
        weight: *weight,
        orientation: ROWWISE,
        slot: shards[weight.index()],
    };
    let operands: Vec<_> = order.iter().map(shard).collect();
    let (vote, scaled) = (update.map(|(vote, _)| vote), operands.clone());
    let op = FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards: scaled, vote };
    plan.op(QUANTIZE, Op::FusedScale(op));
    let (masters_in_order, encode) = (ordered, Some(encode));
    let op = PartialCast { bucket, masters: masters_in_order, encode, shards: operands, vote };
    plan.op(QUANTIZE, Op::PartialCast(op));
    Flow { plan, masters, shards, tensor_scale, update }
}

fn all() -> impl Iterator<Item = WeightId> {
    (0..WEIGHTS.len()).map(WeightId::at)
}

/// FO-3. Whatever the mesh, and whoever takes the amaxes.
fn weights_of_a_scale_group_are_quantized_by_their_largest_magnitude_on_every_mesh() {
    let meshes = [
        Mesh::new(1).unwrap(),
        Mesh::new(3).unwrap(),
        Mesh::hybrid(4, 2).unwrap(),
        Mesh::of(4, 1, 2, None).unwrap(),
        Mesh::of(4, 2, 2, None).unwrap(),
    ];
    for mesh in meshes {
        for (format, via) in [
            (Format::NVFP4_2D, Via::Bf16),
            (Format::NVFP4_2D, Via::None),
            (Format::FP8_TENSOR_E4M3, Via::Bf16),
            (Format::FP8_TENSOR_E5M2_POW2, Via::None),
        ] {
            for amaxes in [Amaxes::OfMasters, Amaxes::OfUpdate] {
                check(
                    flow(mesh, format, via, amaxes),
                    (format, via),
                    format!("{mesh:?} {format} {amaxes:?}"),
                );
            }
        }
    }
}

fn check(flow: Flow, (format, via): (Format, Via), what: String) {
    let Flow { plan, masters, shards, tensor_scale, update } = flow;
    run(plan, move |rank| {
        let weights = rank.plan.weights.clone();
        let own = rank.backend.rank();
        let own_rows = |weight| -> Vec<f32> {
            let blocks = weights.layout(weight).shard.blocks_of(own);
            blocks.flat_map(|block| part(weight, block)).collect()
        };
        for (weight, master) in all().zip(&masters) {
            rank.put(*master, &own_rows(weight));
        }
        if let Some((vote, hyperparameters)) = update {
            // At a rate of 0 masters stay, and amaxes are taken of them.
            let by = Hyperparameters { learning_rate: 0.0, weight_decay: 0.0, beta1: 0.9, beta2: 0.999 };
            rank.put(hyperparameters, &vec![by; WEIGHTS.len()]);
            rank.put(vote, &[Vote { clip: 1.0, unscale: 1.0, step: 1, ..Vote::default() }]);
        }
        rank.step().unwrap();
        let scales = rank.get::<f32>(tensor_scale);
        for (weight, slot) in all().zip(&shards) {
            let layout = weights.layout(weight);
            let mut rows = own_rows(weight);
            let real_rows = layout.shard.rows_of(own).rows;
            rows.resize(layout.stored_elements(), 0.0);
            let over_ranks = |_| Ok::<_, FormatError>(amax(format, via, weight));
            let (planes, scale) =
                quantize_shard(format, via, layout.shard.stored(), &rows, over_ranks).unwrap();
            assert_eq!(scales[layout.position].to_bits(), scale.to_bits(), "{what} {weight}");
            let found = rank.get::<u8>(*slot);
            let placed =
                PlaneRegions::within(Region { offset: 0, bytes: found.len() }, &layout.shard_planes(ROWWISE));
            // What lies below a rank's rows is not looked at.
            let real =
                format.compact_planes(ROWWISE, Shape { rows: real_rows, cols: layout.shard.shape.cols });
            let expected = [(placed.data, &planes[0].data), (placed.scale, &planes[0].scale)];
            for (spec, (place, expected)) in real.iter().zip(expected) {
                let found = &found[place.offset..place.offset + spec.bytes()];
                assert!(found == &expected[..spec.bytes()], "{what} {weight} {:?}", spec.kind);
            }
        }
    });
}

/// A block of a weight's values.
fn part(weight: WeightId, Block { first, shape }: Block) -> Vec<f32> {
    let (values, cols) = (values(weight), WEIGHTS[weight.index()].1);
    let row = |row: usize| &values[row * cols + first.cols..][..shape.cols];
    (first.rows..first.rows + shape.rows).flat_map(row).copied().collect()
}

/// DS-1. The factor follows from the histories of all weights that share it, each of which remembers its own
/// amaxes.
fn delayed_scales_of_a_scale_group_follow_from_the_histories_of_all_of_its_weights() {
    const VALUES: [f32; 9] = [2.0, 0.5, 0.0, f32::INFINITY, 7.0, 1e-3, f32::NAN, 0.0, 3.0];
    let format = Format::FP8_TENSOR_E4M3;
    let Format::Fp8Tensor(tensor) = format else { unreachable!() };
    for (choice, history) in [(AmaxChoice::Largest, 3), (AmaxChoice::Latest, 2), (AmaxChoice::Largest, 1)] {
        let mut plan = Plan::new(1, &specs(format));
        plan.weights.state =
            StateLayout { delayed: Some(Delayed { history, choice }), ..StateLayout::default() };
        let bucket = BucketId::new(0);
        let amaxes = plan.resident("amaxes", Content::ReducedAmax(bucket));
        let scale = plan.resident("scale", Content::DelayedScale(bucket));
        let tensor_scale = plan.resident("tensor scale", Content::TensorScale(bucket));
        let kept = plan.resident("history", Content::AmaxHistory(bucket));
        let op = DelayedScale { bucket, history: Some(kept), scale, tensor_scale, vote: None };
        plan.op(QUANTIZE, Op::DelayedScale(op));
        let op = RecordAmax { bucket, tensor_amax: amaxes, history: kept, vote: None };
        plan.op(QUANTIZE, Op::RecordAmax(op));
        run(plan, move |rank| {
            let weights = rank.plan.weights.clone();
            let order = &weights.bucket(bucket).weights;
            let length = history as usize;
            let mut histories = vec![vec![0.0; length]; order.len()];
            let mut factors = vec![1.0; order.len()];
            rank.put(scale, &factors);
            for step in 0..30_usize {
                let now: Vec<f32> =
                    (0..order.len()).map(|at| VALUES[(step + 4 * at) % VALUES.len()]).collect();
                rank.put(amaxes, &now);
                rank.step().unwrap();
                let group = |weight: &WeightId| WEIGHTS[weight.index()].3;
                for (at, weight) in order.iter().enumerate() {
                    let shares = |other: &WeightId| {
                        other == weight || group(weight).is_some() && group(other) == group(weight)
                    };
                    let chosen = |history: &Vec<f32>| match choice {
                        AmaxChoice::Latest => history[0],
                        AmaxChoice::Largest => history.iter().copied().fold(0.0, f32::max),
                    };
                    let theirs = order.iter().zip(&histories).filter(|(other, _)| shares(other));
                    let largest = theirs.map(|(_, history)| chosen(history)).fold(0.0, f32::max);
                    let next = delayed_scale(tensor, AmaxChoice::Latest, &[largest], factors[at]);
                    assert_eq!(rank.get::<f32>(scale)[at], next.encode, "step {step} {weight}");
                    assert_eq!(rank.get::<f32>(tensor_scale)[at], next.decode, "step {step} {weight}");
                    factors[at] = next.encode;
                }
                for (history, amax) in histories.iter_mut().zip(&now) {
                    record_amax(history, *amax);
                }
                let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                assert_eq!(bits(rank.get::<f32>(kept)), bits(histories.concat()), "step {step}");
            }
        });
    }
}

/// A group of which one weight has no scale keeps the planes of all, and says so.
fn an_amax_that_is_not_finite_leaves_its_whole_scale_group_as_it_was() {
    let format = Format::NVFP4_2D;
    let Flow { plan, masters, tensor_scale, .. } =
        flow(Mesh::new(1).unwrap(), format, Via::None, Amaxes::OfMasters);
    run(plan, move |rank| {
        let weights = rank.plan.weights.clone();
        for (weight, master) in all().zip(&masters) {
            rank.put(*master, &values(weight));
        }
        rank.put(masters[3], &[f32::INFINITY]);
        rank.put(tensor_scale, &[-1.0_f32; WEIGHTS.len()]);
        rank.step().unwrap();
        let scales = rank.get::<f32>(tensor_scale);
        for weight in all() {
            let kept = WEIGHTS[weight.index()].3 == Some("a");
            let expected = if kept { -1.0 } else { amax(format, Via::None, weight) };
            assert_eq!(scales[weights.layout(weight).position], expected, "{weight}");
        }
    });
}

bodies! {
    weights_of_a_scale_group_are_quantized_by_their_largest_magnitude_on_every_mesh,
    delayed_scales_of_a_scale_group_follow_from_the_histories_of_all_of_its_weights,
    an_amax_that_is_not_finite_leaves_its_whole_scale_group_as_it_was,
}
