//! A recorded step of several GPUs of one process: one graph that spans all of them, or one graph per rank?
//!
//! `cargo bench --bench graphs`; it says so and ends where there are no two GPUs. `-- --help` lists what can
//! be set. Every rank computes in rounds, and behind each kernel pulls from every peer; the pulls of a round
//! hide behind the kernel of the next. The same work is run in these ways:
//!
//! - *one graph*: captured by one thread from one stream; ranks are ordered by edges. One launch.
//! - *per rank*: what a rank's thread captures of its own two streams; ranks are ordered by words in each
//!   other's memory. One launch per rank, by its thread.
//! - *anew*: as per rank, but enqueued anew each time, nothing recorded.
//!
//! Words are signaled, waited for and cleared in one batch on the copy stream, as the library does it (which
//! meets twice around a collective, and here it is once): so a rank signals only behind its copies of the round
//! before.
//!
//! Times are the host's, medians.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

#[cfg(feature = "cuda")]
mod graph_cases;

#[cfg(feature = "cuda")]
fn main() {
    graph_cases::run();
}

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("skipped: built without the feature `cuda`");
}
