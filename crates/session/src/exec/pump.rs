//! The inline pump: delivers messages and fires actors on the rank's own thread.
//!
//! Law: deterministic. Actors are served in the order in which their mail arrived; each takes all its mail,
//! then fires while its head is ready. The pump knows neither tasks nor devices, and it stops with an error,
//! never by waiting, when no actor can go on. A step may be driven piece by piece: heads of later pieces
//! wait, ready, until their piece has come. The plan decides which pieces there are; the driver decides what
//! happens between them.

use std::sync::Arc;

use crate::actor::{Actor, Context, ExecError, Issuer, Poison, Post, Roster, Wiring, Worklist};
use warpweft_backend::Backend;
use warpweft_base::id::{ActorId, PieceId, RankId, TaskId};
use warpweft_plan::plan::{BoundaryState, Pieces, StepPlan};

/// The pump: the actors of one plan on one rank, driven in place.
#[derive(Debug)]
pub struct Pump<B: Backend> {
    rank: RankId,
    actors: Vec<Box<dyn Actor<B>>>,
    worklists: Vec<Worklist>,
    post: Post,
    issuer: Issuer,
}

impl<B: Backend> Pump<B> {
    /// Creates the actors of `plan` for `rank` and wires them. A right they lose sets `poison`, which all
    /// pumps of a rank share.
    #[must_use]
    pub fn new(rank: RankId, plan: &Arc<StepPlan>, poison: Poison) -> Self {
        let wiring = Arc::new(Wiring::new(plan));
        let roster = Roster::new(plan);
        let post = Post::new(rank, roster.owners.clone(), &roster.capacities(&wiring));
        Self {
            rank,
            actors: roster.hire(rank),
            worklists: roster.worklists(plan, &wiring),
            post,
            issuer: Issuer::new(rank, Arc::clone(plan), wiring, poison),
        }
    }

    /// Issues one whole step.
    ///
    /// # Errors
    /// A fault of flow control or of the backend; the step is then issued in part, and other ranks may be
    /// waiting for the rest of it. [`ExecError::Poisoned`] before anything is enqueued if a right was lost
    /// earlier, and after the last task if one was lost on the way.
    pub fn run(&mut self, backend: &B, streams: &mut [B::Stream], bound: &B::Bound) -> Result<(), ExecError> {
        self.begin()?;
        self.drive(|_| true, backend, streams, bound)?;
        self.end()
    }

    /// Opens a step that is driven piece by piece.
    ///
    /// # Errors
    /// As [`Pump::run`], before anything is enqueued.
    pub fn begin(&mut self) -> Result<(), ExecError> {
        let plan = Arc::clone(self.issuer.plan());
        self.post.clear();
        self.worklists.iter_mut().for_each(Worklist::reset);
        for actor in &mut self.actors {
            actor.begin(&plan);
        }
        self.issuer.begin(&self.post)
    }

    /// Issues what is left of `piece` and of those before it. All lanes have joined after the previous piece.
    ///
    /// # Errors
    /// As [`Pump::run`].
    pub fn issue_piece(
        &mut self,
        (pieces, piece): (&Pieces, PieceId),
        backend: &B,
        streams: &mut [B::Stream],
        bound: &B::Bound,
    ) -> Result<(), ExecError> {
        self.issuer.join();
        // Actors that became ready for this piece before it came have no mail left. Communicators are the
        // last of a roster and go first here, so that what was left for this piece begins beside its calls.
        for actor in (0..self.actors.len()).rev().map(ActorId::at) {
            self.fire(actor, &|task| pieces.of(task) <= piece, backend, streams, bound)?;
        }
        self.drive(|task| pieces.of(task) <= piece, backend, streams, bound)
    }

    /// Like [`Pump::issue_piece`], but puts nothing on the lanes: the caller does, when the piece is to run.
    ///
    /// # Errors
    /// As [`Pump::run`].
    pub fn pass_piece(
        &mut self,
        piece: (&Pieces, PieceId),
        backend: &B,
        streams: &mut [B::Stream],
        bound: &B::Bound,
    ) -> Result<(), ExecError> {
        self.issuer.stand_back(true);
        let passed = self.issue_piece(piece, backend, streams, bound);
        self.issuer.stand_back(false);
        passed
    }

    /// Closes a step of which every piece was issued.
    ///
    /// # Errors
    /// As [`Pump::run`], after the last task.
    pub fn end(&self) -> Result<(), ExecError> {
        self.issuer.end()?;
        if self.issuer.is_done() { Ok(()) } else { Err(self.stuck(self.issuer.plan())) }
    }

    /// Delivers mail and fires, as far as `may_fire` allows the tasks.
    fn drive(
        &mut self,
        may_fire: impl Fn(TaskId) -> bool,
        backend: &B,
        streams: &mut [B::Stream],
        bound: &B::Bound,
    ) -> Result<(), ExecError> {
        while let Some(actor) = self.post.next() {
            self.deliver(actor)?;
            self.fire(actor, &may_fire, backend, streams, bound)?;
        }
        Ok(())
    }

    /// Lets an actor fire while its head is ready.
    fn fire(
        &mut self,
        actor: ActorId,
        may_fire: &impl Fn(TaskId) -> bool,
        backend: &B,
        streams: &mut [B::Stream],
        bound: &B::Bound,
    ) -> Result<(), ExecError> {
        let worklist = &mut self.worklists[actor.index()];
        let acting = &mut self.actors[actor.index()];
        while worklist.head().is_some_and(may_fire)
            && let Some(ready) = worklist.ready()
        {
            let task = ready.task();
            let planned = self.issuer.plan().task(task);
            let _span = tracing::trace_span!(
                "fire",
                actor = acting.name(),
                task = task.number(),
                op = planned.op.name(),
                subject = planned.subject.as_str(),
            )
            .entered();
            let mut context = Context::new(&mut self.issuer, &self.post, backend, &mut *streams, bound);
            acting.fire(ready, &mut context)?;
        }
        Ok(())
    }

    /// What each actor that owns weights left when the plan was last issued, counted from the masters'
    /// version at its entry.
    pub fn edges(&self) -> impl Iterator<Item = BoundaryState> {
        self.actors.iter().filter_map(|actor| actor.edge())
    }

    fn deliver(&mut self, actor: ActorId) -> Result<(), ExecError> {
        while let Some(message) = self.post.mailbox(actor).take() {
            self.worklists[actor.index()].deliver(message).map_err(|message| ExecError::Misdelivered {
                rank: self.rank,
                actor,
                task: message.task(),
            })?;
        }
        Ok(())
    }

    fn stuck(&self, plan: &StepPlan) -> ExecError {
        let heads: Vec<String> =
            self.worklists.iter().filter_map(Worklist::head).map(|task| plan.describe(task)).collect();
        ExecError::Stuck { rank: self.rank, heads: heads.join(", ") }
    }
}
