//! The thread that writes the parts of a process, where other processes write theirs.
//!
//! Law: it writes, and decides nothing: the ranks of all processes complete the save or withdraw it together, once each
//! process has its parts, or has failed to write them.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::write::guarded;
use crate::checkpoint::ranks::{PartWriter, SaveId};
use crate::exec::{PartTransfer, Snapshot, WrittenPart};

/// The parts of one process.
pub(super) struct Spread {
    pub(super) what: String,
    writer: Arc<dyn PartWriter>,
    save: SaveId,
    parts: Vec<(Snapshot, Arc<WrittenPart>)>,
    thread: Option<JoinHandle<()>>,
}

impl Spread {
    /// Starts the thread; if the system gives none, the work is done here.
    pub(super) fn start(
        what: String,
        writer: Arc<dyn PartWriter>,
        save: SaveId,
        snapshots: Vec<Snapshot>,
    ) -> Self {
        let parts: Vec<_> =
            snapshots.into_iter().map(|snapshot| (snapshot, Arc::<WrittenPart>::default())).collect();
        let (of_thread, by) = (parts.clone(), Arc::clone(&writer));
        let work = Arc::new(move || {
            for (snapshot, written) in &of_thread {
                written.end(guarded(|| by.write(save, snapshot)));
            }
        });
        let shared = Arc::clone(&work);
        let thread = std::thread::Builder::new().name("warpweft save".to_owned()).spawn(move || shared());
        if thread.is_err() {
            work();
        }
        Self { what, writer, save, parts, thread: thread.ok() }
    }

    /// What writes them.
    pub(super) fn writer(&self) -> Arc<dyn PartWriter> {
        Arc::clone(&self.writer)
    }

    /// Are the parts of this process written, or could they not be?
    pub(super) fn is_written(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// What each rank completes the save with, in order.
    pub(super) fn handed_over(&self) -> impl Iterator<Item = PartTransfer> {
        self.parts.iter().map(|(snapshot, written)| PartTransfer {
            writer: Some(Arc::clone(&self.writer)),
            save: Some(self.save),
            snapshot: Some(snapshot.clone()),
            written: Some(Arc::clone(written)),
            ..PartTransfer::default()
        })
    }

    /// Waits for the thread.
    pub(super) fn join(mut self) -> Self {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self
    }

    /// Waits for the thread, and takes back what it wrote.
    pub(super) fn withdraw(self) {
        let Self { parts, writer, save, .. } = self.join();
        parts.iter().for_each(|(snapshot, _)| writer.withdraw(save, snapshot.rank()));
    }
}
