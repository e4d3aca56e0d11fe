//! The NCCL communicators of one lane.
//!
//! Laws:
//! - A lane is one communicator of the plan. It has an NCCL communicator for every group whose ranks need
//!   one, since an NCCL communicator consists of certain ranks; groups of the same members share one. They
//!   are used in the lane's order, like one (CO-1).
//! - Which groups need one, and which share, is the same on every rank ([`crate::world::team`]), so all ranks of the
//!   world open together.

use std::sync::Arc;

use super::communicator::Communicator;
use crate::device::context::Context;
use crate::device::stream::Stream;
use crate::failure::CudaFailure;
use crate::world::World;
use crate::world::members::Members;
use warpweft_base::id::{CommId, RankId};
use warpweft_plan::model::Group;

/// What a lane with collectives has besides its stream.
#[derive(Clone, Debug)]
pub(crate) struct LaneCommunicators {
    pub(crate) communicator: CommId,
    /// Among the ranks of a group, or among the counterparts of this one in it. A group is missing if its
    /// ranks reach each other's memory, or if it is this rank alone.
    nccl: Vec<(Group, Arc<Communicator>)>,
}

impl LaneCommunicators {
    /// Opens what a lane needs, whose stream is idle. All ranks of the world call this together.
    pub(crate) fn open(
        world: &Arc<World>,
        rank: RankId,
        communicator: CommId,
        context: &Arc<Context>,
        stream: &Stream,
    ) -> Result<Self, CudaFailure> {
        let mut opened: Vec<(Members, Arc<Communicator>)> = Vec::new();
        let mut nccl = Vec::new();
        for group in world.mesh.groups() {
            let Some(members) = world.team(rank, group).connected() else { continue };
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

    /// The NCCL communicator for the ranks of a group.
    pub(crate) fn of(&self, group: Group) -> Option<&Arc<Communicator>> {
        self.nccl.iter().find(|(of, _)| *of == group).map(|(_, communicator)| communicator)
    }

    /// What was opened, some of it several times.
    pub(crate) fn opened(&self) -> impl Iterator<Item = &Arc<Communicator>> + Clone {
        self.nccl.iter().map(|(_, communicator)| communicator)
    }
}
