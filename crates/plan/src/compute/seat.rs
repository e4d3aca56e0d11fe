//! The rank and device on which a closure computes.
//!
//! Law: a seat is what a factory of closures gets to know, once, before the first step. Whatever changes from
//! step to step is in declared buffers.

use warpweft_base::id::RankId;

/// A rank and the device that its closures compute on. A factory of closures is called with it
/// (`Session::try_builder`).
///
/// `D` is the surface's [`Device`](super::Surface::Device): `Seat<DeviceOrdinal>` on GPUs, and `Seat` where
/// there is nothing to tell apart, as on the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seat<D = ()> {
    /// The rank, counted over all processes.
    pub rank: RankId,
    /// The device, as this process numbers them.
    pub device: D,
}

impl<D> Seat<D> {
    /// The seat of a rank; made by backends.
    #[must_use]
    pub const fn new(rank: RankId, device: D) -> Self {
        Self { rank, device }
    }
}
