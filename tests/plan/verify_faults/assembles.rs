//! PL-2, PL-3, PL-5 for the assemble of gathered planes.

use warpweft_base::id::{LaneId, SlotId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::{Content, LaneKind};
use warpweft_plan::model::Mesh;
use warpweft_plan::op::{Assemble, GatherPart, Op};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{position, refused, relocate, remove, repeat, serialize, shard, slot, spread, weight};
use super::groups::experts;
use super::programs::{all, nvfp4_training, policy, quantize_then_evaluate, replicated_training};

fn is_assemble(op: &Op) -> bool {
    matches!(op, Op::Assemble(_))
}

/// The first assemble of a weight.
#[track_caller]
fn assemble(plan: &StepPlan, name: &str) -> usize {
    let wanted = weight(plan, name);
    position(plan, 0, |op| matches!(op, Op::Assemble(Assemble { parts }) if parts[0].weight == wanted))
}

#[track_caller]
fn parts(plan: &mut StepPlan, position: usize) -> &mut Vec<GatherPart> {
    match &mut plan.tasks[position].op {
        Op::Assemble(Assemble { parts }) => parts,
        other => panic!("a {} is no assemble", other.name()),
    }
}

/// PL-2
#[test]
fn every_assemble_is_missed_by_its_reader_which_names_weight_gather_and_what_to_do() {
    let mut dropped = 0;
    for (name, plan) in all().into_iter().chain([("replicas", replicated_training())]) {
        let assembles: Vec<usize> =
            (0..plan.tasks.len()).filter(|task| is_assemble(&plan.tasks[*task].op)).collect();
        for task in assembles {
            let mut plan = plan.clone();
            let lacks = parts(&mut plan, task)[0].weight;
            let lacks = plan.weights.layout(lacks).name.clone();
            remove(&mut plan, task);
            let missing = format!("an assemble of `{lacks}` is missing");
            let error = refused(&plan, &["PL-2", "not yet assembled", "(all-gather", &missing]);
            assert!(matches!(error, VerifyError::Use { .. }), "{name}: {error}");
            dropped += 1;
        }
    }
    assert!(dropped > 15, "{dropped}");
}

/// PL-2
#[test]
fn an_assemble_before_its_gather_is_refused() {
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let (task, gather) =
        (assemble(&plan, "block.0"), position(&plan, 0, |op| matches!(op, Op::AllGather(_))));
    relocate(&mut plan, task, gather);
    refused(
        &plan,
        &[
            "PL-2",
            "(assemble of block.0) needs the other ranks' whole rowwise shards of `block.0`",
            "holds nothing",
        ],
    );
}

/// PL-2. The rank's own part is a step ahead of the others'.
#[test]
fn an_assemble_of_another_version_than_its_gather_is_refused() {
    let mut plan = quantize_then_evaluate();
    spread(&mut plan);
    let gather = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    relocate(&mut plan, gather, 0);
    refused(
        &plan,
        &["PL-2", "(assemble of", "at version 1, like this rank's own", "at version 0, not yet assembled"],
    );
}

/// PL-2. Data of one version beside scales of another.
#[test]
fn an_assemble_between_scale_and_cast_takes_a_torn_shard() {
    let mut plan = quantize_then_evaluate();
    spread(&mut plan);
    let gather = position(&plan, 0, |op| matches!(op, Op::AllGather(_)));
    relocate(&mut plan, gather, 0);
    let (task, cast) =
        (position(&plan, 0, is_assemble), position(&plan, 0, |op| matches!(op, Op::PartialCast(_))));
    relocate(&mut plan, task, cast);
    refused(&plan, &["PL-2", "(assemble of", "with data at version 0 and scales at version 1"]);
}

/// PL-2
#[test]
fn an_assemble_with_another_weight_s_shard_or_into_another_weight_s_planes_is_refused() {
    let mut plan = nvfp4_training();
    let (task, other) = (assemble(&plan, "block.0"), shard(&plan, "block.1"));
    parts(&mut plan, task)[0].from = other;
    refused(&plan, &["PL-2", "(assemble of block.0) needs the whole rowwise shard of `block.0`"]);

    let mut plan = nvfp4_training();
    spread(&mut plan);
    let other: SlotId = slot(&plan, Content::Gathered(weight(&plan, "block.1"), Orientation::Rowwise));
    let task = assemble(&plan, "block.0");
    parts(&mut plan, task)[0].to = other;
    serialize(&mut plan);
    refused(&plan, &["PL-2", "(assemble of block.0)", "whole rowwise shards of `block.0`"]);

    let mut plan = nvfp4_training();
    let (task, named) = (assemble(&plan, "block.0"), weight(&plan, "block.1"));
    parts(&mut plan, task)[0].weight = named;
    refused(&plan, &["PL-2", "(assemble of block.0) needs the whole rowwise shard of `block.1`"]);
}

/// PL-2. Scale rows that are spread already would be taken for those that travelled.
#[test]
fn planes_are_assembled_once() {
    let mut plan = nvfp4_training();
    let task = assemble(&plan, "block.0");
    repeat(&mut plan, task);
    refused(
        &plan,
        &["PL-2", "(assemble of block.0)", "holds the gathered rowwise planes", "assemble planes once"],
    );
}

/// PL-2
#[test]
fn a_member_left_out_of_its_group_s_assemble_is_missed() {
    let mut plan = StepPlan::build(&experts(Format::F32, Some(4)), &policy(), Mesh::new(4).unwrap()).unwrap();
    let whole = |op: &Op| matches!(op, Op::Assemble(Assemble { parts }) if parts.len() > 1);
    let gathers = plan.tasks.iter().filter(|task| task.op.is_gather()).count();
    assert_eq!(
        plan.tasks.iter().filter(|task| is_assemble(&task.op)).count(),
        gathers,
        "one for each gather"
    );
    spread(&mut plan);
    let task = position(&plan, 0, whole);
    parts(&mut plan, task).remove(1);
    serialize(&mut plan);
    refused(&plan, &["PL-2", "an assemble of `expert1` is missing"]);
}

/// PL-3. The rows of others come, and the own ones go where they are, at the same time.
#[test]
fn an_assemble_that_does_not_wait_for_its_gather_is_a_race() {
    let mut plan = nvfp4_training();
    let task = position(&plan, 0, is_assemble);
    plan.tasks[task].waits.clear();
    let error = refused(&plan, &["PL-3", "(all-gather of", "(assemble of"]);
    assert!(matches!(error, VerifyError::Race { .. }));
}

/// PL-5. On a communicator's lane it would wait for a multiprocessor and hold up the collectives after it.
#[test]
fn an_assemble_on_a_communicator_is_refused() {
    let mut plan = nvfp4_training();
    let is_communicator = |kind| matches!(kind, LaneKind::Communicator(_));
    let link = plan.lanes.iter().find(|lane| is_communicator(lane.kind)).unwrap().id;
    let task = position(&plan, 0, is_assemble);
    assert_ne!(plan.tasks[task].lane, link);
    plan.tasks[task].lane = link;
    let error = refused(
        &plan,
        &["PL-5", "(assemble of", "runs on the communicator", "only collectives on a communicator"],
    );
    assert!(matches!(error, VerifyError::Order { .. }));
    // Every other lane will do.
    for lane in [0, 1].map(LaneId::new) {
        let mut plan = nvfp4_training();
        spread(&mut plan);
        plan.tasks[task].lane = lane;
        serialize(&mut plan);
        super::edit::recount(&mut plan);
        warpweft_plan::plan::verify(&plan).unwrap();
    }
}

#[test]
fn an_assemble_of_nothing_is_refused() {
    let mut plan = nvfp4_training();
    let task = position(&plan, 0, is_assemble);
    parts(&mut plan, task).clear();
    refused(&plan, &["malformed plan: ", "(assemble of", "names no weight", "at least one"]);
}
