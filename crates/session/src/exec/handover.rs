//! The handover between a session and one rank around a step.
//!
//! Law: the session writes before a command is sent and reads after the reply has come; the rank thread
//! touches it in between. All buffers have their final size before the first step, so a step moves bytes and
//! allocates nothing on the thread of the rank.

use std::sync::Arc;
use std::time::Duration;

use super::{Adoption, Diverged, Gradients, RankReport, Refusal, Snapshot, Unequal, WrittenPart};
use crate::checkpoint::ranks::{PartReader, PartWriter, RankPart, SaveId};
use crate::trace::Exposure;
use warpweft_backend::{ClosureFault, HostSplit, TaskInterval};
use warpweft_base::id::{RankId, WeightId};
use warpweft_plan::model::Hyperparameters;
use warpweft_plan::op::Vote;
use warpweft_plan::plan::StepPlan;

/// One rank's handover.
#[derive(Clone, Debug, Default)]
pub struct Handover {
    /// The request for the coming step.
    pub coming: ComingStep,
    /// Per program, per buffer: bytes of inputs and outputs, micro-batch after micro-batch; empty for internal
    /// buffers. Plans of one name are one program.
    pub staged: Vec<Vec<Vec<u8>>>,
    /// The end of the last step.
    pub last: LastStep,
    /// The times of the last step.
    pub times: StepTimes,
    /// Weights and state that go out or come in whole.
    pub transfer: Transfer,
    /// The rank's part of a sharded checkpoint.
    pub part: PartTransfer,
}

/// The request for the coming step.
#[derive(Clone, Debug, Default)]
pub struct ComingStep {
    /// What the optimizer goes by, of every weight.
    pub hyperparameters: Arc<[Hyperparameters]>,
    /// Loss scale.
    pub loss_scale: f32,
    /// The loss scale, times the number of steps whose gradients main grads hold at its end.
    pub gradient_scale: f32,
    /// The plan that the step's program runs from now on, if it is a new one; the rank takes it out.
    pub adoption: Option<Adoption>,
    /// The plan by which the step takes a snapshot, if it is to take one; the rank takes it out.
    pub snapshot: Option<Arc<StepPlan>>,
    /// Whether parts of a save that a thread of this process writes are written, and wait for those of others.
    pub part_is_written: bool,
    /// Whether it is traced.
    pub traced: bool,
    /// Whether all ranks tell each other how long it took.
    pub measures: bool,
    /// Whether its time on the host is to be split.
    pub splits: bool,
    /// Whether its gradients are inspected also where that costs a pass over memory: after a step that was skipped.
    pub inspects: bool,
    /// How many steps in a row may be skipped, which all processes must have alike; 0 for any number.
    pub max_skipped: u32,
}

/// How the last step ended.
#[derive(Clone, Debug, Default)]
pub struct LastStep {
    /// The vote of the last step that had one.
    pub vote: Option<Vote>,
    /// The fault of this rank's closures.
    pub fault: Option<ClosureFault>,
    /// What it left on this rank from which no training goes on.
    pub diverged: Option<Diverged>,
    /// What this rank knows of gradients of it that are not finite.
    pub gradients: Gradients,
    /// Why this rank did not capture it, if it was supposed to.
    pub uncaptured: Option<String>,
    /// Captures that were launched for it; 0 if its tasks were issued.
    pub segments: usize,
    /// How it ended on the ranks of other processes; in the handover of this process's first rank.
    pub elsewhere: Vec<(RankId, RankReport)>,
}

/// What the last step took.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    /// How long the last measured step took, as all ranks agreed, in nanoseconds: the step, then each of its
    /// tasks if the backend timed them.
    pub agreed: Vec<u64>,
    /// How long the rank took to issue the step's tasks or to launch its captures.
    pub issue: Duration,
    /// What `issue` was spent on, if it was split.
    pub issued: HostSplit,
    /// What the rest of the step's time on the host was spent on, if it was split: copying inputs in,
    /// waiting, copying outputs out. Neither includes capturing.
    pub edges: HostSplit,
    /// From the rank's first look at the command to its end.
    pub took: Duration,
    /// When every task ran.
    pub intervals: Vec<TaskInterval>,
    /// Where the time went on the device, according to `intervals`.
    pub exposure: Exposure,
}

/// Weights and state that go out or come in whole.
#[derive(Clone, Debug, Default)]
pub struct Transfer {
    /// What the rank owns, going out (export) or coming in (import).
    pub own: RankPart,
    /// Main grads going out: the rank's real rows of every weight that trains.
    pub main_grads: Vec<(WeightId, Vec<f32>)>,
    /// What all ranks exported, in rank order; in the handover of rank 0, where a world has several processes.
    pub gathered: Vec<RankPart>,
    /// Which checkpoint is being imported, where other processes must import the same; `None` for one this
    /// process refuses.
    pub checkpoint: Option<u64>,
    /// Why nothing was imported, if processes did not agree.
    pub refused: Option<String>,
}

/// The rank's part of a sharded checkpoint.
#[derive(Clone, Debug, Default)]
pub struct PartTransfer {
    /// Where it goes; the rank takes it out.
    pub writer: Option<Arc<dyn PartWriter>>,
    /// Where what the rank owns comes from; the rank takes it out.
    pub reader: Option<Arc<dyn PartReader>>,
    /// Two ranks that hold other values of the same rows, if replicas were compared and some are.
    pub unequal: Option<Unequal>,
    /// The state that a save in the background writes, from its begin on; the session takes it.
    pub snapshot: Option<Snapshot>,
    /// Which save that is.
    pub save: Option<SaveId>,
    /// What the thread says that writes the rank's part of it; the rank takes it out.
    pub written: Option<Arc<WrittenPart>>,
    /// The first rank that could not save its part, or read what it owns, and why.
    pub refusal: Option<Refusal>,
}

impl Handover {
    /// Gives back the memory of weights and carried buffers that went out or came in.
    pub fn forget_weights(&mut self) {
        self.transfer.own = RankPart::default();
        self.transfer.gathered = Vec::new();
        self.transfer.main_grads = Vec::new();
        self.part.writer = None;
        self.part.reader = None;
    }
}
