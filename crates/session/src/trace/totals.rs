//! The spans of a host thread of a trace file, added up as they are read.

use super::error::TraceError;
use super::events::Event;
use super::timeline::hull;
use warpweft_base::id::RankId;
use warpweft_base::time::{Interval, Nanoseconds};

/// The spans of one host thread, added up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostLaneTotal {
    /// Its rank; `None` for a thread that did not say.
    pub rank: Option<RankId>,
    /// Its name.
    pub name: String,
    /// Spans, nested ones included.
    pub spans: u64,
    /// Time in which at least one span was open.
    pub busy: Nanoseconds,
    /// From its first to its last event.
    pub extent: Interval,
}

/// A host thread while its events are read.
#[derive(Default)]
pub(super) struct HostThread {
    pub(super) rank: Option<RankId>,
    pub(super) name: String,
    spans: u64,
    busy: Nanoseconds,
    extent: Option<Interval>,
    /// Spans that are open, and when the outermost began.
    open: u64,
    begun: Nanoseconds,
    failure: Option<TraceError>,
}

impl HostThread {
    /// Takes an event of kind `B`, `E` or `i`.
    pub(super) fn take(&mut self, event: &Event) {
        if let Err(error) = self.add(event) {
            self.failure.get_or_insert(error);
        }
    }

    fn add(&mut self, event: &Event) -> Result<(), TraceError> {
        let at = event.begin()?;
        let now = Interval { begin: at, end: at };
        self.extent = hull(self.extent.into_iter().chain([now]));
        match event.ph.as_str() {
            "B" => {
                if self.open == 0 {
                    self.begun = at;
                }
                self.open += 1;
                self.spans += 1;
            }
            "E" if self.open > 0 => {
                self.open -= 1;
                if self.open == 0 {
                    self.busy = self.busy.saturating_add(at.saturating_sub(self.begun));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What it came to.
    ///
    /// # Errors
    /// `TraceError::Event` for one of its events that has no time.
    pub(super) fn total(self) -> Result<HostLaneTotal, TraceError> {
        self.failure.map_or(Ok(()), Err)?;
        Ok(HostLaneTotal {
            rank: self.rank,
            name: self.name,
            spans: self.spans,
            busy: self.busy,
            extent: self.extent.unwrap_or_default(),
        })
    }
}
