//! What a step that has ended left with the ranks: faults, times, reports.
//!
//! Law: of a step that all ranks replied to, everything is taken here before anybody is told: whoever is told of a
//! failure loses nothing of what the step did.

use std::sync::Arc;
use std::time::Duration;

use super::diverged::Divergence;
use super::{Poison, Session, SessionError, StepReport, report};
use crate::exec::{Handover, RankReport, RankThread};
use crate::id::{ProgramId, RankId};
use crate::model::Call;

impl Session {
    /// A panic in a step nobody looked at still poisons the session. The vote kept every rank from changing a
    /// weight, and closures panic where ranks do not: exports go on.
    fn note_panics(&mut self, ranks: &[RankReport]) {
        for (rank, report) in ranks.iter().enumerate() {
            if let Some(fault) = report.fault.as_ref().filter(|fault| fault.panicked) {
                let reason = format!("the closure of {} panicked: {}", RankId::at(rank), fault.message);
                self.poisoned.get_or_insert(Poison { reason, exports: true });
            }
        }
    }

    /// How the last step ended on every rank of the world, in rank order.
    fn rank_reports(&self, number: ProgramId) -> Vec<RankReport> {
        let (plan, program) = (self.plan_of(number), self.program_of(number));
        let mut all: Vec<(RankId, RankReport)> = Vec::new();
        for thread in &self.ranks {
            let mut handover = thread.handover();
            all.push((thread.rank(), RankReport::of(plan, program, &handover)));
            all.append(&mut handover.elsewhere);
        }
        all.sort_by_key(|(rank, _)| *rank);
        all.into_iter().map(|(_, report)| report).collect()
    }

    /// The report of the last step, by the plan numbered `number`. What it says of steps nobody saw is said once.
    ///
    /// # Errors
    /// [`SessionError::Closure`] if a closure failed; the session goes on, and has counted the step.
    /// [`SessionError::Diverged`] if masters and moments cannot be trained on; it has counted the step, and waits for
    /// an import.
    pub(super) fn report(
        &mut self,
        number: ProgramId,
        duration: Duration,
    ) -> Result<StepReport, SessionError> {
        let ranks = self.rank_reports(number);
        self.note_panics(&ranks);
        let plan = Arc::clone(self.plan_of(number));
        self.unseen.not_recorded.extend(report::not_recorded(&plan.name, &ranks));
        let step = self.steps;
        self.steps += 1;
        let handovers: Vec<_> = self.ranks.iter().map(RankThread::handover).collect();
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&plan, step, self.rendezvous.range().start, &handovers);
        }
        self.diverged = Divergence::of(step, &ranks, &plan.weights);
        if let Some(tuning) = &mut self.tuning {
            let failed = ranks.iter().any(|report| report.fault.is_some()) || self.diverged.is_some();
            let is_skipped = |first: &Handover| first.vote.is_some_and(|vote| vote.skips());
            let times = handovers.first().filter(|first| !failed && !is_skipped(first));
            tuning.after_step(number, failed, times.map(|first| first.agreed.as_slice()));
        }
        // The first in program order: what a failed closure did not write may have reached other ranks by an exchange.
        let faulted = (ranks.iter().enumerate())
            .filter_map(|(rank, report)| report.fault.as_ref().map(|fault| (RankId::at(rank), fault)))
            .min_by_key(|(_, fault)| fault.call);
        if plan.writes_gradients() {
            self.has_gradients = faulted.is_none();
        }
        let loss_scale = handovers.first().map_or(1.0, |handover| handover.loss_scale);
        self.sum = self.sum.after(&plan, faulted.is_some(), loss_scale);
        if let Some((rank, fault)) = faulted {
            let call = plan.calls.get(fault.call.index()).map_or_else(String::new, Call::label);
            let (message, panicked) = (fault.message.clone(), fault.panicked);
            return Err(SessionError::Closure { step, rank, call, message, panicked });
        }
        self.check_sound()?;
        let (device, first) = (self.device.clone(), RankId::at(self.rendezvous.range().start));
        let unseen = (std::mem::take(&mut self.unseen), self.sum.steps);
        report::build(&plan, step, duration, device, unseen, (first, &handovers), ranks)
    }
}
