//! Fences: the few waits that make lanes respect the dependences.
//!
//! Law: a task waits only on foreign lanes, at most once per lane, for the last task there that
//! must precede it, and only if that is not implied by its lane's order or by fences before it.
//! Vector clocks carry what is implied.

use super::dependences::Edge;
use warpweft_base::id::{EventId, LaneId, TaskId};

/// How far each lane is known to have come: positions in T, plus one; 0 for nothing.
type Clock = Vec<usize>;

/// Fences of every task, and the events they need.
pub(super) struct Fences {
    pub(super) waits: Vec<Vec<TaskId>>,
    pub(super) signals: Vec<Option<EventId>>,
    pub(super) events: usize,
}

pub(super) fn fences(
    lanes_of: &[LaneId],
    lanes: usize,
    edges: &[Edge],
    releases: &[Option<TaskId>],
) -> Fences {
    let tasks = lanes_of.len();
    let mut needed: Vec<Vec<TaskId>> = vec![Vec::new(); tasks];
    for edge in edges {
        needed[edge.to.index()].push(edge.from);
    }
    for (task, release) in releases.iter().enumerate() {
        needed[task].extend(release);
    }
    let mut clocks: Vec<Clock> = Vec::with_capacity(tasks);
    let mut last_on_lane: Vec<Option<usize>> = vec![None; lanes];
    let mut waits = vec![Vec::new(); tasks];
    let mut signalled = vec![false; tasks];
    for task in 0..tasks {
        let own = lanes_of[task].index();
        let mut clock = last_on_lane[own].map_or_else(|| vec![0; lanes], |before| clocks[before].clone());
        let before = &mut needed[task];
        before.sort_unstable_by(|a, b| b.cmp(a));
        before.dedup();
        for from in before.iter() {
            let lane = lanes_of[from.index()].index();
            if clock[lane] > from.index() {
                continue;
            }
            waits[task].push(*from);
            signalled[from.index()] = true;
            for (mine, theirs) in clock.iter_mut().zip(&clocks[from.index()]) {
                *mine = (*mine).max(*theirs);
            }
        }
        clock[own] = task + 1;
        clocks.push(clock);
        last_on_lane[own] = Some(task);
        waits[task].sort_unstable();
    }
    let mut events = 0;
    let signals = signalled
        .into_iter()
        .map(|needed| {
            needed.then(|| {
                events += 1;
                EventId::at(events - 1)
            })
        })
        .collect();
    Fences { waits, signals, events }
}
