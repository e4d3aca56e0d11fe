//! Rows with counts, as programs declare them.

use warpweft_base::id::BufferId;
use warpweft_format::ElementType;
use warpweft_plan::model::{
    BufferSpec, Collective, CollectiveKind, Counts, DeclareError, Group, Lifetime, Mesh, Model, Phase,
    ProgramBuilder, Role, StepProgram,
};
use warpweft_plan::plan::{PlanError, Policy, StepPlan};
use warpweft_session::config::Config;

use ElementType::{F32, U32};

const CAPACITY: usize = 2;

/// A dispatch of 4 slots of 2 rows of 3, after the call that counts.
struct Declared {
    program: ProgramBuilder,
    given: BufferId,
    taken: BufferId,
    sent: BufferId,
    other: BufferId,
}

fn declared() -> Declared {
    let mut program = StepProgram::builder("step", &Model::builder().build());
    let [given, taken] = ["given", "taken"].map(|name| program.activation_in(name, 4, U32).unwrap());
    let [sent, other] = ["sent", "other"].map(|name| program.activation(name, 24).unwrap());
    program.call("route", Phase::Forward).writes(given).writes(sent).add().unwrap();
    Declared { program, given, taken, sent, other }
}

fn said(result: Result<impl std::fmt::Debug, DeclareError>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, DeclareError::Counts { .. }), "{error}");
    error.to_string()
}

#[test]
fn counts_that_do_not_belong_to_their_rows_are_refused_with_what_to_do() {
    let Declared { mut program, given, taken, sent, other } = declared();
    let counts = Counts::new(given, taken, CAPACITY);
    let mut refused = |collective: Collective| said(program.collective("x", Phase::Forward, collective));
    let sum = Collective { kind: CollectiveKind::Sum, ..Collective::dispatch(sent, other, counts) };
    assert!(refused(sum).contains("is a collective (sum) with counts; only rows of an all-to-all have them"));
    for wrong in [Counts::new(given, taken, 0), counts.filled(0), counts.filled(101)] {
        let says = refused(Collective::dispatch(sent, other, wrong));
        assert!(says.contains("declare a capacity of 1 or more and a fill of 1 to 100"), "{says}");
    }
    // Nobody compared these with the capacity.
    let says = refused(Collective::dispatch(sent, other, Counts::new(taken, given, CAPACITY)));
    assert!(says.contains("counts rows by `taken`; let a closure before it write these counts"), "{says}");
    let says = refused(Collective::dispatch(sent, other, counts).back(sent, other));
    assert!(says.contains("goes by counts `taken` and `given`, which no dispatch before it"), "{says}");
    let mut buffer = |name: &str, element, role, lifetime| {
        program.buffer(BufferSpec { name: name.into(), elements: 24, element, role, lifetime }).unwrap()
    };
    let output = buffer("output", F32, Role::Output, Lifetime::Step);
    let carried = buffer("carried", F32, Role::Internal, Lifetime::Carried);
    let kept = buffer("kept", U32, Role::Internal, Lifetime::Carried);
    let told = buffer("told", U32, Role::Output, Lifetime::Step);
    let floats = buffer("floats", F32, Role::Internal, Lifetime::Step);
    for to in [output, carried] {
        let dispatch = Collective::dispatch(sent, to, counts);
        let says = said(program.collective("x", Phase::Forward, dispatch));
        assert!(says.contains("which outlives their counts; declare it as an activation"), "{says}");
    }
    for taken in [kept, told, floats] {
        let dispatch = Collective::dispatch(sent, other, Counts { taken, ..counts });
        let says = said(program.collective("x", Phase::Forward, dispatch));
        let advice = "declare counts as u32, one for each slot, as an activation of the step";
        assert!(says.contains(advice), "{says}");
    }
}

#[test]
fn whoever_reads_rows_reads_their_counts_as_the_dispatch_left_them() {
    let Declared { mut program, given, taken, sent, other } = declared();
    let dispatch = Collective::dispatch(sent, other, Counts::new(given, taken, CAPACITY));
    program.collective("dispatch", Phase::Forward, dispatch).unwrap();
    let last = program.activation("last", 24).unwrap();
    let mut call = |with: Option<BufferId>| {
        let call = program.call("look", Phase::Forward).reads(other);
        with.into_iter().fold(call, |call, counts| call.reads(counts)).add()
    };
    for with in [None, Some(given)] {
        let says = said(call(with));
        assert!(says.contains("call `look` reads rows `other` without their counts `taken`"), "{says}");
    }
    let plain = Collective::new(CollectiveKind::AllToAll, other, last);
    let says = said(program.collective("plain", Phase::Forward, plain));
    assert!(says.contains("reads rows `other` without their counts `taken`"), "{says}");
    // There again, the rows would go by the counts of what was given.
    let says = said(program.collective("again", Phase::Forward, dispatch.again(other, last)));
    assert!(says.contains("reads rows `other` without their counts `taken`"), "{says}");
    let among_others = dispatch.back(other, last).among(Group::Shard);
    let says = said(program.collective("among others", Phase::Forward, among_others));
    assert!(says.contains("which no dispatch before it has brought and left so"), "{says}");
    program.collective("back", Phase::Forward, dispatch.back(other, last)).unwrap();
    program.call("look", Phase::Forward).reads(other).reads(taken).add().unwrap();
    // Whose capacity would these be compared with?
    let says = said(program.call("next layer", Phase::Forward).writes(given).add());
    assert!(says.contains("writes counts `given`, by which dispatch `dispatch` went before it"), "{says}");
    assert!(says.contains("declare counts of its own for each dispatch"), "{says}");
    program.call("count anew", Phase::Forward).writes(taken).add().unwrap();
    let says = said(program.call("late", Phase::Forward).reads(other).reads(taken).add());
    assert!(says.contains("write neither in between"), "{says}");
    let says = said(program.collective("late", Phase::Forward, dispatch.back(sent, last)));
    assert!(says.contains("which no dispatch before it has brought and left so"), "{says}");
}

#[test]
fn slots_that_do_not_fit_the_ranks_are_refused_with_the_number_to_declare() {
    let planned = |slots: [usize; 2], rows: usize, ranks: u32| {
        let mut program = StepProgram::builder("step", &Model::builder().build());
        let given = program.activation_in("given", slots[0], U32).unwrap();
        let taken = program.activation_in("taken", slots[1], U32).unwrap();
        let [sent, got] = ["sent", "got"].map(|name| program.activation(name, rows).unwrap());
        program.call("route", Phase::Forward).writes(given).writes(sent).add().unwrap();
        let dispatch = Collective::dispatch(sent, got, Counts::new(given, taken, CAPACITY));
        program.collective("dispatch", Phase::Forward, dispatch).unwrap();
        program.call("look", Phase::Forward).reads(got).reads(taken).add().unwrap();
        let program = program.build_evaluation().unwrap();
        StepPlan::build(&program, &Policy::from(&Config::default()), Mesh::new(ranks).unwrap())
    };
    assert!(planned([4, 4], 24, 2).is_ok() && planned([4, 4], 24, 4).is_ok());
    for (slots, rows, ranks, says) in [
        (
            [4, 4],
            24,
            3,
            "among 3 ranks has slots of 2 rows, but `given` has 4 elements; declare it with a multiple of 3",
        ),
        ([4, 8], 24, 2, "`taken` has 8 elements; declare it with 4"),
        ([4, 4], 28, 2, "`sent` has 28 elements; declare it with a multiple of 8"),
    ] {
        let error = planned(slots, rows, ranks).unwrap_err();
        assert!(matches!(error, PlanError::Counts { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
