//! EX-2: processes that made different optimizers, whose plans are the same, do not start.
//!
//! Each has CPU lanes of its own, which reach no other process: only the start of a session is between them.

use std::sync::Arc;

use warpweft::prelude::*;
use warpweft_backend::cpu::{CpuOptions, CpuWorld};
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_session::session::{block_on, initial};
use warpweft_testing::custom_optimizer::Called;

use crate::Test;
use crate::crew::Crew;

/// The role of a child that starts a session with an optimizer, before the name of that.
pub(crate) const ROLE: &str = "start with ";

pub(crate) const ALL: &[Test] = &[
    ("processes_with_different_optimizers_do_not_start_and_each_names_both", different),
    ("processes_with_the_same_optimizer_start", same),
];

/// An optimizer of this name, with states of these names, which updates nothing.
fn called(name: &'static str, states: &'static [&'static str]) -> impl Optimizer<CpuSurface> + Clone {
    Called(name, states, |_: &UpdateContext<'_, CpuSurface>| Ok(()))
}

/// In a child: starts a session over all processes of `world`, with this optimizer.
pub(crate) fn start(optimizer: &str, world: Arc<Rendezvous>) -> Result<(), SessionError> {
    block_on(async {
        let mut model = Model::builder();
        let weight = model.sharded("map", 64, 64, Format::F32)?;
        let mut program = StepProgram::builder("train", &model.build());
        let call = program.call("shrink", Phase::Backward).uses(weight, Orientation::Rowwise, Form::Dense);
        call.gradient(weight).add()?;
        let config = Config::default();
        let device = CpuWorld::new(config.mesh_of(world.ranks())?, CpuOptions::default())?;
        let backends = world.own().map(|rank| device.backend(rank)).collect::<Result<_, _>>()?;
        let builder = Session::builder(config, |_| on_cpu(|_, _| Ok(()))).program(program.build_training()?);
        let builder = builder.initialize(initial::normal(17, 0.02));
        let builder = match optimizer {
            "Lion" => builder.optimizer(called("Lion", &["momentum"])),
            "Lion of velocity" => builder.optimizer(called("Lion", &["velocity"])),
            "Tiger" => builder.optimizer(called("Tiger", &["momentum"])),
            _ => builder,
        };
        builder.start_in(world, backends).await?.close().await
    })
}

/// Two processes, of one rank and of two, that start with these optimizers.
fn started(optimizers: [&'static str; 2]) -> [crate::crew::Member; 2] {
    let crew = Crew::new(optimizers[0], 2);
    let other = Crew { role: optimizers[1], ..crew.clone() };
    [crew.start(0, 1), other.start(1, 2)]
}

fn different() {
    let lion = "`Lion` with state `momentum`";
    for (optimizers, other) in [
        (["start with Lion", "start with Tiger"], "`Tiger` with state `momentum`"),
        (["start with Lion", "start with Lion of velocity"], "`Lion` with state `velocity`"),
    ] {
        for mut member in started(optimizers) {
            let error = member.fails();
            assert!(error.contains(lion) && error.contains(other), "{error}");
            assert!(error.contains("the same optimizer in every process"), "{error}");
        }
    }
}

fn same() {
    for role in ["start with Lion", "start with Adam"] {
        for mut member in started([role, role]) {
            member.hear("done");
            assert!(member.ends().success());
        }
    }
}
