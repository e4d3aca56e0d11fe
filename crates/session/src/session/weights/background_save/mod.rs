//! Saves that training does not wait for.
//!
//! Law: what is saved is what a stopped save would have saved when the call began. The next step copies it to the host
//! beside its forward and backward (`exec/snapshot.rs`), and a thread writes the copy while later steps run. What would
//! change the state otherwise, or disturb a measurement, has it copied first. One save is under way at a time. What
//! became of it is said once, by the next call that can: it ends whole, or leaves nothing.

mod completing;
mod spread;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::checkpoint::ranks::{PartWriter, SaveId};
use crate::checkpoint::sharded::Save;
use crate::checkpoint::{CheckpointError, CheckpointStore, PartFiles};
use crate::exec::{Command, Snapshot};
use crate::session::dropped::Asks;
use crate::session::{CompiledHere, Session, SessionError};
use spread::Spread;
use warpweft_base::errors::shown_path;
use warpweft_base::id::{ProgramId, RankId};
use warpweft_plan::plan::StepPlan;
use warpweft_plan::policy::ByteSize;
use write::{Job, Writing};

/// The save under way, if there is one, and what saves need.
#[derive(Default)]
pub(in crate::session) struct BackgroundSaves {
    /// The most bytes of a rank's snapshot.
    most: Option<ByteSize>,
    stage: Option<Stage>,
    /// What follows saves that are whole.
    following: Option<Writing>,
    /// For plans by which a step took a snapshot: that plan as it was, and with the copies.
    plans: HashMap<ProgramId, (Arc<StepPlan>, Arc<StepPlan>)>,
    /// The plan by which the last step ran, if it took a snapshot.
    taken_by: Option<(ProgramId, Arc<StepPlan>)>,
    /// After the last step, do the processes have all their parts of a save written?
    all_written: bool,
    /// Bytes of the snapshot of a rank that has one.
    bytes: usize,
}

/// How far a save has come.
enum Stage {
    /// The ranks begin it.
    Beginning(Job),
    /// The next step copies the state.
    Begun { job: Job, save: SaveId, snapshots: Vec<Snapshot> },
    /// The ranks copy it, without a step.
    Copying { job: Job, save: SaveId },
    /// The state is copied, and a thread writes it.
    Writing(Writing),
    /// So it is, and other processes write theirs.
    Spread(Spread),
    /// The ranks of all processes make a checkpoint of their parts.
    Completing(Spread),
    /// They have, or have not, and nobody has got word of it.
    Over(Result<(), SessionError>),
}

impl BackgroundSaves {
    pub(in crate::session) fn at_most(most: Option<ByteSize>) -> Self {
        Self { most, ..Self::default() }
    }

    /// The plan numbered `number` by which the last step took a snapshot, if it did.
    pub(in crate::session) fn taken_by(&self, number: ProgramId) -> Option<&Arc<StepPlan>> {
        self.taken_by.as_ref().filter(|(by, _)| *by == number).map(|(_, plan)| plan)
    }

    /// Waits for what follows saves, and says what of it failed.
    pub(in crate::session) async fn followed(&mut self) -> Result<(), SessionError> {
        if let Some(following) = &mut self.following {
            following.over().await;
        }
        self.following.take().map_or(Ok(()), |following| following.join().map(drop))
    }

    /// Waits for a save under way; of one that is lost, and of one that failed, nobody else gets word.
    pub(in crate::session) fn end(&mut self) {
        let failed = match self.stage.take() {
            None => None,
            Some(Stage::Beginning(job) | Stage::Begun { job, .. } | Stage::Copying { job, .. }) => {
                Some(lost(job.what(), NOT_COPIED))
            }
            Some(Stage::Writing(writing)) => match writing.join() {
                Ok(writer) => {
                    self.follow(writer);
                    None
                }
                Err(error) => Some(error),
            },
            Some(Stage::Spread(spread)) => {
                let error = lost(&spread.what, NOT_COMPLETED);
                spread.withdraw();
                Some(error)
            }
            // The next save removes what it left, if that is no checkpoint.
            Some(Stage::Completing(spread)) => {
                let error = lost(&spread.what, IN_DOUBT);
                drop(spread.join());
                Some(error)
            }
            Some(Stage::Over(outcome)) => outcome.err(),
        };
        if let Some(error) = failed {
            tracing::warn!(%error, "the session was dropped with a save under way");
        }
        // What failed is in the log.
        let _ = self.following.take().map(Writing::join);
    }

    fn follow(&mut self, writer: Option<Arc<dyn PartWriter>>) {
        if let Some(writer) = writer {
            self.following = Writing::following(writer, self.following.take());
        }
    }
}

impl Session {
    /// As [`Session::save_parts`], without waiting for the disk, or for memory: the next step copies the state to the
    /// host beside its forward and backward, so that its optimizer waits only for what is not copied by then, and a
    /// thread writes the copy while steps go on (an asynchronous checkpoint). The checkpoint is the one that
    /// [`Session::save_parts`] would have saved now, byte for byte but for the identity of the save.
    ///
    /// One save is under way at a time: this waits for the one before. [`Session::is_saving`] tells whether there is
    /// one, and [`Session::finish_save`] waits for it. If a save fails, the next call says so and does nothing else,
    /// and nothing is left of it. Copies take memory of the host, for the life of the session
    /// ([`Session::snapshot_bytes`]); where that is more than `checkpoint.snapshot_bytes`, training waits as with
    /// [`Session::save_parts`]. With several processes all call it; they tell each other in their steps how far they
    /// have come, and make a checkpoint of their parts between two steps, once all are written. Delayed scales, step
    /// count and carried buffers are copied before this returns. A step that copies is issued, whether or not its
    /// program is captured; the first one of a program is planned and bound on its way, and on GPUs is as slow as a
    /// program's first. If the future is dropped, the save begins all the same.
    ///
    /// # Errors
    /// As [`Session::save_parts`], for what is found out before anything is copied;
    /// [`SessionError::BackgroundSave`] of the save before.
    pub async fn save_parts_in_background(
        &mut self,
        files: &PartFiles,
        notes: &BTreeMap<String, String>,
    ) -> Result<(), SessionError> {
        self.save_parts_in_background_here(files, notes).await
    }

    fn save_parts_in_background_here<'a>(
        &'a mut self,
        files: &'a PartFiles,
        notes: &'a BTreeMap<String, String>,
    ) -> CompiledHere<'a, ()> {
        Box::pin(async move {
            self.finish_save_for(Asks::More).await?;
            self.check_exports()?;
            if self.is_too_large() {
                return self.save_parts(files, notes).await;
            }
            let what = format!("into {}", shown_path(files.folder()));
            let save = Save::new(files, notes.clone(), self.plans(), self.optimizer_identity.clone());
            let writer: Arc<dyn PartWriter> = Arc::new(save);
            for thread in &self.ranks {
                thread.handover().part.writer = Some(Arc::clone(&writer));
            }
            self.begin_save(Job::Parts { what, writer }).await
        })
    }

    /// As [`Session::export`], with [`CheckpointStore::save`] after it, without waiting for either: `notes` are those
    /// of the checkpoint that is put together and given to `store` on a thread of its own, from what the next step
    /// copies. In all else as [`Session::save_parts_in_background`]; quantized planes, too, are copied before this
    /// returns.
    ///
    /// # Errors
    /// As [`Session::export`]; [`SessionError::Parts`] where a rank gets no memory for its copy;
    /// [`SessionError::BackgroundSave`] of the save before.
    pub async fn save_in_background(
        &mut self,
        store: impl CheckpointStore + 'static,
        notes: BTreeMap<String, String>,
    ) -> Result<(), SessionError> {
        self.save_in_background_here(Box::new(store), notes).await
    }

    fn save_in_background_here(
        &mut self,
        store: Box<dyn CheckpointStore>,
        notes: BTreeMap<String, String>,
    ) -> CompiledHere<'_, ()> {
        Box::pin(async move {
            self.finish_save_for(Asks::More).await?;
            self.check_exports()?;
            if !self.rendezvous.is_whole() {
                return Err(SessionError::Partial);
            }
            if self.is_too_large() {
                let mut checkpoint = self.export().await?;
                checkpoint.notes = notes;
                return Ok(store.save(&checkpoint).await?);
            }
            let (plans, by) = (self.plans(), self.optimizer_identity.clone());
            self.ranks.iter().for_each(|thread| thread.handover().part.writer = None);
            self.begin_save(Job::Whole { store, notes, plans, by }).await
        })
    }

    /// Waits for the save in the background that is under way, if there is one. If no step came since it began, its
    /// state is copied now.
    ///
    /// # Errors
    /// [`SessionError::BackgroundSave`] if it failed. Otherwise as of any call.
    pub async fn finish_save(&mut self) -> Result<(), SessionError> {
        self.finish_save_for(Asks::More).await
    }

    /// Is a save in the background under way?
    #[must_use]
    pub fn is_saving(&self) -> bool {
        match &self.saves.stage {
            None | Some(Stage::Over(_)) => false,
            Some(Stage::Writing(writing)) => !writing.is_over(),
            Some(_) => true,
        }
    }

    /// Bytes of host memory that a save in the background takes on each rank for copies of its state: masters and
    /// optimizer state of the rows that the rank owns. Taken by the first such save, and kept; 0 before. On GPUs it is
    /// pinned.
    #[must_use]
    pub const fn snapshot_bytes(&self) -> usize {
        self.saves.bytes
    }

    /// Is a snapshot larger than it may be? Then training waits.
    fn is_too_large(&self) -> bool {
        let Some(program) = self.programs.first() else { return true };
        let needed = ByteSize::of(program.plan.snapshot_bytes());
        let is_too_large = self.saves.most.is_some_and(|most| needed > most);
        if is_too_large {
            tracing::info!(
                "training waits for this save: a snapshot takes {} of each rank, more than checkpoint.snapshot_bytes",
                needed.in_full()
            );
        }
        is_too_large
    }

    /// Lets all ranks begin a save.
    async fn begin_save(&mut self, job: Job) -> Result<(), SessionError> {
        self.saves.stage = Some(Stage::Beginning(job));
        self.command(Command::BeginSave);
        self.finish().await?;
        self.save_begun()
    }

    /// What became of a save that all ranks were to begin.
    pub(in crate::session) fn save_begun(&mut self) -> Result<(), SessionError> {
        let Some(Stage::Beginning(job)) = self.saves.stage.take() else { return Ok(()) };
        let begun = self.ranks.iter().map(|thread| {
            let part = &mut thread.handover().part;
            part.writer = None;
            part.snapshot.take().zip(part.save.take())
        });
        let begun: Option<Vec<_>> = begun.collect();
        self.saved()?;
        let begun = begun.ok_or_else(|| lost(job.what(), NOT_COPIED))?;
        let Some(save) = begun.first().map(|(_, save)| *save) else { return Ok(()) };
        self.saves.bytes = self.programs.first().map_or(0, |program| program.plan.snapshot_bytes());
        let snapshots = begun.into_iter().map(|(snapshot, _)| snapshot).collect();
        self.saves.stage = Some(Stage::Begun { job, save, snapshots });
        Ok(())
    }

    /// The plan by which the coming step, by the plan numbered `by`, takes the snapshot of a save that has begun.
    pub(in crate::session) fn plan_snapshot(
        &mut self,
        by: ProgramId,
    ) -> Result<Option<Arc<StepPlan>>, SessionError> {
        self.saves.taken_by = None;
        if !matches!(self.saves.stage, Some(Stage::Begun { .. })) {
            return Ok(None);
        }
        let own = Arc::clone(self.plan_of(by));
        let with = match self.saves.plans.get(&by).filter(|(known, _)| Arc::ptr_eq(known, &own)) {
            Some((_, with)) => Arc::clone(with),
            None => Arc::new(own.with_snapshot()?),
        };
        self.saves.plans.insert(by, (own, Arc::clone(&with)));
        self.saves.taken_by = Some((by, Arc::clone(&with)));
        Ok(Some(with))
    }

    /// Lets a thread write what the step that has ended copied, if it did.
    pub(in crate::session) fn write_snapshot(&mut self) {
        let Some((_, plan)) = &self.saves.taken_by else { return };
        match self.saves.stage.take() {
            Some(Stage::Begun { job, save, mut snapshots }) => {
                snapshots.iter_mut().for_each(|snapshot| snapshot.taken_by(plan));
                self.start_writing(job, save, snapshots);
            }
            other => self.saves.stage = other,
        }
    }

    /// Copies the state of a save that has begun, before anything else changes it.
    pub(in crate::session) async fn copy_now(&mut self) -> Result<(), SessionError> {
        let (job, save, snapshots) = match self.saves.stage.take() {
            Some(Stage::Begun { job, save, snapshots }) => (job, save, snapshots),
            other => {
                self.saves.stage = other;
                return Ok(());
            }
        };
        for (thread, snapshot) in self.ranks.iter().zip(snapshots) {
            thread.handover().part.snapshot = Some(snapshot);
        }
        self.saves.stage = Some(Stage::Copying { job, save });
        self.command(Command::TakeSnapshot);
        self.finish().await?;
        self.write_copied()
    }

    /// Lets a thread write what the ranks have copied without a step.
    pub(in crate::session) fn write_copied(&mut self) -> Result<(), SessionError> {
        let Some(Stage::Copying { job, save }) = self.saves.stage.take() else { return Ok(()) };
        let copied = self.ranks.iter().map(|thread| thread.handover().part.snapshot.take());
        let snapshots = copied.collect::<Option<Vec<_>>>().ok_or_else(|| lost(job.what(), NOT_COPIED))?;
        self.start_writing(job, save, snapshots);
        Ok(())
    }

    fn start_writing(&mut self, job: Job, save: SaveId, snapshots: Vec<Snapshot>) {
        let is_whole = self.rendezvous.is_whole();
        self.saves.stage = Some(match job {
            Job::Parts { what, writer } if !is_whole => {
                Stage::Spread(Spread::start(what, writer, save, snapshots))
            }
            job => Stage::Writing(Writing::start(job, save, snapshots)),
        });
    }

    /// Lets a thread do what follows a save that is whole, if it is for this process.
    pub(in crate::session) fn follow_save(&mut self, writer: Arc<dyn PartWriter>) {
        if self.ranks.first().is_some_and(|thread| thread.rank() == RankId::new(0)) {
            self.saves.follow(Some(writer));
        }
    }

    /// Says once that a save failed, if it has ended so.
    pub(in crate::session) fn check_save(&mut self, asks: Asks) -> Result<(), SessionError> {
        match self.saves.stage.take() {
            Some(Stage::Writing(writing)) if writing.is_over() => {
                let writer = writing.join().map_err(|error| error.of_dropped_command(asks))?;
                self.saves.follow(writer);
                Ok(())
            }
            Some(Stage::Over(outcome)) => outcome.map_err(|error| error.of_dropped_command(asks)),
            other => {
                self.saves.stage = other;
                Ok(())
            }
        }
    }

    /// As [`Session::finish_save`], for a call that asks this.
    pub(in crate::session) async fn finish_save_for(&mut self, asks: Asks) -> Result<(), SessionError> {
        self.settle_for(asks).await?;
        if matches!(self.saves.stage, Some(Stage::Begun { .. })) {
            // Ranks that are gone copy nothing.
            self.check_exports().inspect_err(|_| self.saves.stage = None)?;
            self.copy_now().await?;
        }
        self.complete_save().await?;
        if let Some(Stage::Writing(writing)) = &mut self.saves.stage {
            writing.over().await;
        }
        self.check_save(asks)
    }
}

/// Why a save is lost that a session ended before.
const NOT_COPIED: &str = "the session ended before its state was copied; nothing of it is left";
const NOT_COMPLETED: &str =
    "the session ended before all processes had written their parts; this one took its own back";
const IN_DOUBT: &str =
    "the session ended while its ranks made a checkpoint of their parts, which may be there or not";

fn lost(what: &str, why: &str) -> SessionError {
    let source = Box::new(CheckpointError::other(why));
    SessionError::BackgroundSave { what: what.to_owned(), source, now: None }
}
