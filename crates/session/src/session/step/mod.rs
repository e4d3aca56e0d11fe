//! One step: its inputs and scalars, its run, and its report.
//!
//! Law: what is refused is refused before anything runs. A step that began is counted, however it ends.

pub(super) mod diverged;
mod gather_report;
pub(super) mod gradient_accumulation;
pub(super) mod hyperparameters;
pub(super) mod inputs;
pub(super) mod non_finite;
pub(super) mod report;
mod scalars;

pub use diverged::StrayValue;
pub use non_finite::{MadeBy, NonFiniteGradient};
pub use report::{NotCaptured, Outcome, StepReport};

use std::sync::Arc;
use std::time::Instant;

use super::compiled_here::CompiledHere;
use super::{Session, SessionError};
use crate::exec::{ComingStep, Command};
use warpweft_base::id::ProgramId;

impl Session {
    /// Runs one step of the program called `program` with the inputs written so far, and waits
    /// until all ranks have drained their lanes.
    ///
    /// While the session tunes itself (`tune.steps`), after a step that ends a trial the next plan may be
    /// made here, on the caller's thread, before this returns.
    ///
    /// If the future is dropped, a step that has begun goes on to its end in the background, and one that has
    /// not begun never does. It begins in the first poll that finds no earlier command under way. There is one
    /// only if a future was dropped before, and until that command has ended this step has not begun. The next
    /// call tells which it was: [`StepReport::unobserved`] has one entry for each step that began since the last
    /// report and ended without an error, one that failed is a [`SessionError::DroppedStep`], and
    /// [`StepReport::step`] counts all that began. Inputs stay written, so a step that did not begin is requested
    /// again as it is. With several processes, one in which a step did not begin is waited for by the others,
    /// for `deadline_s` at most.
    ///
    /// # Errors
    /// [`SessionError::InputNotWritten`], of a rank of this process, before anything runs;
    /// [`SessionError::Accumulating`] where gradients are accumulated ([`Session::accumulate`]) and this step would
    /// lose them or mix loss scales; [`SessionError::Closure`] when a closure failed (weights unchanged; session
    /// usable, unless it says that one panicked), [`SessionError::Diverged`] when this step or one before it left a
    /// master or a moment that is not finite and nothing was imported since, [`SessionError::Skipped`] when this step
    /// was skipped, as were `optimizer.max_skipped` in a row with it, none of them under a loss scale (weights
    /// unchanged; session usable), [`SessionError::DroppedStep`] when the step before was dropped and failed,
    /// [`SessionError::BackgroundSave`] when a save in the background failed, [`SessionError::Poisoned`] after a panic
    /// or the death of a rank. One step skipped for a non-finite gradient is no error: see [`StepReport::outcome`] and
    /// [`StepReport::non_finite`].
    pub async fn step(&mut self, program: &str) -> Result<StepReport, SessionError> {
        self.step_here(program).await
    }

    fn step_here<'a>(&'a mut self, program: &'a str) -> CompiledHere<'a, StepReport> {
        Box::pin(async move {
            self.settle().await?;
            self.check_usable()?;
            let number = self.position(program)?;
            self.run(self.ending(number)?).await
        })
    }

    /// Runs one step by the plan numbered `by`.
    pub(super) async fn run(&mut self, by: ProgramId) -> Result<StepReport, SessionError> {
        let number = self.program_of(by);
        let begun = Instant::now();
        self.check_finite()?;
        self.check_inputs(number)?;
        self.check_sum(self.plan_of(by))?;
        if self.tuning.as_ref().is_some_and(|tuning| !tuning.is_frozen()) {
            // Copies beside a trial would be measured with it.
            self.copy_now().await?;
        }
        let gradient_scale = self.gradient_scale();
        let adoption = self.tuning.as_mut().and_then(|tuning| tuning.before_step(number));
        if let Some(adoption) = &adoption {
            self.programs[number.index()].plan = Arc::clone(&adoption.plan);
        }
        let measures = self.tuning.as_ref().is_some_and(|tuning| tuning.measures(number));
        let snapshot = self.plan_snapshot(by)?;
        let traced = self.recorder.as_ref().is_some_and(|recorder| recorder.keeps(self.steps));
        for (rank, thread) in self.ranks.iter().enumerate() {
            let mut handover = thread.handover();
            handover.coming = ComingStep {
                hyperparameters: self.scheduled.by_weight(),
                loss_scale: self.loss_scale,
                gradient_scale,
                adoption: adoption.clone(),
                snapshot: snapshot.clone(),
                part_is_written: self.part_is_written(),
                traced,
                measures,
                splits: self.splits,
                inspects: self.skips.inspects,
                max_skipped: self.max_skipped,
            };
            for (staged, input) in
                handover.staged[number.index()].iter_mut().zip(&self.programs[number.index()].inputs[rank])
            {
                if !input.bytes.is_empty() {
                    staged.copy_from_slice(&input.bytes);
                }
            }
        }
        self.command(Command::Step(by));
        let before = begun.elapsed();
        let duration = self.finish().await?;
        self.write_snapshot();
        let replied = Instant::now();
        let mut report = self.report(by, duration)?;
        if let Some(host) = &mut report.host {
            host.caller = before + replied.elapsed();
        }
        self.complete_written().await?;
        Ok(report)
    }

    /// Whether reports of the coming steps say where the host's time went ([`StepReport::host`]). Off at
    /// first: asking costs about 50 ns for each stretch of one kind, which the report tells apart. The commands of
    /// a task are one stretch.
    pub fn split_host_time(&mut self, splits: bool) {
        self.splits = splits;
    }
}
