//! Host spans: what the threads of the ranks did, through `tracing` and `tracing-chrome`.
//!
//! A recording is a [`Dispatch`] that is never installed globally; each rank thread enters it
//! through [`HostLane::within`]. `tracing-chrome` stamps with its own clock, so one anchor event is
//! emitted at a known `Instant`: **TR-4** with it every stamp can be shifted to the common origin
//! (see `merge`), up to [`HostSpans::uncertainty`].
//!
//! `tracing-chrome` binds a thread to the first recording it takes part in, for the life of the
//! thread. Hence:
//! - **A thread takes part in one recording.** Rank threads are made anew for every session, which
//!   keeps this. Where it is broken, [`write_trace`](super::write_trace) names the lane instead of
//!   writing a trace with a hole.
//! - The recording is built, and its anchor emitted, on a thread of its own, so the caller's stays
//!   free.
//!
//! Spans go to a file in a directory the caller names; it is removed when [`HostSpans`] is dropped.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;
use tracing_chrome::{ChromeLayerBuilder, FlushGuard};
use tracing_subscriber::layer::SubscriberExt;

use super::error::TraceError;
use warpweft_base::id::RankId;
use warpweft_base::time::Nanoseconds;

/// The target of the events by which a recording describes itself.
pub(super) const TARGET: &str = "warpweft::trace::host";

/// How often the anchor is tried. The first try also pays for registering its call site, so it is
/// never the tightest; of the others a busy machine may interrupt a few.
const ANCHOR_TRIES: u32 = 8;

/// A recording of host spans in progress.
pub struct HostTrace {
    subscribers: Subscribers,
    /// Never locked: the guard is no `Sync`, and a recording should be.
    guard: Mutex<FlushGuard>,
    spans: HostSpans,
    shared: Shared,
}

/// The host lane of one thread of a rank, on which it records. Cheap to clone and to send to that thread.
#[derive(Clone)]
pub struct HostLane {
    subscribers: Subscribers,
    shared: Shared,
    rank: RankId,
    name: String,
}

/// The subscriber of a recording, and one beside it that takes nothing.
///
/// Of one subscriber alone `tracing` decides only once for each call site, by the thread that comes there
/// first. A rank's comes there in steps that are not traced, outside of the recording, and the call site would
/// be off in those that are. With two it asks the thread each time.
#[derive(Clone)]
struct Subscribers {
    recording: Dispatch,
    _nothing: Dispatch,
}

/// Host spans on disk, complete, with what is needed to place them in time.
#[derive(Debug)]
pub struct HostSpans {
    file: TemporaryFile,
    anchor: Anchor,
    pub(super) entered: Vec<(RankId, String)>,
}

/// The instant of the anchor event on our clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    /// Which of the tries it is.
    pub(super) index: u32,
    /// Nanoseconds from the origin to the middle of the try; negative before the origin.
    pub(super) since_origin: i128,
    /// Half the length of the try.
    uncertainty: Nanoseconds,
}

impl HostTrace {
    /// Starts recording into a new file in `directory`. `origin` is the instant that all times of
    /// the merged trace are counted from.
    ///
    /// # Errors
    /// [`TraceError::File`] when no file can be created in `directory`, [`TraceError::Thread`] when
    /// the system refuses a thread.
    pub fn start(directory: &Path, origin: Instant) -> Result<Self, TraceError> {
        let (file, writer) = TemporaryFile::create(directory)?;
        let shared = Shared::default();
        let writer = KeepFirstError { file: writer, shared: shared.clone() };
        let build = move || {
            let builder = ChromeLayerBuilder::new().writer(writer);
            let (layer, guard) = builder.include_args(true).include_locations(false).build();
            let _nothing = Dispatch::new(NoSubscriber::new());
            let recording = Dispatch::new(tracing_subscriber::registry().with(layer));
            let anchor = emit_anchor(&recording, origin);
            (Subscribers { recording, _nothing }, guard, anchor)
        };
        let builder = thread::Builder::new().name("trace anchor".to_owned());
        let builder = builder.spawn(build).map_err(TraceError::Thread)?;
        let (subscribers, guard, anchor) = builder
            .join()
            .map_err(|_| TraceError::Thread(io::Error::other("it panicked while starting the recording")))?;
        Ok(Self {
            subscribers,
            guard: Mutex::new(guard),
            shared,
            spans: HostSpans { file, anchor, entered: Vec::new() },
        })
    }

    /// The subscriber, for threads that are entered by other means than [`HostLane::within`]. Their
    /// spans are shown apart from the ranks.
    pub fn dispatch(&self) -> &Dispatch {
        &self.subscribers.recording
    }

    /// A lane for one thread of a rank.
    pub fn lane(&self, rank: RankId, name: impl Into<String>) -> HostLane {
        let (subscribers, shared) = (self.subscribers.clone(), self.shared.clone());
        HostLane { subscribers, shared, rank, name: name.into() }
    }

    /// Ends the recording once every event sent so far is on disk. Join the recording threads
    /// first: what they send later is lost.
    ///
    /// # Errors
    /// [`TraceError::File`] when the spans could not be written.
    pub fn finish(mut self) -> Result<HostSpans, TraceError> {
        // Dropping the guard ends the writing thread of `tracing-chrome` and joins it.
        drop(self.guard);
        let mut shared = self.shared.lock();
        self.spans.entered = std::mem::take(&mut shared.entered);
        match shared.failure.take() {
            Some(source) => {
                Err(TraceError::File { action: "write", path: self.spans.file.path.clone(), source })
            }
            None => Ok(self.spans),
        }
    }
}

impl HostLane {
    /// Runs `work` with its spans and events recorded on this lane. To be called on the thread of
    /// the lane; may be called again there.
    pub fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        self.shared.lock().entered.push((self.rank, self.name.clone()));
        tracing::dispatcher::with_default(&self.subscribers.recording, || {
            // Read back by `merge`, which learns from it whose thread this is.
            tracing::info!(target: TARGET, rank = self.rank.index(), lane = %self.name, "lane");
            work()
        })
    }
}

impl HostSpans {
    /// How far a host time may be off from a time of the origin's clock: half of what emitting the
    /// anchor took, below a microsecond on an idle machine.
    pub fn uncertainty(&self) -> Nanoseconds {
        self.anchor.uncertainty
    }

    pub(super) fn anchor(&self) -> Anchor {
        self.anchor
    }

    pub(super) fn open(&self) -> Result<File, TraceError> {
        File::open(&self.file.path).map_err(|source| TraceError::File {
            action: "open",
            path: self.file.path.clone(),
            source,
        })
    }
}

/// Emits the anchor a few times and keeps the try that took least.
fn emit_anchor(dispatch: &Dispatch, origin: Instant) -> Anchor {
    let tries = (0..ANCHOR_TRIES).map(|index| {
        let before = Instant::now();
        tracing::info!(target: TARGET, index, "anchor");
        let length = before.elapsed();
        let middle = before + length / 2;
        let since_origin = match middle.checked_duration_since(origin) {
            Some(after) => after.as_nanos() as i128,
            None => -(origin.duration_since(middle).as_nanos() as i128),
        };
        Anchor { index, since_origin, uncertainty: (length / 2).into() }
    });
    let none = Anchor { index: 0, since_origin: 0, uncertainty: Nanoseconds::new(u64::MAX) };
    tracing::dispatcher::with_default(dispatch, || {
        tries.fold(none, |best, next| if next.uncertainty < best.uncertainty { next } else { best })
    })
}

/// What the lanes and the writing thread report to `finish`.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Reported>>);

#[derive(Default)]
struct Reported {
    entered: Vec<(RankId, String)>,
    failure: Option<io::Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Reported> {
        // Nothing panics while it holds the lock, and both fields are sound at every point.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing thread of `tracing-chrome` panics on an error; this writer hands the first one to
/// `finish` instead, and from then on discards.
struct KeepFirstError {
    file: File,
    shared: Shared,
}

impl KeepFirstError {
    fn keep<R>(&mut self, otherwise: R, action: impl FnOnce(&mut File) -> io::Result<R>) -> R {
        if self.shared.lock().failure.is_some() {
            return otherwise;
        }
        action(&mut self.file).unwrap_or_else(|error| {
            self.shared.lock().failure = Some(error);
            otherwise
        })
    }
}

impl Write for KeepFirstError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.keep((), |file| file.write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.keep((), File::flush);
        Ok(())
    }
}

/// A file that is removed when dropped.
#[derive(Debug)]
struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    /// Creates a file under a name that no other process or recording has taken.
    fn create(directory: &Path) -> Result<(Self, File), TraceError> {
        let process = std::process::id();
        let mut number = 0u64;
        loop {
            let path = directory.join(format!("warpweft-host-{process}-{number}.json"));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Self { path }, file)),
                Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(source) => {
                    let action = "create";
                    return Err(TraceError::File { action, path, source });
                }
            }
        }
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // A file that someone else removed is gone as intended; one that cannot be removed is the
        // system's.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_no_more_is_an_error_at_the_end_and_no_panic_on_the_way() {
        let (file, _) = TemporaryFile::create(&std::env::temp_dir()).unwrap();
        let shared = Shared::default();
        // A file that is open for reading alone refuses every write.
        let read_only = File::open(&file.path).unwrap();
        let mut writer = KeepFirstError { file: read_only, shared: shared.clone() };
        assert_eq!(writer.write(b"[").unwrap(), 1);
        assert_eq!(writer.write(b"]").unwrap(), 1);
        writer.flush().unwrap();
        assert!(shared.lock().failure.is_some());
    }

    #[test]
    fn two_recordings_of_one_process_do_not_share_a_file() {
        let directory = std::env::temp_dir();
        let [(first, _), (second, _)] = [0, 1].map(|_| TemporaryFile::create(&directory).unwrap());
        assert_ne!(first.path, second.path);
    }
}
