//! The lanes of a policy, and which of them carries what.
//!
//! Law: this is the one place where lanes get numbers. Compute is first, and every kind of lane there is once; a
//! policy of one communicator has one lane for gathers and reductions.

use super::draft::Carrier;
use super::step_plan::Policy;
use crate::id::{CommId, LaneId};
use crate::layout::{Lane, LaneKind};

/// The lanes in the order of their ids, and the number of each carrier's.
pub(super) struct Lanes {
    pub(super) all: Vec<Lane>,
    compute: LaneId,
    quantize: LaneId,
    gather: LaneId,
    reduce: LaneId,
    sum: LaneId,
}

impl Lanes {
    pub(super) fn new(policy: &Policy) -> Self {
        let mut all = Vec::new();
        let mut add = |kind| {
            let id = LaneId::at(all.len());
            all.push(Lane { id, kind });
            id
        };
        let compute = add(LaneKind::Compute);
        let quantize = add(LaneKind::Quantize);
        let gather = add(LaneKind::Communicator(CommId::new(0)));
        let shared = policy.communicators == 1;
        let reduce = if shared { gather } else { add(LaneKind::Communicator(CommId::new(1))) };
        let sum = add(LaneKind::Sum);
        Self { all, compute, quantize, gather, reduce, sum }
    }

    pub(super) const fn of(&self, carrier: Carrier) -> LaneId {
        match carrier {
            Carrier::Compute => self.compute,
            Carrier::Quantize => self.quantize,
            Carrier::Gather => self.gather,
            Carrier::Reduce => self.reduce,
            Carrier::Sum => self.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_lane_has_the_number_of_its_place_and_one_communicator_carries_gathers_and_reductions() {
        let policy = Policy::from(&Config::default());
        for communicators in [1, 2] {
            let lanes = Lanes::new(&Policy { communicators, ..policy });
            assert_eq!(lanes.all.len() as u32, 3 + communicators);
            let kind = |carrier| lanes.all[lanes.of(carrier).index()].kind;
            assert!(lanes.all.iter().enumerate().all(|(number, lane)| lane.id == LaneId::at(number)));
            assert_eq!(
                (kind(Carrier::Compute), kind(Carrier::Quantize)),
                (LaneKind::Compute, LaneKind::Quantize)
            );
            assert_eq!(kind(Carrier::Sum), LaneKind::Sum);
            assert_eq!(kind(Carrier::Gather), LaneKind::Communicator(CommId::new(0)));
            assert_eq!(kind(Carrier::Reduce), LaneKind::Communicator(CommId::new(communicators - 1)));
        }
    }
}
