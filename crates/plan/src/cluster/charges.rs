//! Charges of a simulated task: what it takes beside those that began before it in the step.
//!
//! Law: forecasts and the simulator both charge here, and both in the order in which tasks begin. A task is charged
//! for every lane of another kind as if it ran beside that one alone (`contention`), and a collective for its links
//! as well (`traffic`); what ran before stays as it was.

use super::Reach;
use super::contention::{Contention, Ran, stretched};
use super::traffic::Traffic;
use crate::layout::{Lane, LaneKind};
use warpweft_base::id::LaneId;

/// A lane, and when it ran in this step, in order.
#[derive(Clone, Debug)]
struct Busy {
    lane: LaneId,
    kind: LaneKind,
    ran: Vec<Ran>,
}

/// What ran in a step so far.
#[derive(Clone, Debug)]
pub struct Charges {
    contention: Contention,
    lanes: Vec<Busy>,
    traffic: Traffic,
}

impl Charges {
    /// No lane is busy yet.
    #[must_use]
    pub fn new(contention: Contention) -> Self {
        Self { contention, lanes: Vec::new(), traffic: Traffic::default() }
    }

    /// Adds a lane, or begins one anew.
    pub fn open(&mut self, Lane { id, kind }: Lane) {
        self.lanes.retain(|busy| busy.lane != id);
        self.lanes.push(Busy { lane: id, kind, ran: Vec::new() });
    }

    /// Begins a step, in which nothing ran yet.
    pub fn clear(&mut self) {
        self.lanes.iter_mut().for_each(|busy| busy.ran.clear());
        self.traffic.clear();
    }

    /// By how much lanes of other kinds hold up a task that begins at `begin` and takes `nanoseconds` alone.
    pub fn held_up(&self, lane: LaneId, (begin, nanoseconds): (u64, f64)) -> f64 {
        let Some(own) = self.lanes.iter().find(|busy| busy.lane == lane) else { return 0.0 };
        let others = self.lanes.iter().filter(|busy| busy.kind != own.kind);
        let by_each = others.map(|other| {
            let factor = self.contention.factor(own.kind, other.kind);
            stretched(begin as f64, nanoseconds, &other.ran, factor) - nanoseconds
        });
        by_each.sum()
    }

    /// Notes when a task ran that takes no links.
    pub fn note(&mut self, lane: LaneId, (begin, end): (u64, u64)) {
        self.add(lane, [Ran { from: begin, to: end, share: 1.0 }]);
    }

    /// Notes a collective that begins at `begin` and takes `nanoseconds` alone; returns its end.
    pub fn carry(&mut self, lane: LaneId, reach: Reach, (begin, nanoseconds): (u64, f64)) -> u64 {
        let held_up = self.held_up(lane, (begin, nanoseconds));
        let (end, ran) = self.traffic.carry(&self.contention, reach, (begin, nanoseconds, held_up));
        self.add(lane, ran);
        end
    }

    fn add(&mut self, lane: LaneId, ran: impl IntoIterator<Item = Ran>) {
        if let Some(busy) = self.lanes.iter_mut().find(|busy| busy.lane == lane) {
            busy.ran.extend(ran);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_base::id::CommId;

    const COMPUTE: LaneId = LaneId::new(0);

    /// A compute lane and two communicators, on a link that one collective fills.
    fn charges() -> (Charges, [LaneId; 2]) {
        let mut charges = Charges::new(Contention {
            compute_beside_collective: 2.0,
            collective_beside_collective: 2.0,
            ..Contention::default()
        });
        let communicators = [1, 2].map(LaneId::new);
        charges.open(Lane { id: COMPUTE, kind: LaneKind::Compute });
        for (number, id) in (0..).zip(communicators) {
            charges.open(Lane { id, kind: LaneKind::Communicator(CommId::new(number)) });
        }
        (charges, communicators)
    }

    #[test]
    fn what_stands_still_holds_up_no_call_and_what_runs_does() {
        let (mut charges, [one, two]) = charges();
        assert_eq!(charges.carry(one, Reach::Inside, (0, 10.0)), 10);
        assert_eq!(charges.carry(two, Reach::Inside, (0, 10.0)), 20);
        // Half its speed beside the first; the second only runs when the call alone would be over.
        assert_eq!(charges.held_up(COMPUTE, (0, 10.0)), 5.0);
        assert_eq!(charges.held_up(COMPUTE, (15, 10.0)), 2.5);
        assert_eq!(charges.held_up(one, (0, 10.0)), 0.0);
    }

    #[test]
    fn a_step_and_a_lane_that_begin_anew_are_held_up_by_nothing() {
        let (mut charges, [one, two]) = charges();
        charges.carry(one, Reach::Inside, (0, 10.0));
        charges.open(Lane { id: one, kind: LaneKind::Communicator(CommId::new(0)) });
        assert_eq!(charges.held_up(COMPUTE, (0, 10.0)), 0.0);
        assert_eq!(charges.carry(two, Reach::Inside, (0, 10.0)), 20);
        charges.clear();
        assert_eq!(charges.carry(two, Reach::Inside, (0, 10.0)), 10);
        charges.clear();
        assert_eq!(charges.held_up(COMPUTE, (0, 10.0)), 0.0);
    }
}
