//! The thread that does what follows a checkpoint that is whole: a second copy of it.
//!
//! Law: nothing waits for it but the end of the session, no step and no save, so processes that have none are not held
//! up. Copies are made one after the other. One that fails is said in the log at once, and by `close`; the checkpoint
//! stays.

use std::sync::Arc;
use std::thread::JoinHandle;

use super::write::guarded;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::ranks::PartWriter;
use crate::session::SessionError;

/// What failed, in words that say where, and why.
type Outcome = Result<(), (String, CheckpointError)>;

/// A thread at work.
pub(super) struct Following(JoinHandle<Outcome>);

impl Following {
    /// Starts the thread, which waits for the one `before`; `None` if nothing follows. If the system gives none, the
    /// log says so.
    pub(super) fn start(writer: Arc<dyn PartWriter>, before: Option<Self>) -> Option<Self> {
        let Some(what) = writer.follows() else { return before };
        let earlier = before.map(|before| before.0);
        let work = move || {
            let earlier = earlier.map_or(Ok(()), ended);
            let own = guarded(|| writer.follow());
            if let Err(error) = &own {
                tracing::warn!(%error, "the save {what} failed");
            }
            earlier.and(own.map_err(|error| (what, error)))
        };
        let thread = std::thread::Builder::new().name("warpweft copy".to_owned()).spawn(work);
        thread.inspect_err(|error| tracing::warn!(%error, "a second copy has no thread")).ok().map(Self)
    }

    /// Waits for its end, and says what failed first.
    pub(super) fn join(self) -> Result<(), SessionError> {
        ended(self.0).map_err(|(what, source)| SessionError::BackgroundSave {
            what,
            source: Box::new(source),
            now: None,
        })
    }
}

fn ended(thread: JoinHandle<Outcome>) -> Outcome {
    thread.join().unwrap_or_else(|_| Err((String::new(), CheckpointError::other("its thread ended"))))
}
