//! Sessions of this machine as the subject of a calibration.
//!
//! Law: programs run as a user's would, over the public handle; what differs between devices is how a
//! session is started and what a closure multiplies with.

use warpweft_session::config::{Capture, Config, Prefetch};
use warpweft_session::session::Session;

use super::MeasureError;
use super::programs::Experiment;
use super::subject::{Observation, Step, nanoseconds};

/// Steps before those that count: a prologue, cold kernels, and a capture are in them.
const WARM: usize = 3;

/// How an experiment is run: `base` says what belongs to the machine (pacing, transport, order of sums,
/// deadline), and nothing else of it counts.
pub(super) fn configuration(base: &Config, experiment: &Experiment) -> Config {
    Config {
        cpu: base.cpu,
        transport: base.transport,
        reduce: base.reduce,
        reduce_dtype: base.reduce_dtype,
        deadline_s: base.deadline_s,
        communicators: Some(experiment.communicators),
        prefetch: Prefetch::depth(experiment.depth),
        capture: if experiment.captured { Capture::Step } else { Capture::Off },
        ..Config::default()
    }
}

/// Steps a session that was just started, and ends it.
pub(super) async fn observe(
    mut session: Session,
    experiment: &Experiment,
    steps: usize,
) -> Result<Observation, MeasureError> {
    let name = experiment.program.name();
    let plan = session.plan(name)?.clone();
    let mut kept = Vec::with_capacity(steps);
    for number in 0..WARM + steps {
        let report = session.step(name).await?;
        if number < WARM {
            continue;
        }
        let ranks = session.own_ranks().map(|rank| session.intervals(rank));
        let ranks = ranks.collect::<Result<Vec<_>, _>>()?;
        let timed = ranks.iter().all(|tasks| tasks.len() == plan.tasks.len());
        if !timed && !experiment.captured {
            return Err(MeasureError::Untimed { program: name.to_owned() });
        }
        kept.push(Step {
            duration: nanoseconds(report.duration),
            issue: Some(nanoseconds(report.issue)),
            ranks: if timed { ranks } else { Vec::new() },
        });
    }
    session.close().await?;
    Ok(Observation { plan, steps: kept })
}
