//! Names of the collectives of a plan, for the messages of a world that stalled.
//!
//! Law: made when a plan is bound, read when something has gone wrong. Names are those of the plan's
//! slots, which name the weight.

use warpweft_base::id::{LaneId, TaskId};
use warpweft_plan::layout::Binding;
use warpweft_plan::model::Access;
use warpweft_plan::op::Op;

/// The collectives of one plan, in issue order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectiveNames {
    lines: Vec<Line>,
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    lane: LaneId,
    task: TaskId,
    words: String,
}

impl CollectiveNames {
    /// Of the tasks of `binding` that `is_collective` picks.
    pub(crate) fn of(binding: &Binding<'_>, is_collective: impl Fn(TaskId) -> bool) -> Self {
        let numbered = binding.ops.iter().enumerate().map(|(position, op)| (TaskId::at(position), op));
        let lines = numbered.filter(|(task, _)| is_collective(*task)).map(|(task, (op, lane))| {
            let words = format!("{task} ({} of `{}`)", op.name(), target(binding, op));
            Line { lane: *lane, task, words }
        });
        Self { lines: lines.collect() }
    }

    /// How far every lane with collectives is; `last` tells its last finished one.
    pub(crate) fn standing(&self, last: impl Fn(LaneId) -> Option<TaskId>) -> String {
        let mut lanes: Vec<LaneId> = self.lines.iter().map(|line| line.lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let each = lanes.into_iter().map(|lane| {
            let last = last(lane);
            let own = || self.lines.iter().filter(|line| line.lane == lane);
            let done = own().find(|line| Some(line.task) == last).map_or("none", |line| &line.words);
            match own().find(|line| last.is_none_or(|last| line.task > last)) {
                Some(next) => format!("{lane} finished {done} last and is to finish {} next", next.words),
                None => format!("{lane} finished all, {done} last"),
            }
        });
        let all: Vec<String> = each.collect();
        if all.is_empty() { "no collective is to be done".to_owned() } else { all.join("; ") }
    }
}

/// The name of what a collective writes.
fn target<'plan>(binding: &Binding<'plan>, op: &Op) -> &'plan str {
    let accesses = op.accesses();
    let written = accesses.iter().find(|(_, access)| *access != Access::Read).or(accesses.first());
    written.map_or("", |(slot, _)| &binding.arena.slot(*slot).name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_names_the_last_and_the_next_collective_of_every_lane() {
        let line = |lane, task: u32, words: &str| Line {
            lane: LaneId::new(lane),
            task: TaskId::new(task),
            words: words.to_owned(),
        };
        let lines = vec![line(2, 3, "gather a"), line(3, 4, "reduce a"), line(2, 7, "gather b")];
        let script = CollectiveNames { lines };
        let at = |lane: LaneId| (lane == LaneId::new(2)).then(|| TaskId::new(3));
        assert_eq!(
            script.standing(at),
            "lane 2 finished gather a last and is to finish gather b next; lane 3 finished none last and is to finish \
             reduce a next"
        );
        let all = |_| Some(TaskId::new(7));
        assert!(script.standing(all).starts_with("lane 2 finished all, gather b last"));
        assert_eq!(CollectiveNames::default().standing(all), "no collective is to be done");
    }
}
