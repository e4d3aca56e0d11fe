//! Turns what the ranks measured into a timeline, and writes it.
//!
//! Law: a recorder only looks. It keeps the steps it was requested and no others, so that a long run gives a trace a
//! person can open. Where it was asked for steps and none came, it writes nothing and says so. A path that cannot be
//! written is refused before the session starts; the file is written when the session is closed or dropped, whole or
//! not at all (`whole_file`). Arrows show the plan's fences: from the task that filled or freed a slot to the task
//! that waited for it.

use std::collections::BTreeSet;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use super::live_bytes::live_bytes;
use crate::exec::Handover;
use crate::session::SessionError;
use crate::trace::{
    self, Arrow, ArrowEnd, ArrowKind, HostLane, HostTrace, LaneInfo, Nanoseconds, Slice, Timeline,
};
use warpweft_backend::TaskInterval;
use warpweft_base::id::{RankId, TaskId};
use warpweft_base::whole_file::{WholeFile, next_step};
use warpweft_plan::layout::LaneKind;
use warpweft_plan::plan::{EdgeKind, StepPlan, Task};

/// Collects the timeline of a session.
pub(in crate::session) struct Recorder {
    path: PathBuf,
    steps: Range<u64>,
    timeline: Timeline,
    host: HostTrace,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Recorder")
            .field("path", &self.path)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder that keeps the steps numbered `steps` and writes to `path`.
    pub(in crate::session) fn new(path: PathBuf, steps: Range<u64>, host: HostTrace, device: &str) -> Self {
        let timeline = Timeline { notes: vec![device.to_owned()], ..Timeline::default() };
        Self { path, steps, timeline, host }
    }

    /// Can a trace be written to `path`? Leaves what is there as it is.
    pub(in crate::session) fn check(path: &str) -> Result<(), SessionError> {
        let begun = WholeFile::begin(Path::new(path));
        begun
            .map(drop)
            .map_err(|error| SessionError::Trace { path: path.to_owned(), reason: with_advice(&error) })
    }

    /// Where the rank thread of `rank` records its spans.
    pub(in crate::session) fn lane(&self, rank: RankId) -> HostLane {
        self.host.lane(rank, "rank thread")
    }

    /// Is the step numbered `step` to be kept?
    pub(in crate::session) fn keeps(&self, step: u64) -> bool {
        self.steps.contains(&step)
    }

    /// Adds one step of the ranks of this process, of which `first` is the first.
    pub(in crate::session) fn record<E: Deref<Target = Handover>>(
        &mut self,
        plan: &StepPlan,
        step: u64,
        first: usize,
        handovers: &[E],
    ) {
        if !self.keeps(step) {
            return;
        }
        let causes = causes(plan);
        for (rank, handover) in handovers.iter().enumerate() {
            let rank = RankId::at(first + rank);
            add_step(&mut self.timeline, plan, &causes, rank, step, 0, &handover.times.intervals);
        }
    }

    /// Writes everything to the trace file of a session that ran `ran` steps.
    pub(in crate::session) fn write(mut self, ran: u64) -> Result<(), SessionError> {
        if let Some(note) = shortfall(&self.steps, ran) {
            if ran <= self.steps.start {
                let path = self.path.display().to_string();
                let reason =
                    format!("no step was traced, and nothing written: {note}; lower trace.first_step");
                return Err(SessionError::Trace { path, reason });
            }
            tracing::warn!(path = %self.path.display(), "the trace is not whole: {note}");
            self.timeline.notes.push(note);
        }
        let path = self.path.display().to_string();
        let failed = |reason: String| SessionError::Trace { path: path.clone(), reason };
        let host = self.host.finish().map_err(|error| failed(error.to_string()))?;
        let mut file = WholeFile::begin(&self.path).map_err(|error| failed(with_advice(&error)))?;
        let written = trace::write_trace(&self.timeline, Some(&host), &mut file);
        written.map_err(|error| failed(error.to_string()))?;
        file.commit().map_err(|error| failed(with_advice(&error)))
    }
}

/// The trace of the process whose first rank is this one, where `path` names those of all processes.
pub(in crate::session) fn of_process(path: &Path, first: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push(format!(".rank{first}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// What the system says of the trace's file, and what to do about it.
fn with_advice(error: &std::io::Error) -> String {
    format!("{error}; {}", next_step(error))
}

/// What is missing of the steps that were requested, if the session ended before the last of them.
fn shortfall(requested: &Range<u64>, ran: u64) -> Option<String> {
    let last = requested.end.saturating_sub(1);
    (ran <= last).then(|| {
        let steps = match requested.start {
            first if first >= last => format!("step {first}"),
            first => format!("steps {first} to {last}"),
        };
        format!("requested {steps}, counted from 0; the session ran {ran}, those of all its programs")
    })
}

/// Adds one step of one rank to a timeline, in times since `origin`; `causes` are those of the plan.
pub(in crate::session) fn add_step(
    timeline: &mut Timeline,
    plan: &StepPlan,
    causes: &[(TaskId, TaskId, ArrowKind)],
    rank: RankId,
    step: u64,
    origin: u64,
    intervals: &[TaskInterval],
) {
    add_lanes(timeline, plan, rank);
    timeline.programs.insert(step, plan.part_name());
    // What was not timed is nowhere: at the clock's origin it would make the step begin there.
    for ((id, task), interval) in plan.entries().zip(intervals).filter(|(_, interval)| interval.ran()) {
        timeline.slices.push(Slice {
            rank,
            lane: task.lane,
            task: id,
            name: format!("{} {}", task.op.name(), task.subject),
            category: task.op.name().to_owned(),
            begin: Nanoseconds::new(interval.begin - origin),
            end: Nanoseconds::new(interval.end - origin),
            step,
            collective: task.op.group().and_then(|group| plan.weights.mesh.members(rank, group).min()),
            arguments: arguments(plan, task),
        });
    }
    timeline.counters.extend(live_bytes(plan, rank, origin, intervals));
    let end = |task: TaskId| ArrowEnd { rank, lane: plan.task(task).lane, task, step };
    timeline.arrows.extend(causes.iter().map(|(from, to, kind)| Arrow {
        from: end(*from),
        to: end(*to),
        kind: *kind,
    }));
}

fn add_lanes(timeline: &mut Timeline, plan: &StepPlan, rank: RankId) {
    for lane in &plan.lanes {
        if timeline.lanes.iter().any(|known| known.rank == rank && known.lane == lane.id) {
            continue;
        }
        let kind = match lane.kind {
            LaneKind::Compute => trace::LaneKind::Compute,
            LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => trace::LaneKind::Quantize,
            LaneKind::Communicator(_) => trace::LaneKind::Communication,
        };
        timeline.lanes.push(LaneInfo { rank, lane: lane.id, name: lane.kind.to_string(), kind });
    }
}

fn arguments(plan: &StepPlan, task: &Task) -> Vec<(String, String)> {
    let mut arguments = Vec::new();
    if task.wire_bytes > 0 {
        arguments.push(("bytes received".to_owned(), task.wire_bytes.to_string()));
    }
    for (slot, access) in task.op.accesses().into_iter().take(6 - arguments.len()) {
        let slot = plan.arena.slot(slot);
        let place = format!("{} at {}..{}", slot.name, slot.region.offset, slot.region.end());
        arguments.push((access.to_string(), place));
    }
    let mut seen = BTreeSet::new();
    for (position, (key, _)) in arguments.iter_mut().enumerate() {
        if !seen.insert(key.clone()) {
            *key = format!("{key} ({position})");
        }
    }
    arguments
}

/// Every fence with what it is for.
pub(in crate::session) fn causes(plan: &StepPlan) -> Vec<(TaskId, TaskId, ArrowKind)> {
    let leases: BTreeSet<(TaskId, TaskId)> = plan
        .edges()
        .into_iter()
        .filter(|edge| edge.kind == EdgeKind::Lease)
        .map(|edge| (edge.from, edge.to))
        .collect();
    let mut causes = Vec::new();
    for (id, task) in plan.entries() {
        for wait in &task.waits {
            let kind = if leases.contains(&(*wait, id)) { ArrowKind::Fills } else { ArrowKind::Frees };
            causes.push((*wait, id, kind));
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::{Path, of_process, shortfall};

    #[test]
    fn every_process_has_a_trace_of_its_own_with_the_extension_that_was_given_if_any() {
        for (path, expected) in [
            ("runs/trace.json", "runs/trace.rank2.json"),
            ("run.1/trace", "run.1/trace.rank2"),
            ("a.b.json", "a.b.rank2.json"),
            (".trace", ".trace.rank2"),
        ] {
            assert_eq!(of_process(Path::new(path), 2), Path::new(expected));
        }
    }

    #[test]
    fn a_trace_says_which_steps_it_lacks() {
        assert_eq!(
            shortfall(&(500..504), 200).unwrap(),
            "requested steps 500 to 503, counted from 0; the session ran 200, those of all its programs"
        );
        assert!(shortfall(&(2..6), 5).is_some_and(|note| note.contains("ran 5")));
        assert_eq!(shortfall(&(2..6), 6), None);
        assert!(shortfall(&(9..10), 0).is_some_and(|note| note.starts_with("requested step 9,")));
    }
}
