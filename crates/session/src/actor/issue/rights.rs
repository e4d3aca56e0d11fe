//! Leases and credits: rights that are values.
//!
//! Law: neither can be cloned (FL-3), and dropping one that was not spent sets the poison (FL-4).
//! They are made by the task that grants them and spent by the task they are addressed to.

use super::{Point, Poison};
use warpweft_base::id::{SlotId, TaskId};

/// What both kinds of right are made of.
#[derive(Debug)]
struct Grant {
    slot: SlotId,
    to: TaskId,
    point: Point,
    poison: Option<Poison>,
}

impl Grant {
    fn spend(&mut self) -> Point {
        self.poison = None;
        self.point
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if let Some(poison) = self.poison.take() {
            poison.set(format!("the right of {} to {} was dropped unspent", self.to, self.slot));
        }
    }
}

/// The right of one task to read a slot's content, after the point of its writer.
///
/// It is spent once (FL-3), so there is no second one:
///
/// ```compile_fail,E0599
/// # use warpweft_session::actor::ReadLease;
/// fn twice(lease: ReadLease) -> [ReadLease; 2] {
///     [lease.clone(), lease]
/// }
/// ```
#[derive(Debug)]
pub struct ReadLease(Grant);

/// One task's consent that another may fill a slot, either because its access to the old content has been
/// issued, or because its call bounds how early the other may begin.
#[derive(Debug)]
pub struct Credit(Grant);

/// Any right.
#[derive(Debug)]
pub enum Right {
    /// To read.
    Lease(ReadLease),
    /// To overwrite.
    Credit(Credit),
}

impl ReadLease {
    /// A lease on `slot` for `to`, after its writer's `point`.
    pub(super) const fn new(slot: SlotId, to: TaskId, point: Point, poison: Poison) -> Self {
        Self(Grant { slot, to, point, poison: Some(poison) })
    }
}

impl Credit {
    /// A credit on `slot` for `to`, after the accessor's `point`.
    pub(super) const fn new(slot: SlotId, to: TaskId, point: Point, poison: Poison) -> Self {
        Self(Grant { slot, to, point, poison: Some(poison) })
    }
}

impl Right {
    /// The slot it is about.
    #[must_use]
    pub const fn slot(&self) -> SlotId {
        match self {
            Self::Lease(ReadLease(grant)) | Self::Credit(Credit(grant)) => grant.slot,
        }
    }

    /// The task it is addressed to.
    #[must_use]
    pub const fn to(&self) -> TaskId {
        match self {
            Self::Lease(ReadLease(grant)) | Self::Credit(Credit(grant)) => grant.to,
        }
    }

    /// Uses the right up; what remains is the point its owner must run after.
    #[must_use]
    pub fn spend(mut self) -> Point {
        match &mut self {
            Self::Lease(ReadLease(grant)) | Self::Credit(Credit(grant)) => grant.spend(),
        }
    }
}
