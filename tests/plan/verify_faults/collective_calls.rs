//! PL-10, PL-6 and PL-3 for collectives of buffers between calls: their order, their groups, and their fences.

use warpweft_base::id::{BufferId, CallId, EventId, TaskId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Collective, CollectiveKind, Form, Group, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{CollectiveCall, Compute, Op, Operand, OperandRole};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};
use warpweft_testing::plan_books::restate_what_is_received;

use super::edit::{call, position, recount, refused, relocate, remove, repeat, serialize, slot};
use super::programs::policy;

use CollectiveKind::{AllGather, AllToAll, Max, ReduceScatter, Sum};

/// All kinds, on 2 shards × 2 replicas: rows go to the experts' ranks and back, what is summed over a replica is
/// gathered from both, and the worst loss comes after the last closure.
pub(crate) fn exchanging_training() -> StepPlan {
    planned(Mesh::hybrid(4, 2).unwrap())
}

fn planned(mesh: Mesh) -> StepPlan {
    let mut model = Model::builder();
    let [router, expert] = ["router", "expert"].map(|name| model.sharded(name, 16, 16, Format::F32).unwrap());
    let mut program = StepProgram::builder("collective", &model.build());
    let tokens = program.input("tokens", 32, ElementType::F32).unwrap();
    let names = ["given", "routed", "made", "back", "sum"];
    let [given, routed, made, back, sum] = names.map(|name| program.activation(name, 32).unwrap());
    let all = program.activation("all", 32 * mesh.replicas() as usize).unwrap();
    let loss = program.activation("loss", 1).unwrap();
    let worst = program.output("worst", 1, ElementType::F32).unwrap();
    let (rowwise, forward) = (Orientation::Rowwise, Phase::Forward);
    let call = program.call("route", forward).uses(router, rowwise, Form::Dense);
    call.reads(tokens).writes(given).add().unwrap();
    program.collective("dispatch", forward, Collective::new(AllToAll, given, routed)).unwrap();
    let call = program.call("expert", forward).uses(expert, rowwise, Form::Dense);
    call.reads(routed).writes(made).add().unwrap();
    program.collective("combine", forward, Collective::new(AllToAll, made, back)).unwrap();
    let summed = Collective::new(Sum, back, sum).among(Group::Shard);
    program.collective("statistics", forward, summed).unwrap();
    // It writes what the collective before it reads, and waits for nothing else of it.
    program.call("loss", forward).updates(back).writes(loss).add().unwrap();
    let gathered = Collective::new(AllGather, sum, all).among(Group::Replicate);
    program.collective("copies", forward, gathered).unwrap();
    let call = program.call("backward", Phase::Backward).reads(back).reads(all).reads(tokens);
    call.gradient(router).gradient(expert).add().unwrap();
    program.collective("worst loss", Phase::Backward, Collective::new(Max, loss, worst)).unwrap();
    StepPlan::build(&program.build_training().unwrap(), &policy(), mesh).unwrap()
}

const COLLECTIVES: [&str; 5] = ["dispatch", "combine", "statistics", "copies", "worst loss"];

/// Position of the collective called `name`.
#[track_caller]
pub(crate) fn collective(plan: &StepPlan, name: &str) -> usize {
    let is_named = |call: CallId| plan.calls[call.index()].name == name;
    position(plan, 0, |op| matches!(op, Op::CollectiveCall(CollectiveCall { call, .. }) if is_named(*call)))
}

fn number(plan: &StepPlan, name: &str) -> CallId {
    CallId::at(plan.calls.iter().position(|call| call.name == name).unwrap())
}

pub(crate) fn buffer(plan: &StepPlan, name: &str) -> BufferId {
    BufferId::at(plan.buffers.iter().position(|buffer| buffer.name == name).unwrap())
}

/// PL-6, PL-10
#[test]
fn the_sample_has_every_kind_and_group_and_what_each_receives_is_as_its_kind_is_worded() {
    let plan = exchanging_training();
    let accesses: usize = plan.calls.iter().map(|call| call.buffers.len()).sum();
    assert_eq!(verify(&plan).unwrap().buffers, accesses);
    let received = COLLECTIVES.map(|name| plan.tasks[collective(&plan, name)].wire_bytes);
    // A quarter of 32 elements of three ranks, all of them of one, of one again, and one element of three.
    assert_eq!(received, [3 * 8 * 4, 3 * 8 * 4, 32 * 4, 32 * 4, 3 * 4]);
}

/// PL-10
#[test]
fn a_collective_that_never_takes_place_is_refused() {
    for (name, says) in [
        ("dispatch", "runs call `expert` when call `dispatch` is next in program order"),
        ("combine", "runs call `statistics` when call `combine` is next"),
        ("statistics", "runs call `loss` when call `statistics` is next"),
        ("copies", "runs call `backward` when call `copies` is next"),
        ("worst loss", "holds nothing"),
    ] {
        let mut plan = exchanging_training();
        let lost = collective(&plan, name);
        remove(&mut plan, lost);
        let error = refused(&plan, &["PL-10", says]);
        assert!(matches!(error, VerifyError::Program { .. }), "{error}");
    }
    // Nor may the last one, if nobody reads what it leaves.
    let mut plan = exchanging_training();
    let copied = position(&plan, 1, |op| matches!(op, Op::Copy(_)));
    remove(&mut plan, copied);
    let lost = collective(&plan, "worst loss");
    remove(&mut plan, lost);
    refused(&plan, &["PL-10 (", "): call `worst loss` never runs; 8 of 9 calls do"]);
}

/// PL-10
#[test]
fn a_collective_that_takes_place_twice_is_refused() {
    for name in COLLECTIVES {
        let mut plan = exchanging_training();
        let doubled = collective(&plan, name);
        repeat(&mut plan, doubled);
        refused(&plan, &["PL-10", &format!("runs call `{name}` when "), "is next in program order"]);
    }
}

/// PL-10
#[test]
fn a_collective_out_of_its_turn_is_refused() {
    let mut plan = exchanging_training();
    let (early, writer) = (collective(&plan, "dispatch"), call(&plan, "route"));
    relocate(&mut plan, early, writer);
    refused(&plan, &["PL-10", "runs call `dispatch` when call `route` is next in program order"]);
    let mut plan = exchanging_training();
    let (late, reader) = (collective(&plan, "dispatch"), call(&plan, "expert"));
    relocate(&mut plan, late, reader);
    refused(&plan, &["PL-10", "runs call `expert` when call `dispatch` is next in program order"]);
    // Though neither touches what the other does.
    let mut plan = exchanging_training();
    let (late, other) = (collective(&plan, "statistics"), collective(&plan, "combine"));
    relocate(&mut plan, late, other);
    refused(&plan, &["PL-10", "runs call `statistics` when call `combine` is next in program order"]);
}

/// PL-10
#[test]
fn a_collective_in_the_name_of_another_is_refused() {
    let mut plan = exchanging_training();
    let (task, other) = (collective(&plan, "dispatch"), number(&plan, "combine"));
    let Op::CollectiveCall(CollectiveCall { call, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *call = other;
    refused(&plan, &["PL-10", "runs call `combine` when call `dispatch` is next in program order"]);
}

/// PL-10. Buffers of one size, so that nothing but the declaration tells the kinds apart.
#[test]
fn a_collective_of_another_kind_is_refused() {
    for (name, wrong) in [
        ("dispatch", Sum),
        ("dispatch", Max),
        ("dispatch", ReduceScatter),
        ("statistics", Max),
        ("statistics", AllToAll),
        ("worst loss", Sum),
    ] {
        let mut plan = exchanging_training();
        let task = collective(&plan, name);
        let Op::CollectiveCall(CollectiveCall { kind, .. }) = &mut plan.tasks[task].op else {
            unreachable!()
        };
        let declared = std::mem::replace(kind, wrong);
        restate_what_is_received(&mut plan, task);
        recount(&mut plan);
        refused(
            &plan,
            &[
                "PL-10",
                &format!("is `{name}` ({wrong}, "),
                &format!("which is declared as {declared}, "),
                "run the collective that the call declares",
            ],
        );
    }
}

/// PL-10. A reduce-scatter gives as an all-to-all does and gets as a sum does.
#[test]
fn a_reduce_scatter_of_another_kind_or_among_other_ranks_is_refused() {
    let scattering = || {
        let mut program = StepProgram::builder("collective", &Model::builder().build());
        let parts = program.input("parts", 8, ElementType::F32).unwrap();
        let sum = program.output("sum", 2, ElementType::F32).unwrap();
        let scattered = Collective::new(ReduceScatter, parts, sum);
        program.collective("scatter", Phase::Forward, scattered).unwrap();
        let program = program.build_evaluation().unwrap();
        StepPlan::build(&program, &policy(), Mesh::hybrid(4, 2).unwrap()).unwrap()
    };
    let plan = scattering();
    verify(&plan).unwrap();
    assert_eq!(plan.tasks[collective(&plan, "scatter")].wire_bytes, 3 * 8);
    for (wrong, among) in [AllGather, AllToAll, Sum, Max]
        .map(|kind| (kind, Group::World))
        .into_iter()
        .chain([Group::Shard, Group::Replicate].map(|group| (ReduceScatter, group)))
    {
        let mut plan = scattering();
        let task = collective(&plan, "scatter");
        let Op::CollectiveCall(CollectiveCall { kind, group, .. }) = &mut plan.tasks[task].op else {
            unreachable!()
        };
        (*kind, *group) = (wrong, among);
        restate_what_is_received(&mut plan, task);
        recount(&mut plan);
        let says = format!("is `scatter` ({wrong}, {among}), which is declared as reduce-scatter, world");
        refused(&plan, &["PL-10", &says]);
    }
}

/// PL-10. With two shards and two replicas a sum over either has as many ranks.
#[test]
fn a_collective_among_other_ranks_is_refused() {
    for (name, wrong) in [
        ("statistics", Group::Replicate),
        ("statistics", Group::World),
        ("copies", Group::Shard),
        ("worst loss", Group::Shard),
    ] {
        let mut plan = exchanging_training();
        let task = collective(&plan, name);
        let Op::CollectiveCall(CollectiveCall { group, .. }) = &mut plan.tasks[task].op else {
            unreachable!()
        };
        *group = wrong;
        restate_what_is_received(&mut plan, task);
        recount(&mut plan);
        refused(&plan, &["PL-10", &format!("is `{name}` ("), &format!(", {wrong}), which is declared as")]);
    }
}

/// PL-10. What a group is called decides nothing, only who meets.
#[test]
fn a_group_of_the_same_ranks_by_another_name_is_accepted() {
    let mut plan = planned(Mesh::new(4).unwrap());
    let task = collective(&plan, "statistics");
    let Op::CollectiveCall(CollectiveCall { group, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    assert_eq!(std::mem::replace(group, Group::World), Group::Shard);
    assert!(verify(&plan).is_ok());
}

/// PL-10
#[test]
fn a_closure_run_for_a_collective_is_refused() {
    let mut plan = exchanging_training();
    let (task, closure) = (collective(&plan, "dispatch"), call(&plan, "expert"));
    let Op::CollectiveCall(CollectiveCall { call, from, to, .. }) = plan.tasks[task].op else {
        unreachable!()
    };
    let operands = plan.calls[call.index()].buffers.iter().zip([from, to]).map(|(declared, slot)| Operand {
        role: OperandRole::Buffer(declared.buffer),
        slot,
        access: declared.access,
    });
    let fault = slot(&plan, Content::FaultWord);
    let op = Op::Compute(Compute { call, fault, operands: operands.collect() });
    plan.tasks[task] = plan.tasks[closure].clone();
    plan.tasks[task].op = op;
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-10", "runs a closure for `dispatch`, which is a collective"]);
}

/// PL-10
#[test]
fn a_collective_in_a_closure_s_place_is_refused() {
    let mut plan = exchanging_training();
    let (task, closure, named) =
        (collective(&plan, "dispatch"), call(&plan, "expert"), number(&plan, "expert"));
    plan.tasks[closure] = plan.tasks[task].clone();
    let Op::CollectiveCall(CollectiveCall { call, .. }) = &mut plan.tasks[closure].op else { unreachable!() };
    *call = named;
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-10", "runs a collective for `expert`, which is a closure's"]);
}

/// PL-10. A fault word counts closures: collectives between them have none.
#[test]
fn a_fault_word_that_is_cleared_after_a_collective_is_refused() {
    let mut plan = exchanging_training();
    let clear = position(&plan, 0, |op| matches!(op, Op::ClearFault(_)));
    let (again, after) = (plan.tasks[clear].clone(), call(&plan, "expert"));
    plan.tasks.insert(after, again);
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-10", "(compute of expert) needs a fault word that has seen the 1 calls before it"]);
    // After the last closure, where the norm notices.
    let mut plan = exchanging_training();
    let (again, after) = (plan.tasks[clear].clone(), call(&plan, "backward") + 1);
    plan.tasks.insert(after, again);
    serialize(&mut plan);
    recount(&mut plan);
    refused(
        &plan,
        &["PL-10", "needs a fault word that has seen all 4 calls of the step", "has seen 0 calls"],
    );
}

/// PL-3
#[test]
fn a_call_that_begins_before_the_exchange_it_reads_of_is_over_is_refused() {
    let mut plan = exchanging_training();
    let (task, reader) = (collective(&plan, "dispatch"), call(&plan, "expert"));
    let waits = &mut plan.tasks[reader].waits;
    waits.retain(|wait| wait.index() != task);
    let error =
        refused(&plan, &["PL-3", "collective call of dispatch", "compute of expert", "nothing makes"]);
    assert!(matches!(error, VerifyError::Race { .. }), "{error}");
}

/// PL-3, PL-8. A peer reads a rank's buffer until the collective is over for both.
#[test]
fn a_buffer_that_is_overwritten_while_a_peer_may_still_read_it_is_refused() {
    let mut plan = exchanging_training();
    let [writer, last] = ["combine", "statistics"].map(|name| collective(&plan, name));
    let next = call(&plan, "loss");
    // What it reads itself is there when the collective before is over, so that alone is waited for.
    plan.tasks[writer].signals.get_or_insert(EventId::at(plan.events));
    plan.events += 1;
    let wait = plan.tasks[next].waits.iter_mut().find(|wait| wait.index() == last).unwrap();
    *wait = TaskId::at(writer);
    refused(
        &plan,
        &[
            "PL-3",
            "collective call of statistics",
            "compute of loss",
            "the earlier one may read what the later one writes",
        ],
    );
}
