//! The spans of a host thread of a trace file, added up as they are read.

use super::error::TraceError;
use super::events::Event;
use super::time::{Interval, Nanoseconds};
use super::timeline::hull;
use crate::id::RankId;

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
    /// Its name was told as that of a host thread; other tools write spans too.
    pub(super) is_ours: bool,
    spans: u64,
    busy: Nanoseconds,
    extent: Option<Interval>,
    open: Vec<Nanoseconds>,
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
                self.open.push(at);
                self.spans += 1;
            }
            "E" => {
                let begun = self.open.pop();
                if let (Some(begun), true) = (begun, self.open.is_empty()) {
                    self.busy = self.busy.saturating_add(at.saturating_sub(begun));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What it came to, if it is ours.
    ///
    /// # Errors
    /// `TraceError::Event` for one of its events that has no time.
    pub(super) fn total(self) -> Result<Option<HostLaneTotal>, TraceError> {
        if !self.is_ours {
            return Ok(None);
        }
        self.failure.map_or(Ok(()), Err)?;
        Ok(Some(HostLaneTotal {
            rank: self.rank,
            name: self.name,
            spans: self.spans,
            busy: self.busy,
            extent: self.extent.unwrap_or_default(),
        }))
    }
}
