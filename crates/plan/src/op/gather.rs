//! The all-gather of planes, whole or in chunks, and the assemble that completes them.

use serde::Serialize;

use super::Op;
use super::operation::{Moves, Named, Operation, Part, Sizes, sum};
use crate::model::Access::{self, Read, Update, Write};
use crate::model::Group;
use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::Orientation;

/// Gathers the shards of one weight from the ranks of a replica, or of several of a group as one
/// collective, each to its rows of padded planes. It brings only what the *other* ranks hold. The rank's
/// own rows and everything after the last rank's are undefined until [`Op::Assemble`], and stay so
/// without one. Where replicas have slices of a shard, it is published so before: gathered from the ranks at the same
/// place in all replicas.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct AllGather {
    /// The ranks that the weights are sharded over, or the replicas that have slices of a shard.
    #[serde(skip_serializing_if = "Group::is_shard")]
    pub group: Group,
    /// What is gathered; at least one.
    pub parts: Vec<GatherPart>,
}

/// Gathers some bytes of every rank's shard of one weight, each to where a whole gather would put them.
/// Chunks come in the order of their bytes: each follows those before it, so the last one leaves what
/// [`Op::AllGather`] leaves.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GatherChunk {
    /// The ranks that it is sharded over.
    #[serde(skip_serializing_if = "Group::is_shard")]
    pub group: Group,
    /// The weight.
    pub part: GatherPart,
    /// The bytes.
    pub chunk: Chunk,
}

/// Makes gathered planes whole, on the rank alone: puts its own shards into their rows, zeroes the
/// padding after the last rank's, and spreads scale rows that travel once and appear several times. It
/// needs what a gather, or the last chunk of one, has brought of the other ranks, and makes planes whole
/// once.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Assemble {
    /// What was gathered, as the gather names it; at least one.
    pub parts: Vec<GatherPart>,
}

/// One weight of a gather, and of what makes its planes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct GatherPart {
    /// The weight.
    pub weight: WeightId,
    /// Which stored orientation travels.
    pub orientation: Orientation,
    /// The rank's shard; or its slice of that, to publish it.
    pub from: SlotId,
    /// The gathered planes; or the published shard.
    pub to: SlotId,
}

/// Bytes of every rank's shard, its planes one after the other: what one chunk of a gather moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Chunk {
    /// The first byte; 0 begins the gather anew.
    pub begin: usize,
    /// One past the last byte; where it equals the shard's bytes, the gather ends.
    pub end: usize,
}

impl Op {
    /// The gather of one weight, without tensor parallelism.
    #[must_use]
    pub fn gather(weight: WeightId, orientation: Orientation, from: SlotId, to: SlotId) -> Self {
        let parts = vec![GatherPart { weight, orientation, from, to }];
        Self::AllGather(AllGather { group: Group::Shard, parts })
    }

    /// What makes the planes of that gather whole.
    #[must_use]
    pub fn assemble(weight: WeightId, orientation: Orientation, from: SlotId, to: SlotId) -> Self {
        Self::Assemble(Assemble { parts: vec![GatherPart { weight, orientation, from, to }] })
    }
}

impl Operation for AllGather {
    fn name(&self) -> &'static str {
        "all-gather"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        self.parts.iter().flat_map(|part| [(part.from, Read), (part.to, Write)]).collect()
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        sum(self.parts.iter().map(|part| sizes.given(part))).map(Moves::Gathered)
    }
}

impl Operation for GatherChunk {
    fn name(&self) -> &'static str {
        "all-gather chunk"
    }

    fn part(&self) -> Part {
        Part::Collective(self.group)
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        // A chunk after others needs what they brought.
        let to = if self.chunk.begin == 0 { Write } else { Update };
        vec![(self.part.from, Read), (self.part.to, to)]
    }

    fn named(&self) -> Vec<Named> {
        vec![Named::Weight(self.part.weight)]
    }

    fn moves(&self, _: &dyn Sizes) -> Option<Moves> {
        Some(Moves::Gathered(self.chunk.end.saturating_sub(self.chunk.begin)))
    }
}

impl Operation for Assemble {
    fn name(&self) -> &'static str {
        "assemble"
    }

    fn part(&self) -> Part {
        Part::Planes
    }

    fn accesses(&self) -> Vec<(SlotId, Access)> {
        self.parts.iter().flat_map(|part| [(part.from, Read), (part.to, Update)]).collect()
    }

    fn named(&self) -> Vec<Named> {
        Named::some(self.parts.iter().map(|part| part.weight))
    }

    fn moves(&self, sizes: &dyn Sizes) -> Option<Moves> {
        // The rank's own shards are read and written, and what no rank sends is written.
        let touched = self.parts.iter().map(|part| {
            let (own, (ranks, all)) = (sizes.given(part)?, sizes.gathered(part)?);
            let unsent = all.saturating_sub(own.saturating_mul(ranks));
            Some(own.saturating_mul(2).saturating_add(unsent))
        });
        sum(touched).map(Moves::memory)
    }
}
