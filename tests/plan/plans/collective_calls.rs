//! Collectives of buffers in plans: their places, their fences, their receive buffers, and the sizes that are refused.

use warpweft_base::id::{BufferId, SlotId, TaskId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::layout::{Content, LaneKind, Residency};
use warpweft_plan::model::{
    BufferSpec, Collective, CollectiveKind, DeclareError, Form, Group, Lifetime, Mesh, Model, Phase,
    ProgramBuilder, Role, StepProgram,
};
use warpweft_plan::op::{CollectiveCall, Op};
use warpweft_plan::plan::{PlanError, Policy, StepPlan, Task};

use super::{policy, position};

const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllToAll,
    CollectiveKind::Sum,
    CollectiveKind::Max,
];

/// Elements of the features of a rank.
const OWN: usize = 24;
/// Layers before the collective, and as many after it.
const LAYERS: usize = 4;

/// Layers in a chain; between the two halves all ranks' features are gathered.
fn between_layers(mesh: Mesh, micro_batches: u32) -> StepProgram {
    let mut model = Model::builder();
    let weights: Vec<_> = (0..2 * LAYERS)
        .map(|layer| model.sharded(&format!("w{layer}"), 64, 64, Format::F32).unwrap())
        .collect();
    let mut program = StepProgram::builder("train", &model.build());
    program.micro_batches(micro_batches).unwrap();
    let input = program.input("input", OWN, ElementType::F32).unwrap();
    let own = program.activation("own", OWN).unwrap();
    let all = program.activation("all", OWN * mesh.ranks() as usize).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    for (layer, weight) in weights.iter().enumerate() {
        if layer == LAYERS {
            let gather = Collective::new(CollectiveKind::AllGather, own, all);
            program.collective("gather features", Phase::Forward, gather).unwrap();
        }
        let call = program.call(&format!("f{layer}"), Phase::Forward).uses(
            *weight,
            Orientation::Rowwise,
            Form::Dense,
        );
        let call = match layer {
            0 => call.reads(input).writes(own),
            _ if layer < LAYERS => call.updates(own),
            LAYERS => call.reads(all).writes(loss),
            _ => call.updates(loss),
        };
        call.add().unwrap();
    }
    for (layer, weight) in weights.iter().enumerate().rev() {
        let call = program.call(&format!("b{layer}"), Phase::Backward);
        call.uses(*weight, Orientation::Columnwise, Form::Dense).reads(own).gradient(*weight).add().unwrap();
    }
    program.build_training().unwrap()
}

fn planned(depth: u32, communicators: u32) -> StepPlan {
    let (mesh, policy) = (Mesh::new(2).unwrap(), Policy { communicators, ..policy(depth) });
    StepPlan::build(&between_layers(mesh, 1), &policy, mesh).unwrap()
}

fn is_exchange(op: &Op) -> bool {
    matches!(op, Op::CollectiveCall(_))
}

/// Everything that must be over before a task begins: what stands before it on its lane, its fences, and theirs.
pub(crate) fn before(plan: &StepPlan, task: usize) -> Vec<bool> {
    let mut is_before = vec![false; plan.tasks.len()];
    is_before[task] = true;
    for position in (0..=task).rev() {
        if !is_before[position] {
            continue;
        }
        let of_lane = |other: &usize| plan.tasks[*other].lane == plan.tasks[position].lane;
        let ahead = (0..position).rev().find(of_lane).map(TaskId::at);
        for other in plan.tasks[position].waits.iter().copied().chain(ahead) {
            is_before[other.index()] = true;
        }
    }
    is_before
}

/// CO-1. With two communicators, gathers have the other one.
#[test]
fn a_collective_takes_its_turn_among_reductions_between_its_writer_and_its_reader() {
    for (depth, communicators) in [(0, 1), (2, 1), (0, 2), (1, 2), (3, 2)] {
        let plan = planned(depth, communicators);
        let collective = position(&plan, |op, _| is_exchange(op));
        let task = &plan.tasks[collective];
        assert_eq!((task.subject.as_str(), task.op.name()), ("gather features", "collective call"));
        let lane_of = |wanted: fn(&Op) -> bool| -> Vec<_> {
            let mut lanes: Vec<_> =
                plan.tasks.iter().filter(|task| wanted(&task.op)).map(|task| task.lane).collect();
            lanes.dedup();
            lanes
        };
        assert_eq!(lane_of(|op| matches!(op, Op::ExchangeGradient(_))), [task.lane]);
        assert_eq!(lane_of(Op::is_gather) == [task.lane], communicators == 1);
        let lane = plan.lanes.iter().find(|lane| lane.id == task.lane).unwrap();
        let Some((communicator, _)) = task.collective else { panic!("it is a collective") };
        assert_eq!(lane.kind, LaneKind::Communicator(communicator));
        let call =
            |name: &'static str| position(&plan, move |op, subject| op.call().is_some() && subject == name);
        let (writer, reader) = (call("f3"), call("f4"));
        assert!(before(&plan, collective)[writer] && before(&plan, reader)[collective], "depth {depth}");
        assert!(!before(&plan, collective)[reader] && !before(&plan, writer)[collective]);
    }
}

/// Weights of calls after a collective come while it waits for the slowest rank.
#[test]
fn gathers_ahead_wait_for_the_call_before_a_collective_and_not_for_the_exchange() {
    for depth in 0..4 {
        let plan = planned(depth, 2);
        let collective = position(&plan, |op, _| is_exchange(op));
        let call = position(&plan, |op, subject| op.call().is_some() && subject == "f4");
        let last = LAYERS + depth as usize;
        for layer in LAYERS..=last.min(2 * LAYERS - 1) {
            let gather = position(&plan, |op, subject| op.is_gather() && subject == format!("w{layer}"));
            assert!(!before(&plan, gather)[collective], "depth {depth}, layer {layer}");
            let release = plan.task(plan.tasks[gather].release.unwrap());
            assert!(matches!(release.op, Op::Compute(_)), "{}", release.op.name());
            assert!(layer < last || release.subject == "f3", "depth {depth}: {}", release.subject);
        }
        assert!(before(&plan, call)[collective]);
        assert!(before(&plan, call)[position(&plan, |op, subject| op.is_gather() && subject == "w4")]);
    }
}

/// PL-3. Whether what comes of it stays in the program or leaves it, and where buffers are exchanged again and again.
#[test]
fn a_call_that_touches_neither_buffer_of_a_collective_does_not_wait_for_it() {
    for role in [Role::Internal, Role::Output] {
        let mut program = StepProgram::builder("evaluate", &Model::builder().build());
        let x = program.input("x", OWN, ElementType::F32).unwrap();
        let given = program.activation("given", OWN).unwrap();
        let got = program.buffer(spec("got", role, Lifetime::Step)).unwrap();
        for turn in 0..3 {
            let [own, out] = [format!("own{turn}"), format!("out{turn}")]
                .map(|name| program.activation(&name, OWN).unwrap());
            let call = |name: &str| format!("{name}{turn}");
            program.call(&call("gives"), Phase::Forward).reads(x).writes(given).add().unwrap();
            program
                .collective(&call("sum"), Phase::Forward, Collective::new(CollectiveKind::Sum, given, got))
                .unwrap();
            program.call(&call("apart"), Phase::Forward).reads(x).writes(own).add().unwrap();
            program.call(&call("apart too"), Phase::Forward).reads(own).writes(out).add().unwrap();
            if role == Role::Internal || turn < 2 {
                program.call(&call("takes"), Phase::Forward).reads(got).add().unwrap();
            }
        }
        let (program, mesh) = (program.build_evaluation().unwrap(), Mesh::new(2).unwrap());
        let plan = StepPlan::build(&program, &policy(1), mesh).unwrap();
        let named = |name: String| position(&plan, move |op, subject| op.call().is_some() && subject == name);
        for turn in 0..3 {
            let collective = named(format!("sum{turn}"));
            for apart in ["apart", "apart too"] {
                let call = named(format!("{apart}{turn}"));
                assert!(collective < call && !before(&plan, call)[collective], "{role:?}: {apart}{turn}");
            }
        }
    }
}

/// PL-10. A carried buffer has one slot for all micro-batches, so what a collective leaves there goes out before the
/// next.
#[test]
fn what_a_collective_leaves_in_a_carried_output_goes_out_in_each_micro_batch() {
    for (lifetime, micro_batches, copies_after) in
        [(Lifetime::Carried, 2, 1), (Lifetime::Step, 2, 2), (Lifetime::Carried, 1, 1)]
    {
        let mut program = StepProgram::builder("evaluate", &Model::builder().build());
        let given = program.activation("given", OWN).unwrap();
        let got = program.buffer(spec("got", Role::Output, lifetime)).unwrap();
        program.call("gives", Phase::Forward).writes(given).add().unwrap();
        let sum = Collective::new(CollectiveKind::Sum, given, got);
        program.collective("sum", Phase::Forward, sum).unwrap();
        let apart = program.activation("apart", OWN).unwrap();
        program.call("apart", Phase::Forward).reads(given).writes(apart).add().unwrap();
        program.micro_batches(micro_batches).unwrap();
        let program = program.build_evaluation().unwrap();
        let plan = StepPlan::build(&program, &policy(1), Mesh::new(2).unwrap()).unwrap();
        let call = plan.tasks.iter().rposition(|task| matches!(task.op, Op::Compute(_))).unwrap();
        assert!(!before(&plan, call)[plan.tasks.iter().rposition(|task| is_exchange(&task.op)).unwrap()]);
        let last = plan.tasks.iter().rposition(|task| is_exchange(&task.op)).unwrap();
        let copies = plan.tasks[last..].iter().filter(|task| matches!(task.op, Op::Copy(_))).count();
        assert_eq!(copies, copies_after, "{lifetime:?}");
    }
}

/// A collective of 24 elements in and as many as `kind` gives `ranks` out, from an input to an output.
fn alone(kind: CollectiveKind, group: Group, element: ElementType, got: usize) -> StepProgram {
    let mut program = StepProgram::builder("evaluate", &Model::builder().build());
    let from = program.input("features", OWN, element).unwrap();
    let to = program.output("all features", got, element).unwrap();
    program.collective("gather", Phase::Forward, Collective::new(kind, from, to).among(group)).unwrap();
    program.build_evaluation().unwrap()
}

/// PL-6, of shards and replicas of unlike numbers.
#[test]
fn a_collective_receives_from_each_rank_of_its_group_what_its_kind_gives_to_each() {
    let mesh = Mesh::hybrid(6, 3).unwrap();
    for (group, ranks) in [(Group::World, 6), (Group::Shard, 2), (Group::Replicate, 3)] {
        for kind in KINDS {
            let moved = [ElementType::U8, ElementType::Bf16, ElementType::F32];
            let elements = if kind.combines() { &moved[1..] } else { &moved[..] };
            for element in elements {
                let got = kind.received(OWN, ranks as u32).unwrap();
                let plan = StepPlan::build(&alone(kind, group, *element, got), &policy(1), mesh).unwrap();
                let task = &plan.tasks[position(&plan, |op, _| is_exchange(op))];
                let given = if kind.has_parts() { OWN / ranks } else { OWN };
                assert_eq!(task.wire_bytes, given * element.bytes() * (ranks - 1), "{kind}, {group}");
                assert_eq!(task.op.group(), Some(group));
                assert_eq!(plan.bounds.wire_bytes, task.wire_bytes);
            }
        }
    }
    let plan = |ranks| {
        let program = alone(CollectiveKind::Sum, Group::World, ElementType::F32, OWN);
        StepPlan::build(&program, &policy(1), Mesh::new(ranks).unwrap()).unwrap()
    };
    assert_eq!([1, 2].map(|ranks| plan(ranks).bounds.wire_bytes), [0, 4 * OWN]);
}

#[test]
fn buffers_that_do_not_fit_the_ranks_of_a_collective_are_refused_with_the_sizes_that_do() {
    let mesh = Mesh::hybrid(10, 2).unwrap();
    let refused = |kind, group, got| {
        let error =
            StepPlan::build(&alone(kind, group, ElementType::F32, got), &policy(1), mesh).unwrap_err();
        assert!(matches!(error, PlanError::Collective { .. }), "{error}");
        error.to_string()
    };
    assert_eq!(
        refused(CollectiveKind::AllGather, Group::World, 48),
        "program `evaluate`: collective `gather` (all-gather) among 10 ranks gives `features` of 24 elements and \
         gets `all features` of 48; declare `all features` with 240"
    );
    assert_eq!(
        refused(CollectiveKind::AllToAll, Group::Shard, 24),
        "program `evaluate`: collective `gather` (all-to-all) among 5 ranks gives `features` of 24 elements and \
         gets `all features` of 24; declare both with a multiple of 5"
    );
    assert!(
        refused(CollectiveKind::ReduceScatter, Group::Shard, 4)
            .ends_with("gets `all features` of 4; declare `features` with a multiple of 5")
    );
    for (kind, group, got, ranks, wanted) in [
        (CollectiveKind::AllGather, Group::Replicate, 24, 2, 48),
        (CollectiveKind::AllToAll, Group::Replicate, 12, 2, 24),
        (CollectiveKind::ReduceScatter, Group::Replicate, 24, 2, 12),
        (CollectiveKind::Sum, Group::World, 240, 10, 24),
        (CollectiveKind::Max, Group::Shard, 23, 5, 24),
    ] {
        let said = refused(kind, group, got);
        assert!(said.contains(&format!("({kind}) among {ranks} ranks")), "{said}");
        assert!(said.ends_with(&format!("of {got}; declare `all features` with {wanted}")), "{said}");
        StepPlan::build(&alone(kind, group, ElementType::F32, wanted), &policy(1), mesh).unwrap();
    }
}

/// PL-1. Kind and group are part of what ranks agree on.
#[test]
fn equal_collectives_give_equal_plans_and_another_kind_or_group_another_fingerprint() {
    assert_eq!(planned(2, 2), planned(2, 2));
    let mesh = Mesh::hybrid(4, 2).unwrap();
    let fingerprint = |kind, group| {
        let program = alone(kind, group, ElementType::F32, OWN);
        StepPlan::build(&program, &policy(1), mesh).unwrap().fingerprint()
    };
    let kinds = [CollectiveKind::AllToAll, CollectiveKind::Sum, CollectiveKind::Max];
    let groups = [Group::World, Group::Shard, Group::Replicate];
    let all = || kinds.into_iter().flat_map(|kind| groups.map(|group| fingerprint(kind, group)));
    let once: Vec<u64> = all().collect();
    assert_eq!(once, all().collect::<Vec<_>>());
    let distinct: std::collections::BTreeSet<u64> = once.iter().copied().collect();
    assert_eq!(distinct.len(), once.len());
}

/// Buffers of a collective of a micro-batch are that micro-batch's.
#[test]
fn every_micro_batch_exchanges_its_own_buffers() {
    let mesh = Mesh::new(2).unwrap();
    let plan = StepPlan::build(&between_layers(mesh, 3), &policy(1), mesh).unwrap();
    let touched = |task: &Task| match task.op {
        Op::CollectiveCall(CollectiveCall { call, from, to, .. }) => {
            Some((plan.calls[call.index()].micro_batch.index(), from, to))
        }
        _ => None,
    };
    let touched: Vec<_> = plan.tasks.iter().filter_map(touched).collect();
    assert_eq!(touched.iter().map(|(batch, _, _)| *batch).collect::<Vec<_>>(), [0, 1, 2]);
    let writes = |slot: SlotId, name: &str| {
        let writes =
            |task: &&Task| task.op.accesses().iter().any(|(other, access)| *other == slot && access.writes());
        assert_eq!(
            plan.tasks.iter().filter(writes).count(),
            if name == "own" { LAYERS } else { 1 },
            "{name}"
        );
    };
    for (_, from, to) in touched {
        writes(from, "own");
        writes(to, "all");
    }
}

/// Twelve buffers of one size in a chain of maxima.
#[test]
fn buffers_between_collectives_live_from_one_exchange_to_the_next() {
    let elements = 1 << 16;
    let mut program = StepProgram::builder("evaluate", &Model::builder().build());
    let mut last = program.input("input", elements, ElementType::F32).unwrap();
    for number in 0..12 {
        let next = program.activation(&format!("x{number}"), elements).unwrap();
        let collective = Collective::new(CollectiveKind::Max, last, next);
        program.collective(&format!("maximum {number}"), Phase::Forward, collective).unwrap();
        last = next;
    }
    let program = program.build_evaluation().unwrap();
    let plan = StepPlan::build(&program, &policy(1), Mesh::new(2).unwrap()).unwrap();
    let pair = 2 * elements * 4;
    assert!((pair..pair + 4096).contains(&plan.bounds.live_bytes), "{:?}", plan.bounds);
    assert_eq!(plan.tasks.iter().filter(|task| is_exchange(&task.op)).count(), 12);
}

fn spec(name: &str, role: Role, lifetime: Lifetime) -> BufferSpec {
    BufferSpec { name: name.into(), elements: OWN, element: ElementType::F32, role, lifetime }
}

fn sum(program: &mut ProgramBuilder, name: &str, from: BufferId, to: BufferId) {
    program.collective(name, Phase::Forward, Collective::new(CollectiveKind::Sum, from, to)).unwrap();
}

/// What is carried and what lives in a step, where no closure touches either.
#[test]
fn a_buffer_that_collectives_alone_touch_has_the_lifetime_that_it_is_declared_with() {
    let mut program = StepProgram::builder("evaluate", &Model::builder().build());
    let [one, two] = ["one", "two"].map(|name| program.carried(name, OWN, ElementType::F32).unwrap());
    let scratch = program.activation("scratch", OWN).unwrap();
    // What was carried into the step, then what the step makes of it.
    sum(&mut program, "out", one, scratch);
    sum(&mut program, "back", scratch, two);
    let program = program.build_evaluation().unwrap();
    let plan = StepPlan::build(&program, &policy(1), Mesh::new(2).unwrap()).unwrap();
    for (buffer, residency) in
        [(one, Residency::Resident), (two, Residency::Resident), (scratch, Residency::Transient)]
    {
        let slots = plan.arena.slots.iter().filter(|slot| slot.content == Content::Buffer(buffer));
        let found: Vec<_> = slots.map(|slot| slot.residency).collect();
        assert_eq!(found, [residency], "{buffer}");
    }
}

/// A collective counts as one call: scratch of it is an input that it reads, or what nobody reads after it.
#[test]
fn a_buffer_of_one_call_is_on_one_side_of_one_exchange_and_no_other_call_s() {
    let begin = || StepProgram::builder("evaluate", &Model::builder().build());
    let mut program = begin();
    let input = program.buffer(spec("input", Role::Input, Lifetime::Call)).unwrap();
    let output = program.buffer(spec("output", Role::Output, Lifetime::Call)).unwrap();
    sum(&mut program, "sum", input, output);
    let plan =
        StepPlan::build(&program.build_evaluation().unwrap(), &policy(1), Mesh::new(2).unwrap()).unwrap();
    let names: Vec<&str> = plan.tasks.iter().map(|task| task.op.name()).collect();
    let names: Vec<&str> = names.into_iter().filter(|name| *name != "clear fault").collect();
    assert_eq!(names, ["copy", "collective call", "copy"]);

    let mut program = begin();
    let input = program.input("input", OWN, ElementType::F32).unwrap();
    let scratch = program.buffer(spec("scratch", Role::Internal, Lifetime::Call)).unwrap();
    let output = program.output("output", OWN, ElementType::F32).unwrap();
    sum(&mut program, "there", input, scratch);
    let mut read = program.clone();
    sum(&mut read, "on", scratch, output);
    let error = read.build_evaluation().unwrap_err();
    assert!(
        matches!(&error, DeclareError::CallLifetime { buffer, first, second }
            if buffer == "scratch" && first == "there" && second == "on"),
        "{error}"
    );
    sum(&mut program, "elsewhere", input, output);
    StepPlan::build(&program.build_evaluation().unwrap(), &policy(1), Mesh::new(2).unwrap()).unwrap();

    let mut program = begin();
    let scratch = program.buffer(spec("scratch", Role::Internal, Lifetime::Call)).unwrap();
    let output = program.output("output", OWN, ElementType::F32).unwrap();
    sum(&mut program, "of nothing", scratch, output);
    let error = program.build_evaluation().unwrap_err();
    assert!(matches!(&error, DeclareError::ReadBeforeWrite { call, .. } if call == "of nothing"), "{error}");
}
