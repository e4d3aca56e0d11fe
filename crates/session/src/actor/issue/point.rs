//! A point on a lane: "after this task".
//!
//! Law (FL-1): a point can only be made by issuing a task, so the holder of one knows that the task is on its
//! lane and, where a foreign lane must wait for it, that its event is recorded. On a GPU, waiting for an
//! event that was never recorded silently does nothing; here it cannot be written.

use warpweft_base::id::{LaneId, TaskId};

/// The position right after a task that has been issued.
///
/// Nothing else can make one (FL-1):
///
/// ```compile_fail,E0624
/// # use warpweft_base::id::{LaneId, TaskId};
/// # use warpweft_session::actor::Point;
/// let never_issued = Point::after(TaskId::new(7), LaneId::new(0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    task: TaskId,
    lane: LaneId,
}

impl Point {
    /// The point after `task`; only [`super::Issuer`] may make it.
    pub(super) const fn after(task: TaskId, lane: LaneId) -> Self {
        Self { task, lane }
    }

    /// The issued task.
    #[must_use]
    pub const fn task(self) -> TaskId {
        self.task
    }

    /// The lane it was issued on.
    #[must_use]
    pub const fn lane(self) -> LaneId {
        self.lane
    }
}
