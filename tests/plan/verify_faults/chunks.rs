//! PL-2 for gathers that are cut into chunks.

use warpweft_format::{Format, Orientation};
use warpweft_plan::model::{Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{Assemble, Chunk, GatherChunk, Op};
use warpweft_plan::plan::{Policy, StepPlan, VerifyError, verify};

use super::edit::{position, recount, refused, remove, serialize, shard, spread};
use super::groups::experts;
use super::programs::policy;

/// Every gather in chunks of a kilobyte of all four ranks.
fn plan() -> StepPlan {
    let policy = Policy { chunk: Some(1024), ..policy() };
    StepPlan::build(&experts(Format::NVFP4_2D, None), &policy, Mesh::new(4).unwrap()).unwrap()
}

fn is_chunk(op: &Op) -> bool {
    matches!(op, Op::GatherChunk(_))
}

fn chunk(plan: &mut StepPlan, position: usize) -> &mut Chunk {
    match &mut plan.tasks[position].op {
        Op::GatherChunk(GatherChunk { chunk, .. }) => chunk,
        other => panic!("a {} is no chunk", other.name()),
    }
}

#[test]
fn chunks_carry_the_bytes_of_a_whole_gather_and_prove_as_much() {
    let whole = StepPlan::build(&experts(Format::NVFP4_2D, None), &policy(), Mesh::new(4).unwrap()).unwrap();
    let cut = plan();
    assert!(cut.tasks.iter().filter(|task| is_chunk(&task.op)).count() > 12);
    assert_eq!(cut.bounds.wire_bytes, whole.bounds.wire_bytes);
    assert_eq!(verify(&cut).unwrap().uses, verify(&whole).unwrap().uses);
}

/// PL-2
#[test]
fn a_missing_chunk_is_found_by_the_next_one_and_a_missing_last_one_by_the_reader() {
    for nth in 0..3 {
        let mut plan = plan();
        spread(&mut plan);
        let missing = position(&plan, nth, is_chunk);
        let is_last = !is_chunk(&plan.tasks[missing + 1].op) || chunk(&mut plan, missing + 1).begin == 0;
        remove(&mut plan, missing);
        recount(&mut plan);
        let says = if is_last { "of every other rank's rowwise shard" } else { "bytes 0.." };
        assert!(matches!(refused(&plan, &["PL-2", says]), VerifyError::Use { .. }));
    }
}

/// PL-2
#[test]
fn chunks_that_overlap_or_leave_a_gap_are_refused() {
    for shifted in [-64isize, 64] {
        let mut plan = plan();
        let second = position(
            &plan,
            0,
            |op| matches!(op, Op::GatherChunk(GatherChunk { chunk, .. }) if chunk.begin > 0),
        );
        let found = chunk(&mut plan, second);
        found.begin = found.begin.checked_add_signed(shifted).unwrap();
        plan.tasks[second].wire_bytes =
            plan.tasks[second].wire_bytes.checked_add_signed(-3 * shifted).unwrap();
        plan.bounds.wire_bytes = plan.bounds.wire_bytes.checked_add_signed(-3 * shifted).unwrap();
        let error = refused(&plan, &["PL-2", "in the order of their bytes"]);
        assert!(matches!(error, VerifyError::Use { .. }));
    }
}

/// PL-2
#[test]
fn a_chunk_of_another_weight_s_shard_is_refused() {
    let mut plan = plan();
    let other = shard(&plan, "after");
    let second =
        position(&plan, 0, |op| matches!(op, Op::GatherChunk(GatherChunk { chunk, .. }) if chunk.begin > 0));
    let Op::GatherChunk(GatherChunk { part, .. }) = &mut plan.tasks[second].op else { unreachable!() };
    part.from = other;
    refused(&plan, &["PL-2", "needs the whole rowwise shard of `before`"]);
}

/// PL-2: the last chunk sends what the optimizer made of the shard meanwhile.
#[test]
fn a_chunk_of_another_version_is_refused() {
    let mut plan = plan();
    spread(&mut plan);
    let last =
        position(&plan, 0, |op| matches!(op, Op::GatherChunk(GatherChunk { chunk, .. }) if chunk.begin > 0));
    let moved = plan.tasks.remove(last);
    plan.tasks.push(moved);
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-2", "rowwise shard of `before`"]);
}

/// PL-2
#[test]
fn planes_that_are_assembled_before_their_last_chunk_are_refused() {
    let mut plan = plan();
    spread(&mut plan);
    let assemble = position(&plan, 0, |op| matches!(op, Op::Assemble(_)));
    let Op::Assemble(Assemble { parts }) = &plan.tasks[assemble].op else { unreachable!() };
    let to = parts[0].to;
    let is_its_own = |op: &Op| matches!(op, Op::GatherChunk(GatherChunk { part, .. }) if part.to == to);
    let last = plan.tasks.iter().rposition(|task| is_its_own(&task.op)).unwrap();
    let moved = plan.tasks.remove(last);
    plan.tasks.insert(assemble, moved);
    serialize(&mut plan);
    recount(&mut plan);
    let says =
        ["PL-2", "(assemble of expert0)", "holds the first", "after their gather or the last chunk of one"];
    refused(&plan, &says);
}

/// A limit of one byte, on 16 MiB of a rank: without a bound of its own that would be 65,536 tasks.
#[test]
fn a_size_whose_unit_was_forgotten_makes_no_plan_of_thousands_of_chunks() {
    let mut model = Model::builder();
    let head = model.sharded("head", 16 << 10, 1 << 10, Format::F32).unwrap();
    let mut program = StepProgram::builder("evaluate", &model.build());
    program.call("head", Phase::Forward).uses(head, Orientation::Rowwise, Form::Dense).add().unwrap();
    let policy = Policy { chunk: Some(1), ..policy() };
    let plan = StepPlan::build(&program.build_evaluation().unwrap(), &policy, Mesh::new(4).unwrap()).unwrap();
    assert_eq!(plan.tasks.iter().filter(|task| is_chunk(&task.op)).count(), 256);
}
