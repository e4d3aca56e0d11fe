//! The send queue to one process.
//!
//! Law: who queues a message waits for room no longer than it says; a process that has said good-bye needs
//! nothing any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::channel::{SendTimeoutError, Sender};

use super::message::Message;
use warpweft_base::id::ProcessId;

/// How long a process that closes waits for the other ends to do so, all of them together. Long enough for
/// messages under way on any network that keeps a step's meetings, short enough that nobody takes a closing
/// program for one that hangs. A peer that takes nothing until then loses what was not written to it.
pub(super) const LINGER: Duration = Duration::from_secs(2);

/// The way to one process.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) process: ProcessId,
    pub(super) name: String,
    pub(super) queue: Sender<Message>,
    pub(super) has_left: Left,
}

/// Has the process at the other end said good-bye?
#[derive(Clone, Debug, Default)]
pub(super) struct Left(Arc<AtomicBool>);

impl Left {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Outgoing {
    /// Queues a message. False if there was no room for it within `deadline`.
    pub(super) fn tell(&self, message: Message, deadline: Duration) -> bool {
        // A process that said good-bye, or whose end is known, needs nothing any more.
        self.has_left.is_set()
            || !matches!(self.queue.send_timeout(message, deadline), Err(SendTimeoutError::Timeout(_)))
            || self.has_left.is_set()
    }

    /// Answers a good-bye. Where the queue stays full, its writer says good-bye when it is empty.
    pub(super) fn part(&self) {
        self.has_left.set();
        drop(self.queue.send_timeout(Message::Bye, LINGER));
    }

    /// Queues a message if there is room.
    pub(super) fn offer(&self, message: Message) {
        drop(self.queue.try_send(message));
    }

    /// Makes the writing thread look at the world.
    pub(super) fn wake(&self) {
        self.offer(Message::Beat);
    }
}
