//! A run as data: lanes, slices on lanes, arrows between slices.
//!
//! A timeline is filled by whoever measured (a backend's events, a simulator's virtual clock) and
//! is then read-only input to everything else in this module. A lane is serial: its slices may touch
//! but not overlap. Nothing here sorts or repairs what was recorded; [`Timeline::validate`] says
//! what is wrong with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::error::TraceError;
use warpweft_base::id::{LaneId, RankId, TaskId};
use warpweft_base::time::{Interval, Nanoseconds};

/// Names of slice arguments that the trace keeps for itself.
pub(super) const RESERVED: &[&str] = &["step", "task", "collective", "first_rank"];

/// The purpose of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneKind {
    /// Forward and backward closures, and the dequantizing that feeds them.
    Compute,
    /// Amax, scales, casts, norms and the optimizer; what is derived of gathered planes; sums of gradients; copies
    /// for a save.
    Quantize,
    /// Collectives, or pulls from the memory of other ranks.
    Communication,
}

impl LaneKind {
    /// All kinds, in the order in which lanes are shown.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Quantize, Self::Communication];

    /// The word for it in traces and summaries.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Quantize => "quantize",
            Self::Communication => "communication",
        }
    }
}

/// One lane of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneInfo {
    /// Its rank.
    pub rank: RankId,
    /// Its number within the rank.
    pub lane: LaneId,
    /// What to call it.
    pub name: String,
    /// What it is for.
    pub kind: LaneKind,
}

/// One task that ran on a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The rank that ran it.
    pub rank: RankId,
    /// The lane it ran on.
    pub lane: LaneId,
    /// The task of the plan; every rank has the same tasks.
    pub task: TaskId,
    /// What a person reads on it: `gather blocks.3.mlp.up`.
    pub name: String,
    /// What it is coloured by: the kind of op, `all_gather`.
    pub category: String,
    /// When it began on the device; a collective when this rank arrived.
    pub begin: Nanoseconds,
    /// When it had ended.
    pub end: Nanoseconds,
    /// The step it belongs to.
    pub step: u64,
    /// Of a collective the lowest rank that takes part, by which ranks know each other's: it cannot proceed
    /// before the last of those arrives.
    pub collective: Option<RankId>,
    /// What else to show, as name and value: bytes, shape, source rank.
    pub arguments: Vec<(String, String)>,
}

impl Slice {
    /// The time it took.
    pub const fn interval(&self) -> Interval {
        Interval { begin: self.begin, end: self.end }
    }

    /// Its place, as arrows name it.
    pub const fn place(&self) -> ArrowEnd {
        ArrowEnd { rank: self.rank, lane: self.lane, task: self.task, step: self.step }
    }
}

/// The slice at one end of an arrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrowEnd {
    /// The rank of the slice.
    pub rank: RankId,
    /// The lane of the slice.
    pub lane: LaneId,
    /// The task of the slice.
    pub task: TaskId,
    /// The step of the slice.
    pub step: u64,
}

/// The reason why one slice waited for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArrowKind {
    /// It reads the slot that the other filled.
    Fills,
    /// It writes the slot that the other, its last reader, freed.
    Frees,
}

impl ArrowKind {
    /// The word for it in traces.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fills => "fills",
            Self::Frees => "frees",
        }
    }
}

/// An arrow from the slice that fills or frees a slot to the slice that waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arrow {
    /// The slice that came first.
    pub from: ArrowEnd,
    /// The slice that waited.
    pub to: ArrowEnd,
    /// Why it waited.
    pub kind: ArrowKind,
}

/// The value of a counter from an instant on.
#[derive(Clone, Debug, PartialEq)]
pub struct CounterSample {
    /// The rank it belongs to.
    pub rank: RankId,
    /// What is counted, with its unit: `gathered planes, bytes`.
    pub name: String,
    /// The instant.
    pub at: Nanoseconds,
    /// The value, finite.
    pub value: f64,
}

/// A recording of any number of steps of any number of ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// All lanes; the order within a rank is the order in which they are shown.
    pub lanes: Vec<LaneInfo>,
    /// What ran, in any order.
    pub slices: Vec<Slice>,
    /// Who waited for whom.
    pub arrows: Vec<Arrow>,
    /// Values over time, of one counter in time order.
    pub counters: Vec<CounterSample>,
    /// The program that each step was of, where the recorder knew it; traces of earlier versions do not say.
    pub programs: BTreeMap<u64, String>,
    /// Remarks for the reader: `link paced to 2 GB/s`.
    pub notes: Vec<String>,
}

impl Timeline {
    /// Checks that the timeline can be written, drawn and measured.
    ///
    /// # Errors
    /// A lane declared twice, a slice on an undeclared lane or that ends before it begins, an
    /// argument that is reserved (`step`, `task`, `collective`, `first_rank`) or given twice, a counter that is
    /// not finite.
    pub fn validate(&self) -> Result<(), TraceError> {
        let mut declared = HashSet::new();
        for &LaneInfo { rank, lane, .. } in &self.lanes {
            if !declared.insert((rank, lane)) {
                return Err(TraceError::LaneTwice { rank, lane });
            }
        }
        for slice in &self.slices {
            let &Slice { rank, lane, task, step, .. } = slice;
            if !declared.contains(&(rank, lane)) {
                return Err(TraceError::UndeclaredLane { rank, lane, task });
            }
            if slice.end < slice.begin {
                return Err(TraceError::Backwards {
                    rank,
                    task,
                    step,
                    begin: slice.begin.count(),
                    end: slice.end.count(),
                });
            }
            for (place, (name, _)) in slice.arguments.iter().enumerate() {
                let twice = slice.arguments[..place].iter().any(|(other, _)| other == name);
                if twice || RESERVED.contains(&name.as_str()) {
                    return Err(TraceError::Argument { task, name: name.clone(), reserved: RESERVED });
                }
            }
        }
        match self.counters.iter().find(|sample| !sample.value.is_finite()) {
            Some(sample) => {
                Err(TraceError::Counter { rank: sample.rank, name: sample.name.clone(), value: sample.value })
            }
            None => Ok(()),
        }
    }

    /// The ranks that have lanes or counters, in order.
    pub fn ranks(&self) -> Vec<RankId> {
        let lanes = self.lanes.iter().map(|lane| lane.rank);
        let counters = self.counters.iter().map(|sample| sample.rank);
        let ranks: BTreeSet<RankId> = lanes.chain(counters).collect();
        ranks.into_iter().collect()
    }

    /// The lanes of one rank, in the order in which they are shown.
    pub fn lanes_of(&self, rank: RankId) -> impl Iterator<Item = &LaneInfo> {
        self.lanes.iter().filter(move |lane| lane.rank == rank)
    }

    /// The lanes of every rank that has some, in the order in which they are shown.
    pub(super) fn lanes_by_rank(&self) -> BTreeMap<RankId, Vec<&LaneInfo>> {
        let mut lanes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        self.lanes.iter().for_each(|lane| lanes.entry(lane.rank).or_default().push(lane));
        lanes
    }

    /// The slices of every lane, in the order of the timeline.
    pub(super) fn slices_by_lane(&self) -> HashMap<(RankId, LaneId), Vec<&Slice>> {
        let mut slices: HashMap<_, Vec<_>> = HashMap::new();
        self.slices.iter().for_each(|slice| slices.entry((slice.rank, slice.lane)).or_default().push(slice));
        slices
    }

    /// From the first begin to the last end; `None` without slices.
    pub fn extent(&self) -> Option<Interval> {
        hull(self.slices.iter().map(Slice::interval))
    }

    /// What people call a step: `train step 11`, or `step 11` where its program is not known.
    pub(super) fn step_name(&self, step: u64) -> String {
        self.programs.get(&step).map_or_else(String::new, |program| format!("{program} "))
            + &format!("step {step}")
    }

    /// What each lane is for.
    pub(super) fn kinds(&self) -> HashMap<(RankId, LaneId), LaneKind> {
        let kind = |info: &LaneInfo| ((info.rank, info.lane), info.kind);
        self.lanes.iter().map(kind).collect()
    }
}

/// The smallest interval that holds all of them.
pub(super) fn hull(intervals: impl Iterator<Item = Interval>) -> Option<Interval> {
    intervals.reduce(|all, one| Interval { begin: all.begin.min(one.begin), end: all.end.max(one.end) })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A lane of a test timeline.
    pub(in super::super) fn lane(rank: u32, lane: u32, name: &str, kind: LaneKind) -> LaneInfo {
        LaneInfo { rank: RankId::new(rank), lane: LaneId::new(lane), name: name.to_owned(), kind }
    }

    /// A slice of a test timeline: rank, lane, task; name and category; begin and end; step 0.
    pub(in super::super) fn slice(
        [rank, lane, task]: [u32; 3],
        [name, category]: [&str; 2],
        [begin, end]: [u64; 2],
    ) -> Slice {
        Slice {
            rank: RankId::new(rank),
            lane: LaneId::new(lane),
            task: TaskId::new(task),
            name: name.to_owned(),
            category: category.to_owned(),
            begin: Nanoseconds::new(begin),
            end: Nanoseconds::new(end),
            step: 0,
            collective: None,
            arguments: Vec::new(),
        }
    }

    fn small() -> Timeline {
        Timeline {
            lanes: vec![lane(0, 0, "compute", LaneKind::Compute)],
            slices: vec![slice([0, 0, 1], ["forward", "compute"], [5, 9])],
            ..Timeline::default()
        }
    }

    #[test]
    fn a_sound_timeline_is_accepted() {
        assert!(small().validate().is_ok());
        assert_eq!(small().extent(), Some(Interval::new(5, 9)));
        assert_eq!(Timeline::default().extent(), None);
    }

    #[test]
    fn each_unsound_timeline_is_refused_with_the_culprit_named() {
        let refused = |change: fn(&mut Timeline)| {
            let mut timeline = small();
            change(&mut timeline);
            timeline.validate().unwrap_err().to_string()
        };
        let twice = refused(|t| t.lanes.push(t.lanes[0].clone()));
        assert!(twice.contains("declared twice"), "{twice}");
        let missing = refused(|t| t.slices[0].lane = LaneId::new(7));
        assert!(missing.contains("does not declare"), "{missing}");
        let backwards = refused(|t| t.slices[0].end = Nanoseconds::new(4));
        assert!(backwards.contains("ends at 4 ns, before it begins at 5 ns"), "{backwards}");
        let reserved = refused(|t| t.slices[0].arguments = vec![("step".into(), "1".into())]);
        assert!(reserved.contains("`step`"), "{reserved}");
        let repeated = refused(|t| t.slices[0].arguments = vec![("a".into(), "1".into()); 2]);
        assert!(repeated.contains("`a` twice"), "{repeated}");
        let infinite = refused(|t| {
            t.counters.push(CounterSample {
                rank: RankId::new(0),
                name: "bytes".into(),
                at: Nanoseconds::ZERO,
                value: f64::INFINITY,
            });
        });
        assert!(infinite.contains("`bytes`") && infinite.contains("inf"), "{infinite}");
    }
}
