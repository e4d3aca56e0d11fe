//! The key `check`: every session obeys it, whoever made its backends.

use warpweft_backend::cpu::{CpuOptions, CpuSurface, CpuWorld};
use warpweft_backend::{Backend, Checked};
use warpweft_base::id::RankId;
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Mesh, Model, Phase, StepProgram};
use warpweft_session::cluster::named;
use warpweft_session::config::Config;
use warpweft_session::session::{Session, block_on};

/// What a session on `backends` says it runs on, and whether its closure finds what it overwrites spoiled, as the
/// checking layer does.
fn looks<B: Backend<Surface = CpuSurface>>(check: bool, backends: Vec<B>) -> (String, bool) {
    let mut program = StepProgram::builder("look", &Model::builder().build());
    let seen = program.output("seen", 1, ElementType::F32).unwrap();
    program.call("look", Phase::Forward).writes(seen).add().unwrap();
    let look = move |_: &Call, context: &ComputeContext<'_, CpuSurface>| -> Result<(), ComputeError> {
        let mut seen = context.write::<f32>(seen)?;
        seen[0] = f32::from(u8::from(seen[0].is_nan()));
        Ok(())
    };
    let config = Config { check, ..Config::default() };
    let builder = Session::builder(config, move |_: RankId| look);
    let builder = builder.program(program.build_evaluation().unwrap());
    let mut session = block_on(builder.start(backends)).unwrap();
    let is_spoiled = block_on(session.step("look")).unwrap().mean_output("seen").unwrap() == 1.0;
    (session.device().to_owned(), is_spoiled)
}

#[test]
fn a_session_on_backends_of_the_user_is_checked_once_if_it_is_to_be_or_they_are() {
    let backends = || {
        let world = CpuWorld::new(Mesh::new(2).unwrap(), CpuOptions::default()).unwrap();
        (0..2).map(|rank| world.backend(RankId::new(rank)).unwrap()).collect::<Vec<_>>()
    };
    let checked = || backends().into_iter().map(Checked::new).collect::<Vec<_>>();
    let (plain, is_spoiled) = looks(false, backends());
    assert!(!plain.contains("checked") && !is_spoiled, "{plain}");
    for (device, is_spoiled) in [looks(true, backends()), looks(false, checked()), looks(true, checked())] {
        assert!(device.matches("checked").count() == 1 && is_spoiled, "{device}");
    }
}

#[test]
fn a_session_in_virtual_time_is_checked_if_it_is_to_be() {
    let device = |check| {
        let mut program = StepProgram::builder("look", &Model::builder().build());
        let seen = program.output("seen", 1, ElementType::F32).unwrap();
        program.call("look", Phase::Forward).writes(seen).add().unwrap();
        let builder = Session::simulated(Config { check, ..Config::default() });
        let builder = builder.program(program.build_evaluation().unwrap());
        let cluster = named("h100x8-ib").unwrap();
        block_on(builder.start_simulated(&cluster, 8)).unwrap().device().to_owned()
    };
    assert_eq!([false, true].map(|check| device(check).matches("checked").count()), [0, 1]);
}
