//! Reductions that a collective sums by itself: what a collective library is asked for, and what the CPU does in its place.

use half::bf16;
use warpweft::format::{ElementType, Format};
use warpweft::id::{CallId, SlotId};
use warpweft::layout::Content;
use warpweft::op::{Op, ReducePart, SumPart, SumTarget};

use crate::bodies::harness::{LINK, Plan, QUANTIZE, W, noise, run, sharded};

const CALL: CallId = CallId::new(0);

/// A gradient in `element` and the slot of its sum, with whatever `reduce` does in between.
fn sums(ranks: u32, element: ElementType, reduce: impl FnOnce(&mut Plan, SlotId) -> SlotId) -> Vec<Vec<f32>> {
    let mut plan = Plan::new(ranks, &[sharded(5, 3, Format::F32)]);
    let content = match element {
        ElementType::F32 => Content::Gradient(W, CALL),
        _ => Content::WireGradient(W, CALL),
    };
    let from = plan.transient("gradient", content);
    let sum = reduce(&mut plan, from);
    let padded = plan.weights.layout(W).shard.padded().elements();
    // Huge and tiny values: another order of addition gives other bits.
    run(plan, move |rank| {
        let scale = [1e8, 1.0, -1e8, 3.0][rank.number()];
        let values: Vec<f32> =
            noise(padded, rank.number() as u32).iter().map(|value| value * scale).collect();
        match element {
            ElementType::F32 => rank.put(from, &values),
            _ => rank.put(from, &values.into_iter().map(bf16::from_f32).collect::<Vec<_>>()),
        }
        rank.step().unwrap();
        rank.get::<f32>(sum)
    })
}

/// Both ways, bit for bit: one collective that sums, accumulated behind it, and an exchange whose sum is accumulated in one pass.
#[test]
fn a_collective_that_sums_leaves_what_an_exchange_and_a_sum_leave() {
    for (ranks, element) in (1..=4).flat_map(|ranks| [(ranks, ElementType::F32), (ranks, ElementType::Bf16)])
    {
        let by_collective = sums(ranks, element, |plan, from| {
            let to = plan.transient("reduced", Content::ReducedGradient(W, CALL));
            let into = plan.resident("main grad", Content::MainGrad(W));
            plan.op(LINK, Op::ReduceScatter { element, parts: vec![ReducePart { weight: W, from, to }] });
            plan.fence(LINK, QUANTIZE);
            plan.op(QUANTIZE, Op::Accumulate { weight: W, from: to, into, first: true });
            into
        });
        let by_ranks = sums(ranks, element, |plan, from| {
            let to = plan.transient("landed", Content::LandedGradient(W, CALL, element));
            let into = plan.resident("main grad", Content::MainGrad(W));
            plan.op(LINK, Op::ExchangeGradient { element, parts: vec![ReducePart { weight: W, from, to }] });
            plan.fence(LINK, QUANTIZE);
            let (landed, target) = (Some(to), SumTarget::First);
            let parts = vec![SumPart { weight: W, own: from, landed, into, target }];
            plan.op(QUANTIZE, Op::SumGradient { element, parts });
            into
        });
        assert!(by_ranks.iter().flatten().any(|value| *value != 0.0));
        assert_eq!(by_collective, by_ranks, "{ranks} ranks in {element:?}");
    }
}
