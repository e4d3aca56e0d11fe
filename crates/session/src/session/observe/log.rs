//! Step logging: one event of `tracing` for each step.
//!
//! Law: every step that began has one event, on every process, once its end is known: at `info`, or at `warn` where no
//! weight was updated and one should have been. Its fields have the same names whatever the outcome; those that a step
//! does not have are absent. A subscriber decides whether it is seen, and nothing else depends on it.

use std::time::Duration;

use crate::session::{MadeBy, NonFiniteGradient, Outcome, Session, SessionError, StepReport};
use warpweft_base::id::ProgramId;
use warpweft_format::ElementType;
use warpweft_plan::model::Role;

impl Session {
    /// Logs how the step numbered `step` ended.
    pub(in crate::session) fn log(
        &self,
        number: ProgramId,
        step: u64,
        duration: Duration,
        ended: &Result<StepReport, SessionError>,
    ) {
        let program = self.plan_of(number).name.as_str();
        let duration_s = duration.as_secs_f64();
        let report = match ended {
            Ok(report) => report,
            Err(error) => {
                let (outcome, norm, gradient) = match error {
                    SessionError::Skipped { norm, gradient, .. } => {
                        ("skipped", Some(f64::from(*norm)), gradient.as_ref())
                    }
                    _ => ("failed", None, None),
                };
                let (weight, rank, call) = named(gradient);
                tracing::warn!(program, step, outcome, norm, duration_s, weight, rank, call, %error, "step");
                return;
            }
        };
        let loss = report.loss().map(f64::from);
        let (outcome, norm) = match report.outcome {
            Outcome::Updated { norm, .. } => ("updated", Some(f64::from(norm))),
            Outcome::Skipped { norm, .. } => ("skipped", Some(f64::from(norm))),
            Outcome::Evaluated => ("evaluated", None),
            Outcome::Accumulated { .. } => ("accumulated", None),
        };
        match &report.non_finite {
            None if outcome != "skipped" => {
                tracing::info!(program, step, outcome, loss, norm, duration_s, "step");
            }
            gradient => {
                let (weight, rank, call) = named(gradient.as_ref());
                let why =
                    crate::session::step::non_finite::why(norm.unwrap_or(f64::NAN) as f32, gradient.as_ref());
                tracing::warn!(
                    program,
                    step,
                    outcome,
                    loss,
                    norm,
                    duration_s,
                    weight,
                    rank,
                    call,
                    "step: {why}"
                );
            }
        }
    }
}

/// The weight of a gradient, and the rank and the call that wrote it, as far as they are known.
fn named(gradient: Option<&NonFiniteGradient>) -> (Option<&str>, Option<u32>, Option<&str>) {
    let Some(NonFiniteGradient { weight, made_by }) = gradient else { return (None, None, None) };
    match made_by {
        MadeBy::Call { rank, call, .. } => (Some(weight), Some(rank.number()), Some(call)),
        MadeBy::Sum { .. } | MadeBy::Unknown { .. } => (Some(weight), None, None),
    }
}

impl StepReport {
    /// The mean of the first output of one f32 that the program declares.
    fn loss(&self) -> Option<f32> {
        let is_scalar =
            |role, element, elements| role == Role::Output && element == ElementType::F32 && elements == 1;
        let mut buffers = self.plan().buffers.iter();
        let scalar = buffers.find(|spec| is_scalar(spec.role, spec.element, spec.elements))?;
        self.mean_output(&scalar.name).ok()
    }
}
