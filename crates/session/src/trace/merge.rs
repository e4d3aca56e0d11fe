//! One file with the lanes of the ranks and the threads of the host.
//!
//! **TR-4** A host time `t` becomes `t - anchor stamp + anchor instant`, so both kinds of events
//! count from the origin of the timeline. Times before the origin are shown at it. A host thread
//! that entered through a lane is shown in the process of its rank, others in a process `host` of
//! their own. A span that says of which task it is, by the fields `op` and `subject`, is called after it: `fire
//! all-gather blocks.0.mlp.up`.

use std::collections::BTreeMap;
use std::io::{BufReader, BufWriter, Write};

use super::chrome::{Argument, ChromeWriter, Track};
use super::error::TraceError;
use super::events::{Event, for_each_event};
use super::export::{Tracks, Written, about, write_timeline};
use super::host::{HostSpans, TARGET};
use super::timeline::Timeline;
use warpweft_base::id::RankId;
use warpweft_base::time::Nanoseconds;

/// The kind of a host thread, where lanes have theirs.
pub(super) const HOST: &str = "host";

/// Writes a timeline, and the host spans if there are any, as one chrome trace that Perfetto and
/// chrome://tracing open. `out` is buffered here.
///
/// # Errors
/// What [`Timeline::validate`] says about the timeline; [`TraceError::Write`] when `out` fails;
/// [`TraceError::NoAnchor`] and [`TraceError::SilentLane`] when the host spans are not whole.
pub fn write_trace(
    timeline: &Timeline,
    host: Option<&HostSpans>,
    out: impl Write,
) -> Result<Written, TraceError> {
    let mut writer = ChromeWriter::start(BufWriter::new(out))?;
    let (tracks, mut written) = write_timeline(timeline, &mut writer)?;
    let mut notes = timeline.notes.clone();
    if let Some(spans) = host {
        written.spans_cut = write_host(spans, tracks, &mut writer)?;
        let uncertainty = spans.uncertainty();
        notes.push(format!("host spans are placed to within {uncertainty} of the lanes"));
    }
    (_, written.events) = writer.finish(&about(&notes, &timeline.programs))?;
    Ok(written)
}

/// Copies the spans over and returns how many had to be closed at the end.
fn write_host<W: Write>(
    spans: &HostSpans,
    tracks: Tracks,
    writer: &mut ChromeWriter<W>,
) -> Result<u64, TraceError> {
    let origin = find_origin(spans)?;
    let mut copy = Copy {
        origin,
        tracks,
        threads: BTreeMap::new(),
        heard: Vec::new(),
        last: Nanoseconds::ZERO,
        named_process_of_none: false,
    };
    let each = &mut |event| copy.take(&event, writer);
    for_each_event(BufReader::new(spans.open()?), each)?;
    if let Some((rank, name)) = first_missing(&spans.entered, &copy.heard) {
        return Err(TraceError::SilentLane { rank, name });
    }
    copy.close_all(writer)
}

/// The stamp that the origin has on the clock of the host spans, in nanoseconds; negative where
/// recording began after the origin.
fn find_origin(spans: &HostSpans) -> Result<i128, TraceError> {
    let anchor = spans.anchor();
    let mut stamp = None;
    for_each_event(BufReader::new(spans.open()?), &mut |event| {
        let own = event.cat == TARGET && event.text("message") == Some("anchor");
        if own && number(&event, "index") == Some(anchor.index) && stamp.is_none() {
            stamp = Some(event.begin()?);
        }
        Ok(())
    })?;
    let stamp = stamp.ok_or(TraceError::NoAnchor)?;
    Ok(i128::from(stamp.count()) - anchor.since_origin)
}

/// The first lane that was entered more often than spans of it arrived.
fn first_missing(entered: &[(RankId, String)], heard: &[(RankId, String)]) -> Option<(RankId, String)> {
    let mut counts: BTreeMap<_, u64> = BTreeMap::new();
    for lane in heard {
        *counts.entry(lane).or_default() += 1;
    }
    let missing = entered.iter().find(|lane| match counts.get_mut(lane) {
        Some(count) if *count > 0 => {
            *count -= 1;
            false
        }
        _ => true,
    });
    missing.cloned()
}

struct Copy {
    origin: i128,
    tracks: Tracks,
    threads: BTreeMap<u64, HostThread>,
    heard: Vec<(RankId, String)>,
    last: Nanoseconds,
    named_process_of_none: bool,
}

struct HostThread {
    track: Track,
    open: Vec<(String, String)>,
}

impl Copy {
    fn take<W: Write>(&mut self, event: &Event, writer: &mut ChromeWriter<W>) -> Result<(), TraceError> {
        if event.cat == TARGET {
            return self.lane(event, writer);
        }
        if !matches!(event.ph.as_str(), "B" | "E" | "i") {
            return Ok(());
        }
        let at = self.shifted(event.begin()?);
        self.last = self.last.max(at);
        if !self.threads.contains_key(&event.tid) {
            self.name(event.tid, None, &format!("thread {}", event.tid), writer)?;
        }
        let Some(thread) = self.threads.get_mut(&event.tid) else {
            return Ok(()); // it was named just now
        };
        let (name, category) = (event.name.as_str(), event.cat.as_str());
        let arguments = event.args.iter();
        let arguments: Vec<_> = arguments.map(|(n, v)| (n.as_str(), Argument::Json(v))).collect();
        match event.ph.as_str() {
            "B" => {
                let name = span_name(event);
                writer.open(thread.track, at, &name, category, &arguments)?;
                thread.open.push((name, category.to_owned()));
                Ok(())
            }
            "E" => match thread.open.pop() {
                Some((name, _)) => writer.close(thread.track, at, &name, category),
                None => Ok(()), // entered before the recording began
            },
            _ => {
                let name = event.text("message").unwrap_or(name);
                writer.instant(thread.track, at, name, category, &arguments)
            }
        }
    }

    /// Learns from an event of the recording itself whose thread it comes from.
    fn lane<W: Write>(&mut self, event: &Event, writer: &mut ChromeWriter<W>) -> Result<(), TraceError> {
        let (Some(rank), Some(name)) = (number(event, "rank"), event.text("lane")) else {
            return Ok(()); // the anchor
        };
        let rank = RankId::new(rank);
        self.heard.push((rank, name.to_owned()));
        if self.threads.contains_key(&event.tid) {
            return Ok(()); // entered again
        }
        self.name(event.tid, Some(rank), name, writer)
    }

    fn name<W: Write>(
        &mut self,
        tid: u64,
        rank: Option<RankId>,
        name: &str,
        writer: &mut ChromeWriter<W>,
    ) -> Result<(), TraceError> {
        let process = self.tracks.process(rank);
        if process == self.tracks.process(None) && !self.named_process_of_none {
            writer.process(process, HOST, process, &[])?;
            self.named_process_of_none = true;
        }
        let track = self.tracks.fresh(process);
        let mut details = vec![("kind", Argument::Text(HOST))];
        details.extend(rank.map(|rank| ("rank", Argument::Integer(rank.index() as u64))));
        writer.thread(track, &format!("host: {name}"), track.thread, &details)?;
        let open = Vec::new();
        self.threads.insert(tid, HostThread { track, open });
        Ok(())
    }

    fn close_all<W: Write>(self, writer: &mut ChromeWriter<W>) -> Result<u64, TraceError> {
        let mut cut = 0;
        for mut thread in self.threads.into_values() {
            while let Some((name, category)) = thread.open.pop() {
                writer.close(thread.track, self.last, &name, &category)?;
                cut += 1;
            }
        }
        Ok(cut)
    }

    fn shifted(&self, stamp: Nanoseconds) -> Nanoseconds {
        let since_origin = i128::from(stamp.count()) - self.origin;
        Nanoseconds::new(u64::try_from(since_origin.max(0)).unwrap_or(u64::MAX))
    }
}

/// What a span is shown as. `tracing-chrome` writes texts among the arguments as they would stand in code.
fn span_name(event: &Event) -> String {
    let task = ["op", "subject"].map(|name| event.text(name)).into_iter().flatten();
    let plain = |word: &str| serde_json::from_str(word).unwrap_or_else(|_| word.to_owned());
    task.fold(event.name.clone(), |name, word| format!("{name} {}", plain(word)))
}

/// A number among the arguments; `tracing-chrome` writes all of them as text.
fn number(event: &Event, name: &str) -> Option<u32> {
    event.text(name).and_then(|text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::{lane, slice};
    use super::super::{HostTrace, LaneKind, read_trace};
    use super::*;
    use serde_json::Value;
    use std::thread;
    use std::time::{Duration, Instant};

    const PAUSE: Duration = Duration::from_millis(5);

    fn recording(origin: Instant) -> HostTrace {
        HostTrace::start(&std::env::temp_dir(), origin).unwrap()
    }

    fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> R {
        thread::scope(|scope| scope.spawn(work).join().unwrap())
    }

    fn merged(timeline: &Timeline, spans: &HostSpans) -> (Value, Vec<u8>) {
        let mut file = Vec::new();
        write_trace(timeline, Some(spans), &mut file).unwrap();
        (serde_json::from_slice(&file).unwrap(), file)
    }

    fn find<'a>(trace: &'a Value, ph: &str, name: &str) -> &'a Value {
        let events = trace["traceEvents"].as_array().unwrap();
        events.iter().find(|e| e["ph"] == ph && e["name"] == name).unwrap()
    }

    #[test]
    fn tr4_host_spans_land_where_the_common_clock_saw_them() {
        let origin = Instant::now();
        thread::sleep(PAUSE);
        let host = recording(origin);
        let pump = host.lane(RankId::new(1), "pump");
        let (before, after) = on_a_thread(|| {
            pump.within(|| {
                let before = Instant::now();
                tracing::info_span!("fire", task = 7).in_scope(|| thread::sleep(PAUSE));
                (before, Instant::now())
            })
        });
        let spans = host.finish().unwrap();
        let timeline = Timeline {
            lanes: vec![lane(1, 0, "compute", LaneKind::Compute)],
            slices: vec![slice([1, 0, 3], ["forward", "compute"], [10, 90])],
            ..Timeline::default()
        };
        let (trace, file) = merged(&timeline, &spans);
        let [begin, end] = ["B", "E"].map(|ph| find(&trace, ph, "fire"));
        let slack = spans.uncertainty().microseconds() + 0.001;
        let [before, after] = [before, after].map(|at| Nanoseconds::since(origin, at).microseconds());
        let [begun, ended] = [begin, end].map(|event| event["ts"].as_f64().unwrap());
        assert!(begun >= before - slack && ended <= after + slack, "{before} {begun} {ended} {after}");
        assert!(ended - begun >= PAUSE.as_micros() as f64);
        assert_eq!(begin["args"]["task"], "7");
        let forward = find(&trace, "X", "forward");
        assert_eq!(begin["pid"], forward["pid"], "the thread is shown with its rank");
        assert_ne!(begin["tid"], forward["tid"]);
        let read = read_trace(file.as_slice()).unwrap();
        assert_eq!(read.timeline.slices, timeline.slices);
        assert_eq!((read.host[0].name.as_str(), read.host[0].spans), ("host: pump", 1));
        assert!(read.host[0].busy >= PAUSE.into());
    }

    #[test]
    fn a_host_lane_says_where_it_belongs_and_others_are_shown_apart() {
        let host = recording(Instant::now());
        on_a_thread(|| host.lane(RankId::new(0), "pump").within(|| tracing::info!("started")));
        on_a_thread(|| {
            tracing::dispatcher::with_default(host.dispatch(), || tracing::info!("elsewhere"));
        });
        let timeline =
            Timeline { lanes: vec![lane(0, 0, "compute", LaneKind::Compute)], ..Timeline::default() };
        let (trace, _) = merged(&timeline, &host.finish().unwrap());
        assert_eq!(find(&trace, "i", "started")["pid"], 1);
        assert_eq!(find(&trace, "i", "elsewhere")["pid"], 2);
    }

    #[test]
    fn a_span_of_a_task_is_called_after_it_at_both_ends() {
        let host = recording(Instant::now());
        on_a_thread(|| {
            host.lane(RankId::new(0), "pump").within(|| {
                tracing::info_span!("fire", op = "all-gather", subject = "w").in_scope(|| ());
            });
        });
        let (trace, _) = merged(&Timeline::default(), &host.finish().unwrap());
        for ph in ["B", "E"] {
            assert_eq!(find(&trace, ph, "fire all-gather w")["cat"], module_path!());
        }
    }

    #[test]
    fn a_span_still_open_at_the_end_is_closed_there_and_counted() {
        let host = recording(Instant::now());
        let pump = host.lane(RankId::new(0), "pump");
        on_a_thread(|| {
            pump.within(|| {
                let span = tracing::info_span!("endless");
                std::mem::forget(span.entered());
                tracing::info!("last");
            });
        });
        let spans = host.finish().unwrap();
        let mut file = Vec::new();
        let written = write_trace(&Timeline::default(), Some(&spans), &mut file).unwrap();
        assert_eq!(written.spans_cut, 1);
        let trace: Value = serde_json::from_slice(&file).unwrap();
        assert_eq!(find(&trace, "E", "endless")["ts"], find(&trace, "i", "last")["ts"]);
    }

    #[test]
    fn a_thread_bound_to_an_earlier_recording_is_an_error_and_not_a_hole() {
        let [first, second] = [0, 1].map(|_| recording(Instant::now()));
        on_a_thread(|| {
            first.lane(RankId::new(0), "pump").within(|| tracing::info!("heard"));
            second.lane(RankId::new(2), "pump").within(|| tracing::info!("lost"));
        });
        let mut sink = Vec::new();
        let second = second.finish().unwrap();
        let error = write_trace(&Timeline::default(), Some(&second), &mut sink).unwrap_err();
        assert!(error.to_string().contains("fresh thread"), "{error}");
        let first = first.finish().unwrap();
        write_trace(&Timeline::default(), Some(&first), &mut sink).unwrap();
    }

    #[test]
    fn two_recordings_on_threads_of_their_own_do_not_mix() {
        let [left, right] = [0, 1].map(|_| recording(Instant::now()));
        for (host, word) in [(&left, "left"), (&right, "right")] {
            on_a_thread(|| host.lane(RankId::new(0), "pump").within(|| tracing::info!("{word}")));
        }
        for (host, own, other) in [(left, "left", "right"), (right, "right", "left")] {
            let spans = host.finish().unwrap();
            let (_, file) = merged(&Timeline::default(), &spans);
            let text = String::from_utf8(file).unwrap();
            assert!(text.contains(own) && !text.contains(other), "{text}");
        }
    }

    #[test]
    fn the_temporary_file_is_gone_with_the_spans() {
        let directory = tempfile::tempdir().unwrap();
        let count = || directory.path().read_dir().unwrap().count();
        let host = HostTrace::start(directory.path(), Instant::now()).unwrap();
        assert_eq!(count(), 1);
        let spans = host.finish().unwrap();
        drop(spans);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_directory_that_does_not_exist_is_an_error_that_names_the_file() {
        let missing = std::env::temp_dir().join("warpweft-no-such-directory");
        let error = HostTrace::start(&missing, Instant::now()).err().unwrap().to_string();
        assert!(error.contains("cannot create") && error.contains("no-such-directory"), "{error}");
    }
}
