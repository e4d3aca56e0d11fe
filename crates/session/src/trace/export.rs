//! A timeline as chrome events: a process for each rank, a thread for each lane.
//!
//! Processes are numbered from 1 in the order of ranks. Threads are numbered through the whole
//! file, after the processes, in the order in which they should be shown, because not every viewer
//! honours sort indices. The first thread of a rank shows its steps with their exposure; it and the
//! exposure counter are derived from the slices, marked [`DERIVED`], and skipped when the file is
//! read back.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use serde_json::json;

use super::arrival::{StepExposure, steps_of};
use super::chrome::{Argument, ChromeWriter, CompleteEvent, FlowPoint, Track};
use super::error::TraceError;
use super::timeline::{Arrow, ArrowEnd, Slice, Timeline};
use warpweft_base::id::{LaneId, RankId};
use warpweft_base::time::{Interval, Nanoseconds};

/// The kind of a thread, and the category of a counter, that can be computed from the slices.
pub(super) const DERIVED: &str = "derived";

/// The category of arrows.
pub(super) const ARROW: &str = "arrow";

/// The counts of a written trace file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Events of any kind.
    pub events: u64,
    /// Arrows left out because the timeline lacks the slice at one end, or because the slice that
    /// waited began before the other one did. More than a few of them means that the recording is
    /// incomplete.
    pub arrows_left_out: u64,
    /// Host spans that were still open when recording ended; they end at the last host event.
    pub spans_cut: u64,
}

/// Which thread of the file is which lane.
pub(super) struct Tracks {
    processes: HashMap<RankId, u32>,
    process_of_none: u32,
    last_thread: u32,
    lanes: HashMap<(RankId, LaneId), Track>,
}

impl Tracks {
    fn new(ranks: &[RankId]) -> Self {
        let processes: HashMap<RankId, u32> = ranks.iter().copied().zip(1..).collect();
        let process_of_none = processes.len() as u32 + 1;
        Self { processes, process_of_none, last_thread: process_of_none, lanes: HashMap::new() }
    }

    /// The process of a rank; that of none for a rank the timeline does not have.
    pub(super) fn process(&self, rank: Option<RankId>) -> u32 {
        rank.and_then(|rank| self.processes.get(&rank).copied()).unwrap_or(self.process_of_none)
    }

    /// A thread that was not handed out before.
    pub(super) fn fresh(&mut self, process: u32) -> Track {
        self.last_thread += 1;
        Track { process, thread: self.last_thread }
    }
}

/// Writes processes, threads, slices, arrows and counters of a timeline.
pub(super) fn write_timeline<W: Write>(
    timeline: &Timeline,
    writer: &mut ChromeWriter<W>,
) -> Result<(Tracks, Written), TraceError> {
    timeline.validate()?;
    let ranks = timeline.ranks();
    let mut tracks = Tracks::new(&ranks);
    let (lanes, exposures) = (timeline.lanes_by_rank(), timeline.exposures());
    let mut steps_left = exposures.as_slice();
    for rank in ranks {
        let process = tracks.process(Some(rank));
        let number = [("rank", Argument::Integer(rank.index() as u64))];
        writer.process(process, &rank.to_string(), process, &number)?;
        let steps = tracks.fresh(process);
        writer.thread(steps, "steps", steps.thread, &[("kind", Argument::Text(DERIVED))])?;
        for lane in lanes.get(&rank).into_iter().flatten() {
            let track = tracks.fresh(process);
            tracks.lanes.insert((rank, lane.lane), track);
            let details = [
                ("kind", Argument::Text(lane.kind.word())),
                ("rank", Argument::Integer(rank.index() as u64)),
                ("lane", Argument::Integer(lane.lane.index() as u64)),
            ];
            writer.thread(track, &lane.name, track.thread, &details)?;
        }
        for step in steps_of(rank, &mut steps_left) {
            write_step(step, &timeline.step_name(step.step), steps, writer)?;
        }
    }
    for slice in &timeline.slices {
        write_slice(slice, &tracks, writer)?;
    }
    let arrows_left_out = write_arrows(timeline, &tracks, writer)?;
    for sample in &timeline.counters {
        let process = tracks.process(Some(sample.rank));
        writer.counter(process, sample.at, &sample.name, "", sample.value)?;
    }
    let written = Written { arrows_left_out, ..Written::default() };
    Ok((tracks, written))
}

/// The facts about the whole trace that stand at its end.
pub(super) fn about(notes: &[String], programs: &BTreeMap<u64, String>) -> serde_json::Value {
    let producer = concat!("warpweft ", env!("CARGO_PKG_VERSION"));
    json!({"producer": producer, "notes": notes, "programs": programs})
}

fn write_step<W: Write>(
    step: &StepExposure,
    name: &str,
    track: Track,
    writer: &mut ChromeWriter<W>,
) -> Result<(), TraceError> {
    let measured = &step.exposure;
    let percent = 100.0 * measured.fraction();
    let lengths = [
        ("exposed %", Argument::Number(percent)),
        ("compute ns", Argument::Integer(measured.compute.count())),
        ("communication ns", Argument::Integer(measured.communication.count())),
        ("exposed ns", Argument::Integer(measured.exposed.count())),
        ("skew ns", Argument::Integer(measured.skew.count())),
        ("idle ns", Argument::Integer(measured.idle.count())),
    ];
    writer.complete(&CompleteEvent {
        track,
        interval: step.window,
        name: &format!("{name}: {percent:.1} % exposed"),
        category: DERIVED,
        arguments: &lengths,
    })?;
    let name = "exposed communication, %";
    writer.counter(track.process, step.window.begin, name, DERIVED, percent)?;
    writer.counter(track.process, step.window.end, name, DERIVED, 0.0)
}

fn write_slice<W: Write>(
    slice: &Slice,
    tracks: &Tracks,
    writer: &mut ChromeWriter<W>,
) -> Result<(), TraceError> {
    let Some(&track) = tracks.lanes.get(&(slice.rank, slice.lane)) else {
        return Err(TraceError::UndeclaredLane { rank: slice.rank, lane: slice.lane, task: slice.task });
    };
    let mut arguments = vec![
        ("step", Argument::Integer(slice.step)),
        ("task", Argument::Integer(slice.task.index() as u64)),
        ("collective", Argument::Flag(slice.collective.is_some())),
    ];
    arguments.extend(slice.collective.map(|first| ("first_rank", Argument::Integer(first.index() as u64))));
    let own = slice.arguments.iter();
    arguments.extend(own.map(|(name, value)| (name.as_str(), Argument::Text(value))));
    writer.complete(&CompleteEvent {
        track,
        interval: slice.interval(),
        name: &slice.name,
        category: &slice.category,
        arguments: &arguments,
    })
}

/// Writes the arrows whose both ends exist in causal order; says how many do not.
fn write_arrows<W: Write>(
    timeline: &Timeline,
    tracks: &Tracks,
    writer: &mut ChromeWriter<W>,
) -> Result<u64, TraceError> {
    let places: HashMap<ArrowEnd, Interval> =
        timeline.slices.iter().map(|slice| (slice.place(), slice.interval())).collect();
    let mut left_out = 0;
    for (id, arrow) in (1..).zip(&timeline.arrows) {
        match arrow_times(arrow, &places) {
            Some(times) => write_arrow(arrow, id, times, tracks, writer)?,
            None => left_out += 1,
        }
    }
    Ok(left_out)
}

/// When an arrow leaves and when it lands: the last nanosecond of the one slice, the first of the
/// other. Where the clocks of two lanes disagree and the slices overlap, it leaves when it lands.
fn arrow_times(arrow: &Arrow, places: &HashMap<ArrowEnd, Interval>) -> Option<(Nanoseconds, Nanoseconds)> {
    let (from, to) = (places.get(&arrow.from)?, places.get(&arrow.to)?);
    let last = from.end.saturating_sub(Nanoseconds::new(1)).max(from.begin);
    (from.begin <= to.begin).then(|| (last.min(to.begin), to.begin))
}

fn write_arrow<W: Write>(
    arrow: &Arrow,
    id: u64,
    (leaves, lands): (Nanoseconds, Nanoseconds),
    tracks: &Tracks,
    writer: &mut ChromeWriter<W>,
) -> Result<(), TraceError> {
    let lane = |end: &ArrowEnd| tracks.lanes.get(&(end.rank, end.lane)).copied();
    let (Some(from), Some(to)) = (lane(&arrow.from), lane(&arrow.to)) else {
        return Ok(()); // both slices were found, so their lanes were declared
    };
    let slice = |end: &ArrowEnd| {
        [("step", Argument::Integer(end.step)), ("task", Argument::Integer(end.task.index() as u64))]
    };
    let point = |track, at, arguments| FlowPoint {
        track,
        at,
        id,
        name: arrow.kind.word(),
        category: ARROW,
        arguments,
    };
    writer.flow(&point(from, leaves, &slice(&arrow.from)), &point(to, lands, &slice(&arrow.to)))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashSet};

    use super::super::timeline::tests::{lane, slice};
    use super::super::{ArrowKind, LaneKind, write_trace};
    use super::*;
    use serde_json::Value;

    /// Two ranks; on each, a gather fills what a call reads.
    fn written() -> Vec<Value> {
        let mut timeline = Timeline::default();
        for rank in [3, 7] {
            timeline.lanes.push(lane(rank, 0, "compute", LaneKind::Compute));
            timeline.lanes.push(lane(rank, 1, "communicator", LaneKind::Communication));
            let gather = slice([rank, 1, 1], ["gather w", "all_gather"], [1_000, 4_000]);
            let call = slice([rank, 0, 2], ["forward", "compute"], [4_000, 9_000]);
            let (from, to) = (gather.place(), call.place());
            timeline.arrows.push(Arrow { from, to, kind: ArrowKind::Fills });
            timeline.slices.extend([call, gather]);
        }
        let mut file = Vec::new();
        write_trace(&timeline, None, &mut file).unwrap();
        let mut trace: Value = serde_json::from_slice(&file).unwrap();
        match trace["traceEvents"].take() {
            Value::Array(events) => events,
            other => panic!("an array of events, not {other}"),
        }
    }

    #[test]
    fn a_rank_is_a_process_and_a_thread_id_is_unique_in_the_file() {
        let events = written();
        let names = |what: &str| -> Vec<&str> {
            let named = events.iter().filter(|event| event["name"] == what);
            named.filter_map(|event| event["args"]["name"].as_str()).collect()
        };
        assert_eq!(names("process_name"), ["rank 3", "rank 7"]);
        assert_eq!(names("thread_name"), ["steps", "compute", "communicator"].repeat(2));
        let threads = events.iter().filter(|event| event["name"] == "thread_name");
        let processes: BTreeSet<_> = events.iter().filter_map(|event| event["pid"].as_u64()).collect();
        let ids: Vec<u64> = threads.filter_map(|event| event["tid"].as_u64()).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 6);
        assert!(ids.iter().all(|id| !processes.contains(id)), "no thread is taken for a main thread");
    }

    #[test]
    fn an_arrow_leaves_in_the_last_nanosecond_and_lands_at_the_begin_of_slices_already_written() {
        let events = written();
        let place = |ph: &str, name: &str| {
            events.iter().position(|event| event["ph"] == ph && event["name"] == name).unwrap()
        };
        let (gather, call) = (place("X", "gather w"), place("X", "forward"));
        let (leaves, lands) = (place("s", "fills"), place("f", "fills"));
        assert!(leaves > gather.max(call) && lands > leaves);
        assert_eq!((&events[leaves]["tid"], &events[leaves]["ts"]), (&events[gather]["tid"], &3.999.into()));
        assert_eq!((&events[lands]["tid"], &events[lands]["ts"]), (&events[call]["tid"], &4.0.into()));
    }

    #[test]
    fn each_step_is_a_slice_and_a_counter_that_tell_its_exposure() {
        let events = written();
        let step = events.iter().find(|event| event["ph"] == "X" && event["cat"] == DERIVED).unwrap();
        assert_eq!(step["name"], "step 0: 37.5 % exposed");
        assert_eq!(step["args"]["exposed ns"], 3_000);
        let counter = events.iter().find(|event| event["ph"] == "C").unwrap();
        assert_eq!(counter["args"]["value"], 37.5);
        let last = events.iter().rfind(|event| event["ph"] == "C" && event["cat"] == DERIVED).unwrap();
        assert_eq!(last["args"]["value"], 0.0, "between steps nothing is exposed");
    }
}
