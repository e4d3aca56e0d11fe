//! The clocks of a simulated world.
//!
//! Law: a clock only moves forward, and only when something is issued. Everything is in nanoseconds since the
//! world was made. The formulas are those of the module above. A clock that reaches [`END`] is an error and
//! not a time: it would stand still there.

use crate::TaskInterval;
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::cluster::{Charges, Cluster, Jitter};
use warpweft_plan::layout::Lane;
use warpweft_plan::model::{Group, Mesh};

use super::bind::Priced;

/// Lets every clock of a group wait for the latest of them. Ranks without a clock are not waited for.
fn join(clocks: &mut [u64], mesh: Mesh, group: Group) {
    let known = clocks.len();
    let firsts = (0..known).map(RankId::at).filter(|rank| mesh.position(*rank, group) == 0);
    for first in firsts {
        let members = || mesh.members(first, group).map(RankId::index).take_while(|rank| *rank < known);
        let last = members().map(|rank| clocks[rank]).max().unwrap_or(0);
        members().for_each(|rank| clocks[rank] = last);
    }
}

/// The most ranks that have their own clocks where ranks differ.
pub const MAX_CLOCKS: u32 = 4096;

/// The end of virtual time, some 30 years; also the longest price of an op.
#[doc(hidden)]
pub const END: u64 = 1_000_000_000_000_000_000;

/// A command to a lane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Run { lane: LaneId, task: TaskId },
    Record { lane: LaneId, event: EventId },
    Wait { lane: LaneId, event: EventId },
}

/// How far one bound plan is in its step.
#[derive(Debug)]
pub(super) struct Progress {
    intervals: Vec<TaskInterval>,
    /// Per event, one time for each clock.
    events: Vec<u64>,
    recorded: Vec<bool>,
    clocks: usize,
}

impl Progress {
    pub(super) fn new(tasks: usize, events: usize, clocks: usize) -> Self {
        Self {
            intervals: vec![TaskInterval::default(); tasks],
            events: vec![0; events * clocks],
            recorded: vec![false; events],
            clocks,
        }
    }

    pub(super) fn begin(&mut self) {
        self.recorded.fill(false);
    }

    pub(super) fn intervals(&self) -> &[TaskInterval] {
        &self.intervals
    }

    fn event(&mut self, event: EventId) -> Option<&mut [u64]> {
        let begin = event.index() * self.clocks;
        self.events.get_mut(begin..begin + self.clocks)
    }
}

/// All clocks.
#[derive(Debug)]
pub(super) struct Machine {
    mesh: Mesh,
    jitter: Jitter,
    launch: u64,
    replay: u64,
    /// The constant factor of every rank.
    slow: Vec<f64>,
    host: Vec<u64>,
    /// When each lane is free, per clock.
    lanes: Vec<Vec<u64>>,
    /// What ran in this step, on rank 0.
    charges: Charges,
    step: u64,
    pub(super) capture: Option<Vec<Action>>,
}

impl Machine {
    pub(super) fn new(cluster: &Cluster, mesh: Mesh) -> Self {
        let clocks = if cluster.jitter.is_none() { 1 } else { mesh.ranks().min(MAX_CLOCKS) };
        let nanoseconds = |microseconds: f64| (microseconds * 1e3).round() as u64;
        Self {
            mesh,
            jitter: cluster.jitter,
            launch: nanoseconds(cluster.gpu.launch_us),
            replay: nanoseconds(cluster.gpu.replay_us),
            slow: (0..clocks).map(|rank| cluster.jitter.slow(rank)).collect(),
            host: vec![0; clocks as usize],
            lanes: Vec::new(),
            charges: Charges::new(cluster.contention),
            step: 0,
            capture: None,
        }
    }

    pub(super) fn clocks(&self) -> usize {
        self.host.len()
    }

    pub(super) fn open(&mut self, lane: Lane) {
        let idle = vec![0; self.host.len()];
        if self.lanes.len() <= lane.id.index() {
            self.lanes.resize(lane.id.index() + 1, idle.clone());
        }
        self.lanes[lane.id.index()] = idle;
        self.charges.open(lane);
    }

    pub(super) fn begin_step(&mut self) {
        self.step += 1;
        self.charges.clear();
    }

    /// Notes that the host enqueues something; events are free.
    pub(super) fn issue(&mut self, is_task: bool) {
        if is_task {
            self.host.iter_mut().for_each(|clock| *clock = clock.saturating_add(self.launch));
        }
    }

    /// Notes that the host launches a capture.
    pub(super) fn replay(&mut self) {
        self.host.iter_mut().for_each(|clock| *clock = clock.saturating_add(self.replay));
    }

    /// Lets all lanes wait for `first`.
    pub(super) fn part(&mut self, first: LaneId) {
        let Some(free) = self.lanes.get(first.index()).cloned() else { return };
        for lane in &mut self.lanes {
            lane.iter_mut().zip(&free).for_each(|(own, first)| *own = (*own).max(*first));
        }
    }

    /// Lets `first` wait for all lanes.
    pub(super) fn meet(&mut self, first: LaneId) {
        for other in 0..self.lanes.len() {
            if let Ok([first, other]) = self.lanes.get_disjoint_mut([first.index(), other]) {
                first.iter_mut().zip(&*other).for_each(|(own, other)| *own = (*own).max(*other));
            }
        }
    }

    /// Notes that the host waits for a lane.
    pub(super) fn synchronize(&mut self, lane: LaneId) {
        if let Some(free) = self.lanes.get(lane.index()) {
            self.host.iter_mut().zip(free).for_each(|(host, free)| *host = (*host).max(*free));
        }
    }

    /// The furthest clock.
    pub(super) fn latest(&self) -> u64 {
        let lanes = self.lanes.iter().flatten();
        self.host.iter().chain(lanes).copied().max().unwrap_or(0)
    }

    /// One action of a lane.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn act(
        &mut self,
        action: Action,
        tasks: &[Priced],
        progress: &mut Progress,
    ) -> Result<(), &'static str> {
        const NO_LANE: &str = "the lane was not opened";
        const NO_EVENT: &str = "the event is not of this plan, or was not recorded in this step";
        const NO_TIME: &str = "virtual time has come to its end, 30 years; the speeds of the cluster are per second: \
                               see that none lacks its power of ten, or simulate fewer steps";
        match action {
            Action::Run { lane, task } => {
                let priced = tasks.get(task.index()).filter(|priced| priced.lane == lane);
                let priced = priced.ok_or("the task is not of this plan and lane")?;
                let interval = self.run(task, priced).ok_or(NO_LANE)?;
                if self.lanes[lane.index()].iter().any(|free| *free >= END) {
                    return Err(NO_TIME);
                }
                progress.intervals[task.index()] = interval;
            }
            Action::Record { lane, event } => {
                let free = self.lanes.get(lane.index()).ok_or(NO_LANE)?;
                progress.event(event).ok_or(NO_EVENT)?.copy_from_slice(free);
                progress.recorded[event.index()] = true;
            }
            Action::Wait { lane, event } => {
                let free = self.lanes.get_mut(lane.index()).ok_or(NO_LANE)?;
                if progress.recorded.get(event.index()) != Some(&true) {
                    return Err(NO_EVENT);
                }
                let times = progress.event(event).ok_or(NO_EVENT)?;
                free.iter_mut().zip(times).for_each(|(free, time)| *free = (*free).max(*time));
            }
        }
        Ok(())
    }

    fn run(&mut self, task: TaskId, priced: &Priced) -> Option<TaskInterval> {
        let free = self.lanes.get_mut(priced.lane.index())?;
        free.iter_mut().zip(&self.host).for_each(|(free, host)| *free = (*free).max(*host));
        let begin = free[0];
        if let Some((group, _)) = priced.collective {
            join(free, self.mesh, group);
        }
        let joined = free[0];
        let alone = (joined, priced.nanoseconds);
        if let Some((_, reach)) = priced.collective {
            let end = self.charges.carry(priced.lane, reach, alone);
            free.iter_mut().for_each(|time| *time = time.saturating_add(end - joined));
        } else {
            let length = priced.nanoseconds + self.charges.held_up(priced.lane, alone);
            for ((rank, time), slow) in (0u32..).zip(free.iter_mut()).zip(&self.slow) {
                let late = length * slow * self.jitter.factor(rank, self.step, task.number());
                *time = time.saturating_add(late.round() as u64);
            }
            self.charges.note(priced.lane, (joined, free[0]));
        }
        Some(TaskInterval { begin, joined, end: free[0] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_wait_for_the_latest_of_their_group_alone() {
        let joined = |group| {
            let mut clocks = [5, 1, 2, 8, 9, 3];
            join(&mut clocks, Mesh::hybrid(6, 3).unwrap(), group);
            clocks
        };
        assert_eq!(joined(Group::Shard), [5, 5, 8, 8, 9, 9]);
        assert_eq!(joined(Group::Replicate), [9, 8, 9, 8, 9, 8]);
        assert_eq!(joined(Group::World), [9; 6]);
        let mut sampled = [4, 1, 7];
        join(&mut sampled, Mesh::hybrid(6, 3).unwrap(), Group::Shard);
        assert_eq!(sampled, [4, 4, 7]);
    }
}
