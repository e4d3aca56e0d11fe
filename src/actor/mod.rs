//! Actors: what owns state across steps, or is a serial resource, and issues the tasks about it.
//!
//! Firing rule: *an actor fires the head of its worklist when its lane's turn is at that task and
//! every right the task needs has come in.*
//!
//! - **AC-1** actors never wait, on the host or on the device.
//! - **AC-2** per lane, tasks fire in the plan's order.
//! - **AC-3** actor code cannot see which pump drives it, nor whether the step is recorded: of a [`Context`]
//!   it sees the plan.
//!
//! There is one actor per bucket (its weights' masters, moments, main grads and shards), one per
//! communicator, one for transposed copies, one for the compute lane, and one for the step's
//! verdict. Everything else is a task. An actor gets messages, holds the rights in them, and
//! issues; it decides nothing about order, place or time.

mod bucket;
mod collective;
mod compute;
mod roster;
mod transpose;
mod verdict;
mod worklist;

pub use bucket::BucketActor;
pub use collective::CollectiveActor;
pub use compute::ComputeActor;
pub use roster::{ActorKind, Roster};
pub use transpose::TransposeActor;
pub use verdict::VerdictActor;
pub use worklist::{Ready, Worklist};

use crate::backend::Backend;
use crate::flow::{FlowError, Issuer, Point, Post};
use crate::id::TaskId;
use crate::plan::{EdgeState, StepPlan};

/// What an actor may do while it fires: look at the plan, and issue the task it was given. Nothing else is in
/// reach.
#[derive(Debug)]
pub struct Context<'a, B: Backend> {
    issuer: &'a mut Issuer,
    post: &'a Post,
    backend: &'a B,
    streams: &'a mut [B::Stream],
    bound: &'a B::Bound,
}

impl<'a, B: Backend> Context<'a, B> {
    /// `issuer` issues to the lanes of `backend`, by the plan as `bound`; `post` carries what issuing grants.
    pub(crate) const fn new(
        issuer: &'a mut Issuer,
        post: &'a Post,
        backend: &'a B,
        streams: &'a mut [B::Stream],
        bound: &'a B::Bound,
    ) -> Self {
        Self { issuer, post, backend, streams, bound }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &StepPlan {
        self.issuer.plan()
    }

    /// Issues a ready task.
    ///
    /// # Errors
    /// As [`Issuer::issue`].
    pub fn issue(&mut self, ready: Ready<'_>) -> Result<Point, FlowError> {
        let task = ready.task();
        self.issuer.issue(task, ready.rights(), self.post, self.backend, self.streams, self.bound)
    }
}

/// One actor.
pub trait Actor<B: Backend>: std::fmt::Debug {
    /// Who it is, for spans and messages.
    fn name(&self) -> &str;

    /// A step of `plan` begins.
    fn begin(&mut self, plan: &StepPlan);

    /// Issues `ready`, after checking what only this actor knows.
    ///
    /// # Errors
    /// A task out of the actor's own order, or what issuing refuses.
    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), FlowError>;

    /// What the actor's weights hold once the step is issued, for actors that own weights.
    fn edge(&self) -> Option<EdgeState> {
        None
    }
}

/// The error of a task that its own actor did not expect next.
fn out_of_turn<B: Backend>(context: &Context<'_, B>, rank: crate::id::RankId, task: TaskId) -> FlowError {
    FlowError::OutOfTurn { rank, task: context.plan().describe(task) }
}
