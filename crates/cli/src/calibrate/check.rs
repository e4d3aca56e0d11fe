//! The held-out step: the prediction of the new cluster file beside the machine's time.
//!
//! Law: no number was read from this program. Prediction is the simulator's, with the cluster of the file and
//! nothing else, of the very plan that ran. A prediction that is far off is warned of: the file is of no use.

use std::collections::BTreeMap;
use std::time::Duration;

use warpweft_plan::cluster::Cluster;
use warpweft_session::config::Config;
use warpweft_session::session::simulate_program;

use super::super::text::{Align, Table, duration};
use super::MeasureError;
use super::figure::middle;
use super::programs::Experiment;
use super::subject::{Observation, Subject};
use super::world::configuration;

/// Predicted against measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Check {
    /// Nanoseconds of a step: as the cluster predicts it, as measured (median).
    pub step: Compared,
    /// The same of all tasks of an op, on one rank.
    pub ops: Vec<(String, Compared)>,
}

/// A prediction beside the measured time, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Compared {
    /// Tasks, or steps.
    pub count: usize,
    /// Predicted.
    pub predicted: f64,
    /// Measured.
    pub measured: f64,
}

impl Compared {
    /// By which share of what was measured the prediction is too long; negative where it is too short.
    #[must_use]
    pub fn error(&self) -> f64 {
        match self.measured > 0.0 {
            true => self.predicted / self.measured - 1.0,
            false => 0.0,
        }
    }
}

/// A whole step that is predicted this much too long or too short, as a share, was another machine's.
const FAR_OFF: f64 = 0.25;

impl Check {
    /// What to say of a file whose prediction is far off.
    pub(super) fn warning(&self) -> Option<String> {
        let error = self.step.error();
        (error.abs() > FAR_OFF).then(|| {
            format!(
                "the held-out step is predicted {:+.0} % off: the machine was busy or changed meanwhile; do not plan with this file, measure again",
                100.0 * error
            )
        })
    }
}

/// What to say of ranks that share so many cores: they would wait for one, which no cluster file says.
pub(super) fn warning_of_cores(ranks: u32, cores: usize) -> Option<String> {
    let most = cores / 2;
    (ranks as usize > most).then(|| {
        let instead = match most {
            0..2 => "measure on a machine with more of them".to_owned(),
            most => format!("take at most {most} (--ranks)"),
        };
        format!("{ranks} ranks share {cores} cores and wait for them, which no cluster file says; {instead}")
    })
}

/// Runs the experiment and predicts it.
///
/// # Errors
/// As [`Subject::observe`].
pub(super) fn check(
    subject: &mut dyn Subject,
    experiment: &Experiment,
    cluster: &Cluster,
    base: &Config,
    steps: usize,
) -> Result<Check, MeasureError> {
    let observation = subject.observe(experiment, steps)?;
    let config = configuration(base, experiment);
    let of_mean = u32::try_from(steps).unwrap_or(u32::MAX);
    let predicted = simulate_program(&experiment.program, &config, cluster, subject.ranks(), of_mean)?;
    let measured = middle(observation.steps.iter().map(|step| step.duration as f64).collect()).unwrap_or(0.0);
    let step =
        Compared { count: observation.steps.len(), predicted: predicted.step.as_nanos() as f64, measured };
    Ok(Check { step, ops: by_op(&observation, &predicted.durations) })
}

fn by_op(observation: &Observation, predicted: &[u64]) -> Vec<(String, Compared)> {
    let mut ops: BTreeMap<String, Compared> = BTreeMap::new();
    for (number, (task, predicted)) in observation.plan.tasks.iter().zip(predicted).enumerate() {
        let of_op = ops.entry(task.op.name().to_owned());
        let of_op = of_op.or_insert(Compared { count: 0, predicted: 0.0, measured: 0.0 });
        of_op.count += 1;
        of_op.predicted += *predicted as f64;
        of_op.measured += middle(observation.times(number)).unwrap_or(0.0);
    }
    let mut ops: Vec<(String, Compared)> = ops.into_iter().collect();
    ops.sort_by(|(_, one), (_, other)| other.measured.total_cmp(&one.measured));
    ops
}

impl std::fmt::Display for Check {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = Table::new([
            ("held-out step", Align::Left),
            ("tasks", Align::Right),
            ("predicted", Align::Right),
            ("measured", Align::Right),
            ("error", Align::Right),
        ]);
        let mut row = |name: &str, count: String, compared: &Compared| {
            let time = |nanoseconds: f64| duration(Duration::from_nanos(nanoseconds as u64));
            let error = format!("{:+.1} %", 100.0 * compared.error());
            table.row([name.to_owned(), count, time(compared.predicted), time(compared.measured), error]);
        };
        for (name, compared) in &self.ops {
            row(name, compared.count.to_string(), compared);
        }
        row("the whole step", String::new(), &self.step);
        table.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_that_is_far_off_is_warned_of_whichever_way() {
        let check =
            |predicted, measured| Check { step: Compared { count: 3, predicted, measured }, ops: Vec::new() };
        for (predicted, percent) in [(130.0, "+30 %"), (40.0, "-60 %")] {
            let said = check(predicted, 100.0).warning().unwrap();
            assert!(said.contains(percent) && said.contains("do not plan with this file"), "{said}");
        }
        assert_eq!(check(80.0, 100.0).warning(), None);
        assert_eq!(check(120.0, 100.0).warning(), None);
    }

    #[test]
    fn ranks_that_wait_for_cores_are_warned_of() {
        assert!(warning_of_cores(4, 4).unwrap().contains("take at most 2"));
        assert!(warning_of_cores(2, 2).unwrap().contains("a machine with more"));
        assert_eq!(warning_of_cores(2, 4), None);
    }
}
