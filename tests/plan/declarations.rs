//! Refused declarations: the user's error, and that nothing is added. And what a stack of layers declares for the user.

use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::model::{
    BufferSpec, CostHint, DeclareError, Form, Layer, LayerStack, Lifetime, Model, ParameterGroup, Phase,
    ProgramBuilder, Reuse, Role, StepProgram, WeightSpec,
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
    let error = model.sharded("columns", 40, 60, Format::NVFP4_2D).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DeclareError::Format { .. }) && text.contains("`columns`"), "{text}");
    assert!(text.contains("pad the columns to 64"), "{text}");
    let error = model.sharded("activations", 64, 64, Format::NVFP4_1D).unwrap_err().to_string();
    assert!(error.contains("activations") && error.contains("nvfp4_2d"), "{error}");
    assert!(matches!(model.replicated("none", 0, 4), Err(DeclareError::Empty { .. })));
    model.sharded("w", 64, 64, Format::F32).unwrap();
    assert!(matches!(model.replicated("w", 1, 1), Err(DeclareError::Duplicate { .. })));
    let mut spec = WeightSpec::replicated("norm", 1, 64);
    spec.format = Format::Bf16;
    assert!(matches!(model.add(spec), Err(DeclareError::ReplicatedFormat { .. })));
    let model = model.build();
    assert_eq!(model.weights().len(), 1);
    let error = model.find("v").unwrap_err().to_string();
    assert!(error.contains("`v`") && error.contains('w'), "{error}");
}

/// What the loop is to have is an output, and scratch of one call says so. A backward call may leave the gradient of an
/// input to nobody, and an evaluation run the forward calls of training, which keep what backward calls read.
#[test]
fn a_training_program_with_an_activation_that_no_call_reads_is_refused_by_its_name() {
    let declared = |role: Role, lifetime: Lifetime, reads: bool| {
        let (sharded, whole, mut program) = begin();
        let (name, elements, element) = ("kept".to_owned(), 4, ElementType::F32);
        let kept = program.buffer(BufferSpec { name, elements, element, role, lifetime }).unwrap();
        program.call("keep", Phase::Forward).writes(kept).add().unwrap();
        let call = program.call("learn", Phase::Backward).gradient(sharded).gradient(whole);
        if reads { call.reads(kept) } else { call }.add().unwrap();
        program
    };
    let unread = declared(Role::Internal, Lifetime::Step, false);
    for refused in [unread.clone().build_training(), unread.build_gradients()] {
        let error = refused.unwrap_err();
        assert!(matches!(&error, DeclareError::NeverRead { buffer, .. } if buffer == "kept"), "{error}");
        let said = error.to_string();
        assert!(said.contains("ProgramBuilder::output") && said.contains("Lifetime::Call"), "{said}");
    }
    for (role, lifetime, reads) in [
        (Role::Internal, Lifetime::Step, true),
        (Role::Output, Lifetime::Step, false),
        (Role::Internal, Lifetime::Call, false),
        (Role::Internal, Lifetime::Carried, false),
    ] {
        declared(role, lifetime, reads).build_training().unwrap();
    }
    let (sharded, whole, mut program) = begin();
    let gradient = program.activation("input gradient", 4).unwrap();
    program.call("learn", Phase::Backward).writes(gradient).gradient(sharded).gradient(whole).add().unwrap();
    program.build_training().unwrap();
    let (_, _, mut evaluation) = begin();
    let kept = evaluation.activation("kept", 4).unwrap();
    evaluation.call("keep", Phase::Forward).writes(kept).add().unwrap();
    evaluation.build_evaluation().unwrap();
}

/// Shape and format are the same: all that differs is the name.
#[test]
fn a_model_refuses_weights_and_groups_of_another_model_and_stays_as_it_was() {
    let declared = |weight: &str, group: &str| {
        let mut model = Model::builder();
        let weight = model.sharded(weight, 64, 64, Format::F32).unwrap();
        let group = model.group(group, &[weight]).unwrap();
        (model, weight, group)
    };
    let ((mut model, own, _), (_, other, foreign)) = (declared("up", "mlp"), declared("down", "experts"));
    assert_eq!(own, other);
    let before = model.clone().build();
    let mut grouped = WeightSpec::sharded("gate", 64, 64, Format::F32);
    grouped.group = Some(foreign);
    for (refused, words) in [
        (model.freeze(other), "ModelBuilder::freeze names weight 0"),
        (model.reuse(other, Reuse::Keep), "ModelBuilder::reuse names weight 0"),
        (model.parameters(other, ParameterGroup::default()), "ModelBuilder::parameters names weight 0"),
        (model.group("both", &[other]).map(drop), "group `both` names weight 0"),
        (model.add(grouped).map(drop), "weight `gate` names group 0"),
        (before.weight(other).map(drop), "Model::weight names weight 0"),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error, DeclareError::OtherOwner { owner: "model", .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    let model = model.build();
    assert_eq!(model, before);
    assert_eq!(model.weight(own).unwrap().name, "up");
    assert_eq!(
        model.weight(declared("up", "mlp").1).unwrap().name,
        "up",
        "models that declare alike share ids"
    );
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
    let mut evaluate = StepProgram::builder("evaluate", program.model());
    let other = evaluate.activation("y", 4).unwrap(); // of the same number, type and access
    let foreign = program.call("a", Phase::Forward).writes(other).add().unwrap_err();
    let owned = |error: DeclareError, words: &str| {
        assert!(matches!(error, DeclareError::OtherOwner { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    owned(foreign, "call `a` of `train` names buffer 0 of another program; in this one that is `x`");
    let mut model = Model::builder();
    let other = model.sharded("v", 64, 64, Format::NVFP4_2D).unwrap(); // of the same number, shape and format
    let named = "call `a` of `train` names weight 0 of another model; in this one that is `w`";
    owned(program.call("a", Phase::Forward).uses(other, ROWWISE, Form::Dense).add().unwrap_err(), named);
    owned(program.call("a", Phase::Backward).gradient(other).add().unwrap_err(), named);
    let trained = program.call("a", Phase::Backward).gradient_if_trained(other, ElementType::F32);
    owned(trained.add().unwrap_err(), named);
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
    for element in [ElementType::U8, ElementType::U32] {
        let refused = program.call("a", Phase::Forward).gradient_in(sharded, element).add().unwrap_err();
        assert!(matches!(refused, DeclareError::GradientElement { .. }), "{refused}");
        assert!(refused.to_string().contains("f32 or bf16"), "{refused}");
    }
    let early =
        program.call("a", Phase::Forward).reuse(Reuse::Keep).uses(sharded, ROWWISE, Form::Dense).add();
    assert!(matches!(early, Err(DeclareError::ReuseOfNothing { call }) if call == "a"));
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

/// What does not train has no gradient, and the rest must have one.
#[test]
fn a_frozen_weight_has_no_gradient_and_something_trains() {
    let declare = |freeze: &[usize]| {
        let mut model = Model::builder();
        let weights =
            [model.sharded("w", 64, 64, Format::Bf16).unwrap(), model.replicated("bias", 1, 5).unwrap()];
        freeze.iter().for_each(|number| model.freeze(weights[*number]).unwrap());
        assert!(model.freeze(WeightId::new(2)).unwrap_err().to_string().contains("w, bias"));
        (weights, StepProgram::builder("train", &model.build()))
    };
    let ([w, bias], mut program) = declare(&[0]);
    let refused = program.call("fit", Phase::Backward).gradient(w).add().unwrap_err();
    assert!(
        matches!(&refused, DeclareError::FrozenGradient { call, weight } if call == "fit" && weight == "w"),
        "{refused}"
    );
    program.call("fit", Phase::Backward).uses(w, ROWWISE, Form::Dense).gradient(bias).add().unwrap();
    assert!(program.clone().build_gradients().is_ok() && program.build_training().is_ok());
    let ([w, _], mut program) = declare(&[0, 1]);
    program.call("look", Phase::Forward).uses(w, ROWWISE, Form::Dense).add().unwrap();
    let error = program.clone().build_training().unwrap_err();
    assert!(matches!(&error, DeclareError::NothingTrains { program } if program == "train"), "{error}");
    assert!(program.build_evaluation().is_ok());
    // Where there is no weight, none trains.
    let mut program = StepProgram::builder("train", &Model::builder().build());
    program.call("look", Phase::Forward).add().unwrap();
    assert!(matches!(program.clone().build_training(), Err(DeclareError::NothingTrains { .. })));
    assert!(matches!(program.clone().build_gradients(), Err(DeclareError::NothingTrains { .. })));
    program.build_evaluation().unwrap();
}

#[test]
fn what_has_no_name_is_refused_and_not_added() {
    let unnamed = |error: DeclareError, expected: &str| {
        assert!(matches!(error, DeclareError::Unnamed { kind } if kind == expected), "{error}");
    };
    let mut model = Model::builder();
    unnamed(model.sharded("", 64, 64, Format::F32).unwrap_err(), "weight");
    unnamed(model.replicated("", 1, 4).unwrap_err(), "weight");
    let weight = model.sharded("w", 64, 64, Format::F32).unwrap();
    unnamed(model.group("", &[weight]).unwrap_err(), "group");
    let model = model.build();
    assert!((model.weights().len(), model.groups().len()) == (1, 0));
    let mut program = StepProgram::builder("", &model);
    unnamed(program.activation("", 4).unwrap_err(), "buffer");
    unnamed(program.call("", Phase::Forward).add().unwrap_err(), "call");
    program.call("look", Phase::Forward).uses(weight, ROWWISE, Form::Dense).add().unwrap();
    unnamed(program.build_evaluation().unwrap_err(), "program");
}

#[test]
fn a_group_has_members_and_each_of_them_once() {
    let mut model = Model::builder();
    let [one, two] = ["one", "two"].map(|name| model.sharded(name, 64, 64, Format::F32).unwrap());
    assert!(matches!(model.group("none", &[]), Err(DeclareError::NoMembers { group }) if group == "none"));
    let twice = model.group("pair", &[one, two, one]).unwrap_err();
    assert!(matches!(&twice, DeclareError::TwoGroups { weight, .. } if weight == "one"), "{twice}");
    assert!(twice.to_string().contains("`pair` and again of `pair`"), "{twice}");
    model.group("pair", &[one, two]).unwrap();
    assert_eq!(model.build().groups(), ["pair"]);
}

/// It would be requested before every step, and nothing would ever look at it.
#[test]
fn an_input_that_no_call_reads_is_refused_when_the_program_is_built() {
    let (_, _, mut program) = begin();
    program.input("tokens", 4, ElementType::U32).unwrap();
    let x = program.activation("x", 4).unwrap();
    program.call("fill", Phase::Forward).writes(x).add().unwrap();
    let error = program.build_evaluation().unwrap_err();
    assert!(matches!(&error, DeclareError::InputNeverRead { buffer, .. } if buffer == "tokens"), "{error}");
}

/// Name and element type of every buffer of a stack of two layers, which saves statistics in f32 and codes in
/// bytes.
fn stack_in(element: Option<ElementType>) -> (Vec<(String, ElementType)>, StepProgram) {
    let mut model = Model::builder();
    let weights = ["up", "down"].map(|name| model.sharded(name, 32, 32, Format::FP8_BLOCK128_POW2).unwrap());
    let mut program = StepProgram::builder("train", &model.build());
    let activations = element.unwrap_or(ElementType::F32);
    let input = program.input("input", 64, activations).unwrap();
    let layer = |name: &str, weight| {
        let mut layer = Layer::new(name, vec![weight], 64);
        layer.saved.push(("statistics".to_owned(), 2, ElementType::F32));
        layer.saved.push(("codes".to_owned(), 64, ElementType::U8));
        layer
    };
    let layers = vec![layer("first", weights[0]), layer("second", weights[1])];
    let stack = match element {
        None => LayerStack::forward(&mut program, input, layers, Form::Planes),
        Some(element) => LayerStack::forward_in(&mut program, input, layers, Form::Planes, element),
    };
    let stack = stack.unwrap();
    let gradient = program.activation_in("gradient", 64, activations).unwrap();
    let unused = program.activation_in("unused", 64, activations).unwrap();
    program.call("loss", Phase::Forward).reads(stack.output()).writes(gradient).add().unwrap();
    stack.backward(&mut program, gradient, unused).unwrap();
    let program = program.build_training().unwrap();
    let elements = program.buffers().iter().map(|spec| (spec.name.clone(), spec.element)).collect();
    (elements, program)
}

/// The gradient of the input remains; that of the weights is left out where most of them are frozen.
#[test]
fn the_backward_call_of_a_layer_whose_matrix_is_frozen_costs_as_much_as_its_forward() {
    let mut model = Model::builder();
    let weight = model.sharded("up", 32, 32, Format::Bf16).unwrap();
    let norm = model.replicated("norm", 1, 32).unwrap();
    let backward = |freeze: &[WeightId]| {
        let mut model = model.clone();
        freeze.iter().for_each(|weight| model.freeze(*weight).unwrap());
        let mut program = StepProgram::builder("train", &model.build());
        let [input, gradient, unused] =
            ["input", "gradient", "unused"].map(|name| program.activation(name, 32).unwrap());
        program.call("begin", Phase::Forward).writes(input).writes(gradient).add().unwrap();
        let mut layer = Layer::new("layer", vec![norm, weight], 32);
        layer.cost.push(CostHint { flops: 7, ..CostHint::default() });
        let stack = LayerStack::forward(&mut program, input, vec![layer], Form::Planes).unwrap();
        program.call("fit", Phase::Backward).reads(stack.output()).updates(gradient).add().unwrap();
        stack.backward(&mut program, gradient, unused).unwrap();
        let program = program.build_training().unwrap();
        let call = program.calls().last().unwrap();
        (call.cost[0].flops, call.gradients.iter().map(|gradient| gradient.weight).collect::<Vec<_>>())
    };
    assert_eq!(backward(&[]), (14, vec![norm, weight]));
    assert_eq!(backward(&[weight]), (7, vec![norm]));
    assert_eq!(backward(&[norm]), (14, vec![weight]));
}

#[test]
fn a_stack_has_activations_in_the_element_type_asked_for_and_saves_each_buffer_in_its_own() {
    let (buffers, of_bf16) = stack_in(Some(ElementType::Bf16));
    for (name, element) in &buffers {
        let expected = match name.rsplit('.').next() {
            Some("statistics") => ElementType::F32,
            Some("codes") => ElementType::U8,
            _ => ElementType::Bf16,
        };
        assert_eq!(*element, expected, "{name}");
    }
    let named = |name: &str| buffers.iter().any(|(other, _)| other == name);
    assert!(
        ["first.output", "second.output", "first.output_gradient", "second.codes"]
            .iter()
            .all(|name| named(name))
    );
    let (plain, of_f32) = stack_in(None);
    assert_eq!(stack_in(Some(ElementType::F32)), (plain, of_f32.clone()));
    assert_eq!(of_bf16.calls(), of_f32.calls());
    assert!(of_f32.buffers().iter().all(|spec| spec.element != ElementType::Bf16));
}

#[test]
fn a_stack_with_a_layer_that_is_refused_adds_nothing() {
    let mut model = Model::builder();
    let weights = ["a", "b", "c"].map(|name| model.sharded(name, 32, 32, Format::Bf16).unwrap());
    let mut program = StepProgram::builder("train", &model.build());
    let input = program.input("input", 64, ElementType::F32).unwrap();
    let layers = |names: [&str; 3]| {
        let layer = |(name, weight): (&str, _)| Layer::new(name, vec![weight], 64);
        names.into_iter().zip(weights).map(layer).collect::<Vec<_>>()
    };
    let begun = format!("{program:?}");
    let refused =
        LayerStack::forward(&mut program, input, layers(["one", "two", "one"]), Form::Planes).unwrap_err();
    assert!(matches!(refused, DeclareError::Duplicate { .. }), "{refused}");
    assert_eq!(format!("{program:?}"), begun);
    let names = ["one", "two", "three"];
    let stack = LayerStack::forward(&mut program, input, layers(names), Form::Planes).unwrap();
    let [gradient, unused, _] =
        ["gradient", "unused", "one.output_gradient"].map(|name| program.activation(name, 64).unwrap());
    let forward = format!("{program:?}");
    let refused = stack.backward(&mut program, gradient, unused).unwrap_err();
    assert!(matches!(refused, DeclareError::Duplicate { .. }), "{refused}");
    assert_eq!(format!("{program:?}"), forward);
}
