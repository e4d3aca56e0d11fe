//! The generation of a GPU.
//!
//! Law: no driver is queried here; [`context`](crate::device::context) reads it.

use std::fmt;

/// The generation of a GPU, such as 9.0 for Hopper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ComputeCapability {
    /// Before the dot.
    pub major: u32,
    /// After the dot.
    pub minor: u32,
}

impl ComputeCapability {
    /// Generation `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for ComputeCapability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}
