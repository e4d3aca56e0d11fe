//! Newtypes for every index that crosses a module border.
//!
//! Law: an index is made by the owner of the numbered thing, and is a position in the owner's list. There is no
//! arithmetic on it, and a lane number can never be used where a rank number is expected. Those that a user hands to
//! a model, a program or a context know whose list it is by a name: [`WeightId`], [`GroupId`], [`BufferId`]. Anyone can
//! make one by number, which is for ranks, for tests and for what reads plans.

mod named;

pub use named::{BufferId, GroupId, WeightId};

use serde::{Deserialize, Serialize};

macro_rules! index {
    ($(#[$doc:meta])* $name:ident, $short:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);

        impl $name {
            /// The `number`-th one, counted from zero.
            #[must_use]
            pub const fn new(number: u32) -> Self {
                Self(number)
            }

            /// The index of position `position` in a list. Lists here never reach 2^32 entries;
            /// a longer one saturates, and its lookup then fails instead of wrapping around.
            #[must_use]
            pub fn at(position: usize) -> Self {
                Self(u32::try_from(position).unwrap_or(u32::MAX))
            }

            /// The position in the list this index points into.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The bare number, for bytes on a wire and for hashes.
            #[must_use]
            pub const fn number(self) -> u32 {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(formatter, concat!($short, "{}"), self.0)
            }
        }
    };
}

index!(
    /// One participant of the mesh; it owns one shard of every sharded weight.
    RankId, "rank "
);
index!(
    /// One process of a world; it owns some of the ranks, one after the other.
    ProcessId, "process "
);
index!(
    /// One in-order queue of work: a CUDA stream, a CPU thread, a simulated clock.
    LaneId, "lane "
);
index!(
    /// One communicator; it is also a lane, and launches in plan order.
    CommId, "communicator "
);
index!(
    /// Position of a collective on its communicator within one step.
    CommSeq, "collective "
);
index!(
    /// One carried buffer of a session, by its place in the planner's list of carried buffers.
    CarriedId, "carried buffer "
);
index!(
    /// One program of a session, in the order in which they were given.
    ProgramId, "program "
);
index!(
    /// One compute call of a program, in program order.
    CallId, "call "
);
index!(
    /// One repetition of a program's calls within a step.
    MicroBatchId, "micro-batch "
);
index!(
    /// A set of weights of one format and placement whose shards live and move together.
    BucketId, "bucket "
);
index!(
    /// A level at which ranks sum gradients; 0 is that of the smallest blocks.
    LevelId, "level "
);
index!(
    /// One list of optimizer state, by its place among those that are kept of every weight that trains.
    StateId, "state "
);
index!(
    /// One piece of the arena with one content for one interval of the step.
    SlotId, "slot "
);
index!(
    /// One task of a plan; the number is its place in the issue order T.
    TaskId, "task "
);
index!(
    /// One piece of a step: a segment that is captured as one, or a dynamic call between two of them.
    PieceId, "piece "
);
index!(
    /// One actor of a rank.
    ActorId, "actor "
);
index!(
    /// One event of a bound plan: what a fence waits for.
    EventId, "event "
);

/// How often the optimizer has rewritten the weights since the masters were set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(u64);

impl Version {
    /// The version `steps` optimizer steps after the masters were set.
    #[must_use]
    pub const fn new(steps: u64) -> Self {
        Self(steps)
    }

    /// This version plus the steps by which `other` lies after the first.
    #[must_use]
    pub const fn later_by(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    /// The version one optimizer step later.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "version {}", self.0)
    }
}
