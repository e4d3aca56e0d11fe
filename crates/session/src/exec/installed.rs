//! A plan installed on a rank: bound, with its actors, its capture and the places of its staged buffers.
//! And one step of it.
//!
//! Laws:
//! - What a step needs was made when its plan was installed: a step binds nothing and creates no actors.
//! - A step is issued, captured or replayed here and nowhere else (EX-1). A step that is on its lanes, whole
//!   or in part, ends when each lane has been waited for, whatever the others said. A capture is used if
//!   all ranks made one.
//! - Whether a step may run, and whether it left what it promised, is for the rank to judge (`rank`).

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::capture::Action;
use super::graph::{capture_step, replay_step};
use super::{Capture, CaptureMode, ExecError, Pump, World};
use crate::actor::Poison;
use warpweft_backend::{Activity, Backend, BackendError, HostSplit, Meter};
use warpweft_base::id::{BufferId, LaneId};
use warpweft_plan::layout::{Binding, Content, Region};
use warpweft_plan::model::Role;
use warpweft_plan::op::{CastVote, Op};
use warpweft_plan::plan::{BoundaryState, StepPlan};

/// A plan installed on a rank.
pub struct Installed<B: Backend> {
    pub(super) plan: Arc<StepPlan>,
    pub(super) bound: B::Bound,
    pump: Pump<B>,
    capture: Capture<B::Graph>,
    /// Whether a step must still complete, on all ranks and without a fault, before the plan runs
    /// differently.
    is_cold: bool,
    compute: LaneId,
    /// Where the step leaves its vote, if it takes one.
    pub(super) vote: Option<Region>,
    /// What the host copies in before a step, and out after it.
    pub(super) inputs: Vec<Staged>,
    pub(super) outputs: Vec<Staged>,
}

/// One micro-batch of a staged buffer.
pub(super) struct Staged {
    /// Where it is in the arena.
    pub(super) region: Region,
    /// The buffer.
    pub(super) buffer: BufferId,
    /// The micro-batch's part of what the session staged.
    pub(super) bytes: Range<usize>,
}

/// How a step was put on its lanes.
pub(super) struct Driven {
    /// Why it was not captured, if it was supposed to be.
    pub(super) uncaptured: Option<String>,
    /// Captures launched for it.
    pub(super) segments: usize,
    /// How long that took, without capturing and without waiting for the lanes.
    pub(super) issue: Duration,
    /// What that time was spent on.
    pub(super) issued: HostSplit,
    /// What the host's time before that was spent on, without capturing.
    pub(super) before: HostSplit,
    /// Like `issue`, including waiting for the lanes.
    pub(super) step: Duration,
}

/// Binds a plan and creates its actors; `timed` if its tasks must be timed.
pub(super) fn install<B: Backend>(
    backend: &B,
    memory: &B::Memory,
    plan: Arc<StepPlan>,
    capture: CaptureMode,
    timed: bool,
    poison: &Poison,
) -> Result<Installed<B>, ExecError> {
    let ops = plan.ops();
    let bound = backend.bind(memory, &Binding { timed, ..plan.binding(backend.rank(), &ops) })?;
    let vote = plan.tasks.iter().find_map(|task| match task.op {
        Op::Vote(CastVote { vote, .. }) => Some(plan.arena.region(vote)),
        _ => None,
    });
    Ok(Installed {
        bound,
        pump: Pump::new(backend.rank(), &plan, poison.clone()),
        capture: Capture::new(capture),
        is_cold: backend.has_cold_steps() || capture == CaptureMode::Captured,
        compute: plan.compute_lane(),
        vote,
        inputs: staging(&plan, Role::Input).collect(),
        outputs: staging(&plan, Role::Output).collect(),
        plan,
    })
}

impl<B: Backend> std::fmt::Debug for Installed<B> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = out.debug_struct("Installed");
        shown.field("plan", &self.plan.name).field("is_cold", &self.is_cold);
        shown.finish_non_exhaustive()
    }
}

impl<B: Backend> Installed<B> {
    /// Issues, captures or replays one step and waits for its end. With `issues` it is issued in any case.
    pub(super) fn drive(
        &mut self,
        issues: bool,
        backend: &B,
        streams: &mut [B::Stream],
        world: &World,
        meter: &Meter,
    ) -> Result<Driven, ExecError> {
        let before = meter.lap();
        let Self { bound, plan, pump, capture, compute, .. } = self;
        let mut uncaptured = None;
        if capture.action() == Action::Capture && !issues {
            let captured = capture_step(backend, streams, bound, plan, pump);
            let usable = u64::from(captured.is_ok());
            let all_usable = world.exchange(backend.rank(), usable)?.iter().all(|vote| *vote == 1);
            // A device may be unable to capture; after a capture that breaks a law the session cannot go on.
            match &captured {
                Ok(_) => {}
                Err(ExecError::Backend(error)) if !matches!(error, BackendError::Hazard { .. }) => {}
                Err(law) => return Err(law.clone()),
            }
            uncaptured = captured.as_ref().err().map(ToString::to_string);
            capture.captured(captured.ok().filter(|_| all_usable));
        }
        let begin = Instant::now();
        let _ = meter.lap();
        backend.begin_step(bound)?;
        let put = match capture.pieces().filter(|_| !issues) {
            Some(pieces) => replay_step(backend, streams, bound, *compute, pieces).map_err(ExecError::from),
            None => pump.run(backend, streams, bound).map(|()| 0),
        };
        if let Err(error) = &put {
            // What is on the lanes may wait for what this rank will not bring, so from here on nothing waits
            // for peers. The lanes run out below, by themselves; if they were ended by force before that,
            // they might never do so.
            backend.poison(&error.to_string());
        }
        let (issue, issued) = (begin.elapsed(), meter.lap());
        // Every lane is waited for, whatever the others said. How long that takes is the backend's to limit, so peers
        // that are done wait meanwhile, as for a slow closure on the CPU.
        let outcome = meter.within(Activity::Waiting, || {
            let _busy = world.rendezvous().busy(backend.rank());
            let mut outcome = Ok(());
            for stream in streams.iter_mut() {
                outcome = outcome.and(backend.synchronize(stream));
            }
            outcome
        });
        let step = begin.elapsed();
        let segments = put?;
        Ok(outcome.map(|()| Driven { uncaptured, segments, issue, issued, before, step })?)
    }

    /// After a step: the plan is warm once a step of it has completed on all ranks and no closure failed in
    /// it. Ranks ask each other only where the answer is needed.
    pub(super) fn settle(&mut self, backend: &B, world: &World, faulted: bool) -> Result<(), ExecError> {
        if !self.is_cold || world.exchange(backend.rank(), u64::from(faulted))?.contains(&1) {
            return Ok(());
        }
        self.is_cold = false;
        backend.warmed(&mut self.bound);
        self.capture.warmed();
        Ok(())
    }

    /// What the actors found at the step's end that its plan did not promise.
    pub(super) fn unpromised(&self) -> Option<BoundaryState> {
        self.pump.edges().find(|found| *found != self.plan.exit)
    }
}

/// All micro-batches of the staged buffers of one role.
fn staging(plan: &StepPlan, role: Role) -> impl Iterator<Item = Staged> + '_ {
    plan.arena.slots.iter().filter_map(move |slot| match slot.content {
        Content::Staging(buffer, micro_batch) if plan.buffers[buffer.index()].role == role => {
            let region = slot.region;
            let begin = region.bytes * micro_batch.index();
            Some(Staged { region, buffer, bytes: begin..begin + region.bytes })
        }
        _ => None,
    })
}
