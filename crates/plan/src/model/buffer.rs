//! Buffers: the user's own memory, declared so that it is planned and verified like a weight.
//!
//! Law: a buffer has one role and one lifetime. Elements are counted, not shaped: the closure knows its own
//! axes. Memory that a user does not declare is its own and unverified.

use serde::Serialize;

use warpweft_base::id::BufferId;
use warpweft_format::ElementType;

/// What a buffer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Role {
    /// Written by the user before a step, read by calls.
    Input,
    /// Written by calls, read by the user after a step.
    Output,
    /// Seen by calls alone.
    Internal,
}

/// How long the content of a buffer is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Lifetime {
    /// Scratch of a single call.
    Call,
    /// From its first access in a step to its last.
    Step,
    /// From step to step. The buffer is in the resident region and starts as zeros. Every rank has its own.
    ///
    /// It belongs to the closures, not to the optimizer. What a call writes takes effect at once and stays,
    /// even in a step that the vote then skips. If a closure fails, what the calls before the failure wrote
    /// on each rank stays too. So a buffer that must advance with the weights and only with them is advanced
    /// in the *next* step, from an input in which the user says how this one ended. Checkpoints hold the
    /// carried buffers of every rank.
    Carried,
}

/// One declared buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BufferSpec {
    /// Unique name within the program.
    pub name: String,
    /// Number of elements.
    pub elements: usize,
    /// Type of an element.
    pub element: ElementType,
    /// Input, output or internal.
    pub role: Role,
    /// Call, step or carried.
    pub lifetime: Lifetime,
}

impl BufferSpec {
    /// Size in bytes. Saturates; [`super::ProgramBuilder::buffer`] refuses buffers for which it would.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.elements.saturating_mul(self.element.bytes())
    }
}

/// What an access does to the content it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Access {
    /// The content is read and kept.
    Read,
    /// The old content is dead; every byte that matters is written.
    Write,
    /// The content is read and changed: residual streams, accumulation, the optimizer.
    Update,
}

impl Access {
    /// Whether the access needs the content that was there.
    #[must_use]
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    /// Whether the access leaves other content than it found.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }
}

impl std::fmt::Display for Access {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Update => "updates",
        })
    }
}

/// One access of a call to a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct BufferAccess {
    /// Which buffer.
    pub buffer: BufferId,
    /// Read, write or update.
    pub access: Access,
}
