//! The clocks of a simulated world.
//!
//! Law: what lanes get is kept ([`Pending`]) until the host waits for a lane, launches a capture, or begins a step
//! or another plan, and runs then in the order in which tasks begin, whatever the order in which lanes got it. A
//! clock only moves forward. Everything is in nanoseconds since the world was made. The formulas are those of the
//! module above. A clock that reaches [`END`] is an error and not a time: it would stand still there.

use std::sync::Arc;

use warpweft_base::id::{LaneId, RankId, TaskId};
use warpweft_plan::cluster::{Charges, Cluster, Jitter};
use warpweft_plan::layout::Lane;
use warpweft_plan::model::{Group, Mesh};

use super::SimBound;
use super::bind::Priced;
use super::pending::{Action, Pending};
use crate::TaskInterval;
use crate::bell::lock;

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

/// What is wrong on a lane.
pub(super) type Problem = (LaneId, &'static str);

/// All clocks.
#[derive(Debug)]
pub(super) struct Machine {
    mesh: Mesh,
    jitter: Jitter,
    launch: u64,
    replay: u64,
    /// The constant factor of every rank.
    slow: Vec<f64>,
    /// When the host last waited, per clock.
    host: Vec<u64>,
    /// For how long the host has issued since.
    issuing: u64,
    /// When each lane is free, per clock.
    lanes: Vec<Vec<u64>>,
    /// What ran in this step, on rank 0.
    charges: Charges,
    step: u64,
    pending: Pending,
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
            issuing: 0,
            lanes: Vec::new(),
            charges: Charges::new(cluster.contention),
            step: 0,
            pending: Pending::default(),
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

    /// Opens a step of a plan.
    ///
    /// # Errors
    /// As [`Machine::settle`], of a step before.
    pub(super) fn begin_step(&mut self, bound: &SimBound) -> Result<(), Problem> {
        self.settle()?;
        self.step += 1;
        self.charges.clear();
        lock(&bound.progress).begin();
        Ok(())
    }

    /// Notes that the host enqueues something; events are free.
    pub(super) fn issue(&mut self, action: Action) {
        if matches!(action, Action::Run { .. }) {
            self.issuing = self.issuing.saturating_add(self.launch);
        }
    }

    /// Gives an action to its lane.
    ///
    /// # Errors
    /// What is wrong with it, or as [`Machine::settle`], of another plan.
    pub(super) fn submit(&mut self, action: Action, bound: &Arc<SimBound>) -> Result<(), Problem> {
        let lane = action.lane();
        if self.pending.plan().is_some_and(|plan| !Arc::ptr_eq(plan, bound)) {
            self.settle()?;
        }
        if self.lanes.get(lane.index()).is_none() {
            return Err((lane, "the lane was not opened"));
        }
        self.pending.add(action, self.issuing, bound).map_err(|problem| (lane, problem))
    }

    /// Launches a capture: lanes wait for the first of them, do all of it, and the first waits for them.
    ///
    /// # Errors
    /// As [`Machine::submit`] and [`Machine::settle`].
    pub(super) fn launch(
        &mut self,
        first: LaneId,
        actions: &[Action],
        bound: &Arc<SimBound>,
    ) -> Result<(), Problem> {
        self.settle()?;
        self.issuing = self.issuing.saturating_add(self.replay);
        self.part(first);
        actions.iter().try_for_each(|action| self.submit(*action, bound))?;
        self.settle()?;
        self.meet(first);
        Ok(())
    }

    /// Lets all lanes wait for `first`.
    fn part(&mut self, first: LaneId) {
        let Some(free) = self.lanes.get(first.index()).cloned() else { return };
        for lane in &mut self.lanes {
            lane.iter_mut().zip(&free).for_each(|(own, first)| *own = (*own).max(*first));
        }
    }

    /// Lets `first` wait for all lanes.
    fn meet(&mut self, first: LaneId) {
        for other in 0..self.lanes.len() {
            if let Ok([first, other]) = self.lanes.get_disjoint_mut([first.index(), other]) {
                first.iter_mut().zip(&*other).for_each(|(own, other)| *own = (*own).max(*other));
            }
        }
    }

    /// Lets the host wait for a lane.
    ///
    /// # Errors
    /// As [`Machine::settle`].
    pub(super) fn synchronize(&mut self, lane: LaneId) -> Result<(), Problem> {
        self.settle()?;
        let issuing = std::mem::take(&mut self.issuing);
        self.host.iter_mut().for_each(|host| *host = host.saturating_add(issuing));
        if let Some(free) = self.lanes.get(lane.index()) {
            self.host.iter_mut().zip(free).for_each(|(host, free)| *host = (*host).max(*free));
        }
        Ok(())
    }

    /// The furthest clock.
    pub(super) fn latest(&self) -> u64 {
        let host = self.host.iter().map(|clock| clock.saturating_add(self.issuing));
        host.chain(self.lanes.iter().flatten().copied()).max().unwrap_or(0)
    }

    /// Runs all that lanes got, in the order in which tasks begin on rank 0.
    ///
    /// # Errors
    /// At the end of time.
    pub(super) fn settle(&mut self) -> Result<(), Problem> {
        const NO_TIME: &str = "virtual time has come to its end, 30 years; the speeds of the cluster are per second: \
                               see that none lacks its power of ten, or simulate fewer steps";
        let Some(plan) = self.pending.plan().cloned() else { return Ok(()) };
        let mut progress = lock(&plan.progress);
        while let Some((task, issued)) = self.pending.next(&mut self.lanes, self.host[0], &mut progress) {
            let priced = &plan.tasks[task.index()];
            progress.intervals[task.index()] = self.run(task, priced, issued);
            if self.lanes[priced.lane.index()].iter().any(|free| *free >= END) {
                self.pending.clear();
                return Err((priced.lane, NO_TIME));
            }
        }
        self.pending.clear().map_or(Ok(()), |left| Err((left.lane(), "the lane waits for what never comes")))
    }

    /// Runs a task that the host had issued after so long.
    fn run(&mut self, task: TaskId, priced: &Priced, issued: u64) -> TaskInterval {
        let free = &mut self.lanes[priced.lane.index()];
        free.iter_mut()
            .zip(&self.host)
            .for_each(|(free, host)| *free = (*free).max(host.saturating_add(issued)));
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
        TaskInterval { begin, joined, end: free[0] }
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
