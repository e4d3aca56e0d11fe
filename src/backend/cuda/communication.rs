//! What a lane with collectives has beside its stream.
//!
//! Laws:
//! - A lane is one communicator of the plan. Of NCCL it has one for every group whose ranks need it, since a
//!   communicator is of certain ranks; groups of the same members share one. They are used in the lane's
//!   order, like one (CO-1).
//! - Which groups need one, and which share, is the same on every rank ([`super::team`]), so all ranks of the
//!   world open together.

use std::sync::Arc;

use super::context::Context;
use super::failure::CudaFailure;
use super::members::Members;
use super::nccl::Communicator;
use super::stream::Stream;
use super::world::World;
use crate::id::{CommId, RankId};
use crate::model::Group;

/// What a lane with collectives has beside its stream.
#[derive(Clone, Debug)]
pub(super) struct Communication {
    pub(super) communicator: CommId,
    /// Among the ranks of a group, or among the counterparts of this one in it. A group is missing whose
    /// ranks reach each other's memory, or that is this rank alone.
    nccl: Vec<(Group, Arc<Communicator>)>,
}

impl Communication {
    /// Opens what a lane needs, whose stream is idle. All ranks of the world come here together.
    pub(super) fn open(
        world: &Arc<World>,
        rank: RankId,
        communicator: CommId,
        context: &Arc<Context>,
        stream: &Stream,
    ) -> Result<Self, CudaFailure> {
        let mut opened: Vec<(Members, Arc<Communicator>)> = Vec::new();
        let mut nccl = Vec::new();
        for group in [Group::World, Group::Shard, Group::Replicate] {
            let Some(members) = world.team(rank, group)?.connected() else { continue };
            let shared = opened.iter().find(|(others, _)| *others == members).map(|(_, one)| Arc::clone(one));
            let one = match shared {
                Some(one) => one,
                None => {
                    let one = Arc::new(Communicator::open(world, rank, members, context, stream)?);
                    opened.push((members, Arc::clone(&one)));
                    one
                }
            };
            nccl.push((group, one));
        }
        Ok(Self { communicator, nccl })
    }

    /// NCCL's for the ranks of a group.
    pub(super) fn of(&self, group: Group) -> Option<&Arc<Communicator>> {
        self.nccl.iter().find(|(of, _)| *of == group).map(|(_, communicator)| communicator)
    }

    /// What was opened, some of it several times.
    pub(super) fn opened(&self) -> impl Iterator<Item = &Arc<Communicator>> + Clone {
        self.nccl.iter().map(|(_, communicator)| communicator)
    }
}
