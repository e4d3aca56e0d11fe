//! The programs that a calibration times, and their plans.

use super::*;
use warpweft_plan::plan::StepPlan;
use warpweft_session::config::Config;
use warpweft_session::session::plan_program;

const SHAPE: Shape = Shape { rows: 256, cols: 128 };
const TOKENS: usize = 512;

/// As GPUs multiply weights in FP8.
const FP8: Arithmetic = Arithmetic {
    format: Format::FP8_BLOCK128_POW2,
    math: Math::Fp8,
    form: Form::Planes,
    backward: Orientation::Columnwise,
    activations: Some(Format::FP8_BLOCK1X128_POW2),
};

#[test]
fn a_layer_costs_what_its_products_cost_but_that_dy_is_read_once() {
    let cost = |work: Work| work.cost(SHAPE, &FP8);
    let sum =
        |parts: &[CostHint]| parts.iter().fold((0, 0), |sum, part| (sum.0 + part.flops, sum.1 + part.bytes));
    let (forward, layer) = (cost(Work::Product(TOKENS)), cost(Work::Layer(TOKENS)));
    let flops = 2 * (TOKENS * SHAPE.rows * SHAPE.cols) as u64;
    // x is read in bf16; codes, and a scale of 4 bytes for 128 of them, are written.
    let (x, dy) = ((TOKENS * SHAPE.cols) as u64, (TOKENS * SHAPE.rows) as u64);
    let written = |values: u64| values + values / 32;
    let gradient = 4 * (SHAPE.rows * SHAPE.cols) as u64;
    let quantized = 2 * (x + dy) + written(x) + written(dy);
    assert_eq!(sum(&forward), (flops, 2 * x + written(x) + 2 * dy));
    assert_eq!(sum(&cost(Work::Gradient(TOKENS))), (flops, quantized + gradient));
    let quantized = 2 * (2 * x + dy) + 2 * (written(x) + written(dy));
    assert_eq!(sum(&layer), (3 * flops, quantized + 2 * (x + dy) + gradient));
    assert_eq!(layer.iter().map(|part| part.kernels).sum::<u32>(), 6);
    assert_eq!(cost(Work::Kernels(7)), [CostHint { kernels: 7, ..CostHint::default() }]);
    assert!(cost(Work::Nothing).is_empty());
}

/// Each part is of one number of the cluster, so that a time is a sum of shares.
#[test]
fn no_part_of_a_call_is_both_operations_and_bytes() {
    for work in [Work::Product(TOKENS), Work::Gradient(TOKENS), Work::Layer(TOKENS), Work::Kernels(3)] {
        assert!(work.cost(SHAPE, &FP8).iter().all(|part| part.flops == 0 || part.bytes == 0), "{work:?}");
    }
}

fn count(plan: &StepPlan, op: &str) -> usize {
    plan.tasks.iter().filter(|task| task.op.name() == op).count()
}

#[test]
fn a_layer_reads_its_weight_in_both_orientations_which_are_made_once() {
    let layers = layers(SHAPE, FP8, &[TOKENS, 2 * TOKENS]).unwrap();
    let plan = plan_program(&layers.program, &Config::default(), 2).unwrap();
    assert_eq!((count(&plan, "all-gather"), count(&plan, "transpose"), count(&plan, "compute")), (1, 1, 2));
}

#[test]
fn a_chain_after_products_has_the_ops_of_a_chain() {
    for arithmetic in [FP8, plain(Format::NVFP4_2D, Orientation::Columnwise)] {
        let ops = |experiment: Experiment| {
            let plan = plan_program(&experiment.program, &Config::default(), 2).unwrap();
            plan.tasks.iter().map(|task| task.op.name()).collect::<std::collections::BTreeSet<_>>()
        };
        let chain = ops(chain(SHAPE, arithmetic, TOKENS).unwrap());
        assert!(ops(steady(3, SHAPE, arithmetic, TOKENS).unwrap()).is_superset(&chain));
    }
}
