//! A simulated cluster as the subject of a calibration: the instrument's own test.
//!
//! Law: what calibration finds here are the numbers of the cluster's file, because the times it reads were
//! made of them and of nothing else. No clock of this machine is read.

use std::time::Duration;

use warpweft_backend::TaskInterval;
use warpweft_base::errors::shown;
use warpweft_format::{Format, Orientation, Shape};
use warpweft_plan::cluster::Cluster;
use warpweft_plan::model::{Form, Math};
use warpweft_session::config::Config;
use warpweft_session::session::{costs_of, simulate_each_step};

use super::MeasureError;
use super::programs::{Arithmetic, Experiment};
use super::subject::{Observation, Scale, Step, Subject, nanoseconds};
use super::world::configuration;

/// Ranks of one node in virtual time.
pub(super) struct Simulated {
    pub(super) cluster: Cluster,
    pub(super) ranks: u32,
    pub(super) base: Config,
    pub(super) largest: Option<u64>,
}

/// Bytes of the ladder's largest gradient, unless set otherwise.
const LARGEST: u64 = 256 << 20;

impl Subject for Simulated {
    fn describe(&self) -> String {
        format!("simulated: {} ranks on `{}`", self.ranks, shown(&self.cluster.name))
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
        let largest = usize::try_from(self.largest.unwrap_or(LARGEST) / 4).unwrap_or(usize::MAX);
        Scale { largest, product: Shape { rows: 8192, cols: 8192 }, tokens: 4096 }
    }

    fn observe(&mut self, experiment: &Experiment, steps: usize) -> Result<Observation, MeasureError> {
        let ranks = if experiment.alone { 1 } else { self.ranks };
        let mut config = configuration(&self.base, experiment);
        // All ranks are of one node.
        config.mesh.dp_replicate = config.mesh.dp_replicate.or(Some(1));
        let costs = costs_of(&config, &self.cluster, ranks)?;
        // Without delays all steps are the second.
        let is_steady = self.cluster.jitter.is_none();
        let measured = if is_steady { 2 } else { steps + 1 };
        let mut seen = Vec::with_capacity(measured);
        let mut each = |duration, tasks: &[TaskInterval]| seen.push(step(duration, tasks));
        let simulation = simulate_each_step(
            &experiment.program,
            &config,
            &self.cluster,
            ranks,
            u32::try_from(measured).unwrap_or(u32::MAX),
            &costs,
            &mut each,
        )?;
        let steps = match is_steady {
            true => vec![seen.swap_remove(1); steps],
            false => seen.split_off(1),
        };
        Ok(Observation { plan: simulation.plan, steps })
    }
}

/// A step from time 0 on. A collective begins when its last rank arrives.
fn step(duration: Duration, tasks: &[TaskInterval]) -> Step {
    let origin = tasks.iter().map(|task| task.begin).min().unwrap_or(0);
    let arrived = |task: &TaskInterval| {
        let begin = task.joined - origin;
        let mut arrived = *task;
        (arrived.begin, arrived.joined, arrived.end) = (begin, begin, task.end - origin);
        arrived
    };
    let tasks = tasks.iter().map(arrived).collect();
    Step { duration: nanoseconds(duration), issue: None, ranks: vec![tasks] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::programs;
    use warpweft_plan::cluster::Jitter;
    use warpweft_session::cluster::named;
    use warpweft_session::session::simulate_program;

    fn subject(largest: Option<u64>) -> Simulated {
        let jitter = Jitter { seed: 7, mean: 0.1, ..Jitter::default() };
        let cluster = Cluster { jitter, name: "a\nb".to_owned(), ..named("h200x4").unwrap() };
        Simulated { cluster, ranks: 2, base: Config::default(), largest }
    }

    #[test]
    fn every_step_of_late_ranks_is_seen_of_one_simulation() {
        let mut subject = subject(None);
        let experiment = programs::ladder(Shape { rows: 128, cols: 128 }, Format::Bf16).unwrap();
        let seen = subject.observe(&experiment, 4).unwrap();
        let config = configuration(&subject.base, &experiment);
        let told = simulate_program(&experiment.program, &config, &subject.cluster, 2, 5).unwrap();
        let durations: Vec<u64> = seen.steps.iter().map(|step| step.duration).collect();
        assert_eq!(durations, told.steps[1..].iter().copied().map(nanoseconds).collect::<Vec<_>>());
        let slices = told.timeline.slices.iter().map(|slice| (slice.begin.count(), slice.end.count()));
        let last = seen.steps.last().unwrap().ranks[0].iter().map(|task| (task.begin, task.end));
        assert_eq!(last.collect::<Vec<_>>(), slices.collect::<Vec<_>>());
    }

    #[test]
    fn the_largest_gradient_is_the_one_that_was_asked_for() {
        assert_eq!(subject(Some(1 << 20)).scale().largest, 1 << 18);
        assert_eq!(subject(None).scale().largest, 1 << 26);
    }

    /// The file says in a comment what was measured.
    #[test]
    fn a_name_with_a_line_break_is_one_line() {
        assert_eq!(subject(None).describe(), "simulated: 2 ranks on `a\\nb`");
    }
}
