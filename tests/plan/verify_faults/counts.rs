//! PL-10, PL-3, PL-6 for rows with counts: whose counts they are, who reads them, and how long they live.

use warpweft_base::id::SlotId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Collective, Counts, Form, Group, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{CollectiveCall, CountSlots, Op, OperandRole};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::collective_calls::{buffer, collective};
use super::edit::{call, recount, refused, relocate};
use super::programs::policy;

const CAPACITY: usize = 3;

/// Two layers of experts, two for each of 4 ranks in pairs: there, back, and the same in backward.
fn routed() -> StepPlan {
    let mut model = Model::builder();
    let [router, expert] = ["router", "expert"].map(|name| model.sharded(name, 16, 16, Format::F32).unwrap());
    let mut program = StepProgram::builder("experts", &model.build());
    let rows = 4 * CAPACITY * 5;
    // What a layer reads, and the counts that it came with.
    let mut last = vec![program.input("tokens", rows, ElementType::F32).unwrap()];
    let (rowwise, forward, backward) = (Orientation::Rowwise, Phase::Forward, Phase::Backward);
    let mut dispatches = Vec::new();
    for layer in 0..2 {
        let named = |what: &str| format!("{what} {layer}");
        let [sent, brought, made, back] =
            ["sent", "brought", "made", "back"].map(|name| program.activation(&named(name), rows).unwrap());
        let [given, taken] =
            ["given", "taken"].map(|name| program.activation_in(&named(name), 4, ElementType::U32).unwrap());
        let call = program.call(&named("route"), forward).uses(router, rowwise, Form::Dense);
        let call = last.iter().fold(call, |call, buffer| call.reads(*buffer));
        call.writes(sent).writes(given).add().unwrap();
        let counts = Counts::new(given, taken, CAPACITY).filled(50);
        let dispatch = Collective::dispatch(sent, brought, counts).among(Group::Shard);
        program.collective(&named("dispatch"), forward, dispatch).unwrap();
        let call = program.call(&named("expert"), forward).uses(expert, rowwise, Form::Dense);
        call.reads(brought).reads(taken).writes(made).add().unwrap();
        program.collective(&named("combine"), forward, dispatch.back(made, back)).unwrap();
        dispatches.push((dispatch, given, taken));
        last = vec![back, given];
    }
    for (layer, (dispatch, given, taken)) in dispatches.into_iter().enumerate().rev() {
        let named = |what: &str| format!("{what} {layer}");
        let [slope, there, through, here] =
            ["slope", "there", "through", "here"].map(|name| program.activation(&named(name), rows).unwrap());
        let call = program.call(&named("loss"), backward).writes(slope);
        last.iter().fold(call, |call, buffer| call.reads(*buffer)).add().unwrap();
        program.collective(&named("back"), backward, dispatch.again(slope, there)).unwrap();
        let call = program.call(&named("experts"), backward).reads(there).reads(taken).writes(through);
        let call = if layer == 0 { call.gradient(expert) } else { call };
        call.add().unwrap();
        program.collective(&named("home"), backward, dispatch.back(through, here)).unwrap();
        last = vec![here, given];
    }
    let call = program.call("router", backward).gradient(router);
    last.iter().fold(call, |call, buffer| call.reads(*buffer)).add().unwrap();
    StepPlan::build(&program.build_training().unwrap(), &policy(), Mesh::hybrid(4, 2).unwrap()).unwrap()
}

fn counts<'p>(plan: &'p mut StepPlan, name: &str) -> &'p mut CountSlots {
    let task = collective(plan, name);
    let Op::CollectiveCall(CollectiveCall { counts: Some(counts), .. }) = &mut plan.tasks[task].op else {
        unreachable!()
    };
    counts
}

/// Where a buffer is.
fn slot(plan: &StepPlan, name: &str) -> SlotId {
    plan.arena.find(Content::Buffer(buffer(plan, name))).unwrap()
}

/// PL-6, PL-10. At most the capacity of one rank, and its counts where they are not known.
#[test]
fn there_and_back_by_the_counts_of_each_layer_is_accepted() {
    let plan = routed();
    let accesses: usize = plan.calls.iter().map(|call| call.buffers.len()).sum();
    assert_eq!(verify(&plan).unwrap().buffers, accesses);
    let received = ["dispatch 0", "combine 0", "back 0", "home 0"]
        .map(|name| plan.tasks[collective(&plan, name)].wire_bytes);
    let most = 2 * CAPACITY * 5 * 4;
    assert_eq!(received, [most + 2 * 4, most, most, most]);
}

/// PL-10. Buffers of one size, so that nothing but the pair tells layers apart.
#[test]
fn counts_of_another_layer_are_refused() {
    for (name, side) in [("back 0", "given"), ("home 0", "taken"), ("combine 1", "taken")] {
        let mut plan = routed();
        let other = if name.ends_with('0') { 1 } else { 0 };
        let wrong = slot(&plan, &format!("{side} {other}"));
        let counts = counts(&mut plan, name);
        // What goes back gives by what a dispatch has brought.
        counts.given = wrong;
        recount(&mut plan);
        let error = refused(&plan, &["PL-10", &format!("collective call of {name}"), "needs buffer `"]);
        assert!(matches!(error, VerifyError::Program { .. }), "{error}");
    }
}

/// PL-10. Where the declaration is of another layer too, the pair gives it away.
#[test]
fn a_follower_of_no_dispatch_is_refused() {
    let mut plan = routed();
    let theirs = (buffer(&plan, "given 1"), slot(&plan, "given 1"));
    let task = collective(&plan, "back 0");
    let id = plan.tasks[task].op.call().unwrap();
    let counts = counts(&mut plan, "back 0");
    (counts.declared.given, counts.given) = theirs;
    let mixed = *counts;
    plan.calls[id.index()].collective.as_mut().unwrap().counts = Some(mixed.declared);
    recount(&mut plan);
    refused(&plan, &["PL-10", "goes by `given 1` and `taken 0`, which are not the counts of one dispatch"]);
}

/// PL-10
#[test]
fn rows_that_move_by_no_counts_or_by_others_than_declared_are_refused() {
    let says = ["PL-10", "moves rows by other counts than `dispatch 0` declares"];
    let mut plan = routed();
    counts(&mut plan, "dispatch 0").declared.capacity += 1;
    refused(&plan, &says);
    let mut plan = routed();
    counts(&mut plan, "dispatch 0").declared.known = true;
    recount(&mut plan);
    refused(&plan, &says);
    let mut plan = routed();
    let task = collective(&plan, "dispatch 0");
    let Op::CollectiveCall(CollectiveCall { counts, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *counts = None;
    plan.tasks[task].wire_bytes -= 8;
    plan.bounds.wire_bytes -= 8;
    recount(&mut plan);
    refused(&plan, &says);
}

/// PL-10. A read beyond the count.
#[test]
fn a_closure_that_reads_rows_without_their_counts_is_refused() {
    let mut plan = routed();
    let reader = call(&plan, "expert 1");
    let taken = buffer(&plan, "taken 1");
    let Op::Compute(op) = &mut plan.tasks[reader].op else { unreachable!() };
    op.operands.retain(|operand| operand.role != OperandRole::Buffer(taken));
    let id = op.call;
    plan.calls[id.index()].buffers.retain(|access| access.buffer != taken);
    recount(&mut plan);
    refused(&plan, &["PL-10", "reads rows `brought 1` without the counts `taken 1` that they came with"]);
}

/// PL-10. Counts live until backward.
#[test]
fn counts_that_are_overwritten_before_backward_are_refused() {
    let mut plan = routed();
    let (first, second) = (slot(&plan, "taken 0"), slot(&plan, "taken 1"));
    plan.arena.slots[second.index()].region = plan.arena.region(first);
    recount(&mut plan);
    let says = "task 11 (collective call of dispatch 1) overwrote it through slot `taken 1`";
    refused(&plan, &["PL-10", "needs buffer `taken 0` as call `dispatch 0` wrote it", says]);
    let mut plan = routed();
    let (early, reader) = (collective(&plan, "back 0"), collective(&plan, "home 1"));
    relocate(&mut plan, early, reader);
    refused(&plan, &["PL-10", "runs call `back 0` when call `home 1` is next in program order"]);
}
