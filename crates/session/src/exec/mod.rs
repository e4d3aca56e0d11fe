//! Execution: one thread per rank that drives its actors through steps.
//!
//! - **EX-1** Eager, recorded and replayed runs come from the same messages; whether a step is being recorded
//!   is known here and nowhere above or below.
//! - **EX-2** All ranks report the same outcome for a step.
//!
//! A rank thread owns its backend, lanes, arena and plans. The session tells it what to do over a queue and
//! reads the results from the rank's handover. Ranks agree on host matters (equal plans, a usable recording,
//! how long a trial took) in a [`World`]; everything else they exchange on the device. Where a world has
//! several processes, each also tells the others how its ranks ended a step.

mod adopt;
mod capture;
mod copies;
mod diverged;
mod found;
mod frozen;
mod gauge;
mod gradients;
mod handover;
mod initialize;
mod installed;
mod masters;
mod measure;
mod pump;
mod rank;
mod record;
mod rounds;
mod save_and_import;
mod spread;
mod thread;
mod transfer;
mod world;

pub use crate::actor::ExecError;
pub use adopt::Adoption;
pub use capture::{Capture, CaptureMode};
pub use copies::Unequal;
pub use diverged::{Diverged, Stray};
pub use found::FoundValue;
pub use gauge::Gauge;
pub use gradients::Gradients;
pub use handover::{ComingStep, Handover, LastStep, PartTransfer, StepTimes, Transfer};
pub use installed::Installed;
pub use masters::{FirstPlanes, Initializer};
pub use pump::Pump;
pub use rank::{Rank, landing_bytes};
pub use record::Recorded;
pub use rounds::Refusal;
pub use spread::RankReport;
pub(crate) use spread::report_bytes;
pub use thread::{Command, Inbox, RankThread, Reply, Setup};
pub use world::World;
