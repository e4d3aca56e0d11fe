//! A trace as text: who was busy, what stayed exposed, which slices took longest.
//!
//! Busy time is measured over the extent of the whole trace, exposure over steps (TR-1, TR-2). The
//! figures are fields; [`Display`](std::fmt::Display) lays them out for a terminal, which no name of a file steers.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io::Read;

use super::error::TraceError;
use super::exposure::Exposure;
use super::reader::{TraceFile, read_trace};
use super::timeline::{LaneInfo, Slice, Timeline};
use super::totals::HostLaneTotal;
use warpweft_base::errors::{escaped, shown};
use warpweft_base::id::RankId;
use warpweft_base::time::{Interval, Nanoseconds, coalesce, measure};

/// How many of the longest slices a summary keeps, one for each name.
const LONGEST: usize = 8;

/// The busy time of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSummary {
    /// The lane.
    pub lane: LaneInfo,
    /// What ran on it.
    pub slices: usize,
    /// Time in which something ran.
    pub busy: Nanoseconds,
}

/// The time of one rank, by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSummary {
    /// The rank.
    pub rank: RankId,
    /// How many steps it ran.
    pub steps: usize,
    /// Its steps added up.
    pub exposure: Exposure,
}

/// The time of the steps of one program, by kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramSummary {
    /// Its name.
    pub program: String,
    /// How many of its steps the trace holds.
    pub steps: usize,
    /// The mean of them, over all ranks.
    pub mean: Nanoseconds,
    /// Its steps added up, over all ranks.
    pub exposure: Exposure,
}

/// The figures of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Summary {
    /// From the first begin to the last end of all slices.
    pub extent: Interval,
    /// Every lane, in the order of the timeline.
    pub lanes: Vec<LaneSummary>,
    /// Every program that is known to have run a step, in the order of their first steps.
    pub programs: Vec<ProgramSummary>,
    /// Every rank that ran a step, with the steps of all programs.
    pub ranks: Vec<RankSummary>,
    /// The longest slice of each name, longest first; at most 8.
    pub longest: Vec<Slice>,
    /// The host threads.
    pub host: Vec<HostLaneTotal>,
    /// The remarks of the recording.
    pub notes: Vec<String>,
}

impl Summary {
    /// Sums up a timeline.
    pub fn of(timeline: &Timeline) -> Self {
        let mut ranks: Vec<RankSummary> = Vec::new();
        for measured in timeline.exposures() {
            let rank = measured.rank;
            match ranks.last_mut() {
                Some(last) if last.rank == rank => {
                    last.exposure = [last.exposure, measured.exposure].into_iter().sum();
                    last.steps += 1;
                }
                _ => ranks.push(RankSummary { rank, steps: 1, exposure: measured.exposure }),
            }
        }
        let mut longest: Vec<&Slice> = timeline.slices.iter().collect();
        longest.sort_by_key(|slice| Reverse(slice.interval().length()));
        let mut seen = HashSet::new();
        longest.retain(|slice| seen.insert(slice.name.as_str()));
        let slices = timeline.slices_by_lane();
        let own = |lane: &LaneInfo| slices.get(&(lane.rank, lane.lane)).map_or(&[][..], Vec::as_slice);
        Self {
            extent: timeline.extent().unwrap_or_default(),
            lanes: timeline.lanes.iter().map(|lane| sum_lane(lane, own(lane))).collect(),
            programs: sum_programs(timeline),
            ranks,
            longest: longest.into_iter().take(LONGEST).cloned().collect(),
            host: Vec::new(),
            notes: timeline.notes.clone(),
        }
    }

    /// Reads and sums up a trace that [`write_trace`](super::write_trace) wrote. Give it a buffered
    /// reader.
    ///
    /// # Errors
    /// What [`read_trace`] says.
    pub fn read(input: impl Read) -> Result<Self, TraceError> {
        let TraceFile { timeline, host } = read_trace(input)?;
        Ok(Self { host, ..Self::of(&timeline) })
    }
}

fn sum_lane(lane: &LaneInfo, slices: &[&Slice]) -> LaneSummary {
    let mut intervals: Vec<Interval> = slices.iter().map(|slice| slice.interval()).collect();
    let slices = intervals.len();
    coalesce(&mut intervals);
    LaneSummary { lane: lane.clone(), slices, busy: measure(&intervals) }
}

fn sum_programs(timeline: &Timeline) -> Vec<ProgramSummary> {
    let mut found: Vec<(&str, BTreeSet<u64>, Vec<Exposure>)> = Vec::new();
    let mut measured = timeline.exposures();
    measured.sort_by_key(|one| one.step);
    for one in measured {
        let Some(program) = timeline.programs.get(&one.step) else { continue };
        let place = found.iter().position(|(known, ..)| known == program).unwrap_or(found.len());
        if place == found.len() {
            found.push((program, BTreeSet::new(), Vec::new()));
        }
        found[place].1.insert(one.step);
        found[place].2.push(one.exposure);
    }
    let summed = |(program, steps, runs): (&str, BTreeSet<u64>, Vec<Exposure>)| {
        let count = runs.len().max(1) as u64;
        let exposure: Exposure = runs.into_iter().sum();
        let mean = Nanoseconds::new(exposure.step.count() / count);
        ProgramSummary { program: program.to_owned(), steps: steps.len(), mean, exposure }
    };
    found.into_iter().map(summed).collect()
}

/// A line of a table of steps.
fn shares(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    steps: usize,
    mean: Nanoseconds,
    all: &Exposure,
) -> fmt::Result {
    let [compute, skew, idle] =
        [all.compute, all.skew, all.idle].map(|time| percent(time.fraction_of(all.step)));
    let exposed = percent(all.fraction());
    let overlap = all.overlap().map_or_else(|| "-".to_owned(), percent);
    writeln!(
        f,
        "  {name:<8} {steps:>5} {mean:>10} {compute:>9} {exposed:>9} {skew:>9} {idle:>9} {overlap:>9}"
    )
}

fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.extent.length();
        let slices: usize = self.lanes.iter().map(|lane| lane.slices).sum();
        let ranks = self.ranks.len();
        let counted = |count: usize, what| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        writeln!(f, "{}, {}, {length}", counted(ranks, "rank"), counted(slices, "slice"))?;
        let head = |f: &mut fmt::Formatter<'_>, first: &str| {
            writeln!(
                f,
                "  {first:<8} {:>5} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
                "steps", "mean", "compute", "exposed", "skew", "idle", "overlap"
            )
        };
        let together = if self.programs.len() > 1 { ", of all programs together" } else { "" };
        writeln!(f, "\nsteps, as shares of step time{together}")?;
        head(f, "rank")?;
        for rank in &self.ranks {
            let mean = Nanoseconds::new(rank.exposure.step.count() / rank.steps.max(1) as u64);
            shares(f, &rank.rank.to_string(), rank.steps, mean, &rank.exposure)?;
        }
        if !self.programs.is_empty() {
            writeln!(f, "\nprograms, as shares of step time, over all ranks")?;
            head(f, "program")?;
        }
        for program in &self.programs {
            shares(f, &shown(&program.program), program.steps, program.mean, &program.exposure)?;
        }
        writeln!(f, "\nlanes, as shares of the whole time")?;
        for LaneSummary { lane, slices, busy } in &self.lanes {
            let (rank, kind) = (lane.rank.to_string(), lane.kind.word());
            let share = percent(busy.fraction_of(length));
            let name = shown(&lane.name);
            writeln!(f, "  {rank:<8} {name:<24} {kind:<14} {share:>8} busy {slices:>7} slices")?;
        }
        for host in &self.host {
            let rank = host.rank.map_or_else(|| "-".to_owned(), |rank| rank.to_string());
            let share = percent(host.busy.fraction_of(host.extent.length()));
            let (name, spans) = (shown(&host.name), host.spans);
            writeln!(f, "  {rank:<8} {name:<24} {:<14} {share:>8} busy {spans:>7} spans", "host")?;
        }
        writeln!(f, "\nlongest slices")?;
        for slice in &self.longest {
            let (rank, length) = (slice.rank.to_string(), slice.interval().length());
            writeln!(f, "  {length:>10}  {rank:<8} step {:<5} {}", slice.step, shown(&slice.name))?;
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {}", escaped(note))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::{lane, slice};
    use super::super::{LaneKind, write_trace};
    use super::*;

    fn timeline() -> Timeline {
        Timeline {
            lanes: vec![
                lane(0, 0, "compute", LaneKind::Compute),
                lane(0, 1, "communicator", LaneKind::Communication),
            ],
            slices: vec![
                slice([0, 1, 1], ["gather w", "all_gather"], [0, 40_000]),
                slice([0, 0, 2], ["forward", "compute"], [20_000, 100_000]),
                slice([0, 0, 3], ["forward", "compute"], [110_000, 120_000]),
                Slice { step: 1, ..slice([0, 0, 2], ["forward", "compute"], [120_000, 200_000]) },
            ],
            notes: vec!["paced link".to_owned()],
            ..Timeline::default()
        }
    }

    #[test]
    fn a_trace_file_sums_up_to_what_its_timeline_does() {
        let mut file = Vec::new();
        write_trace(&timeline(), None, &mut file).unwrap();
        assert_eq!(Summary::read(file.as_slice()).unwrap(), Summary::of(&timeline()));
        assert!(Summary::read(&file[..file.len() / 2]).is_err(), "half a file is refused");
    }

    #[test]
    fn busy_exposed_and_overlap_are_shares_of_the_right_whole() {
        let summary = Summary::of(&timeline());
        assert_eq!(summary.lanes[0].busy.count(), 170_000);
        assert_eq!((summary.ranks[0].steps, summary.ranks[0].exposure.exposed.count()), (2, 20_000));
        let names: Vec<_> = summary.longest.iter().map(|slice| slice.name.as_str()).collect();
        assert_eq!(names, ["forward", "gather w"]);
        let text = summary.to_string();
        for expected in ["85.0 % busy", "10.0 %", "50.0 %", "80.0 µs", "note: paced link"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }

    #[test]
    fn steps_of_different_programs_are_summed_up_apart() {
        let mut timeline = timeline();
        assert!(
            Summary::of(&timeline).programs.is_empty(),
            "an older trace does not say what its steps are of"
        );
        timeline.programs = [(0, "train".to_owned()), (1, "evaluate".to_owned())].into();
        let summary = Summary::of(&timeline);
        let found: Vec<_> =
            summary.programs.iter().map(|one| (one.program.as_str(), one.steps, one.mean.count())).collect();
        assert_eq!(found, [("train", 1, 120_000), ("evaluate", 1, 80_000)]);
        let text = summary.to_string();
        assert!(
            text.contains("all programs together") && text.contains("\n  evaluate     1    80.0 µs"),
            "{text}"
        );
    }

    #[test]
    fn no_name_of_a_trace_steers_the_terminal() {
        let hostile = || "\u{1b}[2J".to_owned();
        let mut timeline = timeline();
        timeline.lanes[0].name = hostile();
        timeline.slices[0].name = hostile();
        timeline.notes = vec![hostile()];
        timeline.programs = [(0, hostile())].into();
        let host = HostLaneTotal {
            rank: None,
            name: hostile(),
            spans: 1,
            busy: Nanoseconds::ZERO,
            extent: Interval::default(),
        };
        let text = Summary { host: vec![host], ..Summary::of(&timeline) }.to_string();
        assert_eq!(text.matches("\\u{1b}[2J").count(), 5, "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
    }

    #[test]
    fn a_summary_of_nothing_is_printed_too() {
        assert!(Summary::of(&Timeline::default()).to_string().contains("0 slices"));
    }
}
