//! PL-9: an update that casts what it makes is all stages of quantizing at once, and one that takes amaxes the first.

use warpweft_base::id::SlotId;
use warpweft_format::Orientation;
use warpweft_plan::layout::Content;
use warpweft_plan::op::{Adam, AdamOperand, AmaxesOperand, MasterOperand, Op};
use warpweft_plan::plan::{StepPlan, verify};

use super::edit::{position, refused, shard, slot, weight};
use super::programs::{f32_training, fp8_training, mxfp8_training, nvfp4_training};

/// The update of the first bucket.
fn adam(plan: &mut StepPlan) -> &mut Adam {
    let adam = position(plan, 0, |op| matches!(op, Op::Adam(_)));
    let Op::Adam(adam) = &mut plan.tasks[adam].op else { unreachable!() };
    adam
}

fn master(state: &AdamOperand) -> SlotId {
    match state.master {
        MasterOperand::Cast { master, .. } | MasterOperand::Whole(master) => master,
        MasterOperand::Split { .. } => unreachable!("no sample splits these masters"),
    }
}

/// Whatever else is in the plan, nothing quantizes those weights again.
#[test]
fn an_update_that_casts_leaves_data_scales_and_tensor_scales_at_the_version_of_its_masters() {
    for (plan, scaled) in [(f32_training(), false), (fp8_training(), true)] {
        assert!(verify(&plan).is_ok());
        let mut plan = plan;
        let names = ["partial amax", "fused scale", "partial cast"];
        assert!(plan.tasks.iter().all(|task| !names.contains(&task.op.name())));
        let adam = adam(&mut plan);
        assert_eq!(adam.tensor_scale.is_some(), scaled);
        assert!(adam.states.iter().all(|state| matches!(state.master, MasterOperand::Cast { .. })));
    }
}

/// PL-9
#[test]
fn a_master_that_its_update_does_not_cast_leaves_its_shard_a_version_behind() {
    let mut plan = f32_training();
    for state in &mut adam(&mut plan).states {
        state.master = MasterOperand::Whole(master(state));
    }
    refused(&plan, &["PL-9 (", "): the end of plan `train`", "shard of `up`", "at version 0"]);
    let mut plan = f32_training();
    let state = &mut adam(&mut plan).states[1];
    state.master = MasterOperand::Whole(master(state));
    refused(&plan, &["PL-10", "casts 1 of 2 weights that it updates", "all of them or none"]);
}

/// PL-9
#[test]
fn a_cast_into_another_weight_s_shard_is_refused() {
    let mut plan = fp8_training();
    let shards = ["block.1", "block.0"].map(|name| shard(&plan, name));
    for (state, other) in adam(&mut plan).states[1..].iter_mut().zip(shards) {
        state.master = MasterOperand::Cast { master: master(state), shard: other };
    }
    refused(&plan, &["PL-9", "needs the rowwise shard of `block.0`", "quantize each bucket into its own"]);
}

/// PL-9. NVFP4's scales hang on the amax of the whole tensor, and MXFP8 has a second orientation.
#[test]
fn a_format_whose_blocks_need_more_than_themselves_is_not_cast_by_an_update() {
    for mut plan in [nvfp4_training(), mxfp8_training()] {
        let weights: Vec<_> = adam(&mut plan).states.iter().map(|state| state.weight).collect();
        let shards: Vec<_> = weights
            .into_iter()
            .map(|weight| slot(&plan, Content::Shard(weight, Orientation::Rowwise)))
            .collect();
        for (state, shard) in adam(&mut plan).states.iter_mut().zip(shards) {
            state.master = MasterOperand::Cast { master: master(state), shard };
        }
        refused(&plan, &["PL-10", "as it updates it", "needs more than itself", "after the update"]);
    }
}

/// PL-9
#[test]
fn the_tensor_scales_of_a_bucket_are_made_by_the_update_of_all_its_weights() {
    let mut plan = fp8_training();
    adam(&mut plan).tensor_scale = None;
    refused(&plan, &["PL-10", "without its tensor scales, but its format has scales"]);

    let mut plan = fp8_training();
    adam(&mut plan).states.remove(1);
    refused(&plan, &["PL-10", "names the tensor scales of bucket 0, but does not make them of all"]);

    let mut plan = f32_training();
    let other = slot(&plan, Content::first_moment(weight(&plan, "bias")));
    adam(&mut plan).tensor_scale = Some(other);
    refused(&plan, &["PL-10", "names the tensor scales of bucket 0, but does not make them of all"]);

    let mut plan = fp8_training();
    let other = slot(&plan, Content::FaultWord);
    adam(&mut plan).tensor_scale = Some(other);
    refused(&plan, &["declared for other content"]);
}

/// PL-9. Amaxes are packed in the order of the bucket.
#[test]
fn the_amaxes_of_a_bucket_are_taken_by_the_update_of_all_its_weights_in_their_order() {
    let mut plan = nvfp4_training();
    assert!(adam(&mut plan).amaxes.take().is_some());
    refused(&plan, &["PL-9", "(all-reduce of", "needs a bucket's amaxes of this rank"]);

    let says = ["PL-10", "takes amaxes of bucket 0, but not of all its masters in their order"];
    let mut plan = nvfp4_training();
    adam(&mut plan).states.remove(1);
    refused(&plan, &says);
    let mut plan = nvfp4_training();
    adam(&mut plan).states.swap(1, 2);
    refused(&plan, &says);

    let mut plan = fp8_training();
    let norm = weight(&plan, "norm");
    let [block_amax, tensor_amax] =
        [Content::first_moment(norm), Content::second_moment(norm)].map(|content| slot(&plan, content));
    adam(&mut plan).amaxes = Some(AmaxesOperand { block_amax, tensor_amax });
    refused(&plan, &says);

    let mut plan = nvfp4_training();
    let other = slot(&plan, Content::FaultWord);
    let AmaxesOperand { tensor_amax, .. } = adam(&mut plan).amaxes.as_mut().unwrap();
    *tensor_amax = other;
    refused(&plan, &["declared for other content"]);
}
