//! Saves that training does not wait for: they are what a stopped save would have been, and training is as without.

mod copies;
mod equal;
mod failures;
mod keep_last;
mod processes;

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

use warpweft_session::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, FileStore, PartFiles};
use warpweft_session::config::Config;
use warpweft_session::session::Session;
use warpweft_testing::trainer::losses;

use super::parts::{notes, replicated, without_planes};

fn config() -> Config {
    Config { check: true, ..replicated(1) }
}

/// Saves stopped and in the background, in parts and whole, while steps `next` run, and compares. Returns the losses.
async fn compared(session: &mut Session, ranks: u32, folder: &Path, next: std::ops::Range<u32>) -> Vec<u32> {
    let parts = |name: &str| PartFiles::new(folder.join(name));
    let file = |name: &str| folder.join(format!("{name}.safetensors"));
    let notes = notes(&[("step", "some")]);
    let mut exported = session.export().await.unwrap();
    exported.notes.clone_from(&notes);
    session.save_parts(&parts("stopped"), &notes).await.unwrap();
    FileStore::new(file("stopped")).save(&exported).await.unwrap();
    session.save_parts_in_background(&parts("beside"), &notes).await.unwrap();
    assert!(session.is_saving() && session.snapshot_bytes() > 0);
    let mut found = losses(session, ranks, next.start..next.start + 2).await;
    session.finish_save().await.unwrap();
    assert!(!session.is_saving());
    assert!(parts("beside").load().unwrap() == parts("stopped").load().unwrap());
    assert_eq!(parts("beside").saved().unwrap(), parts("stopped").saved().unwrap());

    // Of another step.
    let mut exported = session.export().await.unwrap();
    exported.notes.clone_from(&notes);
    FileStore::new(file("stopped")).save(&exported).await.unwrap();
    session.save_in_background(FileStore::new(file("beside")), notes).await.unwrap();
    found.extend(losses(session, ranks, next.start + 2..next.end).await);
    session.finish_save().await.unwrap();
    let [beside, stopped] = ["beside", "stopped"].map(|name| std::fs::read(file(name)).unwrap());
    assert!(beside == stopped, "the files of whole checkpoints differ");
    found
}

/// A store that says when it got a checkpoint, and goes on when it may.
struct Gate {
    came: SyncSender<Checkpoint>,
    may_go_on: Mutex<Receiver<Result<(), CheckpointError>>>,
}

/// A gate, what it gets, and what lets it go on.
fn gate() -> (Gate, Receiver<Checkpoint>, SyncSender<Result<(), CheckpointError>>) {
    let ((came, got), (goes_on, may_go_on)) = (sync_channel(1), sync_channel(1));
    (Gate { came, may_go_on: Mutex::new(may_go_on) }, got, goes_on)
}

#[async_trait::async_trait]
impl CheckpointStore for Gate {
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.came.send(checkpoint.clone()).unwrap();
        self.may_go_on.lock().unwrap().recv().unwrap()
    }

    async fn load(&self) -> Result<Checkpoint, CheckpointError> {
        unreachable!("nobody loads")
    }
}

/// What a store refuses with.
fn full() -> CheckpointError {
    CheckpointError::Other { source: Arc::new(std::io::Error::other("the disk is full")) }
}
