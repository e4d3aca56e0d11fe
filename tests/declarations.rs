//! What cannot be declared, and what the embedder is told; nothing is added by a refused call.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use warpweft::format::{ElementType, Format, Orientation, Shape};
use warpweft::id::{BufferId, WeightId};
use warpweft::model::{
    BufferSpec, DeclareError, Form, Lifetime, Model, Phase, Placement, ProgramBuilder, Role, StepProgram,
    WeightSpec,
};

const ROWWISE: Orientation = Orientation::Rowwise;

/// A model of one sharded and one replicated weight, and an empty program over it.
fn begin() -> (WeightId, WeightId, ProgramBuilder) {
    let mut model = Model::builder();
    let sharded = model.sharded("w", 64, 64, Format::NVFP4_2D).unwrap();
    let whole = model.replicated("bias", 1, 5).unwrap();
    (sharded, whole, StepProgram::builder("train", &model.build()))
}

#[test]
fn weights_that_cannot_be_are_refused_with_the_reason_and_not_added() {
    let mut model = Model::builder();
    let error = model.sharded("rows", 40, 64, Format::NVFP4_2D).unwrap_err();
    assert!(matches!(error, DeclareError::Format { .. }) && error.to_string().contains("`rows`"), "{error}");
    let error = model.sharded("activations", 64, 64, Format::NVFP4_1D).unwrap_err().to_string();
    assert!(error.contains("activations") && error.contains("nvfp4_2d"), "{error}");
    assert!(matches!(model.replicated("none", 0, 4), Err(DeclareError::Empty { .. })));
    model.sharded("w", 64, 64, Format::F32).unwrap();
    assert!(matches!(model.replicated("w", 1, 1), Err(DeclareError::Duplicate { .. })));
    let spec = WeightSpec {
        name: "norm".into(),
        shape: Shape::new(1, 64),
        format: Format::Bf16,
        placement: Placement::Replicated,
        reuse: None,
        group: None,
    };
    assert!(matches!(model.add(spec), Err(DeclareError::ReplicatedFormat { .. })));
    let model = model.build();
    assert_eq!(model.weights().len(), 1);
    let error = model.find("v").unwrap_err().to_string();
    assert!(error.contains("`v`") && error.contains('w'), "{error}");
}

#[test]
fn calls_that_name_what_is_not_there_are_refused_and_not_added() {
    let (sharded, whole, mut program) = begin();
    let buffer = program.activation("x", 4).unwrap();
    let unknown = |error: DeclareError| assert!(matches!(error, DeclareError::Unknown { .. }), "{error}");
    unknown(
        program.call("a", Phase::Forward).uses(WeightId::new(9), ROWWISE, Form::Dense).add().unwrap_err(),
    );
    unknown(program.call("a", Phase::Forward).gradient(WeightId::new(9)).add().unwrap_err());
    unknown(program.call("a", Phase::Forward).writes(BufferId::new(9)).add().unwrap_err());
    let repeated = program.call("a", Phase::Forward).writes(buffer).reads(buffer).add().unwrap_err();
    assert!(matches!(repeated, DeclareError::RepeatedAccess { kind: "buffer", .. }), "{repeated}");
    let repeated = program.call("a", Phase::Forward).gradient(sharded).gradient(sharded).add().unwrap_err();
    assert!(matches!(repeated, DeclareError::RepeatedAccess { kind: "gradient", .. }), "{repeated}");
    let columnwise =
        program.call("a", Phase::Forward).uses(whole, Orientation::Columnwise, Form::Dense).add();
    assert!(matches!(columnwise, Err(DeclareError::ReplicatedUse { .. })));
    let rounded = program.call("a", Phase::Forward).uses(whole, ROWWISE, Form::DenseBf16).add();
    assert!(matches!(rounded, Err(DeclareError::ReplicatedUse { .. })));
    let halved = program.call("a", Phase::Forward).gradient_in(whole, ElementType::Bf16).add().unwrap_err();
    assert!(matches!(halved, DeclareError::ReplicatedGradient { .. }), "{halved}");
    assert!(halved.to_string().contains("declare it in f32"), "{halved}");
    let bytes = program.call("a", Phase::Forward).gradient_in(sharded, ElementType::U8).add().unwrap_err();
    assert!(matches!(bytes, DeclareError::GradientElement { .. }), "{bytes}");
    assert!(bytes.to_string().contains("F32 or Bf16"), "{bytes}");
    let again = program.call("a", Phase::Forward).gradient_in(sharded, ElementType::Bf16).gradient(sharded);
    let again = again.add().unwrap_err();
    assert!(matches!(again, DeclareError::RepeatedAccess { kind: "gradient", .. }), "{again}");
    program.call("a", Phase::Forward).writes(buffer).add().unwrap();
    let twice = program.call("a", Phase::Forward).add().unwrap_err();
    assert!(matches!(twice, DeclareError::Duplicate { kind: "call", .. }), "{twice}");
    assert_eq!(program.build_evaluation().unwrap().calls().len(), 1);
}

#[test]
fn buffers_are_read_only_after_something_filled_them() {
    let (_, _, mut program) = begin();
    let x = program.activation("x", 4).unwrap();
    program.call("early", Phase::Forward).reads(x).add().unwrap();
    program.call("late", Phase::Forward).writes(x).add().unwrap();
    let error = program.build_evaluation().unwrap_err();
    assert!(matches!(&error, DeclareError::ReadBeforeWrite { call, .. } if call == "early"), "{error}");

    let (_, _, mut program) = begin();
    let input = program.input("input", 4, ElementType::F32).unwrap();
    program.call("scribble", Phase::Forward).writes(input).add().unwrap();
    assert!(matches!(program.build_evaluation(), Err(DeclareError::WritesInput { .. })));

    for lifetime in [Lifetime::Step, Lifetime::Carried] {
        let (_, _, mut program) = begin();
        let spec = BufferSpec {
            name: "out".into(),
            elements: 1,
            element: ElementType::F32,
            role: Role::Output,
            lifetime,
        };
        program.buffer(spec).unwrap();
        program.call("nothing", Phase::Forward).add().unwrap();
        assert!(matches!(program.build_evaluation(), Err(DeclareError::OutputNeverWritten { .. })));
    }

    let (_, _, mut program) = begin();
    let lifetime = Lifetime::Call;
    let spec = BufferSpec {
        name: "scratch".into(),
        elements: 1,
        element: ElementType::F32,
        role: Role::Internal,
        lifetime,
    };
    let scratch = program.buffer(spec).unwrap();
    program.call("one", Phase::Forward).writes(scratch).add().unwrap();
    program.call("two", Phase::Forward).reads(scratch).add().unwrap();
    assert!(matches!(program.build_evaluation(), Err(DeclareError::CallLifetime { .. })));
}

#[test]
fn a_program_gives_every_weight_a_gradient_or_none() {
    let (sharded, _, mut program) = begin();
    program.call("fit", Phase::Backward).gradient(sharded).add().unwrap();
    let lost = program.clone().build_evaluation().unwrap_err();
    assert!(matches!(&lost, DeclareError::LostGradient { call, .. } if call == "fit"), "{lost}");
    let missing = program.clone().build_gradients().unwrap_err();
    assert!(matches!(&missing, DeclareError::NoGradient { weight, .. } if weight == "bias"), "{missing}");
    let missing = program.build_training().unwrap_err();
    assert!(matches!(&missing, DeclareError::NoGradient { weight, .. } if weight == "bias"), "{missing}");
    let (_, _, empty) = begin();
    assert!(matches!(empty.build_evaluation(), Err(DeclareError::NoCalls { .. })));
}
