//! The chrome trace JSON, event by event.
//!
//! One object, `{"displayTimeUnit":"ms","traceEvents":[…],"otherData":{…}}`, one event a line,
//! written as it comes: nothing is kept but a count. Times are in microseconds with three decimals,
//! so nanoseconds survive. All text goes through `serde_json`, so any name is safe.
//!
//! What the viewers need, and callers must keep:
//! - A thread id means one thread in the whole file. Perfetto keys thread names by it alone.
//! - Slices of one thread nest or lie apart. Perfetto drops what overlaps only in part.
//! - A flow point binds to the slice around it that was written *before* it, so slices go first.
//!
//! The format is described in the "Trace Event Format" document of the chromium project.

use std::io::Write;

use serde::{Serialize, Serializer};

use super::error::TraceError;
use warpweft_base::time::{Interval, Nanoseconds};

/// A thread of the trace: where slices lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Track {
    /// The process it is shown under.
    pub process: u32,
    /// The thread; unique in the file.
    pub thread: u32,
}

/// A value in the `args` of an event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Argument<'a> {
    /// Text.
    Text(&'a str),
    /// A whole number.
    Integer(u64),
    /// A number; not finite is written as `null`.
    Number(f64),
    /// Yes or no.
    Flag(bool),
    /// Any JSON, as another trace held it.
    Json(&'a serde_json::Value),
}

/// A slice: something that ran on a track for a while.
#[derive(Clone, Copy, Debug)]
pub struct CompleteEvent<'a> {
    /// Where.
    pub track: Track,
    /// When.
    pub interval: Interval,
    /// What a person reads on it.
    pub name: &'a str,
    /// What it is coloured and filtered by.
    pub category: &'a str,
    /// Details, shown when the slice is selected.
    pub arguments: &'a [(&'a str, Argument<'a>)],
}

/// One end of a flow arrow.
#[derive(Clone, Copy, Debug)]
pub struct FlowPoint<'a> {
    /// The track of the slice it binds to.
    pub track: Track,
    /// An instant within that slice.
    pub at: Nanoseconds,
    /// The same at both ends, and unique among flows of this name and category.
    pub id: u64,
    /// The same at both ends.
    pub name: &'a str,
    /// The same at both ends.
    pub category: &'a str,
    /// Details; viewers do not show them.
    pub arguments: &'a [(&'a str, Argument<'a>)],
}

/// Writes a chrome trace to any writer. Give it a buffered one: every event is a few small writes.
///
/// Every method fails with [`TraceError::Write`] when the writer does, and for no other reason.
#[derive(Debug)]
pub struct ChromeWriter<W: Write> {
    out: W,
    events: u64,
}

/// An event as the format spells it.
#[derive(Default, Serialize)]
struct Event<'a> {
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cat: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "str::is_empty")]
    bp: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    s: &'static str,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "as_map")]
    args: &'a [(&'a str, Argument<'a>)],
}

fn as_map<S: Serializer>(pairs: &&[(&str, Argument<'_>)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

impl<W: Write> ChromeWriter<W> {
    /// Begins a trace.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn start(mut out: W) -> Result<Self, TraceError> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[").map_err(TraceError::Write)?;
        Ok(Self { out, events: 0 })
    }

    /// Names a process and gives its place among the others. Viewers ignore further `details`;
    /// readers of our own files do not.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn process(
        &mut self,
        process: u32,
        name: &str,
        place: u32,
        details: &[(&str, Argument<'_>)],
    ) -> Result<(), TraceError> {
        self.describe("process", process, None, name, place, details)
    }

    /// Names a thread and gives its place within the process, with `details` as for a process.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn thread(
        &mut self,
        track: Track,
        name: &str,
        place: u32,
        details: &[(&str, Argument<'_>)],
    ) -> Result<(), TraceError> {
        self.describe("thread", track.process, Some(track.thread), name, place, details)
    }

    /// Writes a slice. An end before the begin is written as no length.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn complete(&mut self, slice: &CompleteEvent<'_>) -> Result<(), TraceError> {
        self.event(&Event {
            ph: "X",
            pid: slice.track.process,
            tid: Some(slice.track.thread),
            ts: Some(slice.interval.begin.microseconds()),
            dur: Some(slice.interval.length().microseconds()),
            name: slice.name,
            cat: slice.category,
            args: slice.arguments,
            ..Event::default()
        })
    }

    /// Opens a slice that [`close`](Self::close) ends; pairs nest like brackets on their track.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn open(
        &mut self,
        track: Track,
        at: Nanoseconds,
        name: &str,
        category: &str,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result<(), TraceError> {
        self.on_track("B", track, at, name, category, arguments)
    }

    /// Ends the innermost open slice of the track, which must have this name and category.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn close(
        &mut self,
        track: Track,
        at: Nanoseconds,
        name: &str,
        category: &str,
    ) -> Result<(), TraceError> {
        self.on_track("E", track, at, name, category, &[])
    }

    /// Marks an instant on a track.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn instant(
        &mut self,
        track: Track,
        at: Nanoseconds,
        name: &str,
        category: &str,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result<(), TraceError> {
        self.on_track("i", track, at, name, category, arguments)
    }

    /// Draws an arrow between two slices that were already written.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn flow(&mut self, from: &FlowPoint<'_>, to: &FlowPoint<'_>) -> Result<(), TraceError> {
        for (ph, bp, point) in [("s", "", from), ("f", "e", to)] {
            self.event(&Event {
                ph,
                bp,
                pid: point.track.process,
                tid: Some(point.track.thread),
                ts: Some(point.at.microseconds()),
                name: point.name,
                cat: point.category,
                id: Some(point.id),
                args: point.arguments,
                ..Event::default()
            })?;
        }
        Ok(())
    }

    /// Sets the value of a counter of a process from an instant on.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn counter(
        &mut self,
        process: u32,
        at: Nanoseconds,
        name: &str,
        category: &str,
        value: f64,
    ) -> Result<(), TraceError> {
        self.event(&Event {
            ph: "C",
            pid: process,
            ts: Some(at.microseconds()),
            name,
            cat: category,
            args: &[("value", Argument::Number(value))],
            ..Event::default()
        })
    }

    /// Ends the trace with facts about the whole of it, flushes, and gives the writer back with the
    /// number of events written.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(mut self, about: &serde_json::Value) -> Result<(W, u64), TraceError> {
        self.write(b"\n],\"otherData\":")?;
        serde_json::to_writer(&mut self.out, about).map_err(|error| TraceError::Write(error.into()))?;
        self.write(b"}\n")?;
        self.out.flush().map_err(TraceError::Write)?;
        Ok((self.out, self.events))
    }

    fn describe(
        &mut self,
        what: &str,
        pid: u32,
        tid: Option<u32>,
        name: &str,
        place: u32,
        details: &[(&str, Argument<'_>)],
    ) -> Result<(), TraceError> {
        let mut described = vec![("name", Argument::Text(name))];
        described.extend_from_slice(details);
        let place = [("sort_index", Argument::Integer(place.into()))];
        for (aspect, args) in [("name", &described[..]), ("sort_index", &place)] {
            self.event(&Event {
                ph: "M",
                pid,
                tid,
                name: &format!("{what}_{aspect}"),
                args,
                ..Event::default()
            })?;
        }
        Ok(())
    }

    fn on_track(
        &mut self,
        ph: &'static str,
        track: Track,
        at: Nanoseconds,
        name: &str,
        category: &str,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result<(), TraceError> {
        self.event(&Event {
            ph,
            s: if ph == "i" { "t" } else { "" },
            pid: track.process,
            tid: Some(track.thread),
            ts: Some(at.microseconds()),
            name,
            cat: category,
            args: arguments,
            ..Event::default()
        })
    }

    fn event(&mut self, event: &Event<'_>) -> Result<(), TraceError> {
        self.write(if self.events == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut self.out, event).map_err(|error| TraceError::Write(error.into()))?;
        self.events += 1;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.out.write_all(bytes).map_err(TraceError::Write)
    }
}

#[cfg(test)]
mod tests;
