//! Execution: one thread per rank that drives its actors through steps.
//!
//! - **EX-1** Eager, captured and replayed runs come from the same messages; whether a step is being captured
//!   is known here and nowhere above or below.
//! - **EX-2** All ranks report the same outcome for a step.
//!
//! A rank thread owns its backend, lanes, arena and plans. The session tells it what to do over a queue and
//! reads the results from the rank's handover. Ranks agree on host matters (equal plans, a usable capture,
//! how long a trial took) in a [`World`]; everything else they exchange on the device. Where a world has
//! several processes, each also tells the others how its ranks ended a step.

mod adopt;
mod agreement;
mod barrier;
mod capture;
mod compare_replicas;
mod diverged;
mod found;
mod frozen;
mod frozen_columns;
mod gauge;
mod gradients;
mod graph;
mod handover;
mod initialize;
mod installed;
mod masters;
mod measure;
mod pump;
mod rank;
mod save_and_import;
mod snapshot;
mod step_reports;
mod stored_state;
mod thread;
mod transfer;
mod world;
mod written_part;

pub use crate::actor::ExecError;
pub use adopt::Adoption;
pub use barrier::Refusal;
pub use capture::{Capture, CaptureMode};
pub use compare_replicas::Unequal;
pub use diverged::{Diverged, Stray};
pub use found::FoundValue;
pub use gauge::Gauge;
pub use gradients::Gradients;
pub use graph::Captured;
pub use handover::{ComingStep, Handover, LastStep, PartTransfer, StepTimes, Transfer};
pub use installed::Installed;
pub use masters::{FirstPlanes, Initializer};
pub use pump::Pump;
pub use rank::{Rank, receive_buffer_bytes};
pub use snapshot::Snapshot;
pub use step_reports::RankReport;
pub(crate) use step_reports::report_bytes;
pub use thread::{Command, Inbox, RankThread, Reply, Setup};
pub use world::World;
pub use written_part::WrittenPart;
