//! One closure for several programs: it knows which one it runs, and finds by name what both declare.

use std::sync::{Arc, Mutex};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation, Shape};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Session, SessionError, initial};
use warpweft_testing::trainer::within_a_minute;

/// A program with an input and an output, declared in either order.
fn program(name: &str, model: &Model, input_first: bool) -> StepProgram {
    let mut program = StepProgram::builder(name, model);
    let (input, output) = if input_first {
        let input = program.input("input", 1, ElementType::F32).unwrap();
        (input, program.output("output", 1, ElementType::F32).unwrap())
    } else {
        let output = program.output("output", 1, ElementType::F32).unwrap();
        (program.input("input", 1, ElementType::F32).unwrap(), output)
    };
    let weight = model.find("w").unwrap();
    let call = program.call("copy", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense);
    call.reads(input).writes(output).add().unwrap();
    program.build_evaluation().unwrap()
}

#[test]
fn a_closure_knows_which_program_it_runs_and_finds_the_buffers_that_this_program_names() {
    within_a_minute(async {
        let mut model = Model::builder();
        model.sharded("w", 32, 32, Format::F32).unwrap();
        let model = model.build();
        let (first, second) = (program("first", &model, true), program("second", &model, false));
        assert_ne!(first.buffer("input").unwrap(), second.buffer("input").unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let book = Arc::clone(&seen);
        let closures = move |_: RankId| {
            let book = Arc::clone(&book);
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
                book.lock().unwrap().push(context.program().to_owned());
                let input = context.read::<f32>(context.buffer_named("input")?)?[0];
                let factor = if context.program() == "first" { 1.0 } else { 2.0 };
                context.write::<f32>(context.buffer_named("output")?)?[0] = factor * input;
                Ok(())
            }
        };
        let builder = Session::builder(Config::default(), closures).program(first).program(second);
        let mut session = builder.initialize(initial::zeros()).start_cpu(1).await.unwrap();
        for (name, expected) in [("second", 6.0), ("first", 3.0), ("second", 6.0)] {
            session.write_input(name, RankId::new(0), "input", &[3.0_f32]).unwrap();
            let report = session.step(name).await.unwrap();
            assert_eq!(report.output::<f32>(RankId::new(0), "output").unwrap(), [expected], "{name}");
        }
        assert_eq!(*seen.lock().unwrap(), ["second", "first", "second"]);
    });
}

/// Number, shape and format are those of the weight that the call declares.
#[test]
fn a_weight_of_another_model_fails_the_step_and_is_not_taken_for_the_own_one_of_its_number() {
    within_a_minute(async {
        let declared = |name: &str| {
            let mut model = Model::builder();
            let weight = model.sharded(name, 32, 32, Format::F32).unwrap();
            (model.build(), weight)
        };
        let ((model, own), (_, foreign)) = (declared("w"), declared("v"));
        for asks_gradient in [false, true] {
            let mut program = StepProgram::builder("train", &model);
            program
                .call("fit", Phase::Backward)
                .uses(own, Orientation::Rowwise, Form::Dense)
                .gradient(own)
                .add()
                .unwrap();
            let closures = move |_: RankId| {
                move |_: &Call, context: &ComputeContext<'_, CpuSurface>| match asks_gradient {
                    true => context.gradient(foreign).map(|_| ()),
                    false => context.dense(foreign, Orientation::Rowwise).map(|_| ()),
                }
            };
            let builder =
                Session::builder(Config::default(), closures).program(program.build_training().unwrap());
            let mut session = builder.initialize(initial::zeros()).start_cpu(1).await.unwrap();
            let said = session.step("train").await.unwrap_err().to_string();
            assert!(said.contains("weight 0 of another model; in this one that is `w`"), "{said}");
        }
    });
}

/// Number, type and access are those of a buffer that the call declares: all that differs is the name.
#[test]
fn a_buffer_of_another_program_fails_the_step_and_is_not_taken_for_the_own_one_of_its_number() {
    within_a_minute(async {
        let mut model = Model::builder();
        model.sharded("w", 32, 32, Format::F32).unwrap();
        let model = model.build();
        let mut other = StepProgram::builder("other", &model);
        let foreign = other.input("tokens", 1, ElementType::F32).unwrap();
        let program = program("train", &model, true);
        assert_eq!(foreign, program.buffer("input").unwrap());
        let closures = move |_: RankId| {
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| context.read::<f32>(foreign).map(|_| ())
        };
        let builder = Session::builder(Config::default(), closures).program(program);
        let mut session = builder.initialize(initial::zeros()).start_cpu(1).await.unwrap();
        session.write_input("train", RankId::new(0), "input", &[3.0_f32]).unwrap();
        let said = session.step("train").await.unwrap_err().to_string();
        assert!(said.contains("buffer 0 of another program; in this one that is `input`"), "{said}");
    });
}

#[test]
fn a_buffer_that_its_program_does_not_declare_fails_the_step_with_the_names_near_it() {
    within_a_minute(async {
        let mut model = Model::builder();
        model.sharded("w", 32, 32, Format::F32).unwrap();
        let program = program("train", &model.build(), true);
        let closures = |_: RankId| {
            |_: &Call, context: &ComputeContext<'_, CpuSurface>| context.buffer_named("ouput").map(|_| ())
        };
        let builder = Session::builder(Config::default(), closures).program(program);
        let mut session = builder.initialize(initial::zeros()).start_cpu(1).await.unwrap();
        session.write_input("train", RankId::new(0), "input", &[3.0_f32]).unwrap();
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(&error, SessionError::Closure { panicked: None, .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("`ouput`") && said.contains("`train`") && said.contains("`output`"), "{said}");
    });
}

#[test]
fn what_a_call_names_is_what_it_would_reach_by_ids_and_nothing_else() {
    within_a_minute(async {
        let mut model = Model::builder();
        let w = model.sharded("w", 4, 8, Format::F32).unwrap();
        let other = model.sharded("other", 4, 8, Format::F32).unwrap();
        let model = model.build();
        let mut program = StepProgram::builder("train", &model);
        let input = program.input("input", 1, ElementType::F32).unwrap();
        let output = program.output("output", 1, ElementType::F32).unwrap();
        let call = program.call("fit", Phase::Backward).uses_dense(w).gradient(w);
        call.reads(input).writes(output).add().unwrap();
        // Every weight that trains has a gradient.
        program.call("rest", Phase::Backward).gradient(other).add().unwrap();
        let program = program.build_training().unwrap();
        let closures = move |_: RankId| {
            move |call: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
                if call.name == "rest" {
                    context.gradient_named("other")?.fill(0.0);
                    let said = context.dense_named("w").map(|_| ()).unwrap_err().to_string();
                    assert!(said.contains("`rest`") && said.contains("`w`"), "{said}");
                    return Ok(());
                }
                assert_eq!(context.shape(w)?, Shape::new(4, 8));
                assert!(context.shape(other).is_err() && context.gradient_named("other").is_err());
                assert_eq!(*context.dense_named("w")?, *context.dense(w, Orientation::Rowwise)?);
                assert_eq!(*context.read_named::<f32>("input")?, *context.read::<f32>(input)?);
                context.gradient_named("w")?.fill(1.0);
                context.write_named::<f32>("output")?[0] = context.dense_named("w")?[8];
                let said = context.dense_named("v").map(|_| ()).unwrap_err().to_string();
                assert!(said.contains("`v`") && said.contains("`w`"), "{said}");
                Ok(())
            }
        };
        let builder = Session::builder(Config::default(), closures).program(program);
        let rows = |rows: MasterRows<'_>, values: &mut [f32]| {
            values.iter_mut().enumerate().for_each(|(at, value)| *value = (rows.first_element() + at) as f32);
        };
        let mut session = builder.initialize(rows).start_cpu(1).await.unwrap();
        session.write_input("train", RankId::new(0), "input", &[3.0_f32]).unwrap();
        let report = session.step("train").await.unwrap();
        assert_eq!(report.output::<f32>(RankId::new(0), "output").unwrap(), [8.0]);
        // A gradient of ones moved every value of `w` by the learning rate, and `other` stayed.
        let after = session.export().await.unwrap();
        assert!(after.weights[0].master.iter().zip(0u16..).all(|(value, at)| *value < f32::from(at)));
        assert_eq!(after.weights[1].master[8], 8.0);
    });
}
