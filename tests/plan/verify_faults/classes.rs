//! Classes of faults that need a program or an edit of their own; `main` lists all of them.

use warpweft_base::id::{GroupId, SlotId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::{Content, WeightLayout, Weights};
use warpweft_plan::model::{Form, Mesh, Model, NonNegative, Phase, Placement, Reuse, StepProgram};
use warpweft_plan::op::{Compute, Dequantize, Op};
use warpweft_plan::plan::{PlanError, Policy, ResidentLayout, StepPlan, VerifyError, verify};
use warpweft_plan::policy::Backward;

use super::edit::{call, refused, serialize, spread, weight};
use super::programs::{all, evaluation, nvfp4_training, policy};

use Orientation::{Columnwise as Cols, Rowwise as Rows};

/// Two blocks whose activations are recomputed in backward: each forward call runs twice, with a gather
/// of its own each time.
fn recompute() -> StepPlan {
    let mut model = Model::builder();
    let blocks: Vec<_> = (0..2)
        .map(|block| model.sharded(&format!("block.{block}"), 64, 64, Format::Mxfp8).unwrap())
        .collect();
    let model = model.build();
    let mut program = StepProgram::builder("recompute", &model);
    let tokens = program.input("tokens", 64, warpweft_format::ElementType::F32).unwrap();
    let hidden = program.activation("hidden", 64).unwrap();
    let error = program.activation("error", 64).unwrap();
    program.call("embed", Phase::Forward).reads(tokens).writes(hidden).writes(error).add().unwrap();
    for (number, block) in blocks.iter().enumerate() {
        let call = program.call(&format!("forward.{number}"), Phase::Forward);
        call.uses(*block, Rows, Form::Planes).updates(hidden).add().unwrap();
    }
    for (number, block) in blocks.iter().enumerate().rev() {
        let again = program.call(&format!("forward.{number} again"), Phase::Backward);
        again.uses(*block, Rows, Form::Planes).updates(hidden).add().unwrap();
        let call =
            program.call(&format!("backward.{number}"), Phase::Backward).uses(*block, Cols, Form::Planes);
        call.reads(hidden).updates(error).gradient(*block).add().unwrap();
    }
    let policy = Policy { backward: Backward::Regather, ..policy() };
    StepPlan::build(&program.build_training().unwrap(), &policy, Mesh::new(2).unwrap()).unwrap()
}

/// The slot that the only use of a call reads.
fn gathered_for(plan: &StepPlan, name: &str) -> SlotId {
    let Op::Compute(Compute { operands, .. }) = &plan.tasks[call(plan, name)].op else { unreachable!() };
    operands[0].slot
}

/// PL-2, PL-3. *Recompute gathers on one address*: the gather of a recomputed forward and the one after it,
/// which is on its way while the recomputed call still reads.
#[test]
fn recompute_gathers_on_one_address_are_refused() {
    let mut plan = recompute();
    spread(&mut plan);
    let (again, after) = (gathered_for(&plan, "forward.0 again"), gathered_for(&plan, "backward.0"));
    assert_ne!(again, after, "the recomputed call has a gather of its own");
    plan.arena.slots[after.index()].region.offset = plan.arena.region(again).offset;
    let error =
        refused(&plan, &["PL-3", "block.0", "which shares bytes", "give their slots bytes of their own"]);
    assert!(matches!(error, VerifyError::Race { .. }));
    // With every fence in place the reader still finds its neighbour's planes.
    serialize(&mut plan);
    refused(
        &plan,
        &[
            "PL-2",
            "(assemble of block.0)",
            "of `block.0` at version 0",
            "holds nothing any more",
            "(all-gather of block.0)",
        ],
    );
}

/// PL-3. *Buffer freed for a stream that still uses it*: bytes are given to the next tenant after their last
/// user in T, and nothing makes the tenant's lane wait for the user's.
#[test]
fn a_buffer_freed_for_a_stream_that_still_uses_it_is_refused() {
    let mut seeded = 0;
    for (_, plan) in all() {
        for (task, found) in plan.tasks.iter().enumerate() {
            for wait in 0..found.waits.len() {
                let mut plan = plan.clone();
                plan.tasks[task].waits.remove(wait);
                let Err(error) = verify(&plan) else { continue };
                let VerifyError::Race { second_access, second_slot, .. } = &*error else { continue };
                if second_access != "writes" || !second_slot.contains("which shares bytes") {
                    continue;
                }
                let text = error.to_string();
                assert!(text.contains("nothing makes task"), "{text}");
                seeded += 1;
            }
        }
    }
    assert!(seeded > 2, "{seeded}");
}

/// PL-2, PL-6. *Format silently falling back to BF16*: whoever lays the weight out, gathers it or dequantizes it.
#[test]
fn a_format_that_silently_falls_back_to_bf16_is_refused() {
    // The layout says BF16 where the program declared NVFP4: slots and ops are those of another format.
    let mut plan = nvfp4_training();
    let block = weight(&plan, "block.0").index();
    plan.weights.layouts[block].format = Format::Bf16;
    refused(
        &plan,
        &[
            "malformed plan: `block.0` names the format bf16",
            "is quantized as nvfp4_2d",
            "read in another format than they are written in",
        ],
    );
    let bucket = plan.weights.layouts[block].bucket;
    for layout in plan.weights.layouts.iter_mut().filter(|layout| layout.bucket == bucket) {
        layout.format = Format::Bf16;
    }
    plan.weights.buckets[bucket.index()].format = Format::Bf16;
    refused(&plan, &["PL-6", "but its content (`embedding` in bf16) takes", "in other slots"]);
    // The same before there is a plan: the program's own formats are the measure.
    let mut model = Model::builder();
    let declared = model.sharded("block", 64, 64, Format::NVFP4_2D).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("fallback", &model);
    program.call("run", Phase::Forward).uses(declared, Rows, Form::Planes).add().unwrap();
    let program = program.build_evaluation().unwrap();
    let mut weights = Weights::new(model.weights(), Mesh::new(2).unwrap());
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    weights.layouts[0].format = Format::Bf16;
    let error = StepPlan::within(&program, &weights, &resident, &policy()).unwrap_err();
    assert!(matches!(error, PlanError::OtherModel { .. }), "{error}");
    // Whatever else of the declaration is not the session's.
    type Change = fn(&mut WeightLayout);
    let changes: [(Change, &str); 7] = [
        (|layout| layout.name = "other".to_owned(), "it has `block` where the session has `other`"),
        (|layout| layout.format = Format::F32, "`block` has format nvfp4_2d there, and f32 in the session"),
        (
            |layout| layout.placement = Placement::Replicated,
            "`block` has placement Sharded there, and Replicated",
        ),
        (|layout| layout.frozen = true, "`block` has another choice whether it is frozen"),
        (|layout| layout.reuse = Some(Reuse::Keep), "`block` has another reuse"),
        (|layout| layout.group = Some(GroupId::new(0)), "`block` has another group"),
        (
            |layout| layout.parameters.weight_decay = NonNegative::new(0.5),
            "`block` has another parameter group",
        ),
    ];
    for (change, words) in changes {
        let mut weights = Weights::new(model.weights(), Mesh::new(2).unwrap());
        assert!(StepPlan::within(&program, &weights, &resident, &policy()).is_ok());
        change(&mut weights.layouts[0]);
        let error = StepPlan::within(&program, &weights, &resident, &policy()).unwrap_err();
        assert!(matches!(error, PlanError::OtherModel { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let more = Weights::new(&[model.weights(), model.weights()].concat(), Mesh::new(2).unwrap());
    let error = StepPlan::within(&program, &more, &resident, &policy()).unwrap_err().to_string();
    assert!(error.contains("it has no `block`"), "{error}");
    // A call that declared quantized planes gets bf16 values.
    let mut plan = evaluation();
    spread(&mut plan);
    let planes = weight(&plan, "block.0");
    let dequantize = plan.tasks.iter().position(|task| matches!(task.op, Op::Dequantize(_))).unwrap();
    let Op::Dequantize(Dequantize { parts }) = &mut plan.tasks[dequantize].op else { unreachable!() };
    parts[0].values = warpweft_format::ElementType::Bf16;
    let (of, slot) = (parts[0].weight, parts[0].to);
    plan.arena.slots[slot.index()].content = Content::Dense(of, Rows, warpweft_format::ElementType::Bf16);
    assert_ne!(of, planes);
    refused(
        &plan,
        &[
            "PL-2",
            "dense f32 values of `embedding`",
            "dense bf16 rowwise values of `embedding`",
            "gather this weight",
        ],
    );
}
