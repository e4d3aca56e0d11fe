//! Loss scaling, as closures see it.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, block_on, initial};

/// A training program and an evaluation, which declare nothing about the scale.
fn programs() -> (WeightId, StepProgram, StepProgram) {
    let mut model = Model::builder();
    let weight = model.sharded("w", 32, 32, Format::Bf16).unwrap();
    let model = model.build();
    let mut train = StepProgram::builder("train", &model);
    let seen = train.output("seen", 1, ElementType::F32).unwrap();
    train.call("fit", Phase::Backward).gradient(weight).writes(seen).add().unwrap();
    let mut look = StepProgram::builder("look", &model);
    let seen = look.output("seen", 1, ElementType::F32).unwrap();
    look.call("look", Phase::Forward).writes(seen).add().unwrap();
    (weight, train.build_training().unwrap(), look.build_evaluation().unwrap())
}

/// A gradient of ones times the scale has the norm of ones, whatever the scale is.
#[test]
fn closures_read_the_scale_of_the_step_without_declaring_it_in_issued_and_captured_steps() {
    for capture in [Capture::Off, Capture::Step] {
        let (weight, train, look) = programs();
        let closure = move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
            let scale = context.loss_scale()?[0];
            context.write::<f32>(context.buffer_named("seen")?)?[0] = scale;
            if call.name == "fit" {
                context.gradient(weight)?.fill(scale);
            }
            Ok::<_, ComputeError>(())
        };
        let config = Config { capture, check: true, ..Config::default() };
        let builder = Session::builder(config, move |_: RankId| closure).program(train).program(look);
        let mut session = block_on(builder.initialize(initial::zeros()).start_cpu(2)).unwrap();
        for (step, scale) in [1.0_f32, 1024.0, 0.5, 0.5, 65536.0].into_iter().enumerate() {
            if step > 0 {
                session.set_loss_scale(scale).unwrap();
            }
            let report = block_on(session.step("train")).unwrap();
            assert_eq!(report.mean_output("seen").unwrap(), scale, "{capture:?}");
            let Outcome::Updated { norm, .. } = report.outcome else { panic!("{:?}", report.outcome) };
            assert_eq!(norm, 32.0, "{capture:?}, scale {scale}");
            let report = block_on(session.step("look")).unwrap();
            assert_eq!(report.mean_output("seen").unwrap(), scale, "{capture:?}");
        }
    }
}
