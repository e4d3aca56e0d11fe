//! PL-2, PL-3 for values that are dequantized from received bytes and the rank's own shard, without an assemble.

use warpweft_base::id::SlotId;
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{Dequantize, DequantizePart, GatherChunk, Op};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError};

use super::edit::{position, recount, refused, relocate, remove, serialize, shard, slot, spread, weight};
use super::programs::policy;

fn is_dequantize(op: &Op) -> bool {
    matches!(op, Op::Dequantize(_))
}

/// Two weights of a shape, rowwise and dense, trained by calls that read them again.
fn program() -> StepProgram {
    let mut model = Model::builder();
    let one = model.sharded("one", 64, 64, Format::NVFP4_2D).unwrap();
    let two = model.sharded("two", 64, 64, Format::NVFP4_2D).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    for (name, weight) in [("first", one), ("second", two)] {
        program.call(name, Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense).add().unwrap();
    }
    for (name, weight) in [("second.backward", two), ("first.backward", one)] {
        let call = program.call(name, Phase::Backward).uses(weight, Orientation::Rowwise, Form::Dense);
        call.gradient(weight).add().unwrap();
    }
    program.build_training().unwrap()
}

fn plan(policy: &Policy) -> StepPlan {
    let mut plan = StepPlan::build(&program(), policy, Mesh::new(4).unwrap()).unwrap();
    assert!(!plan.tasks.iter().any(|task| matches!(task.op, Op::Assemble(_))), "nobody reads planes");
    spread(&mut plan);
    plan
}

/// The first part of the first task that dequantizes a weight.
#[track_caller]
fn part<'plan>(plan: &'plan mut StepPlan, name: &str) -> &'plan mut DequantizePart {
    let wanted = weight(plan, name);
    let task = position(
        plan,
        0,
        |op| matches!(op, Op::Dequantize(Dequantize { parts }) if parts[0].weight == wanted),
    );
    match &mut plan.tasks[task].op {
        Op::Dequantize(Dequantize { parts }) => &mut parts[0],
        other => panic!("a {} dequantizes nothing", other.name()),
    }
}

/// PL-2
#[test]
fn values_of_what_arrived_without_the_rank_s_own_shard_are_refused() {
    let mut plan = plan(&policy());
    assert!(part(&mut plan, "one").own.take().is_some());
    refused(&plan, &["PL-2", "(dequantize of one)", "not yet assembled", "an assemble of `one` is missing"]);
}

/// PL-2
#[test]
fn another_weight_s_shard_beside_what_arrived_is_refused() {
    let mut plan = plan(&policy());
    let other = shard(&plan, "two");
    part(&mut plan, "one").own = Some(other);
    serialize(&mut plan);
    refused(&plan, &["PL-2", "(dequantize of one) needs the whole rowwise shard of `one`"]);
}

/// PL-2
#[test]
fn what_arrived_of_another_weight_beside_the_own_shard_is_refused() {
    let mut plan = plan(&policy());
    let other: SlotId = slot(&plan, Content::Gathered(weight(&plan, "two"), Orientation::Rowwise));
    part(&mut plan, "one").from = other;
    serialize(&mut plan);
    refused(&plan, &["PL-2", "(dequantize of one)", "the other ranks' whole rowwise shards of `one`"]);
}

/// PL-2: of columnwise planes a rank's rows are columns of every row.
#[test]
fn columnwise_values_of_what_arrived_are_refused() {
    let mut model = Model::builder();
    let w = model.sharded("w", 64, 64, Format::Mxfp8).unwrap();
    let mut program = StepProgram::builder("evaluate", &model.build());
    program.call("turned", Phase::Forward).uses(w, Orientation::Columnwise, Form::Dense).add().unwrap();
    let program = program.build_evaluation().unwrap();
    let mut plan = StepPlan::build(&program, &policy(), Mesh::new(4).unwrap()).unwrap();
    spread(&mut plan);
    let assemble = position(&plan, 0, |op| matches!(op, Op::Assemble(_)));
    remove(&mut plan, assemble);
    let own = slot(&plan, Content::Shard(w, Orientation::Columnwise));
    part(&mut plan, "w").own = Some(own);
    serialize(&mut plan);
    refused(&plan, &["PL-2", "(dequantize of w) needs whole columnwise planes of `w`", "do not stand alone"]);
}

/// PL-2
#[test]
fn values_before_their_gather_or_its_last_chunk_are_refused() {
    for (chunk, holds) in [(None, "holds nothing"), (Some(1024), "holds the first")] {
        let mut plan = plan(&Policy { chunk, ..policy() });
        let brings = |op: &Op| matches!(op, Op::AllGather(_) | Op::GatherChunk(_));
        let begins = |op: &Op| matches!(op, Op::GatherChunk(GatherChunk { chunk, .. }) if chunk.begin == 0);
        let first = position(&plan, 0, brings);
        let after = first + usize::from(plan.tasks.iter().any(|task| begins(&task.op)));
        let task = position(&plan, 0, is_dequantize);
        relocate(&mut plan, task, after);
        recount(&mut plan);
        refused(&plan, &["PL-2", "(dequantize of one)", holds, "after the gather, or the last chunk"]);
    }
}

/// PL-2: the optimizer made the own shard a version newer than what arrived.
#[test]
fn an_own_shard_of_another_version_than_what_arrived_is_refused() {
    let mut plan = plan(&policy());
    let again = plan.tasks.iter().rfind(|task| is_dequantize(&task.op)).unwrap().clone();
    plan.tasks.push(again);
    serialize(&mut plan);
    let error = refused(
        &plan,
        &["PL-2", "(dequantize of one)", "at version 1, like this rank's own", "at version 0"],
    );
    assert!(matches!(error, VerifyError::Use { .. }), "{error}");
}

/// PL-2: whole planes hold the own rows, and their scale rows are spread.
#[test]
fn an_own_shard_beside_planes_that_are_whole_is_refused() {
    let mut model = Model::builder();
    let w = model.sharded("w", 64, 64, Format::NVFP4_2D).unwrap();
    let mut program = StepProgram::builder("evaluate", &model.build());
    let call = program.call("both", Phase::Forward).uses(w, Orientation::Rowwise, Form::Planes);
    call.uses(w, Orientation::Rowwise, Form::Dense).add().unwrap();
    let program = program.build_evaluation().unwrap();
    let mut plan = StepPlan::build(&program, &policy(), Mesh::new(4).unwrap()).unwrap();
    spread(&mut plan);
    let own = shard(&plan, "w");
    let given = part(&mut plan, "w");
    assert!(given.own.is_none(), "the call reads the planes");
    given.own = Some(own);
    serialize(&mut plan);
    refused(
        &plan,
        &["PL-2", "(dequantize of w)", "holds the gathered rowwise planes", "whole planes without"],
    );
}

/// PL-3
#[test]
fn values_that_do_not_wait_for_what_arrives_are_a_race() {
    let mut plan = plan(&policy());
    let task = position(&plan, 0, is_dequantize);
    plan.tasks[task].waits.clear();
    let error = refused(&plan, &["PL-3", "(all-gather of", "(dequantize of"]);
    assert!(matches!(error, VerifyError::Race { .. }));
}
