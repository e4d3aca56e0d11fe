//! Traces: what happened, when, and on which lane: recorded, measured, written, drawn.
//!
//! This module is pure bookkeeping over times that others measured. It starts no work, waits for
//! nothing and decides nothing. All times are nanoseconds since one origin `Instant` that the
//! recorder chose, for every rank the same.
//!
//! Laws:
//! - **TR-1** compute, exposed communication, skew and idle time partition a step (`exposure`).
//! - **TR-2** a collective begins when its last rank arrives; what a rank waits before that is
//!   skew, never communication (`arrival`).
//! - **TR-3** a timeline written as chrome JSON and read back is the same timeline (`chrome`,
//!   `reader`).
//! - **TR-4** host spans and lane slices share one origin in the merged file, up to the uncertainty
//!   that the anchor states (`host`, `merge`).
//!
//! | file | idea |
//! |---|---|
//! | `time` | nanoseconds, intervals and their arithmetic |
//! | `median` | what counts of several measurements |
//! | `timeline` | lanes, slices, arrows, counters of a run |
//! | `exposure` | exposed communication from intervals; needs no timeline and does not allocate |
//! | `arrival` | the exposure of a timeline, with skew taken apart |
//! | `chrome` | the chrome trace JSON, event by event |
//! | `export` | a timeline as such events |
//! | `host` | host spans through `tracing` and `tracing-chrome` |
//! | `merge` | both in one file |
//! | `events`, `reader`, `totals` | chrome trace JSON back into a timeline |
//! | `summary` | a trace as text |
//! | `picture`, `chart` | a trace and a curve as SVG, over `svg`, `axis` and `colours` |
//!
//! Deliberately absent: a global subscriber, a global clock, any knowledge of plans or backends.

mod arrival;
mod axis;
mod chart;
mod chrome;
mod colours;
mod error;
mod events;
mod export;
mod exposure;
mod host;
mod merge;
mod picture;
mod reader;
mod summary;
mod svg;
mod timeline;
mod totals;

pub use arrival::StepExposure;
pub use chart::{LineChart, Mark, Reference, Series};
pub use chrome::{Argument, ChromeWriter, CompleteEvent, FlowPoint, Track};
pub use error::TraceError;
pub use export::Written;
pub use exposure::{Exposure, exposure};
pub use host::{HostLane, HostSpans, HostTrace};
pub use merge::write_trace;
pub use picture::TimelinePicture;
pub use reader::{TraceFile, read_trace};
pub use summary::{LaneSummary, ProgramSummary, RankSummary, Summary};
pub use timeline::{Arrow, ArrowEnd, ArrowKind, CounterSample, LaneInfo, LaneKind, Slice, Timeline};
pub use totals::HostLaneTotal;
pub use warpweft_base::median::median;
pub use warpweft_base::time::{Interval, Nanoseconds};
