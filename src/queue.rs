//! Bounded queues whose waiting side allocates nothing once it is in use.
//!
//! Law: a crossbeam channel makes its list of waiters when somebody first waits on it, and a thread
//! its own mark when it first waits anywhere. Both happen here, when queue and thread are made: by a
//! wait that nobody answers. Without that, a lane that first runs dry in its hundredth step would
//! allocate there (BK-2).

use std::time::Duration;

use crossbeam::channel::{Receiver, Sender};

/// Long enough that the wait is really entered.
const UNANSWERED: Duration = Duration::from_millis(1);

/// A queue for `capacity` messages that has been waited on.
pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let (near, far) = crossbeam::channel::bounded(capacity);
    let _ = far.recv_timeout(UNANSWERED);
    (near, far)
}

/// Lets the calling thread wait once, so that it need not allocate when it waits later.
pub(crate) fn warm_thread() {
    drop(bounded::<()>(1));
}
