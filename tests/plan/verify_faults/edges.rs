//! PL-9: the exit state, one version on, for everything that stays.

use std::collections::BTreeSet;

use warpweft_base::id::Version;
use warpweft_format::Orientation;
use warpweft_plan::layout::{Content, Residency, Slot};
use warpweft_plan::model::Lifetime;
use warpweft_plan::op::{
    Adam, AllReduce, FusedScale, MasterOperand, Op, PartialAmax, PartialCast, Reduction,
};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{position, refused, relocate, remove, repeat, serialize, slot, spread, twin, weight};
use super::programs::{
    all, evaluation, f32_training, mxfp8_training, nvfp4_training, prologue, quantize_then_evaluate,
    split_training,
};

fn quantizing(plan: &StepPlan, name: &str) -> usize {
    position(plan, 0, |op| op.name() == name)
}

/// PL-9
#[test]
fn a_wrong_exit_state_is_refused() {
    let wrong: [(StepPlan, Option<Version>); 4] = [
        (f32_training(), Some(Version::new(0))),
        (nvfp4_training(), None),
        (evaluation(), Some(Version::new(1))),
        (prologue(), None),
    ];
    for (mut plan, shards) in wrong {
        plan.exit.shards = shards;
        let error = refused(&plan, &["PL-9", "to declare masters at", "ends one version on"]);
        assert!(matches!(error, VerifyError::Edge { .. }));
    }
    let mut plan = nvfp4_training();
    plan.exit.masters = plan.entry.masters;
    refused(
        &plan,
        &["PL-9 (", "): plan `train` needs to declare masters at version 1 and shards at version 1"],
    );
}

/// PL-9. An evaluation must not move the weights.
#[test]
fn a_step_that_claims_to_leave_the_weights_alone_must() {
    let mut plan = f32_training();
    plan.updates_weights = false;
    plan.exit = plan.entry;
    let error = refused(&plan, &[]);
    assert!(matches!(error, VerifyError::Edge { .. } | VerifyError::LostGradient { .. }), "{error}");
}

/// PL-9
#[test]
fn a_weight_that_adam_skips_stays_a_version_behind() {
    let mut plan = mxfp8_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[adam].op else { unreachable!() };
    states.remove(1);
    refused(
        &plan,
        &["PL-9", "needs the master of `block.0` at version 1, like its bucket's others", "at version 0"],
    );
    // Without a cast after it, the edge itself finds out: the replicated bias has none.
    let mut plan = f32_training();
    let adam = position(&plan, 1, |op| matches!(op, Op::Adam(_)));
    remove(&mut plan, adam);
    refused(
        &plan,
        &[
            "PL-9 (",
            "): the end of plan `train`",
            "needs the master of `bias` at version 1",
            "holds the master of `bias` at version 0",
        ],
    );
}

/// PL-9
#[test]
fn a_weight_that_adam_updates_twice_is_refused() {
    let mut plan = f32_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    repeat(&mut plan, adam);
    refused(&plan, &["PL-9", "needs the master of `up` at version 0", "at version 1", "once a step"]);
}

/// PL-9. Where a shard is half of its master, Adam is what brings it on.
#[test]
fn a_split_master_that_adam_skips_leaves_its_shard_a_version_behind() {
    let mut plan = split_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[adam].op else { unreachable!() };
    states.remove(1);
    refused(
        &plan,
        &["PL-9 (", "): the end of plan `train`", "`block.0` at version 1", "`block.0` at version 0"],
    );
}

/// PL-9. Two halves of one master belong together.
#[test]
fn halves_of_two_masters_are_refused() {
    let mut plan = split_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    let halves =
        ["block.0", "block.1"].map(|name| slot(&plan, Content::MasterRemainder(weight(&plan, name))));
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[adam].op else { unreachable!() };
    for (state, other) in states[1..].iter_mut().zip(halves.into_iter().rev()) {
        let MasterOperand::Split { remainder, .. } = &mut state.master else { unreachable!() };
        *remainder = other;
    }
    refused(
        &plan,
        &[
            "PL-9",
            "needs the master remainder of `block.0` at version 0",
            "holds the master remainder of `block.1`",
        ],
    );
}

/// PL-9. A half is not a master.
#[test]
fn a_shard_is_not_updated_as_a_whole_master() {
    let mut plan = split_training();
    let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[adam].op else { unreachable!() };
    let MasterOperand::Split { shard, .. } = states[0].master else { unreachable!() };
    states[0].master = MasterOperand::Whole(shard);
    refused(&plan, &["PL-9", "needs the master of `embedding` at version 0", "holds the rowwise shard"]);
}

/// PL-4, PL-9. A weight under another bucket's Adam.
#[test]
fn adam_updates_the_weights_of_its_own_bucket() {
    let mut plan = f32_training();
    let (sharded, replicated) = (
        position(&plan, 0, |op| matches!(op, Op::Adam(_))),
        position(&plan, 1, |op| matches!(op, Op::Adam(_))),
    );
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[replicated].op else { unreachable!() };
    let moved = states.remove(0);
    let Op::Adam(Adam { states, .. }) = &mut plan.tasks[sharded].op else { unreachable!() };
    states.push(moved);
    refused(&plan, &["updates `bias`, which is not of bucket 0"]);
}

/// PL-9
#[test]
fn every_lost_step_of_the_quantize_chain_is_missed() {
    // The update takes the amaxes of the first one.
    for (plan, first) in
        [(nvfp4_training(), 1), (mxfp8_training(), 0), (prologue(), 0), (quantize_then_evaluate(), 0)]
    {
        for lost in &["partial amax", "fused scale", "partial cast"][first..] {
            let mut plan = plan.clone();
            let task = quantizing(&plan, lost);
            remove(&mut plan, task);
            let error = refused(&plan, &[]);
            let torn = matches!(error, VerifyError::Use { .. }) && plan.name == "eval";
            assert!(torn || matches!(error, VerifyError::Edge { .. }), "without {lost}: {error}");
        }
    }
}

/// PL-9. NVFP4's scales hang on the amax of the whole tensor.
#[test]
fn the_scales_need_the_maximum_over_all_ranks() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let maxima =
        position(&plan, 0, |op| matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, .. })));
    let Op::AllReduce(AllReduce { pairs, .. }) = plan.tasks[maxima].op.clone() else { unreachable!() };
    let scale = quantizing(&plan, "fused scale");
    let Op::FusedScale(FusedScale { tensor_amax, .. }) = &mut plan.tasks[scale].op else { unreachable!() };
    *tensor_amax = pairs[0].0;
    remove(&mut plan, maxima);
    refused(
        &plan,
        &[
            "PL-9",
            "(fused scale of",
            "needs the amaxes of bucket 0 over all ranks",
            "holds this rank's amaxes",
        ],
    );
}

/// PL-9. MXFP8 stores both orientations; a cast of one leaves the other behind.
#[test]
fn a_stored_orientation_that_the_cast_forgets_stays_a_version_behind() {
    let mut plan = mxfp8_training();
    let cast = quantizing(&plan, "partial cast");
    let Op::PartialCast(PartialCast { shards, .. }) = &mut plan.tasks[cast].op else { unreachable!() };
    let forgotten = shards.iter().position(|shard| shard.orientation == Orientation::Columnwise).unwrap();
    shards.remove(forgotten);
    refused(
        &plan,
        &[
            "PL-9 (",
            "): the end of plan",
            "the columnwise shard of `embedding`",
            "with data at version 0 and scales at version 1",
        ],
    );
}

/// PL-9
#[test]
fn quantizing_before_the_optimizer_leaves_old_shards() {
    let mut plan = mxfp8_training();
    // All of the chain without its vote, moved in front of AdamW.
    for name in ["partial amax", "fused scale", "partial cast"] {
        let adam = position(&plan, 0, |op| matches!(op, Op::Adam(_)));
        let last = plan.tasks.iter().rposition(|task| task.op.name() == name).unwrap();
        relocate(&mut plan, last, adam);
    }
    for task in &mut plan.tasks {
        match &mut task.op {
            Op::PartialAmax(PartialAmax { vote, .. })
            | Op::FusedScale(FusedScale { vote, .. })
            | Op::PartialCast(PartialCast { vote, .. }) => *vote = None,
            _ => {}
        }
    }
    serialize(&mut plan);
    refused(&plan, &["PL-9 (", "): the end of plan `train`", "shards at version 1", "at version 0"]);
}

/// PL-9, PL-10. A cast that ignores the vote would publish weights the optimizer did not make.
#[test]
fn quantizing_after_the_optimizer_must_obey_the_vote() {
    for name in ["partial amax", "fused scale", "partial cast"] {
        let mut plan = mxfp8_training();
        let task = quantizing(&plan, name);
        match &mut plan.tasks[task].op {
            Op::PartialAmax(PartialAmax { vote, .. })
            | Op::FusedScale(FusedScale { vote, .. })
            | Op::PartialCast(PartialCast { vote, .. }) => *vote = None,
            _ => unreachable!(),
        }
        serialize(&mut plan);
        refused(&plan, &["PL-10", name, "stand only after a clean vote"]);
    }
}

/// PL-9
#[test]
fn a_plan_must_have_a_slot_for_everything_that_stays() {
    let mut plan = evaluation();
    let state = slot(&plan, Content::first_moment(weight(&plan, "norm")));
    plan.arena.slots[state.index()].content = Content::NormRecord;
    refused(
        &plan,
        &["PL-9 (", "): plan `eval` needs a resident slot for the first moment of `norm`, but has none"],
    );
}

/// PL-9. The session, closures and later steps find these by their content alone.
#[test]
fn what_is_looked_for_by_its_content_has_one_slot_that_stays() {
    let mut kinds = BTreeSet::new();
    for (name, valid) in all() {
        let looked_for: Vec<_> =
            (valid.arena.entries()).filter_map(|(id, slot)| Some((id, kind(&valid, slot)?))).collect();
        for (id, kind) in looked_for {
            kinds.insert(kind);
            let mut plan = valid.clone();
            twin(&mut plan, id);
            refused(&plan, &["PL-9", "one slot for", "has 2 of them, 1 transient"]);
            let mut plan = valid.clone();
            plan.arena.slots[id.index()].residency = Residency::Transient;
            assert!(verify(&plan).is_err(), "{name}: {kind} in passing");
        }
    }
    assert_eq!(kinds.len(), 7, "{kinds:?}");
}

fn kind(plan: &StepPlan, slot: &Slot) -> Option<&'static str> {
    match slot.content {
        Content::FaultWord => Some("fault word"),
        Content::OptimizerStep => Some("optimizer step"),
        Content::Hyperparameters | Content::LossScale => Some("what the user says"),
        Content::GradientScale => Some("gradient scale"),
        Content::TensorScale(_) => Some("tensor scales"),
        Content::Staging(..) => Some("staging"),
        Content::Buffer(buffer) if plan.buffers[buffer.index()].lifetime == Lifetime::Carried => {
            Some("carried")
        }
        _ => None,
    }
}
