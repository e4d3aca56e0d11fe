//! The lanes of a policy, and which of them carries what.
//!
//! Law: this is the one place where lanes get numbers. Compute is first, and every kind of lane there is once; a
//! policy of one communicator has one lane for gathers and reductions. What was summed once and is summed over
//! further blocks or replicas has its own where the policy has three and there are such (replicated weights, which
//! are summed in the tail, stay with the reductions), and collectives between calls, for which calls wait, where it
//! has four: that is said of all programs of a session, as they share lanes.

use super::draft::Carrier;
use super::step_plan::Policy;
use crate::layout::{Lane, LaneKind};
use crate::model::{Group, Mesh};
use warpweft_base::id::{CommId, LaneId};

/// The lanes in the order of their ids, and the number of each carrier's.
pub(super) struct Lanes {
    pub(super) all: Vec<Lane>,
    compute: LaneId,
    quantize: LaneId,
    gather: LaneId,
    reduce: LaneId,
    replicas: LaneId,
    calls: LaneId,
    sum: LaneId,
}

impl Lanes {
    pub(super) fn new(policy: &Policy, mesh: Mesh) -> Self {
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
        let sums = |over: Group| mesh.size(over.copies()) > 1 || mesh.depth(over) > 1;
        let own = policy.communicators > 2 && (sums(Group::Replica) || sums(Group::ExpertShard));
        let replicas = if own { add(LaneKind::Communicator(CommId::new(2))) } else { reduce };
        let next = CommId::new(if own { 3 } else { 2 });
        let calls = if policy.communicators > 3 { add(LaneKind::Communicator(next)) } else { reduce };
        let sum = add(LaneKind::Sum);
        Self { all, compute, quantize, gather, reduce, replicas, calls, sum }
    }

    pub(super) const fn of(&self, carrier: Carrier) -> LaneId {
        match carrier {
            Carrier::Compute => self.compute,
            Carrier::Quantize => self.quantize,
            Carrier::Gather => self.gather,
            Carrier::Reduce => self.reduce,
            Carrier::Replicas => self.replicas,
            Carrier::Calls => self.calls,
            Carrier::Sum => self.sum,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::layout::{OptimizerSettings, Settings};
    use crate::plan::GatherStart;
    use crate::policy::{
        AcrossMicroBatches, AdamMode, Backward, Columnwise, Reduce, ReduceDtype, ReduceEvery,
    };

    #[test]
    fn a_lane_has_the_number_of_its_place_and_communicators_that_there_are_not_are_those_before() {
        let policy = Policy {
            prefetch: GatherStart::Depth(1),
            chunk: None,
            budget: None,
            communicators: 3,
            backward: Backward::default(),
            across_micro_batches: AcrossMicroBatches::default(),
            reduce_every: ReduceEvery::default(),
            reduce_delay: 2,
            derive_ahead: false,
            reduce_dtype: ReduceDtype::default(),
            reduce: Reduce::default(),
            columnwise: Columnwise::default(),
            settings: Settings {
                via: warpweft_format::Via::default(),
                optimizer: OptimizerSettings {
                    mode: AdamMode::default(),
                    epsilon: 1e-8,
                    bias_correction: true,
                    max_norm: 0.0,
                },
            },
        };
        let one = Mesh::new(4).unwrap();
        let two = Mesh::hybrid(4, 2).unwrap();
        let sixteen = Mesh::new(16).unwrap();
        let cases =
            [(1, one, 1), (2, one, 2), (3, one, 2), (1, two, 1), (2, two, 2), (3, two, 3), (3, sixteen, 3)];
        // Collectives between calls may have one more.
        let more = [(4, one, 2), (4, two, 3)];
        for (communicators, mesh, own) in cases.into_iter().chain(more) {
            let more = usize::from(communicators == 4);
            let lanes = Lanes::new(&Policy { communicators, ..policy }, mesh);
            assert_eq!(lanes.all.len(), 3 + own + more);
            let kind = |carrier| lanes.all[lanes.of(carrier).index()].kind;
            assert!(lanes.all.iter().enumerate().all(|(number, lane)| lane.id == LaneId::at(number)));
            assert_eq!(
                (kind(Carrier::Compute), kind(Carrier::Quantize)),
                (LaneKind::Compute, LaneKind::Quantize)
            );
            assert_eq!(kind(Carrier::Sum), LaneKind::Sum);
            assert_eq!(kind(Carrier::Gather), LaneKind::Communicator(CommId::new(0)));
            let comm = |number: usize| LaneKind::Communicator(CommId::at(number.min(own) - 1));
            assert_eq!((kind(Carrier::Reduce), kind(Carrier::Replicas)), (comm(2), comm(3)));
            let of_calls = if more == 0 { comm(2) } else { LaneKind::Communicator(CommId::at(own)) };
            assert_eq!(kind(Carrier::Calls), of_calls);
        }
    }
}
