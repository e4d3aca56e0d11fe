//! The plan: what a rank does in one step, in which order, waiting for what, where in memory.
//!
//! Law: a plan is complete and inert. Whoever runs it decides nothing; whoever prints or checks
//! it needs nothing else. Fences ([`Task::waits`]) are the only device waits there are.

use serde::Serialize;

use super::GatherStart;
use crate::layout::{ArenaLayout, Binding, Lane, LaneKind, Residency, Settings, Weights};
use crate::model::{Accumulation, BufferSpec, Call, Group, Mesh};
use crate::op::{Op, WireType};
use crate::policy::{AcrossMicroBatches, Backward, Columnwise, Reduce, ReduceDtype, ReduceEvery};
use warpweft_base::errors::shown;
use warpweft_base::id::{CommId, CommSeq, EventId, LaneId, SlotId, TaskId, Version};

/// What the planner may choose by; every field is a decision of the user.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Policy {
    /// When gathers may start.
    pub prefetch: GatherStart,
    /// The most gathered bytes of one collective without groups: weights of a call share one up to this, and the
    /// gather of a larger weight is cut into chunks of about so many. `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<usize>,
    /// Limit on transient bytes per rank.
    pub budget: Option<usize>,
    /// 1: gathers and reductions share a communicator; 2: each has its own; 3: sums over replicas have one too, where
    /// there are several.
    pub communicators: u32,
    /// Re-gather or keep for backward.
    pub backward: Backward,
    /// Re-gather or keep for the next micro-batch. A plan that was to find out what fits says here what it found.
    pub across_micro_batches: AcrossMicroBatches,
    /// How many gradients are added on a rank before they are reduced.
    pub reduce_every: ReduceEvery,
    /// How many calls after its own a gradient is reduced, where the policy does not find that out.
    pub reduce_delay: u32,
    /// In what gradients travel.
    pub reduce_dtype: ReduceDtype,
    /// Who sums them over the ranks of a replica: a task of each rank, or the collective itself.
    pub reduce: Reduce,
    /// Columnwise planes on demand or kept.
    pub columnwise: Columnwise,
    /// What a call reads of gathered planes is made a call ahead of it, beside the one before, unless gathers
    /// are on demand.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub derive_ahead: bool,
    /// Constants handed through to backends.
    pub settings: Settings,
}

impl Policy {
    /// Does the collective that carries gradients in this type sum them? A library that does sums bf16 in
    /// bf16, so it is left to sum f32 alone.
    #[must_use]
    pub fn collectives_sum(&self, wire: WireType) -> bool {
        (self.reduce, wire) == (Reduce::Nccl, WireType::F32)
    }

    /// Over which groups, one after the other, gradients of replicated weights are summed: the mesh's
    /// [tree](Mesh::tree) over the world, or the world where a library sums, which has an order of its own.
    #[must_use]
    pub fn tree_of_replicated(&self, mesh: Mesh) -> Vec<Group> {
        match self.collectives_sum(WireType::F32) {
            true => vec![Group::World],
            false => mesh.tree(Group::World).collect(),
        }
    }
}

/// One task of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Task {
    /// What is done.
    pub op: Op,
    /// For people: the weight, call or bucket it concerns.
    pub subject: String,
    /// The lane it runs on.
    pub lane: LaneId,
    /// Fences: the last task of each foreign lane that must be over before this one begins.
    pub waits: Vec<TaskId>,
    /// The event recorded after the task, if some fence waits for it.
    pub signals: Option<EventId>,
    /// Place on its communicator, for collectives.
    pub collective: Option<(CommId, CommSeq)>,
    /// Gathers: the task before whose end the gather must not begin (the release of its
    /// prefetch depth). It is also among the fences, unless implied by them.
    pub release: Option<TaskId>,
    /// Bytes received from other ranks.
    pub wire_bytes: usize,
}

/// What the resident planes hold at a step boundary.
///
/// A plan counts from the masters' version at its entry; a rank counts from the masters it was
/// given last, over all plans it runs. Versions count optimizer steps that were issued: one that
/// the vote made a no-op left masters and shards equal, as one that took place would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BoundaryState {
    /// Version of the masters.
    pub masters: Version,
    /// Version of the quantized shards; `None` when they hold nothing yet.
    pub shards: Option<Version>,
}

impl BoundaryState {
    /// What a rank holds whose masters were just set: nothing is quantized from them yet.
    pub const NEW_MASTERS: Self = Self { masters: Version::new(0), shards: None };

    /// May a plan that needs `entry` run on a rank that holds this? (PL-9)
    #[must_use]
    pub fn admits(self, entry: Self) -> bool {
        entry.shards.is_none_or(|shards| self.shards == Some(self.masters.later_by(shards)))
    }

    /// What a rank that holds this holds after a plan with the exit state `exit`.
    #[must_use]
    pub fn after(self, exit: Self) -> Self {
        let counted = |version| self.masters.later_by(version);
        Self { masters: counted(exit.masters), shards: exit.shards.map(counted) }
    }
}

impl std::fmt::Display for BoundaryState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "masters at {}, shards ", self.masters)?;
        match self.shards {
            Some(version) => write!(formatter, "at {version}"),
            None => formatter.write_str("empty"),
        }
    }
}

/// Exact byte counts of a plan, per rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct PlanBounds {
    /// Bytes that stay for the session's life.
    pub resident_bytes: usize,
    /// Bytes of the transient region as laid out.
    pub transient_bytes: usize,
    /// Maximum over T of transient bytes between first and last access: no layout needs less.
    pub live_bytes: usize,
    /// The share of `live_bytes` that is planes, dense values and gradients of weights, at `live_peak`. The
    /// verifier counts it too.
    pub live_weight_bytes: usize,
    /// Where in T the maximum is reached.
    pub live_peak: TaskId,
    /// Bytes received from other ranks in one step.
    pub wire_bytes: usize,
}

/// One step of one program on any rank.
///
/// ```
/// use warpweft::{prelude::*, session::plan_program};
///
/// let mut model = Model::builder();
/// let w = model.sharded("w", 64, 64, Format::Bf16)?;
/// let mut program = StepProgram::builder("look", &model.build());
/// let norm = program.output("norm", 1, ElementType::F32)?;
/// let call = program.call("measure", Phase::Forward).uses_dense(w);
/// call.writes(norm).add()?;
/// // What a session of four ranks runs; no device is needed to see it.
/// let plan = plan_program(&program.build_evaluation()?, &Config::default(), 4)?;
/// assert_eq!(plan.tasks.iter().filter(|task| task.op.is_gather()).count(), 1);
/// assert_eq!(plan.bounds.wire_bytes, 3 * 16 * 64 * 2); // the rows of the other three, in bf16
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepPlan {
    /// The program's name, or `prologue`.
    pub name: String,
    /// How often a step repeats the program's calls; 1 for a prologue.
    pub micro_batches: u32,
    /// The program's calls, as often as a step repeats them; none for a prologue.
    pub calls: Vec<Call>,
    /// The program's buffers.
    pub buffers: Vec<BufferSpec>,
    /// Does the step end in an optimizer step?
    pub updates_weights: bool,
    /// What the step is of a step of the optimizer.
    #[serde(skip_serializing_if = "Accumulation::is_whole")]
    pub accumulation: Accumulation,
    /// Does the step copy the state of all weights that train to the host as it was before ([`Self::with_snapshot`])?
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub takes_snapshot: bool,
    /// Weights, buckets, mesh.
    pub weights: Weights,
    /// The planning request.
    pub policy: Policy,
    /// The lanes, in the order of their ids.
    pub lanes: Vec<Lane>,
    /// Slots and addresses.
    pub arena: ArenaLayout,
    /// Tasks in issue order T.
    pub tasks: Vec<Task>,
    /// Number of events the fences need.
    pub events: usize,
    /// What must hold before the step.
    pub entry: BoundaryState,
    /// What holds after it, if the vote is clean.
    pub exit: BoundaryState,
    /// Byte counts.
    pub bounds: PlanBounds,
    /// What the planner wants people to know, such as a fence that delays a gather.
    pub notes: Vec<String>,
}

impl StepPlan {
    /// The task of an id of this plan.
    ///
    /// # Panics
    /// When the id belongs to another plan.
    #[must_use]
    pub fn task(&self, task: TaskId) -> &Task {
        &self.tasks[task.index()]
    }

    /// Every task with its id, in issue order.
    pub fn entries(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        self.tasks.iter().enumerate().map(|(position, task)| (TaskId::at(position), task))
    }

    /// Does some call write a gradient, and so the step main grads?
    #[must_use]
    pub fn writes_gradients(&self) -> bool {
        self.calls.iter().any(|call| !call.gradients.is_empty())
    }

    /// A task as messages name it: `task 12 (all-gather of blocks.0.up)`.
    #[must_use]
    pub fn describe(&self, task: TaskId) -> String {
        match self.tasks.get(task.index()) {
            Some(found) => format!("{task} ({} of {})", found.op.name(), shown(&found.subject)),
            None => format!("{task} (not in this plan)"),
        }
    }

    /// The program's name, and of a sum over several steps which of them this is: `train (first)`.
    #[must_use]
    pub fn part_name(&self) -> String {
        let Self { name, accumulation, .. } = self;
        if accumulation.is_whole() { name.clone() } else { format!("{name} ({accumulation})") }
    }

    /// The plan as messages name it, and which of its program's it is, if there are several.
    pub(super) fn title(&self) -> String {
        let (name, accumulation) = (shown(&self.name), self.accumulation);
        if accumulation.is_whole() {
            return format!("plan `{name}`");
        }
        format!("plan `{name}` (the {accumulation} step of an accumulation)")
    }

    /// The lane that runs closures.
    #[must_use]
    pub fn compute_lane(&self) -> LaneId {
        self.lanes.iter().find(|lane| lane.kind == LaneKind::Compute).map_or(LaneId::new(0), |lane| lane.id)
    }

    /// Transient slots in order of their ids.
    pub fn transient(&self) -> impl Iterator<Item = SlotId> {
        self.arena.entries().filter(|(_, slot)| slot.residency == Residency::Transient).map(|(id, _)| id)
    }

    /// The ops with their lanes, as a [`Binding`] wants them.
    #[must_use]
    pub fn ops(&self) -> Vec<(Op, LaneId)> {
        self.tasks.iter().map(|task| (task.op.clone(), task.lane)).collect()
    }

    /// What a backend needs to bind this plan for `rank`.
    #[must_use]
    pub fn binding<'plan>(
        &'plan self,
        rank: warpweft_base::id::RankId,
        ops: &'plan [(Op, LaneId)],
    ) -> Binding<'plan> {
        Binding {
            rank,
            program: &self.name,
            arena: &self.arena,
            weights: &self.weights,
            buffers: &self.buffers,
            calls: &self.calls,
            micro_batches: self.micro_batches,
            ops,
            events: self.events,
            settings: self.policy.settings,
            timed: false,
            spoiled: false,
        }
    }
}
