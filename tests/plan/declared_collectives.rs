//! Refused collectives of buffers: the user's error, and that nothing is added.

use warpweft_base::id::BufferId;
use warpweft_format::ElementType;
use warpweft_plan::model::{Collective, CollectiveKind, DeclareError, Group, Model, Phase, StepProgram};

#[test]
fn collectives_that_cannot_be_are_refused_with_what_to_declare_and_not_added() {
    let mut program = StepProgram::builder("train", &Model::builder().build());
    let own = program.input("own", 8, ElementType::F32).unwrap();
    let all = program.output("all", 8, ElementType::F32).unwrap();
    let half = program.activation_in("half", 8, ElementType::Bf16).unwrap();
    let other_half = program.activation_in("other half", 8, ElementType::Bf16).unwrap();
    let [number, other_number] =
        ["number", "other number"].map(|name| program.activation_in(name, 8, ElementType::U32).unwrap());
    let [byte, byte_sum] =
        ["byte", "byte sum"].map(|name| program.activation_in(name, 8, ElementType::U8).unwrap());
    let foreign = StepProgram::builder("evaluate", program.model()).activation("y", 8).unwrap();
    let unknown = BufferId::new(19);
    let [gather, sum] = [CollectiveKind::AllGather, CollectiveKind::Sum];
    program.call("fit", Phase::Forward).writes(half).writes(number).writes(byte).add().unwrap();
    let mut refused = |name: &str, kind, from, to| {
        let before = format!("{program:?}");
        let collective = Collective::new(kind, from, to).among(Group::Shard);
        let error = program.collective(name, Phase::Forward, collective).unwrap_err();
        assert_eq!(format!("{program:?}"), before, "{error}");
        error.to_string()
    };
    for (kind, from, to, expected) in [
        (sum, own, own, "collective `x` reads and overwrites buffer `own`; let it write another one"),
        (
            gather,
            own,
            half,
            "`x` is a collective (all-gather) from buffer `own` of f32 to `half` of bf16; declare both with one \
             element type",
        ),
        (
            sum,
            number,
            other_number,
            "`x` is a collective (sum) from buffer `number` of u32 to `other number` of u32; values of ranks are \
             combined in f32: declare both as f32, or both as bf16",
        ),
        (
            CollectiveKind::ReduceScatter,
            byte,
            byte_sum,
            "`x` is a collective (reduce-scatter) from buffer `byte` of u8 to `byte sum` of u8; values of ranks \
             are combined in f32: declare both as f32, or both as bf16",
        ),
        (
            CollectiveKind::Max,
            half,
            all,
            "`x` is a collective (maximum) from buffer `half` of bf16 to `all` of f32; values of ranks are \
             combined in f32: declare both as f32, or both as bf16",
        ),
    ] {
        assert_eq!(refused("x", kind, from, to), expected);
    }
    for (from, to) in [(foreign, all), (own, foreign), (foreign, foreign)] {
        let said = refused("x", gather, from, to);
        assert!(said.contains("call `x` of `train` names buffer 0 of another program"), "{said}");
    }
    for (from, to) in [(unknown, all), (own, unknown), (unknown, unknown)] {
        let said = refused("x", gather, from, to);
        assert!(said.contains("19") && said.contains("own, all, half"), "{said}");
    }
    assert!(refused("fit", gather, own, all).contains("`fit`"));
    assert!(refused("", gather, own, all).contains("give it one"));
    // What was refused has taken no name, and what is added takes its own.
    program.collective("x", Phase::Forward, Collective::new(sum, own, all)).unwrap();
    for again in [
        program.collective("x", Phase::Forward, Collective::new(gather, half, other_half)).unwrap_err(),
        program.call("x", Phase::Forward).add().unwrap_err(),
    ] {
        assert!(matches!(&again, DeclareError::Duplicate { kind: "call", name } if name == "x"), "{again}");
    }
    let program = program.build_evaluation().unwrap();
    let named = program.calls().iter().map(|call| (call.name.as_str(), call.collective));
    assert_eq!(named.collect::<Vec<_>>(), [("fit", None), ("x", Some(Collective::new(sum, own, all)))]);
}

#[test]
fn a_collective_reads_what_was_filled_and_overwrites_no_input() {
    let mut program = StepProgram::builder("train", &Model::builder().build());
    let [one, two] = ["one", "two"].map(|name| program.activation(name, 4).unwrap());
    let input = program.input("input", 4, ElementType::F32).unwrap();
    let exchanged = |from, to| {
        let mut program = program.clone();
        let collective = Collective::new(CollectiveKind::AllToAll, from, to);
        program.collective("give", Phase::Forward, collective).unwrap();
        program.call("look", Phase::Forward).reads(input).reads(to).add().unwrap();
        program.build_evaluation()
    };
    let error = exchanged(one, two).unwrap_err();
    assert!(
        matches!(&error, DeclareError::ReadBeforeWrite { call, buffer } if call == "give" && buffer == "one"),
        "{error}"
    );
    let mut program = program.clone();
    program.call("fill", Phase::Forward).writes(one).add().unwrap();
    program
        .collective("give", Phase::Forward, Collective::new(CollectiveKind::AllToAll, one, input))
        .unwrap();
    let error = program.build_evaluation().unwrap_err();
    assert!(
        matches!(&error, DeclareError::WritesInput { call, buffer } if call == "give" && buffer == "input"),
        "{error}"
    );
    assert_eq!(exchanged(input, two).unwrap().calls().len(), 2, "what it writes may be read");
}
