//! Addresses on a device.

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// An address in the unified address space of the process: memory of one device, of a mapped peer, or
/// pinned on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct DeviceAddress(u64);

impl DeviceAddress {
    /// No address: what a kernel that takes an optional pointer is given for none.
    pub const NULL: Self = Self(0);

    /// The address the driver knows by this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number, as driver calls and kernels take it.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// `bytes` bytes further on.
    #[must_use]
    pub const fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}", self.0)
    }
}
