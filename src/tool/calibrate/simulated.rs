//! A simulated cluster as what is measured: the instrument's own test.
//!
//! Law: what calibration finds here are the numbers of the cluster's file, because the times it reads were
//! made of them and of nothing else. No clock of this machine is read.

use super::CalibrateError;
use super::programs::{Arithmetic, Experiment};
use super::subject::{Observation, Scale, Step, Subject, nanoseconds};
use super::world::configuration;
use crate::backend::TaskInterval;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::format::{Format, Orientation, Shape};
use crate::model::{Form, Math};
use crate::session::{Simulation, simulate_program};

/// Ranks of one node in virtual time.
pub(super) struct Simulated {
    pub(super) cluster: Cluster,
    pub(super) ranks: u32,
    pub(super) base: Config,
}

impl Subject for Simulated {
    fn describe(&self) -> String {
        format!("simulated: {} ranks on `{}`", self.ranks, self.cluster.name)
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn memory(&self) -> Option<(u64, String)> {
        Some((self.cluster.gpu.memory_bytes, "as the simulated cluster's file says".to_owned()))
    }

    fn arithmetic(&self, format: Format) -> Arithmetic {
        let (math, form, backward) = (Math::Bf16, Form::DenseBf16, Orientation::Rowwise);
        Arithmetic { format, math, form, backward, activations: None }
    }

    fn products(&self) -> Vec<Arithmetic> {
        let of = |math| Arithmetic { math, ..self.arithmetic(Format::Bf16) };
        [Math::F32, Math::Bf16, Math::Fp8, Math::Fp4].map(of).into()
    }

    fn scale(&self) -> Scale {
        Scale { largest: 1 << 26, product: Shape { rows: 8192, cols: 8192 }, tokens: 4096 }
    }

    fn observe(&mut self, experiment: &Experiment, steps: usize) -> Result<Observation, CalibrateError> {
        let ranks = if experiment.alone { 1 } else { self.ranks };
        let config = configuration(&self.base, experiment);
        let simulate = |steps: usize| {
            let steps = u32::try_from(steps).unwrap_or(u32::MAX);
            simulate_program(&experiment.program, &config, &self.cluster, ranks, steps)
        };
        // A simulation shows its last step. Without delays all steps are that one.
        let last = simulate(2)?;
        let plan = last.plan.clone();
        let steps = match self.cluster.jitter.is_none() {
            true => vec![step(&last); steps],
            false => {
                let number = |number| Ok(step(&simulate(number)?));
                (2..2 + steps).map(number).collect::<Result<_, CalibrateError>>()?
            }
        };
        Ok(Observation { plan, steps })
    }
}

fn step(simulation: &Simulation) -> Step {
    let interval = |slice: &crate::trace::Slice| {
        let begin = slice.begin.count();
        TaskInterval { begin, joined: begin, end: slice.end.count() }
    };
    let tasks = simulation.timeline.slices.iter().map(interval).collect();
    let duration = simulation.steps.last().copied().unwrap_or(simulation.step);
    Step { duration: nanoseconds(duration), issue: None, ranks: vec![tasks] }
}
