//! A chrome trace that we wrote, back as a timeline.
//!
//! **TR-3** What [`write_trace`](super::write_trace) wrote is read back equal: lanes in the order of their
//! ranks, slices with their arguments in the order of their names, counters (up to the last bit of a
//! fraction), arrows, programs of steps and notes. Derived events are skipped, since they follow from the
//! slices. Host lanes are totalled, not kept: a long run has millions of spans. Events of other tools are
//! ignored where they do not pretend to be ours, and are not kept either: what we write names a lane before its slices,
//! a host thread before its spans and a process before its counters, so each event is judged as it comes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;

use serde_json::Value;

use super::error::TraceError;
use super::events::{Event, for_each_event};
use super::export::{ARROW, DERIVED};
use super::merge::HOST;
use super::timeline::{
    Arrow, ArrowEnd, ArrowKind, CounterSample, LaneInfo, LaneKind, RESERVED, Slice, Timeline,
};
use super::totals::{HostLaneTotal, HostThread};
use warpweft_base::id::{LaneId, RankId, TaskId};

/// The content of a trace file.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TraceFile {
    /// The lanes and what ran on them.
    pub timeline: Timeline,
    /// The host threads.
    pub host: Vec<HostLaneTotal>,
}

/// Reads a trace that [`write_trace`](super::write_trace) wrote. Give it a buffered reader.
///
/// # Errors
/// [`TraceError::NotATrace`] for what is no chrome trace; [`TraceError::Event`] for an event that
/// breaks the format or names a lane, task or slice that the file lacks.
pub fn read_trace(input: impl Read) -> Result<TraceFile, TraceError> {
    let mut reading = Reading::default();
    let about = for_each_event(input, &mut |event| reading.take(event))?;
    reading.finish(&about)
}

/// The thread of a file, as its events name it.
type Thread = (u64, u64);

#[derive(Default)]
struct Reading {
    ranks: HashMap<u64, RankId>,
    lanes: HashMap<Thread, LaneInfo>,
    order: Vec<Thread>,
    derived: HashSet<Thread>,
    host: BTreeMap<Thread, HostThread>,
    timeline: Timeline,
    /// Slices that say that they are a task of a step, on threads that are not named yet.
    early: Vec<Event>,
    flows: Vec<Event>,
}

/// Slices before the names of their lanes, at most. What we write has none.
const MOST_EARLY: usize = 100_000;

impl Reading {
    fn take(&mut self, event: Event) -> Result<(), TraceError> {
        let thread = (event.pid, event.tid);
        match event.ph.as_str() {
            "M" if event.name == "process_name" => self.process(&event),
            "M" if event.name == "thread_name" => self.thread(&event)?,
            "X" if self.lanes.contains_key(&thread) => {
                let slice = self.slice(event)?;
                self.timeline.slices.push(slice);
            }
            "X" if !self.derived.contains(&thread) && is_task(&event) => match self.early.len() {
                MOST_EARLY.. => return self.place(&event).map(drop),
                _ => self.early.push(event),
            },
            "C" if event.cat != DERIVED => {
                let counter = self.counter(event)?;
                self.timeline.counters.extend(counter);
            }
            "s" | "f" if event.cat == ARROW => self.flows.push(event),
            "B" | "E" | "i" => {
                if let Some(host) = self.host.get_mut(&thread) {
                    host.take(&event);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Other tools name processes too, and what they call a rank may be no number.
    fn process(&mut self, event: &Event) {
        if let Ok(Some(rank)) = identity(event, "rank") {
            self.ranks.insert(event.pid, RankId::new(rank));
        }
    }

    fn thread(&mut self, event: &Event) -> Result<(), TraceError> {
        let thread = (event.pid, event.tid);
        let word = event.text("kind").unwrap_or_default();
        let name = event.text("name").unwrap_or_default().to_owned();
        let kind = LaneKind::ALL.into_iter().find(|kind| kind.word() == word);
        if word == DERIVED {
            self.derived.insert(thread);
        }
        if word != HOST && kind.is_none() {
            return Ok(());
        }
        let rank = identity(event, "rank")?.map(RankId::new);
        if word == HOST {
            let host = self.host.entry(thread).or_default();
            (host.name, host.rank) = (name, rank);
            return Ok(());
        }
        if let (Some(kind), Some(rank), Some(lane)) = (kind, rank, identity(event, "lane")?) {
            let lane = LaneId::new(lane);
            let info = LaneInfo { rank, lane, name, kind };
            if self.lanes.insert(thread, info).is_some() {
                return Err(event.error("the lane is named twice"));
            }
            self.order.push(thread);
        }
        Ok(())
    }

    fn finish(mut self, about: &Value) -> Result<TraceFile, TraceError> {
        let mut timeline = std::mem::take(&mut self.timeline);
        for event in std::mem::take(&mut self.early) {
            if !self.derived.contains(&(event.pid, event.tid)) {
                timeline.slices.push(self.slice(event)?);
            }
        }
        timeline.arrows = self.arrows()?;
        timeline.lanes = self.order.iter().filter_map(|t| self.lanes.get(t).cloned()).collect();
        let notes = about.get("notes").and_then(Value::as_array);
        let texts = notes.into_iter().flatten().filter_map(Value::as_str);
        timeline.notes = texts.map(str::to_owned).collect();
        // Traces of earlier versions lack these.
        let programs = about.get("programs").and_then(Value::as_object);
        let program = |(step, name): (&String, &Value)| Some((step.parse().ok()?, name.as_str()?.to_owned()));
        timeline.programs = programs.into_iter().flatten().filter_map(program).collect();
        let totals = self.host.into_values().map(HostThread::total);
        Ok(TraceFile { timeline, host: totals.collect::<Result<_, _>>()? })
    }

    fn slice(&self, event: Event) -> Result<Slice, TraceError> {
        let place = self.place(&event)?;
        let begin = event.begin()?;
        let end = begin.saturating_add(event.length()?);
        // Traces of earlier versions say that something is a collective, and not whose; then it is all ranks'.
        let is_collective = event.args.get("collective").and_then(Value::as_bool).unwrap_or(false);
        let first = identity(&event, "first_rank")?.unwrap_or(0);
        let collective = is_collective.then_some(RankId::new(first));
        let own = |(name, _): &(String, Value)| !RESERVED.contains(&name.as_str());
        let arguments = event.args.into_iter().filter(own);
        Ok(Slice {
            rank: place.rank,
            lane: place.lane,
            task: place.task,
            name: event.name,
            category: event.cat,
            begin,
            end,
            step: place.step,
            collective,
            arguments: arguments.map(|(name, value)| (name, plain(value))).collect(),
        })
    }

    /// Counters of processes that are no rank belong to other tools.
    fn counter(&self, event: Event) -> Result<Option<CounterSample>, TraceError> {
        let value = event.args.get("value").and_then(Value::as_f64);
        let (Some(&rank), Some(value)) = (self.ranks.get(&event.pid), value) else {
            return Ok(None);
        };
        let at = event.begin()?;
        let name = event.name;
        Ok(Some(CounterSample { rank, name, at, value }))
    }

    /// Pairs flow points by their id.
    fn arrows(&self) -> Result<Vec<Arrow>, TraceError> {
        let mut starts: HashMap<u64, &Event> = HashMap::new();
        let mut arrows = Vec::new();
        for event in &self.flows {
            let Some(id) = event.id.as_ref().and_then(Value::as_u64) else {
                return Err(event.error("an arrow needs a whole number as `id`"));
            };
            if event.ph == "s" {
                starts.insert(id, event);
            } else if let Some(start) = starts.remove(&id) {
                let kinds = [ArrowKind::Fills, ArrowKind::Frees];
                let Some(kind) = kinds.into_iter().find(|kind| kind.word() == event.name) else {
                    return Err(event.error("an arrow is named `fills` or `frees`"));
                };
                let (from, to) = (self.place(start)?, self.place(event)?);
                arrows.push(Arrow { from, to, kind });
            }
        }
        Ok(arrows)
    }

    /// The slice that an event is, or points to.
    fn place(&self, event: &Event) -> Result<ArrowEnd, TraceError> {
        let Some(lane) = self.lanes.get(&(event.pid, event.tid)) else {
            let reason = format!("thread {} is not named as a lane of a rank", event.tid);
            return Err(event.error(reason));
        };
        let (Some(step), Some(task)) = (event.integer("step"), identity(event, "task")?) else {
            return Err(event.error("it lacks the argument `step` or `task`"));
        };
        Ok(ArrowEnd { rank: lane.rank, lane: lane.lane, task: TaskId::new(task), step })
    }
}

/// Does a slice say that it is a task of a step?
fn is_task(event: &Event) -> bool {
    ["step", "task"].into_iter().all(|name| event.args.contains_key(name))
}

/// A number that must fit an id, if the event has it at all.
fn identity(event: &Event, name: &str) -> Result<Option<u32>, TraceError> {
    let Some(value) = event.args.get(name) else {
        return Ok(None);
    };
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let wrong = || event.error(format!("`{name}` is {value}, not a number below 2^32"));
    number.map(Some).ok_or_else(wrong)
}

/// Text as it is, anything else as JSON.
fn plain(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::{lane, slice};
    use super::super::{Nanoseconds, write_trace};
    use super::*;
    use proptest::prelude::*;

    /// Two ranks with two lanes each; every lane a serial row of slices.
    fn timelines() -> impl Strategy<Value = Timeline> {
        let row = prop::collection::vec((0u64..90, 0u64..70, ".{0,12}", prop::option::of(0u32..9)), 1..6);
        let arrows = prop::collection::vec((0usize..40, 0usize..40, any::<bool>()), 0..8);
        let counter = (0u64..999, any::<i32>().prop_map(|n| f64::from(n) / 8.0), ".{0,8}");
        let rest = (arrows, prop::collection::vec(counter, 0..4), prop::collection::vec(".{0,9}", 0..3));
        (prop::collection::vec(row, 4), rest).prop_map(|(rows, (arrows, counters, notes))| {
            let mut timeline = Timeline::default();
            for (number, row) in (0..).zip(rows) {
                let (rank, place) = (number / 2 * 5, number % 2);
                timeline.lanes.push(lane(
                    rank,
                    place,
                    &format!("lane {number}"),
                    LaneKind::ALL[place as usize * 2],
                ));
                let mut at = 3;
                for (task, (gap, length, name, collective)) in (0..).zip(row) {
                    at += gap;
                    timeline.slices.push(Slice {
                        step: u64::from(task) / 3,
                        collective: collective.map(RankId::new),
                        arguments: vec![("bytes".into(), name.clone()), ("shape".into(), "[4, 2]".into())],
                        ..slice([rank, place, task], [&name, "derived"], [at, at + length])
                    });
                    at += length;
                }
            }
            for (from, to, fills) in arrows {
                let slices = &timeline.slices;
                let (from, to) = (&slices[from % slices.len()], &slices[to % slices.len()]);
                if from.begin <= to.begin {
                    let kind = if fills { ArrowKind::Fills } else { ArrowKind::Frees };
                    timeline.arrows.push(Arrow { from: from.place(), to: to.place(), kind });
                }
            }
            timeline.counters = (counters.into_iter())
                .map(|(at, value, name)| {
                    let (rank, at) = (RankId::new(0), Nanoseconds::new(at));
                    CounterSample { rank, name, at, value }
                })
                .collect();
            timeline.programs = (7..).zip(notes.iter().cloned()).collect();
            timeline.notes = notes;
            timeline
        })
    }

    fn refused(events: &str) -> String {
        let threads = r#"{"ph":"M","pid":1,"tid":3,"name":"thread_name",
            "args":{"name":"compute","kind":"compute","rank":0,"lane":0}}"#;
        let text = format!("[{threads},{events}]");
        read_trace(text.as_bytes()).unwrap_err().to_string()
    }

    proptest! {
        #[test]
        fn tr3_a_timeline_written_and_read_back_is_the_same(timeline in timelines()) {
            let mut file = Vec::new();
            let written = write_trace(&timeline, None, &mut file).unwrap();
            prop_assert_eq!(written.arrows_left_out, 0);
            let read = read_trace(file.as_slice()).unwrap();
            prop_assert_eq!(read.timeline, timeline);
            prop_assert!(read.host.is_empty());
        }
    }

    #[test]
    fn arrows_without_both_ends_or_against_time_are_counted_and_left_out() {
        let mut timeline = Timeline {
            lanes: vec![lane(0, 0, "compute", LaneKind::Compute)],
            slices: vec![slice([0, 0, 1], ["a", "x"], [0, 5]), slice([0, 0, 2], ["b", "x"], [5, 9])],
            ..Timeline::default()
        };
        let [first, second] = [0, 1].map(|place| timeline.slices[place].place());
        let missing = ArrowEnd { step: 8, ..first };
        timeline.arrows = [(first, second), (second, first), (missing, second)]
            .map(|(from, to)| Arrow { from, to, kind: ArrowKind::Fills })
            .to_vec();
        let mut file = Vec::new();
        let written = write_trace(&timeline, None, &mut file).unwrap();
        assert_eq!(written.arrows_left_out, 2);
        assert_eq!(read_trace(file.as_slice()).unwrap().timeline.arrows, timeline.arrows[..1]);
    }

    #[test]
    fn tr3_events_of_other_tools_are_passed_over() {
        let mut file = Vec::new();
        let timeline = Timeline {
            lanes: vec![lane(0, 0, "compute", LaneKind::Compute)],
            slices: vec![slice([0, 0, 1], ["a", "x"], [0, 5])],
            ..Timeline::default()
        };
        write_trace(&timeline, None, &mut file).unwrap();
        let ours = read_trace(file.as_slice()).unwrap();
        let events = [
            r#"{"ph":"X","pid":-1,"tid":"main","name":"other","ts":-1,"dur":1}"#,
            r#"{"ph":"X","pid":7,"tid":8,"name":"other","ts":1,"dur":1,"args":{"step":1}}"#,
            r#"{"ph":"B","pid":7,"tid":8,"name":"other","ts":1}"#,
            r#"{"ph":"E","pid":7,"tid":8,"ts":2}"#,
            r#"{"ph":"i","pid":-1,"tid":1.5,"name":"other","ts":-1}"#,
            r#"{"ph":"M","pid":7,"tid":8,"name":"thread_name","args":{"name":"other","rank":"x"}}"#,
            r#"{"ph":"M","pid":7,"tid":8,"name":"process_name","args":{"name":"other","rank":"x"}}"#,
        ];
        let text = String::from_utf8(file).unwrap();
        let (head, tail) = text.split_once('[').unwrap();
        let mixed = format!("{head}[{},{tail}", events.join(","));
        assert_eq!(read_trace(mixed.as_bytes()).unwrap(), ours);
    }

    /// TR-3: memory is taken for what is ours alone.
    #[test]
    fn slices_counters_and_spans_of_other_tools_are_not_kept() {
        let mut reading = Reading::default();
        let events = r#"{"ph":"X","pid":7,"tid":8,"name":"other","ts":1,"dur":1,"args":{"step":1}},
            {"ph":"C","pid":7,"name":"other","ts":1,"args":{"value":1}},
            {"ph":"B","pid":7,"tid":8,"name":"other","ts":1}"#;
        let events = format!("[{}]", [events; 50].join(","));
        for_each_event(events.as_bytes(), &mut |event| reading.take(event)).unwrap();
        assert!(reading.early.is_empty() && reading.timeline == Timeline::default());
        assert!(reading.host.is_empty());
        let early = r#"{"ph":"X","pid":1,"tid":8,"name":"early","args":{"step":1,"task":2}}"#;
        let events = format!("[{}]", vec![early; MOST_EARLY + 1].join(","));
        let refused = for_each_event(events.as_bytes(), &mut |event| reading.take(event)).unwrap_err();
        assert!(refused.to_string().contains("thread 8 is not named"), "{refused}");
    }

    #[test]
    fn an_event_that_names_nothing_we_know_is_refused_by_name() {
        let stray = refused(r#"{"ph":"X","pid":1,"tid":8,"name":"stray","args":{"step":1,"task":2}}"#);
        assert!(stray.contains("stray") && stray.contains("thread 8"), "{stray}");
        let bare = refused(r#"{"ph":"X","pid":1,"tid":3,"name":"bare","ts":1,"dur":1}"#);
        assert!(bare.contains("`step` or `task`"), "{bare}");
        let huge = refused(r#"{"ph":"X","pid":1,"tid":3,"name":"huge","args":{"step":1,"task":4294967296}}"#);
        assert!(huge.contains("not a number below 2^32"), "{huge}");
        let long = refused(r#"{"ph":"X","pid":1,"tid":3,"name":"long","dur":-4,"args":{"step":1,"task":2}}"#);
        assert!(long.contains("`dur` is -4"), "{long}");
    }
}
