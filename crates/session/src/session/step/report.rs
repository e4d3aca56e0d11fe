//! The step report.
//!
//! Law: figures are measured or planned, never guessed. *Exposed* is the time in which a
//! communication task ran and the compute lane ran nothing, over step time; a collective begins
//! when its last rank arrives, and the waiting before is *skew*. *Wire* is bytes received from
//! other ranks, per rank.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::inputs::names;
use crate::exec::{Handover, RankReport};
use crate::session::{HostTime, NonFiniteGradient, SessionError};
use crate::trace::Exposure;
use warpweft_base::id::RankId;
use warpweft_format::{Element, ElementType};
use warpweft_plan::model::{BufferSpec, Role};
use warpweft_plan::op::Vote;
use warpweft_plan::plan::{PlanBounds, StepPlan};

/// The outcome of a step. There are four; what is reported of one may become more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The optimizer rewrote the weights.
    #[non_exhaustive]
    Updated {
        /// Optimizer steps taken so far.
        optimizer_step: u32,
        /// Global gradient norm.
        norm: f32,
        /// Factor the gradients were clipped with.
        clip: f32,
    },
    /// A gradient was infinite or not a number on some rank, or the norm of all, after clipping, too large for
    /// f32 to hold its square; no rank changed any weight. What calls wrote into carried buffers stays
    /// ([`warpweft_plan::model::Lifetime::Carried`]). [`StepReport::non_finite`] says which call made it.
    #[non_exhaustive]
    Skipped {
        /// The norm as computed.
        norm: f32,
    },
    /// The program has no optimizer.
    Evaluated,
    /// Gradients were accumulated ([`Session::accumulate`](crate::session::Session::accumulate)); no weight changed.
    #[non_exhaustive]
    Accumulated {
        /// How many steps' gradients main grads hold now.
        steps: u32,
    },
}

/// The reason why steps of a program are issued although the configuration requests a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotCaptured {
    /// The program.
    pub program: String,
    /// The first rank that could not capture.
    pub rank: RankId,
    /// What it said.
    pub reason: String,
}

/// The report of one step.
#[derive(Clone)]
pub struct StepReport {
    /// The program.
    pub program: String,
    /// Steps of the session before this one, of any program.
    pub step: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// How the steps right before this one ended whose futures were dropped, so that nobody saw their
    /// reports; oldest first.
    pub unobserved: Vec<Outcome>,
    /// The gradient because of which the step was skipped, where one was not finite; of a step whose
    /// gradients were only added up, the one that will have the step skipped that ends the sum. Under a loss scale it
    /// is known only where a call was seen to write it ([`MadeBy::Call`](crate::session::MadeBy::Call)).
    pub non_finite: Option<NonFiniteGradient>,
    /// A step was to be captured and some rank could not: this one, or one before it whose report nobody saw,
    /// because its future was dropped or a closure failed in it. Ranks that could have dropped what they
    /// captured, so all ranks do the same: they issue that program's steps anew from now on, and none tries
    /// again under the same plan. Said once, on every process; of several ranks that could not, the
    /// first is named.
    pub not_captured: Vec<NotCaptured>,
    /// How many captures were launched for it on each rank: 1 for a step that was captured whole, one more
    /// than there are dynamic calls at most for one in segments, 0 for one whose tasks were issued.
    pub segments: usize,
    /// From the command to the last rank's reply.
    pub duration: Duration,
    /// What issuing the step's tasks, or launching its captures, took on the rank that took longest: time
    /// of the host before it waits for its lanes. On backends that run closures on the lanes, those are not
    /// in it.
    pub issue: Duration,
    /// What that went to, and the rest of the host's time: driver, closures, this library; only of steps that
    /// were asked for it by [`Session::split_host_time`](crate::session::Session::split_host_time).
    pub host: Option<HostTime>,
    /// Where the time went, summed over the ranks of this process, as measured by the backend.
    pub exposure: Exposure,
    /// Bytes received from other ranks, per rank, and other exact byte counts of the plan.
    pub bounds: PlanBounds,
    /// What it ran on; says so when the link was paced.
    pub device: String,
    plan: Arc<StepPlan>,
    /// Per rank, per buffer.
    outputs: Vec<Vec<Vec<u8>>>,
}

/// How it ended and what it took; neither plan nor values.
impl std::fmt::Debug for StepReport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("StepReport");
        shown.field("program", &self.program).field("step", &self.step).field("outcome", &self.outcome);
        shown.field("non_finite", &self.non_finite);
        shown.field("unobserved", &self.unobserved).field("not_captured", &self.not_captured);
        shown.field("segments", &self.segments).field("duration", &self.duration).field("issue", &self.issue);
        shown.field("host", &self.host).field("exposure", &self.exposure).field("device", &self.device);
        shown.finish_non_exhaustive()
    }
}

impl StepReport {
    /// The output called `buffer`, as `rank` wrote it: `[micro_batches, elements]`, of a program without
    /// micro-batches `[elements]`.
    ///
    /// # Errors
    /// [`SessionError::NoOutput`] when there is none, [`SessionError::Element`] unless it is declared in `T`.
    pub fn output<T: Element>(&self, rank: RankId, buffer: &str) -> Result<Vec<T>, SessionError> {
        let (spec, bytes) = self.find(rank, buffer)?;
        self.check_element(spec, T::TYPE)?;
        Ok(bytemuck::allocation::pod_collect_to_vec(bytes))
    }

    /// The bytes of an output, little endian and laid out as [`StepReport::output`] says: for trainers that learn
    /// its element type at run time, from a file of calls or another language.
    ///
    /// # Errors
    /// [`SessionError::NoOutput`] when there is none.
    pub fn output_bytes(&self, rank: RankId, buffer: &str) -> Result<&[u8], SessionError> {
        Ok(self.find(rank, buffer)?.1)
    }

    /// The mean over all ranks and micro-batches of an output of one f32, such as a loss: summed in f64, rounded
    /// once. Ranks of a tensor-parallel group count each: an output that is a rank's part of a sum over the group gives
    /// that sum over the number of ranks.
    ///
    /// # Errors
    /// [`SessionError::NoOutput`] when there is none, [`SessionError::Element`] unless it is declared in f32,
    /// [`SessionError::NoMean`] unless it is declared with one element.
    pub fn mean_output(&self, buffer: &str) -> Result<f32, SessionError> {
        let mut sum = 0.0_f64;
        for rank in 0..self.outputs.len() {
            let (spec, bytes) = self.find(RankId::at(rank), buffer)?;
            self.check_element(spec, ElementType::F32)?;
            if spec.elements != 1 {
                let (program, buffer, elements) = (self.program.clone(), buffer.to_owned(), spec.elements);
                return Err(SessionError::NoMean { program, buffer, elements });
            }
            for value in bytemuck::allocation::pod_collect_to_vec::<u8, f32>(bytes) {
                sum += f64::from(value);
            }
        }
        Ok((sum / (self.outputs.len() * self.plan.micro_batches as usize) as f64) as f32)
    }

    fn find(&self, rank: RankId, buffer: &str) -> Result<(&BufferSpec, &[u8]), SessionError> {
        let is_output = |spec: &BufferSpec| spec.name == buffer && spec.role == Role::Output;
        let none = || {
            let ranks = u32::try_from(self.outputs.len()).unwrap_or(u32::MAX);
            SessionError::NoRank { rank, ranks }
        };
        let of_rank = self.outputs.get(rank.index()).ok_or_else(none)?;
        let mut all = self.plan.buffers.iter().zip(of_rank);
        let found = all.find(|(spec, _)| is_output(spec)).map(|(spec, bytes)| (spec, bytes.as_slice()));
        found.ok_or_else(|| SessionError::NoOutput {
            program: self.program.clone(),
            buffer: buffer.to_owned(),
            declared: names(&self.plan.buffers, Role::Output),
        })
    }

    fn check_element(&self, spec: &BufferSpec, requested: ElementType) -> Result<(), SessionError> {
        if spec.element == requested {
            return Ok(());
        }
        let (program, buffer, declared) = (self.program.clone(), spec.name.clone(), spec.element);
        Err(SessionError::Element { program, buffer, declared, requested })
    }

    /// The plan by which the step ran.
    #[must_use]
    pub fn plan(&self) -> &Arc<StepPlan> {
        &self.plan
    }

    /// Exposed communication over step time, from 0 to 1.
    #[must_use]
    pub fn exposed(&self) -> f64 {
        self.exposure.fraction()
    }
}

/// What nobody has read in a report yet.
#[derive(Debug, Default)]
pub(in crate::session) struct Unseen {
    /// How the steps since the last report ended, whose futures were dropped.
    pub(in crate::session) outcomes: Vec<Outcome>,
    /// What was to be captured since the last report and was not: said once, by the next one.
    pub(in crate::session) not_captured: Vec<NotCaptured>,
}

/// What the ranks say of a step of `program` that was to be captured and was not.
pub(in crate::session) fn not_captured(program: &str, ranks: &[RankReport]) -> Option<NotCaptured> {
    ranks.iter().enumerate().find_map(|(rank, report)| {
        let reason = report.uncaptured.clone()?;
        Some(NotCaptured { program: program.to_owned(), rank: RankId::at(rank), reason })
    })
}

/// Builds the report from what the ranks of this process, of which the first is given, left in their
/// handovers, and from how the step ended on all ranks.
pub(in crate::session) fn build<E: Deref<Target = Handover>>(
    plan: &Arc<StepPlan>,
    step: u64,
    duration: Duration,
    device: String,
    (unseen, accumulated): (Unseen, u32),
    (first, handovers): (RankId, &[E]),
    ranks: Vec<RankReport>,
) -> Result<StepReport, SessionError> {
    let exposure = handovers.iter().map(|handover| handover.times.exposure).sum();
    let outcome = match handovers.first().and_then(|handover| handover.last.vote) {
        None if plan.accumulation.stays_open() => Outcome::Accumulated { steps: accumulated },
        None => Outcome::Evaluated,
        Some(vote) if vote.verdict == Vote::CLEAN => {
            Outcome::Updated { optimizer_step: vote.step, norm: vote.norm, clip: vote.clip }
        }
        Some(vote) => Outcome::Skipped { norm: vote.norm },
    };
    let numbered = handovers.iter().enumerate();
    let numbered = numbered.map(|(rank, handover)| (RankId::at(first.index() + rank), &**handover));
    let host = HostTime::of(numbered, plan.tasks.len(), duration);
    let outputs = ranks.into_iter().map(|report| report.outputs).collect();
    Ok(StepReport {
        program: plan.name.clone(),
        step,
        outcome,
        unobserved: unseen.outcomes,
        non_finite: None,
        not_captured: unseen.not_captured,
        segments: handovers.first().map_or(0, |handover| handover.last.segments),
        duration,
        issue: handovers.iter().map(|handover| handover.times.issue).max().unwrap_or_default(),
        host,
        exposure,
        bounds: plan.bounds,
        device,
        plan: Arc::clone(plan),
        outputs,
    })
}
