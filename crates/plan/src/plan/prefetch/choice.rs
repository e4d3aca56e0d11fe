//! Prefetch policies.
//!
//! Law: a choice is a name with a number; what it means is in the file of its name.

use serde::Serialize;

use crate::policy::ByteSize;

/// When a gather may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum GatherStart {
    /// This number of calls before the one that uses it; 0 is on demand.
    Depth(u32),
    /// As early as so many bytes of gathered planes in flight allow.
    Bytes(usize),
    /// Each as late as is safe, by what tasks are said to take ([`crate::plan::Costs`]), within the budget.
    Auto,
}

impl GatherStart {
    /// The deepest depth a policy may request: that of a configuration.
    pub const MAX_DEPTH: u32 = crate::policy::MAX_DEPTH;

    /// Is every gather made where it is used, in front of a waiting call?
    pub(in super::super) const fn is_on_demand(self) -> bool {
        matches!(self, Self::Depth(0))
    }
}

impl std::fmt::Display for GatherStart {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Depth(depth) => write!(formatter, "prefetch.depth = {depth}"),
            Self::Bytes(bytes) => write!(formatter, "prefetch.bytes = \"{}\"", ByteSize::of(*bytes)),
            Self::Auto => formatter.write_str("prefetch.policy = \"auto\""),
        }
    }
}
