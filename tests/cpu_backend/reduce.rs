//! Reduce-scatter and all-reduce, which sum within the collective: the request to a collective library, and the CPU's
//! own sum in its place.

use std::sync::Arc;

use half::bf16;
use warpweft_backend::BackendError;
use warpweft_backend::cpu::{CpuOptions, CpuWorld};
use warpweft_base::id::{CallId, RankId, SlotId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{
    Accumulate, Dequantize, DequantizePart, ExchangeGradient, Op, ReducePart, ReduceScatter, RoundGradient,
    SumGradient, SumPart, SumTarget, WireType,
};

use crate::bodies::harness::{LINK, Plan, QUANTIZE, Rank, W, noise, run, sharded};

const CALL: CallId = CallId::new(0);

/// A gradient in `wire` and the slot of its sum, with whatever `reduce` does in between.
fn sums(ranks: u32, wire: WireType, reduce: impl FnOnce(&mut Plan, SlotId) -> SlotId) -> Vec<Vec<f32>> {
    let mut plan = Plan::new(ranks, &[sharded(5, 3, Format::F32)]);
    let from = plan.transient("gradient", Content::travelling(W, CALL, wire));
    let sum = reduce(&mut plan, from);
    let padded = plan.weights.layout(W).shard.padded().elements();
    // Huge and tiny values: another order of addition gives other bits.
    run(plan, move |rank| {
        let scale = [1e8, 1.0, -1e8, 3.0][rank.number()];
        let values: Vec<f32> =
            noise(padded, rank.number() as u32).iter().map(|value| value * scale).collect();
        match wire {
            WireType::F32 => rank.put(from, &values),
            _ => rank.put(from, &values.into_iter().map(bf16::from_f32).collect::<Vec<_>>()),
        }
        rank.step().unwrap();
        rank.get::<f32>(sum)
    })
}

/// Both ways, bit for bit: one collective that sums, accumulated after it, and an exchange whose sum is
/// accumulated in one pass.
#[test]
fn a_collective_that_sums_leaves_what_an_exchange_and_a_sum_leave() {
    for (ranks, wire) in (1..=4).flat_map(|ranks| [(ranks, WireType::F32), (ranks, WireType::Bf16)]) {
        let by_collective = sums(ranks, wire, |plan, from| {
            let to = plan.transient("reduced", Content::ReducedGradient(W, CALL));
            let into = plan.resident("main grad", Content::MainGrad(W));
            plan.op(
                LINK,
                Op::ReduceScatter(ReduceScatter {
                    group: Group::Shard,
                    wire,
                    parts: vec![ReducePart { weight: W, from, to }],
                }),
            );
            plan.fence(LINK, QUANTIZE);
            plan.op(
                QUANTIZE,
                Op::Accumulate(Accumulate { weight: W, from: to, into, first: true, squares: None }),
            );
            into
        });
        let by_ranks = sums(ranks, wire, |plan, from| {
            let to = plan.transient("landed", Content::ReceivedGradient(W, CALL, wire));
            let into = plan.resident("main grad", Content::MainGrad(W));
            plan.op(
                LINK,
                Op::ExchangeGradient(ExchangeGradient {
                    wire,
                    group: Group::Shard,
                    parts: vec![ReducePart { weight: W, from, to }],
                }),
            );
            plan.fence(LINK, QUANTIZE);
            let (received, target) = (Some(to), SumTarget::First);
            let parts = vec![SumPart { weight: W, own: from, received, into, target, squares: None }];
            plan.op(QUANTIZE, Op::SumGradient(SumGradient { wire, group: Group::Shard, parts }));
            into
        });
        assert!(by_ranks.iter().flatten().any(|value| *value != 0.0));
        assert_eq!(by_collective, by_ranks, "{ranks} ranks in {wire}");
    }
}

fn refused(plan: Plan) -> String {
    let world = CpuWorld::new(Mesh::new(1).unwrap(), CpuOptions::default()).unwrap();
    let refused = Rank::start(world.backend(RankId::new(0)).unwrap(), Arc::new(plan), None).map(drop);
    let Err(BackendError::Unsupported { reason, .. }) = refused else { panic!("{refused:?}") };
    reason
}

/// Neither bytes nor u32, though this is as large as f32.
#[test]
fn values_of_a_weight_in_whole_numbers_are_not_bound() {
    for values in [ElementType::U8, ElementType::U32] {
        let mut plan = Plan::new(1, &[sharded(4, 4, Format::Bf16)]);
        let orientation = Orientation::Rowwise;
        let from = plan.transient("gathered", Content::Gathered(W, orientation));
        let to = plan.transient("dense", Content::Dense(W, orientation, ElementType::F32));
        let part = DequantizePart { weight: W, orientation, values, from, own: None, tensor_scale: None, to };
        plan.op(QUANTIZE, Op::Dequantize(Dequantize { parts: vec![part] }));
        let reason = refused(plan);
        assert!(reason.contains("f32 or bf16") && reason.ends_with(&values.to_string()), "{reason}");
    }
}

/// No collective adds codes, rows of four columns are no blocks, and nothing is rounded to more bits.
#[test]
fn gradients_in_mxfp8_are_bound_only_where_they_are_rounded_and_summed_in_blocks() {
    let mut plan = Plan::new(1, &[sharded(4, 32, Format::Bf16)]);
    let from = plan.transient("gradient", Content::QuantizedGradient(W, CALL));
    let to = plan.transient("reduced", Content::ReducedGradient(W, CALL));
    let (group, wire) = (Group::Shard, WireType::Mxfp8);
    let parts = vec![ReducePart { weight: W, from, to }];
    plan.op(LINK, Op::ReduceScatter(ReduceScatter { group, wire, parts }));
    assert_eq!(refused(plan), "no collective sums gradients in mxfp8");
    for (columns, wire, words) in [
        (4, WireType::Mxfp8, "4 columns of `w` are not whole blocks of 32"),
        (32, WireType::F32, "from f32 to f32"),
    ] {
        let mut plan = Plan::new(1, &[sharded(4, columns, Format::Bf16)]);
        let from = plan.transient("gradient", Content::Gradient(W, CALL));
        let to = plan.transient("rounded", Content::travelling(W, CALL, wire));
        let round = RoundGradient { weight: W, element: ElementType::F32, from, wire, to };
        plan.op(QUANTIZE, Op::RoundGradient(round));
        let reason = refused(plan);
        assert!(reason.contains(words), "{reason}");
    }
}

/// Of columnwise planes a rank's rows are columns of every row.
#[test]
fn columnwise_values_of_what_arrived_are_not_bound() {
    let bind = |orientation| {
        let mut plan = Plan::new(2, &[sharded(64, 64, Format::Mxfp8)]);
        let own = Some(plan.resident("shard", Content::Shard(W, orientation)));
        let from = plan.transient("arrived", Content::Gathered(W, orientation));
        let to = plan.transient("dense", Content::Dense(W, orientation, ElementType::F32));
        let values = ElementType::F32;
        let part = DequantizePart { weight: W, orientation, values, from, own, tensor_scale: None, to };
        plan.op(QUANTIZE, Op::Dequantize(Dequantize { parts: vec![part] }));
        let world = CpuWorld::new(Mesh::new(2).unwrap(), CpuOptions::default()).unwrap();
        Rank::start(world.backend(RankId::new(0)).unwrap(), Arc::new(plan), None).map(drop)
    };
    bind(Orientation::Rowwise).unwrap();
    let refused = bind(Orientation::Columnwise);
    let Err(BackendError::Unsupported { reason, .. }) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("do not stand alone"), "{reason}");
}
