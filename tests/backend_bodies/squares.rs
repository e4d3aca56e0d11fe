//! Squares of main grads, whose order is the same on every backend.

use warpweft_format::Format;
use warpweft_plan::layout::Content;
use warpweft_plan::model::WeightSpec;
use warpweft_plan::op::{GradNorm, NormRecord, Op};
use warpweft_testing::squares;

use super::harness::{Plan, QUANTIZE, noise, run, sharded};
use warpweft_base::id::{RankId, WeightId};

/// Of rows that rank 1 has fewer of, of several groups of blocks, of one block and of none on rank 1.
fn specs() -> Vec<WeightSpec> {
    let mut specs: Vec<_> =
        [(601, 401), (5, 3), (130, 127), (1, 7)].map(|(rows, cols)| sharded(rows, cols, Format::F32)).into();
    specs.push(WeightSpec::replicated("bias", 3, 2001));
    specs
}

/// Squares of real rows are added as the docs on reproducibility say, and those of a replicated weight by one rank.
fn a_norm_is_of_squares_that_are_added_in_one_order() {
    for ranks in 1..=3 {
        let mut plan = Plan::new(ranks, &specs());
        let main_grads: Vec<_> = (0..plan.weights.layouts.len())
            .map(WeightId::at)
            .map(|weight| (weight, plan.resident("main grad", Content::MainGrad(weight))))
            .collect();
        let fault = plan.resident("fault", Content::FaultWord);
        let record = plan.transient("record", Content::NormRecord);
        plan.op(QUANTIZE, Op::GradNorm(GradNorm { main_grads: main_grads.clone(), fault, record }));
        let layouts = plan.weights.layouts.clone();
        let found = run(plan, move |rank| {
            let mut counted = Vec::new();
            for (layout, (_, slot)) in layouts.iter().zip(&main_grads) {
                let elements = layout.stored_elements();
                // Not even the rows after the real ones are zero.
                let mut values = noise(elements, (17 * rank.number() + elements) as u32);
                rank.put(*slot, &values);
                let is_replicated = layout.name == "bias";
                let real = layout.shard.rows_of(RankId::at(rank.number())).rows * layout.shard.shape.cols;
                values.truncate(if is_replicated && rank.number() > 0 { 0 } else { real });
                counted.push(values);
            }
            rank.put(fault, &[rank.number() as u32]);
            rank.step().unwrap();
            (rank.get::<NormRecord>(record)[0], squares::of_rank(&counted))
        });
        for (rank, (found, expected)) in found.into_iter().enumerate() {
            assert_eq!((found.squares.to_bits(), found.fault), (expected.to_bits(), rank as u32), "{ranks}");
        }
    }
}

bodies! {
    a_norm_is_of_squares_that_are_added_in_one_order,
}
