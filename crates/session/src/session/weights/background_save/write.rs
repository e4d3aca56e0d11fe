//! The thread that writes a snapshot, and the one that makes a second copy of what was written.
//!
//! Law: it has all that it needs and asks no rank. Files are begun, completed, kept and withdrawn as by a save for
//! which training waits; the thread of a process that has all ranks speaks for all of them. A session that ends joins
//! it. Nothing else waits for a copy, no step and no save, so processes that have none are not held up; copies are made
//! one after the other, and the checkpoint stays whatever comes of them.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::checkpoint::ranks::{PartWriter, RankPart, SaveId};
use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, OptimizerIdentity};
use crate::exec::Snapshot;
use crate::session::{SessionError, block_on};
use warpweft_base::panics::kept_words;
use warpweft_plan::plan::StepPlan;

/// What is done with snapshots.
pub(super) enum Job {
    /// Each becomes a part, and all of them a checkpoint.
    Parts { what: String, writer: Arc<dyn PartWriter> },
    /// They become one checkpoint, which a store keeps.
    Whole {
        store: Box<dyn CheckpointStore>,
        notes: BTreeMap<String, String>,
        plans: Vec<Arc<StepPlan>>,
        by: OptimizerIdentity,
    },
}

impl Job {
    /// Where the save goes, for messages.
    pub(super) fn what(&self) -> &str {
        match self {
            Self::Parts { what, .. } => what,
            Self::Whole { .. } => "into a store",
        }
    }

    fn run(self, save: SaveId, snapshots: Vec<Snapshot>) -> Result<(), CheckpointError> {
        match self {
            Self::Parts { writer, .. } => write_parts(writer.as_ref(), save, &snapshots),
            Self::Whole { store, notes, plans, by } => {
                let checkpoint = gather(&plans, &by, snapshots, notes)?;
                block_on(store.save(&checkpoint))
            }
        }
    }
}

/// A thread at work.
pub(super) struct Writing {
    what: String,
    ended: oneshot::Receiver<Result<(), SessionError>>,
    outcome: Option<Result<(), SessionError>>,
    /// What wrote the parts, and knows what follows.
    writer: Option<Arc<dyn PartWriter>>,
    thread: Option<JoinHandle<()>>,
}

impl Writing {
    /// Starts the thread of a save.
    pub(super) fn start(job: Job, save: SaveId, snapshots: Vec<Snapshot>) -> Self {
        let what = job.what().to_owned();
        let writer = match &job {
            Job::Parts { writer, .. } => Some(Arc::clone(writer)),
            Job::Whole { .. } => None,
        };
        let named = what.clone();
        let work = move || guarded(|| job.run(save, snapshots)).map_err(|error| failed(&named, error));
        Self { writer, ..Self::doing(what, work) }
    }

    /// Starts the thread of what follows a save, a second copy, which waits for the one `before`. Without one that is
    /// what goes on. One that fails is said in the log at once.
    pub(super) fn following(writer: Arc<dyn PartWriter>, before: Option<Self>) -> Option<Self> {
        let Some(what) = writer.follows() else { return before };
        let named = what.clone();
        let work = move || {
            let earlier = before.map_or(Ok(()), |before| before.join().map(drop));
            let own = guarded(|| writer.follow()).map_err(|error| failed(&named, error));
            if let Err(error) = &own {
                tracing::warn!(%error, "the checkpoint has no second copy");
            }
            earlier.and(own)
        };
        Some(Self::doing(what, work))
    }

    /// Starts a thread; if the system gives none, the work is done here.
    fn doing(what: String, work: impl FnOnce() -> Result<(), SessionError> + Send + 'static) -> Self {
        let (told, ended) = oneshot::channel();
        let work = Arc::new(std::sync::Mutex::new(Some((work, told))));
        let body = move || {
            let taken = work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some((work, told)) = taken {
                let _ = told.send(work());
            }
        };
        let thread = std::thread::Builder::new().name("warpweft save".to_owned()).spawn(body.clone());
        if thread.is_err() {
            body();
        }
        Self { what, ended, outcome: None, writer: None, thread: thread.ok() }
    }

    /// Has it ended?
    pub(super) fn is_over(&self) -> bool {
        self.outcome.is_some() || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for its end.
    pub(super) async fn over(&mut self) {
        if self.outcome.is_none() {
            let ended = (&mut self.ended).await;
            self.outcome = Some(ended.unwrap_or_else(|_| Err(unheard(&self.what))));
        }
    }

    /// Waits for its end, and says what became of the save. If it is whole, its writer knows what follows.
    pub(super) fn join(mut self) -> Result<Option<Arc<dyn PartWriter>>, SessionError> {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let heard = self.outcome.take().or_else(|| self.ended.try_recv().ok());
        heard.unwrap_or_else(|| Err(unheard(&self.what))).map(|()| self.writer)
    }
}

fn failed(what: &str, source: CheckpointError) -> SessionError {
    SessionError::BackgroundSave { what: what.to_owned(), source: Box::new(source), now: None }
}

fn unheard(what: &str) -> SessionError {
    failed(what, CheckpointError::other("its thread ended"))
}

/// Turns a panic, such as of a store, into an error that keeps its words.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, CheckpointError>) -> Result<T, CheckpointError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(CheckpointError::other(format!("what saves it panicked: {}", kept_words(panic))))
    })
}

/// Writes the parts of all ranks, and makes a checkpoint of them or withdraws them.
fn write_parts(writer: &dyn PartWriter, save: SaveId, snapshots: &[Snapshot]) -> Result<(), CheckpointError> {
    let written: Result<Vec<u64>, _> =
        snapshots.iter().map(|snapshot| writer.write(save, snapshot)).collect();
    let completed = written.and_then(|parts| match snapshots.first() {
        Some(first) => writer.complete(save, &parts, first),
        None => Ok(()),
    });
    // An index that may be there needs all parts.
    let stays = matches!(completed, Ok(()) | Err(CheckpointError::InDoubt { .. }));
    for snapshot in snapshots {
        match stays {
            true => writer.keep(save, snapshot.rank()),
            false => writer.withdraw(save, snapshot.rank()),
        }
    }
    completed
}

/// One checkpoint of the snapshots of all ranks.
fn gather(
    plans: &[Arc<StepPlan>],
    by: &OptimizerIdentity,
    snapshots: Vec<Snapshot>,
    notes: BTreeMap<String, String>,
) -> Result<Checkpoint, CheckpointError> {
    let parts = snapshots.into_iter().map(|mut snapshot| snapshot.export());
    let mut parts: Vec<RankPart> = parts.collect::<Result<_, _>>().map_err(CheckpointError::other)?;
    let checkpoint = Checkpoint::gather(plans, by, &mut parts.iter_mut().collect::<Vec<_>>());
    Ok(Checkpoint { notes, ..checkpoint.map_err(CheckpointError::other)? })
}
