//! Actors and flow control: who owns state across steps or is a serial resource, and by which right it issues the
//! tasks that work on it.
//!
//! Rights are values. A [`ReadLease`] is the right to read a slot's content; a [`Credit`] is one accessor's
//! consent to overwrite it. Both carry the [`Point`] after which the device has done what they stand for.
//! Rights travel in messages along the plan's dependences.
//!
//! Firing rule: *an actor fires the head of its worklist when that task's turn on its lane has come and every
//! right the task needs has arrived.*
//!
//! - **FL-1** A lease is built from a point, and a point only by issuing a task.
//! - **FL-2** A slot is written only when every lease on it is spent.
//! - **FL-3** A right is spent once, in the step that granted it; it cannot be copied.
//! - **FL-4** A right dropped unspent poisons the rank.
//! - **AC-1** Actors never wait, on the host or on the device.
//! - **AC-2** Per lane, tasks fire in the plan's order.
//! - **AC-3** Actor code cannot see which pump drives it, nor whether the step is captured: of a [`Context`]
//!   it sees the plan.
//!
//! Each question has one source of truth: fences are the only device waits; rights decide when the host may
//! issue. They meet at issue: every point must be covered by lane order or a fence, otherwise both tasks are
//! named in a [`ExecError`]. Nothing here waits, and nothing allocates once a plan is wired.
//!
//! There is one actor per bucket (its weights' masters, moments, main grads and shards), one per
//! communicator, one for transposed copies, one for the compute lane, and one for the step's verdict.
//! Everything else is a task. An actor gets messages, holds the rights in them, and issues; it decides
//! nothing about order, place or time, and it cannot make a point or a right: [`Issuer`] alone does.

mod bucket;
mod collective;
mod compute;
mod error;
mod issue;
mod mailbox;
mod poison;
mod register;
mod roster;
mod transpose;
mod verdict;
mod wiring;
mod worklist;

pub use bucket::BucketActor;
pub use collective::CollectiveActor;
pub use compute::ComputeActor;
pub use error::ExecError;
pub use issue::{Credit, Issuer, Point, ReadLease, Right};
pub use mailbox::{Mailbox, Message, Post};
pub use poison::Poison;
pub use register::Registers;
pub use roster::{ActorKind, Roster};
pub use transpose::TransposeActor;
pub use verdict::VerdictActor;
pub use wiring::{Fence, TaskWiring, Wiring};
pub use worklist::{Ready, Worklist};

use warpweft_backend::Backend;
use warpweft_base::id::TaskId;
use warpweft_plan::plan::{BoundaryState, StepPlan};

/// The context of an actor that fires: it may read the plan, and issue the task it was given.
#[derive(Debug)]
pub struct Context<'a, B: Backend> {
    issuer: &'a mut Issuer,
    post: &'a Post,
    backend: &'a B,
    streams: &'a mut [B::Stream],
    bound: &'a B::Bound,
}

impl<'a, B: Backend> Context<'a, B> {
    /// `issuer` issues to the lanes of `backend`, using the plan as `bound`; `post` carries what issuing
    /// grants.
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
    pub fn issue(&mut self, ready: Ready<'_>) -> Result<Point, ExecError> {
        let task = ready.task();
        self.issuer.issue(task, ready.rights(), self.post, self.backend, self.streams, self.bound)
    }
}

/// One actor.
pub trait Actor<B: Backend>: std::fmt::Debug {
    /// Who it is, for spans and messages.
    fn name(&self) -> &str;

    /// Tells the actor that a step of `plan` begins.
    fn begin(&mut self, plan: &StepPlan);

    /// Issues `ready`, after checking what only this actor knows.
    ///
    /// # Errors
    /// A task out of the actor's own order, or what issuing refuses.
    fn fire(&mut self, ready: Ready<'_>, context: &mut Context<'_, B>) -> Result<(), ExecError>;

    /// What the actor's weights hold once the step is issued, for actors that own weights.
    fn edge(&self) -> Option<BoundaryState> {
        None
    }
}

/// The error for a task that its own actor did not expect next.
fn out_of_turn<B: Backend>(
    context: &Context<'_, B>,
    rank: warpweft_base::id::RankId,
    task: TaskId,
) -> ExecError {
    ExecError::OutOfTurn { rank, task: context.plan().describe(task) }
}
