//! Checks that gradients added on a rank before reduction are f32.
//!
//! Law: a program whose calls write a gradient in bf16 that the policy would add to others on the rank gets
//! no plan: the sum would be rounded again with every addend. The error names the call and both ways out.

use std::collections::HashMap;

use super::PlanError;
use crate::layout::Weights;
use crate::model::Call;
use crate::policy::ReduceEvery;
use warpweft_base::id::{MicroBatchId, WeightId};
use warpweft_format::ElementType;

/// Gradients that are added on a rank: how many, and a call that writes one of them in bf16.
#[derive(Default)]
struct Sum<'a> {
    addends: usize,
    rounded: Option<&'a Call>,
}

/// # Errors
/// [`PlanError::GradientSum`].
pub(super) fn check_sums(
    program: &str,
    calls: &[Call],
    weights: &Weights,
    every: ReduceEvery,
) -> Result<(), PlanError> {
    let reduce_every = match every {
        ReduceEvery::Call => return Ok(()),
        ReduceEvery::MicroBatch => "micro_batch",
        ReduceEvery::Step => "step",
    };
    let mut sums: HashMap<(WeightId, Option<MicroBatchId>), Sum<'_>> = HashMap::new();
    for call in calls {
        let micro_batch = (every == ReduceEvery::MicroBatch).then_some(call.micro_batch);
        for gradient in &call.gradients {
            let sum = sums.entry((gradient.weight, micro_batch)).or_default();
            sum.addends += 1;
            if gradient.element != ElementType::F32 {
                sum.rounded.get_or_insert(call);
            }
            if let Some(rounded) = sum.rounded.filter(|_| sum.addends > 1) {
                return Err(PlanError::GradientSum {
                    program: program.to_owned(),
                    call: rounded.name.clone(),
                    weight: weights.layout(gradient.weight).name.clone(),
                    reduce_every,
                });
            }
        }
    }
    Ok(())
}
