//! What a lane with collectives has besides its stream.
//!
//! Laws:
//! - A lane is one communicator of the plan. It has an NCCL communicator for every group whose ranks need one and that
//!   a plan brings together on it, since an NCCL communicator consists of certain ranks; groups of the same members
//!   share one. They are used in the lane's order, like one (CO-1). Each takes time at the start, and memory that no
//!   plan knows of, so none is opened that no plan needs.
//! - Which groups a plan needs on a lane, which of them need a communicator, and which share, is the same on every rank
//!   ([`super::team`]), so all ranks of the world open together.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::context::Context;
use super::failure::CudaFailure;
use super::members::Members;
use super::nccl::Communicator;
use super::stream::Stream;
use super::world::World;
use crate::id::{CommId, LaneId, RankId};
use crate::layout::Binding;
use crate::model::Group;
use crate::op::Op;

/// What a lane with collectives has besides its stream.
#[derive(Clone, Debug)]
pub(super) struct Communication {
    pub(super) communicator: CommId,
    /// What first bytes are sent on.
    stream: Arc<Stream>,
    /// Among the ranks of a group, or among the counterparts of this one in it. A group is missing if its
    /// ranks reach each other's memory, if it is this rank alone, or if no plan needed it so far.
    nccl: Vec<(Group, Members, Arc<Communicator>)>,
}

impl Communication {
    pub(super) const fn new(communicator: CommId, stream: Arc<Stream>) -> Self {
        Self { communicator, stream, nccl: Vec::new() }
    }

    /// Opens what a plan needs on `lane` and no plan needed before. All ranks of the world call this together, for the
    /// same plan, with nothing on the stream that waits for another rank.
    pub(super) fn open(
        &mut self,
        world: &Arc<World>,
        context: &Arc<Context>,
        binding: &Binding<'_>,
        lane: LaneId,
    ) -> Result<(), CudaFailure> {
        for group in needed(binding.ops, lane) {
            if self.of(group).is_none() {
                self.open_group(world, binding.rank, context, group)?;
            }
        }
        Ok(())
    }

    fn open_group(
        &mut self,
        world: &Arc<World>,
        rank: RankId,
        context: &Arc<Context>,
        group: Group,
    ) -> Result<(), CudaFailure> {
        let Some(members) = world.team(rank, group)?.connected() else { return Ok(()) };
        let shared = self.nccl.iter().find(|(_, others, _)| *others == members);
        let one = match shared {
            Some((_, _, one)) => Arc::clone(one),
            None => Arc::new(Communicator::open(world, rank, members, context, &self.stream)?),
        };
        self.nccl.push((group, members, one));
        Ok(())
    }

    /// The NCCL communicator for the ranks of a group.
    pub(super) fn of(&self, group: Group) -> Option<&Arc<Communicator>> {
        self.nccl.iter().find(|(of, _, _)| *of == group).map(|(_, _, communicator)| communicator)
    }

    /// What was opened, some of it several times.
    pub(super) fn opened(&self) -> impl Iterator<Item = &Arc<Communicator>> + Clone {
        self.nccl.iter().map(|(_, _, communicator)| communicator)
    }
}

/// The groups that collectives bring together on `lane`.
fn needed(ops: &[(Op, LaneId)], lane: LaneId) -> BTreeSet<Group> {
    ops.iter().filter(|(_, at)| *at == lane).filter_map(|(op, _)| op.group()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::SlotId;
    use crate::op::Reduction;

    #[test]
    fn a_lane_needs_the_groups_of_its_own_collectives_and_no_others() {
        let [from, to] = [0, 1].map(SlotId::new);
        let [gathers, reduces, replicas, computes] = [3, 4, 5, 0].map(LaneId::new);
        let sum = |group| Op::AllReduce { reduction: Reduction::Sum, group, pairs: vec![(from, to)] };
        let rows = || Op::ExchangeRows { weights: Vec::new(), from, to };
        let ops = [
            (sum(Group::Shard), gathers),
            (rows(), reduces),
            (Op::GatherRecords { from, to }, reduces),
            (rows(), reduces),
            (Op::Copy { from, to }, computes),
            (sum(Group::Replicate), replicas),
        ];
        let found = |lane| needed(&ops, lane).into_iter().collect::<Vec<_>>();
        assert_eq!(found(gathers), [Group::Shard]);
        assert_eq!(found(reduces), [Group::Shard, Group::World]);
        assert_eq!(found(replicas), [Group::Replicate]);
        assert_eq!(found(computes), []);
    }
}
