//! PL-9: an update that casts, or takes amaxes, leaves the bytes that ops one after the other leave.

use bytemuck::Pod;
use half::bf16;
use warpweft_backend::Backend;
use warpweft_base::id::{BucketId, SlotId, WeightId};
use warpweft_format::{Format, Fp8Block, Fp8Element, Shape, Via};
use warpweft_plan::layout::{Content, StateLayout};
use warpweft_plan::model::{Hyperparameters, WeightSpec};
use warpweft_plan::op::{
    Adam, AdamOperand, AmaxesOperand, FusedScale, MasterOperand, Op, PartialAmax, PartialCast, ShardOperand,
    Vote,
};
use warpweft_plan::policy::{AdamMode, Moments};

use super::harness::{BY, Plan, QUANTIZE, ROWWISE, Rank, noise, run};
use crate::device::Device;

/// Whole blocks, cut ones, rows that are no multiple of four elements, and ranks without rows.
const SHAPES: [(usize, usize); 6] = [(256, 384), (300, 200), (513, 16), (128, 131), (1, 1), (70, 516)];

#[derive(Clone, Copy, Debug)]
struct Case {
    format: Format,
    via: Via,
    moments: Moments,
    mode: AdamMode,
}

/// A plan of one update, and its slots.
struct Update {
    plan: Plan,
    states: Vec<AdamOperand>,
    shards: Vec<ShardOperand>,
    tensor_scale: SlotId,
    /// Where an update leaves them too.
    amaxes: Vec<SlotId>,
    vote: SlotId,
    hyperparameters: SlotId,
}

/// The update with what follows in it, or with ops of their own for that.
fn update(ranks: u32, case: Case, at_once: bool) -> Update {
    let Case { format, via, moments, mode } = case;
    // Columns are whole blocks where they must be.
    let side = if format.check_shape(Shape::new(16, 1)).is_ok() { 1 } else { 16 };
    let named = |(number, (rows, cols)): (usize, (usize, usize))| {
        let cols = cols.next_multiple_of(side);
        WeightSpec::sharded(&format!("w{number}"), rows, cols, format)
    };
    let specs: Vec<WeightSpec> = SHAPES.into_iter().enumerate().map(named).collect();
    let mut plan = Plan::new(ranks, &specs);
    plan.weights.state = StateLayout { moments, ..StateLayout::default() };
    (plan.settings.via, plan.settings.optimizer.mode) = (via, mode);
    let (bucket, weights) = (BucketId::new(0), (0..specs.len()).map(WeightId::at));
    let vote = plan.resident("vote", Content::Vote);
    let hyperparameters = plan.resident("hyperparameters", Content::Hyperparameters);
    let tensor_scale = plan.resident("tensor scales", Content::TensorScale(bucket));
    let block_amax = plan.resident("block amaxes", Content::BlockAmax(bucket));
    let tensor_amax = plan.resident("amaxes", Content::LocalAmax(bucket));
    let (scaled, casts) = (plan.weights.bucket(bucket).has_scales(), format.casts_by_blocks());
    let (mut states, mut shards, mut masters) = (Vec::new(), Vec::new(), Vec::new());
    for weight in weights {
        let master = plan.resident("master", Content::Master(weight));
        let slot = plan.resident("shard", Content::Shard(weight, ROWWISE));
        masters.push(master);
        shards.push(ShardOperand { weight, orientation: ROWWISE, slot });
        let together = MasterOperand::Cast { master, shard: slot };
        states.push(AdamOperand {
            weight,
            master: if at_once && casts { together } else { MasterOperand::Whole(master) },
            exp_avg: plan.resident("exp_avg", Content::first_moment(weight)),
            exp_avg_sq: plan.resident("exp_avg_sq", Content::second_moment(weight)),
            main_grad: plan.resident("main grad", Content::MainGrad(weight)),
        });
    }
    let adam = Adam {
        bucket,
        states: states.clone(),
        vote,
        hyperparameters,
        tensor_scale: (at_once && scaled && casts).then_some(tensor_scale),
        amaxes: (at_once && !casts).then_some(AmaxesOperand { block_amax, tensor_amax }),
    };
    plan.op(QUANTIZE, Op::Adam(adam));
    let (ways, skip) = (shards.clone(), vote);
    let vote = Some(vote);
    if !at_once && scaled {
        let masters = masters.clone();
        plan.op(QUANTIZE, Op::PartialAmax(PartialAmax { bucket, masters, block_amax, tensor_amax, vote }));
    }
    if !(at_once && casts) {
        let encode = scaled.then(|| {
            let encode = plan.transient("encode", Content::Encode(bucket));
            let shards = shards.clone();
            let scale = FusedScale { bucket, block_amax, tensor_amax, encode, tensor_scale, shards, vote };
            plan.op(QUANTIZE, Op::FusedScale(scale));
            encode
        });
        plan.op(QUANTIZE, Op::PartialCast(PartialCast { bucket, masters, encode, shards, vote }));
    }
    let amaxes = if casts { Vec::new() } else { vec![block_amax, tensor_amax] };
    Update { plan, states, shards: ways, tensor_scale, amaxes, vote: skip, hyperparameters }
}

/// Fills a slot with `noise` times `scale`, among it what is special.
fn put_noise(
    rank: &Rank<Device>,
    slot: SlotId,
    (seed, scale): (u32, f32),
    specials: &[f32],
    moments: Moments,
) {
    let bytes = if moments == Moments::Bf16 { 2 } else { 4 };
    let mut values = noise(rank.plan.region(slot).bytes / bytes, seed);
    values.iter_mut().for_each(|value| *value *= scale);
    let step = (values.len() / (specials.len() + 1)).max(1);
    for (value, special) in values.iter_mut().step_by(step).zip(specials) {
        *value = *special;
    }
    match moments {
        Moments::F32 => rank.put(slot, &values),
        Moments::Bf16 => rank.put(slot, &values.into_iter().map(bf16::from_f32).collect::<Vec<_>>()),
    }
}

fn bytes_of<T: Pod>(rank: &Rank<Device>, slots: &[SlotId]) -> Vec<Vec<T>> {
    slots.iter().map(|slot| rank.get(*slot)).collect()
}

/// What the slots of each rank hold after three steps, of which the first is skipped and the last, of one rank, is
/// replayed.
fn left(ranks: u32, case: Case, at_once: bool) -> Vec<Vec<Vec<u8>>> {
    const F32: Moments = Moments::F32;
    let made = update(ranks, case, at_once);
    let Update { plan, states, shards, tensor_scale, amaxes, vote, hyperparameters } = made;
    run(plan, move |rank| {
        let own = rank.backend.rank().number() + 7;
        let mut slots = vec![tensor_scale];
        slots.extend(&amaxes);
        for (position, state) in (own * 100..).step_by(10).zip(&states) {
            let (MasterOperand::Whole(master) | MasterOperand::Cast { master, .. }) = state.master else {
                unreachable!()
            };
            // Of two weights some masters are no numbers or infinite, of one all are zero.
            let specials: &[f32] = match state.weight.index() {
                1 => &[f32::NAN, f32::INFINITY, 0.0, -0.0, 1e-40, 1e18],
                5 => &[f32::NAN, -1e30, 1e-40],
                _ => &[0.0, 1e-40, -3.0],
            };
            let scale = if state.weight.index() == 2 { 0.0 } else { 0.02 };
            put_noise(rank, master, (position, scale), specials, F32);
            put_noise(rank, state.exp_avg, (position + 1, 1e-3), &[], case.moments);
            put_noise(rank, state.exp_avg_sq, (position + 2, 0.0), &[1e-6, 1e-12], case.moments);
            slots.extend([master, state.exp_avg, state.exp_avg_sq]);
        }
        for shard in &shards {
            rank.put(shard.slot, &vec![0xA5_u8; rank.plan.region(shard.slot).bytes]);
            slots.push(shard.slot);
        }
        rank.put(tensor_scale, &vec![7.0_f32; rank.plan.region(tensor_scale).bytes / 4]);
        let by = Hyperparameters { learning_rate: 1e-2, ..BY };
        rank.put(hyperparameters, &vec![by; states.len()]);
        let before = bytes_of::<u8>(rank, &slots);
        for step in 0..3 {
            let clean = Vote { clip: 0.5, unscale: 1.0, step, ..Vote::default() };
            let verdict = if step == 0 { Vote::NON_FINITE } else { Vote::CLEAN };
            rank.put(vote, &[Vote { verdict, ..clean }]);
            for (position, state) in (own * 1000..).zip(&states) {
                put_noise(rank, state.main_grad, (position + 10 * step, 0.1), &[0.0], F32);
            }
            if step == 2 && ranks == 1 {
                let graph = rank.capture_graph().unwrap();
                rank.replay(&graph).unwrap();
            } else {
                rank.step().unwrap();
            }
            if step == 0 {
                assert_eq!(bytes_of::<u8>(rank, &slots), before, "a step that is skipped, {case:?}");
            }
        }
        let after = bytes_of::<u8>(rank, &slots);
        assert_ne!(after, before, "{case:?}");
        after
    })
}

fn an_update_that_casts_leaves_the_bytes_of_update_amax_scale_and_cast() {
    let Format::Fp8Block(block) = Format::FP8_BLOCK128_POW2 else { unreachable!() };
    let e5m2 = Format::Fp8Block(Fp8Block { element: Fp8Element::E5m2, ..block });
    let formats = [
        Format::F32,
        Format::Bf16,
        Format::FP8_BLOCK128_POW2,
        Format::FP8_BLOCK128_F32SCALE,
        e5m2,
        Format::NVFP4_2D,
        Format::FP8_TENSOR_E4M3,
    ];
    for (number, format) in formats.into_iter().enumerate() {
        for (via, moments, mode) in [
            (Via::Bf16, Moments::F32, AdamMode::AdamW),
            (Via::None, Moments::Bf16, AdamMode::AdamW),
            (Via::None, Moments::F32, AdamMode::Adam),
            (Via::Bf16, Moments::Bf16, AdamMode::Adam),
        ] {
            let ranks = if number % 2 == 0 && mode == AdamMode::AdamW { 3 } else { 1 };
            let case = Case { format, via, moments, mode };
            let [at_once, apart] = [true, false].map(|at_once| left(ranks, case, at_once));
            for (rank, (at_once, apart)) in at_once.iter().zip(&apart).enumerate() {
                for (slot, (at_once, apart)) in at_once.iter().zip(apart).enumerate() {
                    let place = at_once.iter().zip(apart).position(|(one, other)| one != other);
                    assert_eq!(place, None, "byte of slot {slot} of rank {rank}, {case:?}");
                }
            }
        }
    }
}

bodies! {
    an_update_that_casts_leaves_the_bytes_of_update_amax_scale_and_cast,
}
