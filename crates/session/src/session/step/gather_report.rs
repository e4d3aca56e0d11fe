//! Gathers the step report from the ranks: faults, times, outputs.
//!
//! Law: of a step that all ranks replied to, everything is taken here before anybody gets a report: whoever gets the
//! report of a failure loses nothing of what the step did.

use std::sync::Arc;
use std::time::Duration;

use super::diverged::Divergence;
use super::report;
use crate::exec::{Handover, RankReport, RankThread};
use crate::session::{Poison, Session, SessionError, StepReport};
use warpweft_backend::ClosureFault;
use warpweft_base::id::{ProgramId, RankId};
use warpweft_plan::model::Call;

/// The closures that failed in a step, on all ranks.
struct Faults<'r> {
    /// The first in program order: what a failed closure did not write may have reached other ranks by a collective.
    first: (RankId, &'r ClosureFault),
    /// The first that panicked.
    panicked: Option<(RankId, &'r ClosureFault)>,
}

impl<'r> Faults<'r> {
    fn of(ranks: &'r [RankReport]) -> Option<Self> {
        let numbered = ranks.iter().enumerate();
        let all = numbered.filter_map(|(rank, report)| Some((RankId::at(rank), report.fault.as_ref()?)));
        let call_of = |(_, fault): &(RankId, &ClosureFault)| fault.call;
        let first = all.clone().min_by_key(call_of)?;
        Some(Self { first, panicked: all.filter(|(_, fault)| fault.panicked).min_by_key(call_of) })
    }
}

impl Session {
    /// A panic in a step nobody awaited still poisons the session. The vote kept every rank from changing a
    /// weight, and closures panic where ranks do not: exports go on.
    fn note_panic(&mut self, faults: &Faults<'_>) {
        if let Some((rank, fault)) = faults.panicked {
            let reason = format!("the closure of {rank} panicked: {}", fault.message);
            self.poisoned.get_or_insert(Poison { reason, exports: true });
        }
    }

    /// How the last step ended on every rank of the world, in rank order.
    fn rank_reports(&self, number: ProgramId) -> Vec<RankReport> {
        let (plan, program) = (self.plan_that_ran(number), self.program_of(number));
        let mut all: Vec<(RankId, RankReport)> = Vec::new();
        for thread in &self.ranks {
            let mut handover = thread.handover();
            all.push((thread.rank(), RankReport::of(plan, program, &handover)));
            all.append(&mut handover.last.elsewhere);
        }
        all.sort_by_key(|(rank, _)| *rank);
        all.into_iter().map(|(_, report)| report).collect()
    }

    /// The report of the last step, by the plan numbered `number`. What it says of steps nobody saw is said once. The
    /// step is logged (`observe::log`).
    ///
    /// # Errors
    /// As [`Session::ended`].
    pub(in crate::session) fn report(
        &mut self,
        number: ProgramId,
        duration: Duration,
    ) -> Result<StepReport, SessionError> {
        let step = self.steps;
        let ended = self.ended(number, duration);
        self.log(number, step, duration, &ended);
        ended
    }

    /// As [`Session::report`], which logs it.
    ///
    /// # Errors
    /// [`SessionError::Closure`] if a closure failed; the session has counted the step, and goes on unless one
    /// panicked.
    /// [`SessionError::Diverged`] if masters and moments cannot be trained on; it has counted the step, and waits for
    /// an import.
    /// [`SessionError::Skipped`] if it is one too many in a row that was skipped; it has counted the step, and goes on.
    fn ended(&mut self, number: ProgramId, duration: Duration) -> Result<StepReport, SessionError> {
        let ranks = self.rank_reports(number);
        self.note_written(ranks.iter().all(|report| report.part_is_written));
        let faults = Faults::of(&ranks);
        faults.iter().for_each(|faults| self.note_panic(faults));
        let plan = Arc::clone(self.plan_that_ran(number));
        self.unseen.not_captured.extend(report::not_captured(&plan.name, &ranks));
        let step = self.steps;
        self.steps += 1;
        let handovers: Vec<_> = self.ranks.iter().map(RankThread::handover).collect();
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&plan, step, self.rendezvous.range().start, &handovers);
        }
        self.diverged = Divergence::of(step, &ranks, &plan.weights);
        if let Some(tuning) = &mut self.tuning {
            let failed = faults.is_some() || self.diverged.is_some();
            let is_skipped = |first: &Handover| first.last.vote.is_some_and(|vote| vote.skips());
            let times = handovers.first().filter(|first| !failed && !is_skipped(first));
            tuning.after_step(number, failed, times.map(|first| first.times.agreed.as_slice()));
        }
        if plan.writes_gradients() {
            self.has_gradients = faults.is_none();
        }
        let loss_scale = handovers.first().map_or(1.0, |handover| handover.coming.loss_scale);
        let vote = handovers.first().and_then(|handover| handover.last.vote);
        let non_finite = self.skips.after(&plan, step, &ranks, (vote, loss_scale));
        self.sum = self.sum.after(&plan, faults.is_some(), loss_scale);
        if let Some(Faults { first: (rank, fault), panicked }) = faults {
            let call = plan.calls.get(fault.call.index()).map_or_else(String::new, Call::label);
            let (message, panicked) = (fault.message.clone(), panicked.map(|(rank, _)| rank));
            return Err(SessionError::Closure { step, rank, call, message, panicked });
        }
        self.check_finite()?;
        self.check_skips((step, vote), non_finite.as_ref())?;
        let (device, first) = (self.device.clone(), RankId::at(self.rendezvous.range().start));
        let unseen = (std::mem::take(&mut self.unseen), self.sum.steps);
        let mut report = report::build(&plan, step, duration, device, unseen, (first, &handovers), ranks)?;
        report.non_finite = non_finite;
        Ok(report)
    }
}
