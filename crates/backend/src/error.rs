//! Errors of a backend.
//!
//! Law: what is wrong is said with the rank, the lane or the task, and what to do. A caller that only passes it on
//! needs no other type, whatever the backend.

use warpweft_base::id::{LaneId, RankId, TaskId};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::ByteSize;

/// What can go wrong below the actors.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The arena does not fit.
    #[error(
        "{rank}: an arena of {} cannot be reserved: {reason}; set memory.budget, or lower it (with tune.steps, room is made for the largest trial), lower prefetch.depth, use more ranks, or take fewer tokens a micro-batch",
        ByteSize::of(*bytes).in_full()
    )]
    Memory {
        /// The rank.
        rank: RankId,
        /// Bytes requested.
        bytes: usize,
        /// The allocator's words.
        reason: String,
    },
    /// More ranks than the system gives one process the threads or the memory for.
    #[error(
        "{ranks} ranks in one process take {needed}, and the system allows {limit}; use fewer ranks, spread them over several processes, or raise that limit"
    )]
    Room {
        /// Ranks of this process.
        ranks: usize,
        /// What they take.
        needed: String,
        /// What there is, and by which limit.
        limit: String,
    },
    /// A lane cannot be opened, or has ended.
    #[error("{rank}, {lane}: {reason}")]
    Lane {
        /// The rank.
        rank: RankId,
        /// The lane.
        lane: LaneId,
        /// What happened.
        reason: String,
    },
    /// An op this backend cannot run.
    #[error("{rank}, {task}: this backend cannot run `{op}`: {reason}")]
    Unsupported {
        /// The rank.
        rank: RankId,
        /// The task.
        task: TaskId,
        /// The op's name.
        op: &'static str,
        /// Why.
        reason: String,
    },
    /// A plan for another mesh than the world's: its groups would bring together other ranks than it means.
    #[error(
        "{rank}: the plan is for {plan}, but the world has {world}; plan for the mesh of the world it runs in"
    )]
    Mesh {
        /// The rank.
        rank: RankId,
        /// The plan's mesh.
        plan: Mesh,
        /// The world's.
        world: Mesh,
    },
    /// A device or one of its libraries refused.
    #[error("{rank}, while {doing}: {reason}")]
    Device {
        /// The rank.
        rank: RankId,
        /// What the rank was doing.
        doing: String,
        /// What was refused, and what to do.
        reason: String,
    },
    /// A task failed while it ran.
    #[error("{rank}, {task} ({op}): {reason}")]
    Task {
        /// The rank.
        rank: RankId,
        /// The task.
        task: TaskId,
        /// The op's name.
        op: &'static str,
        /// What happened.
        reason: String,
    },
    /// A host copy that does not fit the memory.
    #[error("{rank}: host copy of {bytes} bytes: {reason}")]
    Host {
        /// The rank.
        rank: RankId,
        /// Bytes given.
        bytes: usize,
        /// What is wrong.
        reason: String,
    },
    /// A rank died or the world was aborted; no collective can complete any more.
    #[error("the world is poisoned: {reason}")]
    Poisoned {
        /// Who died of what.
        reason: String,
    },
    /// The checker saw two accesses that nothing orders, or a rule of the executor broken.
    #[error(
        "{rank}: {hazard}; this is a fault of the executor or the plan, please report it with the plan's fingerprint"
    )]
    Hazard {
        /// The rank.
        rank: RankId,
        /// Which rule, which tasks, which slot.
        hazard: String,
    },

    // A world, or a backend of it, that cannot be made.
    /// A link without a speed.
    #[error("a link of {bytes_per_s} bytes per second carries nothing; give it a finite number above 0")]
    Link {
        /// The speed as given.
        bytes_per_s: f64,
    },
    /// A rank outside the mesh.
    #[error("{rank} is not in a world of {ranks} ranks; ranks are counted from 0")]
    NoSuchRank {
        /// The rank requested.
        rank: RankId,
        /// The number of ranks.
        ranks: u32,
    },
    /// A second backend for one rank.
    #[error("the backend of {rank} was taken before; there is one for each rank")]
    Taken {
        /// The rank requested.
        rank: RankId,
    },
    /// More ranks than one node has GPUs, and no links between nodes.
    #[error(
        "{ranks} ranks need more than one node of `{cluster}`, which has {gpus} GPUs a node and no links between nodes; use at most {gpus} ranks, or give the cluster a table `between`"
    )]
    NoLinks {
        /// Ranks requested.
        ranks: u32,
        /// The cluster.
        cluster: String,
        /// GPUs of a node.
        gpus: u32,
    },
    /// A second backend.
    #[error("the backend of this simulated world was taken before; one rank stands for all of them")]
    SimulatorTaken,

    // Closures.
    /// A lane was opened without closures.
    #[error("this lane was opened without closures; hand them to the lane that computes")]
    NoClosures,
    /// A part of a custom optimizer failed, with its words.
    #[error(
        "the optimizer failed: {0}; unless the step was only being captured, some masters or what is kept beside them may be updated now and others not, on some ranks, so begin a new session and import the last checkpoint"
    )]
    Optimizer(String),
}

warpweft_base::debug_in_words!(BackendError);
