//! Reading chrome events one by one, from either spelling of the format.
//!
//! A trace is an array of events, as `tracing-chrome` writes it, or an object that holds the array
//! under `traceEvents`, as we do. Events are handed on as they are parsed: a trace of a gigabyte
//! needs no gigabyte. Fields that nobody here uses are skipped, and so are events of unknown kinds
//! by the callers.

use std::fmt;
use std::io::Read;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::error::TraceError;
use warpweft_base::time::Nanoseconds;

/// An event as it stands in the file. Times are in microseconds.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Event {
    pub(super) ph: String,
    pub(super) name: String,
    pub(super) cat: String,
    /// [`NOBODY`] where other tools have what is no number of ours; so is `tid`.
    #[serde(deserialize_with = "number")]
    pub(super) pid: u64,
    #[serde(deserialize_with = "number")]
    pub(super) tid: u64,
    pub(super) ts: f64,
    pub(super) dur: f64,
    pub(super) id: Option<Value>,
    pub(super) args: Map<String, Value>,
    /// The place of the event in the file, from 0.
    #[serde(skip)]
    pub(super) index: u64,
}

/// The process or thread of an event that names neither as we do.
pub(super) const NOBODY: u64 = u64::MAX;

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Value::deserialize(deserializer)?.as_u64().unwrap_or(NOBODY))
}

impl Event {
    /// When the event begins, in nanoseconds on the clock of the file.
    ///
    /// # Errors
    /// `TraceError::Event` when it is not a time from zero on.
    pub(super) fn begin(&self) -> Result<Nanoseconds, TraceError> {
        self.nanoseconds(self.ts, "ts")
    }

    /// How long it lasts.
    ///
    /// # Errors
    /// `TraceError::Event` when it is not a length.
    pub(super) fn length(&self) -> Result<Nanoseconds, TraceError> {
        self.nanoseconds(self.dur, "dur")
    }

    /// A whole number among the arguments.
    pub(super) fn integer(&self, name: &str) -> Option<u64> {
        self.args.get(name).and_then(Value::as_u64)
    }

    /// A text among the arguments.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.args.get(name).and_then(Value::as_str)
    }

    /// An error that names this event.
    pub(super) fn error(&self, reason: impl Into<String>) -> TraceError {
        TraceError::Event { index: self.index, name: self.name.clone(), reason: reason.into() }
    }

    fn nanoseconds(&self, microseconds: f64, field: &str) -> Result<Nanoseconds, TraceError> {
        // Past 2^53 ns (104 days) an f64 no longer tells nanoseconds apart, so it cannot be one of
        // ours.
        let nanoseconds = (microseconds * 1e3).round();
        if (0.0..9_007_199_254_740_992.0).contains(&nanoseconds) {
            Ok(Nanoseconds::new(nanoseconds as u64))
        } else {
            Err(self.error(format!("`{field}` is {microseconds} µs, not a time from 0 to 104 days")))
        }
    }
}

/// Hands every event to `each`, in file order, and returns `otherData` (null when there is none).
///
/// # Errors
/// `TraceError::NotATrace` with line and column for what is not JSON or not a trace; whatever
/// `each` returns.
pub(super) fn for_each_event(
    input: impl Read,
    each: &mut dyn FnMut(Event) -> Result<(), TraceError>,
) -> Result<Value, TraceError> {
    let mut failure = None;
    let mut reader = serde_json::Deserializer::from_reader(input);
    let trace = Trace { events: Events { each, failure: &mut failure } };
    let about = trace.deserialize(&mut reader).and_then(|about| reader.end().map(|()| about));
    match (failure, about) {
        (Some(failure), _) => Err(failure),
        (None, about) => about.map_err(TraceError::NotATrace),
    }
}

struct Trace<'a> {
    events: Events<'a>,
}

struct Events<'a> {
    each: &'a mut dyn FnMut(Event) -> Result<(), TraceError>,
    failure: &'a mut Option<TraceError>,
}

impl<'de> DeserializeSeed<'de> for Trace<'_> {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Trace<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of trace events, or an object with `traceEvents`")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, sequence: A) -> Result<Value, A::Error> {
        self.events.visit_seq(sequence).map(|()| Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut events = Some(self.events);
        let mut about = Value::Null;
        while let Some(key) = map.next_key::<String>()? {
            match (key.as_str(), events.take()) {
                ("traceEvents", Some(events)) => map.next_value_seed(events)?,
                ("traceEvents", None) => return Err(A::Error::duplicate_field("traceEvents")),
                (other, unread) => {
                    events = unread;
                    if other == "otherData" {
                        about = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
        }
        match events {
            Some(_) => Err(A::Error::missing_field("traceEvents")),
            None => Ok(about),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of trace events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<(), A::Error> {
        let mut index = 0;
        while let Some(event) = sequence.next_element::<Event>()? {
            if let Err(failure) = (self.each)(Event { index, ..event }) {
                *self.failure = Some(failure);
                return Err(A::Error::custom("stopped at an invalid event"));
            }
            index += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(text: &str) -> Result<Vec<String>, TraceError> {
        let mut names = Vec::new();
        for_each_event(text.as_bytes(), &mut |event| {
            event.begin()?;
            names.push(event.name);
            Ok(())
        })?;
        Ok(names)
    }

    #[test]
    fn both_spellings_of_a_trace_are_read() {
        let array = r#"[{"ph":"X","name":"a","ts":1},{"name":"b","unknown":[1,{}]}]"#;
        let object = format!(r#"{{"version":[3],"traceEvents":{array},"otherData":{{}}}}"#);
        assert_eq!(names(array).unwrap(), ["a", "b"]);
        assert_eq!(names(&object).unwrap(), ["a", "b"]);
    }

    #[test]
    fn what_is_not_a_trace_is_refused_with_its_place() {
        for text in ["", "7", "[", "{}", r#"{"traceEvents":3}"#, "[3]", "[]]", r#"[{"ts":"x"}]"#] {
            let error = names(text).unwrap_err();
            assert!(matches!(error, TraceError::NotATrace(_)), "{text}: {error}");
            assert!(error.to_string().contains("line"), "{text}: {error}");
        }
    }

    #[test]
    fn a_time_that_is_none_is_refused_with_the_event_named() {
        for ts in ["-1", "1e300"] {
            let text = format!(r#"[{{"name":"fine"}},{{"name":"early","ts":{ts}}}]"#);
            let error = names(&text).unwrap_err().to_string();
            assert!(error.contains("event 1") && error.contains("early"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in r#"[\[\]{}":,a-z0-9 .eE-]{0,80}"#) {
            let _ = names(&text);
        }
    }
}
