//! Who owns which task.
//!
//! Law: a pure function of the plan. Every task has exactly one owner, and every owner's tasks run on one
//! lane, except a bucket's: its gradients have another lane than its weights, and where the trainer updates these by
//! a rule of its own, that runs where its calls do.

use super::{
    Actor, BucketActor, CollectiveActor, ComputeActor, TransposeActor, VerdictActor, Wiring, Worklist,
};
use warpweft_backend::Backend;
use warpweft_base::id::{ActorId, BucketId, CommId, RankId, WeightId};
use warpweft_plan::layout::LaneKind;
use warpweft_plan::op::Op;
use warpweft_plan::plan::StepPlan;

/// What an actor is responsible for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ActorKind {
    /// The compute lane.
    Compute,
    /// What is derived from gathered planes on the quantize lane.
    Transpose,
    /// The verdict over the step.
    Verdict,
    /// The shards of one bucket.
    Bucket(BucketId),
    /// One communicator.
    Communicator(CommId),
}

/// The actors of one plan and what each owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The actors, in the order of their ids.
    pub actors: Vec<ActorKind>,
    /// The owner of every task.
    pub owners: Vec<ActorId>,
}

impl Roster {
    /// The roster of `plan`.
    #[must_use]
    pub fn new(plan: &StepPlan) -> Self {
        let kinds: Vec<ActorKind> =
            plan.tasks.iter().map(|task| owner(plan, &task.op, plan.lanes[task.lane.index()].kind)).collect();
        let mut actors = kinds.clone();
        actors.sort_unstable();
        actors.dedup();
        let owners =
            kinds.iter().map(|kind| ActorId::at(actors.binary_search(kind).unwrap_or(usize::MAX))).collect();
        Self { actors, owners }
    }

    /// How many messages each actor can have at once: a turn and all rights of all its tasks.
    #[must_use]
    pub fn capacities(&self, wiring: &Wiring) -> Vec<usize> {
        let mut capacities = vec![0; self.actors.len()];
        for (owner, task) in self.owners.iter().zip(&wiring.tasks) {
            capacities[owner.index()] += 1 + task.incoming as usize;
        }
        capacities
    }

    /// The worklist of every actor.
    #[must_use]
    pub fn worklists(&self, plan: &StepPlan, wiring: &Wiring) -> Vec<Worklist> {
        let of = |actor: usize| {
            plan.entries()
                .filter(move |(task, _)| self.owners[task.index()].index() == actor)
                .map(|(task, _)| (task, wiring.tasks[task.index()].incoming))
        };
        (0..self.actors.len()).map(|actor| Worklist::new(of(actor))).collect()
    }

    /// The actors themselves, for one rank.
    #[must_use]
    pub fn hire<B: Backend>(&self, rank: RankId) -> Vec<Box<dyn Actor<B>>> {
        self.actors
            .iter()
            .map(|kind| match kind {
                ActorKind::Compute => Box::new(ComputeActor::new(rank)) as Box<dyn Actor<B>>,
                ActorKind::Transpose => Box::new(TransposeActor),
                ActorKind::Verdict => Box::new(VerdictActor::new(rank)),
                ActorKind::Bucket(bucket) => Box::new(BucketActor::new(*bucket)),
                ActorKind::Communicator(comm) => Box::new(CollectiveActor::new(rank, *comm)),
            })
            .collect()
    }
}

fn owner(plan: &StepPlan, op: &Op, lane: LaneKind) -> ActorKind {
    let bucket_of = |weight: WeightId| ActorKind::Bucket(plan.weights.layout(weight).bucket);
    match op {
        Op::Transpose { .. } => ActorKind::Transpose,
        Op::Assemble { .. } | Op::Dequantize { .. } => match lane {
            LaneKind::Compute => ActorKind::Compute,
            LaneKind::Quantize | LaneKind::Sum | LaneKind::Communicator(_) => ActorKind::Transpose,
        },
        Op::GradNorm { .. } | Op::Vote { .. } => ActorKind::Verdict,
        Op::RoundGradient { weight, .. } | Op::AddGradient { weight, .. } | Op::Accumulate { weight, .. } => {
            bucket_of(*weight)
        }
        // It belongs to the first weight's bucket, where a group's weights are in several.
        Op::SumGradient { parts, .. } => {
            parts.first().map_or(ActorKind::Verdict, |part| bucket_of(part.weight))
        }
        Op::PartialAmax { bucket, .. }
        | Op::FusedScale { bucket, .. }
        | Op::DelayedScale { bucket, .. }
        | Op::RecordAmax { bucket, .. }
        | Op::PartialCast { bucket, .. }
        | Op::Adam { bucket, .. }
        | Op::Prepare { bucket, .. }
        | Op::Transform { bucket, .. }
        | Op::Update { bucket, .. } => ActorKind::Bucket(*bucket),
        Op::AllReduce { .. }
        | Op::ExchangeBuffer { .. }
        | Op::ExchangeRows { .. }
        | Op::AllGather { .. }
        | Op::GatherChunk { .. }
        | Op::ReduceScatter { .. }
        | Op::ExchangeGradient { .. }
        | Op::GatherRecords { .. } => match lane {
            LaneKind::Communicator(comm) => ActorKind::Communicator(comm),
            LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum => ActorKind::Verdict,
        },
        Op::Copy { .. } | Op::ClearFault { .. } | Op::ZeroPadding { .. } | Op::Compute { .. } => {
            ActorKind::Compute
        }
    }
}
