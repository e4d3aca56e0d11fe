//! Ops of delayed scaling, against the library's own type, weight by weight.

use warpweft_base::id::BucketId;
use warpweft_format::{AmaxChoice, DelayedScaling, Format};
use warpweft_plan::layout::{Content, Delayed};
use warpweft_plan::model::WeightSpec;
use warpweft_plan::op::{DelayedScale, Op, RecordAmax, Vote};

use super::harness::{Plan, QUANTIZE, run, sharded};

/// DS-1. Amaxes that have no scale are among them, and a step in four is skipped.
fn scales_and_history_follow_the_library_type_and_a_skipped_step_changes_neither() {
    let Format::Fp8Tensor(tensor) = Format::FP8_TENSOR_E4M3 else { unreachable!() };
    let spec = |name: &str| WeightSpec::sharded(name, 3, 5, Format::Fp8Tensor(tensor));
    for choice in [AmaxChoice::Largest, AmaxChoice::Latest] {
        for history in [1_u32, 3] {
            let bucket = BucketId::new(0);
            let mut plan = Plan::new(2, &[spec("a"), spec("b"), spec("c")]);
            plan.weights.state.delayed = Some(Delayed { history, choice });
            let skip = plan.resident("vote", Content::Vote);
            let amaxes = plan.resident("amaxes", Content::ReducedAmax(bucket));
            let scale = plan.resident("scale", Content::DelayedScale(bucket));
            let tensor_scale = plan.resident("tensor scale", Content::TensorScale(bucket));
            let kept = plan.resident("history", Content::AmaxHistory(bucket));
            let vote = Some(skip);
            plan.op(
                QUANTIZE,
                Op::DelayedScale(DelayedScale { bucket, history: Some(kept), scale, tensor_scale, vote }),
            );
            plan.op(
                QUANTIZE,
                Op::RecordAmax(RecordAmax { bucket, tensor_amax: amaxes, history: kept, vote }),
            );
            run(plan, move |rank| {
                rank.put(scale, &[1.0_f32; 3]);
                let mut models = vec![DelayedScaling::new(tensor, choice, history as usize).unwrap(); 3];
                let values = [2.0, 0.5, 0.0, f32::INFINITY, 7.0, 1e-3, f32::NAN, 0.0, 0.0, 0.0, 3.0];
                for step in 0..40_usize {
                    let now = [0, 4, 9].map(|shift| values[(step + shift) % values.len()]);
                    rank.put(amaxes, &now);
                    let verdict = if step % 4 == 3 { Vote::NON_FINITE } else { Vote::CLEAN };
                    rank.put(skip, &[Vote { verdict, ..Vote::default() }]);
                    let before = (rank.get::<u8>(scale), rank.get::<u8>(tensor_scale), rank.get::<u8>(kept));
                    rank.step().unwrap();
                    if verdict != Vote::CLEAN {
                        let after =
                            (rank.get::<u8>(scale), rank.get::<u8>(tensor_scale), rank.get::<u8>(kept));
                        assert_eq!(after, before);
                        continue;
                    }
                    for (number, model) in models.iter_mut().enumerate() {
                        let used = model.scale();
                        assert_eq!(rank.get::<f32>(scale)[number], used.encode, "step {step}");
                        assert_eq!(rank.get::<f32>(tensor_scale)[number], used.decode, "step {step}");
                        let latest = rank.get::<f32>(kept)[number * history as usize];
                        assert_eq!(latest.to_bits(), now[number].to_bits());
                        model.record(now[number]);
                    }
                }
            });
        }
    }
}

/// What a prologue does: the reciprocals of the scales in use, and nothing else.
fn without_a_history_the_scales_stay_and_only_the_tensor_scales_are_written() {
    let mut plan = Plan::new(1, &[sharded(3, 5, Format::FP8_TENSOR_E4M3)]);
    plan.weights.state.delayed = Some(Delayed { history: 2, choice: AmaxChoice::Latest });
    let bucket = BucketId::new(0);
    let scale = plan.resident("scale", Content::DelayedScale(bucket));
    let tensor_scale = plan.resident("tensor scale", Content::TensorScale(bucket));
    plan.op(
        QUANTIZE,
        Op::DelayedScale(DelayedScale { bucket, history: None, scale, tensor_scale, vote: None }),
    );
    run(plan, move |rank| {
        rank.put(scale, &[48.0_f32]);
        rank.step().unwrap();
        assert_eq!(rank.get::<f32>(scale), [48.0]);
        assert_eq!(rank.get::<f32>(tensor_scale), [1.0 / 48.0]);
    });
}

bodies! {
    scales_and_history_follow_the_library_type_and_a_skipped_step_changes_neither,
    without_a_history_the_scales_stay_and_only_the_tensor_scales_are_written,
}
