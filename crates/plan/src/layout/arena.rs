//! The arena of a rank: its slots and their places.
//!
//! Law: resident slots come first and never move during a session's life; transient ones belong to one plan.
//! The whole arena is byte-equal on all ranks. The planner decides which slots may share bytes, and the
//! verifier judges it; nothing here does.

use serde::Serialize;

use super::content::Content;
use super::region::Region;
use warpweft_base::id::SlotId;

/// Whether a slot keeps its place and content from step to step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Residency {
    /// For the session's life.
    Resident,
    /// For one interval of one plan.
    Transient,
}

/// A piece of the arena with one content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Slot {
    /// Unique readable name, such as `blocks.0.up gathered for call 3`.
    pub name: String,
    /// What is in it.
    pub content: Content,
    /// Resident or transient.
    pub residency: Residency,
    /// Where it is.
    pub region: Region,
}

/// The arena of one rank; byte-equal on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ArenaLayout {
    /// All slots, in the order of their ids; resident ones first.
    pub slots: Vec<Slot>,
    /// Bytes of the resident region, which begins at offset 0.
    pub resident_bytes: usize,
    /// Bytes of the transient region, which follows.
    pub transient_bytes: usize,
}

impl ArenaLayout {
    /// The slot that an id of this layout names.
    ///
    /// # Panics
    /// When the id belongs to another layout.
    #[must_use]
    pub fn slot(&self, slot: SlotId) -> &Slot {
        &self.slots[slot.index()]
    }

    /// Where a slot is.
    ///
    /// # Panics
    /// When the id belongs to another layout.
    #[must_use]
    pub fn region(&self, slot: SlotId) -> Region {
        self.slots[slot.index()].region
    }

    /// Every slot with its id.
    pub fn entries(&self) -> impl Iterator<Item = (SlotId, &Slot)> {
        self.slots.iter().enumerate().map(|(position, slot)| (SlotId::at(position), slot))
    }

    /// The first slot with this content.
    #[must_use]
    pub fn find(&self, content: Content) -> Option<SlotId> {
        self.slots.iter().position(|slot| slot.content == content).map(SlotId::at)
    }

    /// Size of the whole arena.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.resident_bytes + self.transient_bytes
    }
}
