//! The description that every op gives of itself, in its own file.
//!
//! Law: an op names slots and weights and never how many bytes these have; whoever counts bytes brings the
//! [`Sizes`]. Nothing here is said twice: planner, verifier, checker, prices and actors all ask the op.

use crate::model::{Access, Group};
use warpweft_base::id::{BucketId, BufferId, CallId, SlotId, WeightId};
use warpweft_format::Orientation;

use super::GatherPart;
use super::division::given_to_each;

/// One op, as its file tells it.
pub(super) trait Operation {
    /// What traces and tables call it. No two ops share a name.
    fn name(&self) -> &'static str;

    /// The part of a step that it belongs to.
    fn part(&self) -> Part;

    /// Every slot it touches, once, with the strongest access to it.
    fn accesses(&self) -> Vec<(SlotId, Access)>;

    /// What it names besides slots.
    fn named(&self) -> Vec<Named>;

    /// What it moves; `None` where it names what has no size.
    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves>;
}

/// The part of a step that an op belongs to. The actor that issues it follows from that, and from its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Calls, and what is done for them where they run.
    Calls,
    /// What is made of gathered planes.
    Planes,
    /// What is done for the weights of a bucket, from their gradients to their shards.
    Weights,
    /// The verdict over the step.
    Verdict,
    /// A collective, for which every rank of the group must arrive.
    Collective(Group),
}

/// What an op names besides slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// A weight.
    Weight(WeightId),
    /// A bucket.
    Bucket(BucketId),
    /// A call.
    Call(CallId),
    /// A buffer.
    Buffer(BufferId),
    /// None of what it needs at least one of: the word for one.
    Nothing(&'static str),
}

impl Named {
    /// Every one of `weights`, of which there must be one.
    pub(super) fn some(weights: impl Iterator<Item = WeightId>) -> Vec<Self> {
        let all: Vec<Self> = weights.map(Self::Weight).collect();
        if all.is_empty() { vec![Self::Nothing("weight")] } else { all }
    }

    /// A bucket, and what follows it.
    pub(super) fn bucket(bucket: BucketId, others: impl IntoIterator<Item = Self>) -> Vec<Self> {
        std::iter::once(Self::Bucket(bucket)).chain(others).collect()
    }
}

/// What an op moves: its price and its bytes on the wire are made from this. Sums saturate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// What the call says that it costs, kernels included.
    Call(CallId),
    /// On the rank alone.
    Memory {
        /// Bytes read and written.
        bytes: usize,
        /// How many kernels do it.
        kernels: u32,
    },
    /// Every rank gives every other one so many bytes, the same to all.
    Gathered(usize),
    /// Every rank gives every other one so many bytes, to each its own.
    Exchanged(usize),
    /// Every rank gives every other one at most so many bytes, to each its own. Prices take `fill` % of them.
    Filled {
        /// The bytes.
        most: usize,
        /// Percent.
        fill: u8,
    },
    /// Ranks combine values of so many bytes each ([`Division`](super::Division)).
    Combined(Vec<usize>),
}

impl Moves {
    /// Bytes that are read and written by one kernel.
    pub(super) const fn memory(bytes: usize) -> Self {
        Self::Memory { bytes, kernels: 1 }
    }

    /// What one kernel moves that reads or writes every slot once and updates it in two turns.
    pub(super) fn of_slots(op: &dyn Operation, sizes: &dyn Sizes) -> Option<Self> {
        let bytes = op.accesses().into_iter().map(|(slot, access)| {
            let times = if access == Access::Update { 2 } else { 1 };
            Some(sizes.slot(slot)?.saturating_mul(times))
        });
        sum(bytes).map(Self::memory)
    }

    /// Bytes that a rank of `ranks` gives each other one.
    #[must_use]
    pub(crate) fn given_to_each(&self, ranks: u32) -> usize {
        match self {
            Self::Call(_) | Self::Memory { .. } => 0,
            Self::Gathered(bytes) | Self::Exchanged(bytes) | Self::Filled { most: bytes, .. } => *bytes,
            Self::Combined(values) => given_to_each(values.iter().copied(), ranks),
        }
    }
}

/// A sum that saturates; `None` where a summand is missing.
pub(super) fn sum(bytes: impl IntoIterator<Item = Option<usize>>) -> Option<usize> {
    bytes.into_iter().try_fold(0, |sum: usize, bytes| Some(sum.saturating_add(bytes?)))
}

/// How large is what an op names, in bytes where nothing else is said; `None` for what there is not.
pub(crate) trait Sizes {
    /// A slot.
    fn slot(&self, slot: SlotId) -> Option<usize>;
    /// One element of the full gradient for which a slot is declared; 0 for a slot for anything else.
    fn gradient_element(&self, slot: SlotId) -> Option<usize>;
    /// What every rank gives in a gather: its shard of a weight, or its slice of that, planes one after the other.
    fn given(&self, part: &GatherPart) -> Option<usize>;
    /// How many ranks give that, and bytes of all planes that are gathered, padded.
    fn gathered(&self, part: &GatherPart) -> Option<(usize, usize)>;
    /// One plane of what a rank keeps of a weight: its data or, as plane 1, its scales; 0 where there is none.
    fn plane(&self, weight: WeightId, orientation: Orientation, plane: usize) -> Option<usize>;
    /// Elements of a rank's rows of a weight, as they are stored.
    fn rows(&self, weight: WeightId) -> Option<usize>;
    /// Elements of a gradient of a weight that a rank sums for each rank of a group.
    fn summed(&self, weight: WeightId, group: Group) -> Option<usize>;
    /// Elements of a full gradient of a weight after the weight's own rows.
    fn padding(&self, weight: WeightId) -> Option<usize>;
    /// How many ranks a group has.
    fn ranks(&self, group: Group) -> u32;
}
