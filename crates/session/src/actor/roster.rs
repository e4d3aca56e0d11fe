//! The owner of every task.
//!
//! Law: a pure function of the plan. Every task has exactly one owner, and every owner's tasks run on one
//! lane, except a bucket's: its gradients have another lane than its weights, and so have copies for a save; where a
//! custom optimizer updates these, it runs where its calls do.

use super::{
    Actor, BucketActor, CollectiveActor, ComputeActor, TransposeActor, VerdictActor, Wiring, Worklist,
};
use warpweft_backend::Backend;
use warpweft_base::id::{ActorId, BucketId, CommId, RankId};
use warpweft_plan::layout::LaneKind;
use warpweft_plan::op::{Named, Op, Part};
use warpweft_plan::plan::StepPlan;

/// The responsibility of an actor.
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

    /// The most messages each actor can have at once: a turn and all rights of all its tasks.
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
    match (op.part(), lane) {
        (Part::Calls, _) | (Part::Planes, LaneKind::Compute) => ActorKind::Compute,
        (
            Part::Planes,
            LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot | LaneKind::Communicator(_),
        ) => ActorKind::Transpose,
        (Part::Weights, _) => bucket(plan, op).map_or(ActorKind::Verdict, ActorKind::Bucket),
        (Part::Collective(_), LaneKind::Communicator(comm)) => ActorKind::Communicator(comm),
        (
            Part::Collective(_),
            LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot,
        )
        | (Part::Verdict, _) => ActorKind::Verdict,
    }
}

/// The bucket that an op names first, or that of the first weight: a group's weights are in several.
fn bucket(plan: &StepPlan, op: &Op) -> Option<BucketId> {
    op.named().into_iter().find_map(|named| match named {
        Named::Bucket(bucket) => Some(bucket),
        Named::Weight(weight) => Some(plan.weights.layout(weight).bucket),
        Named::Call(_) | Named::Buffer(_) | Named::Nothing(_) => None,
    })
}
