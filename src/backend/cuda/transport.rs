//! Collectives as commands: how a rank comes by its peers' bytes.
//!
//! Laws:
//! - Whatever the transport, a gather leaves the same bytes, and with [`Reduce::Ordered`] a sum adds ranks
//!   0, 1, … in f32: peers' values are brought here first and summed by one kernel.
//! - [`Transport::Peer`] reads the peers' memory with a kernel between two meetings (PL-8, see [`super::signal`]); what
//!   follows the second touches this rank's memory only. Copy engines would need no multiprocessor, but copies
//!   behind a stream's wait for a peer were seen to hold each other up for ever on four GPUs of one process, as
//!   if the driver queued the copies of several readers behind one another.
//! - Values of peers wait in a scratch that belongs to the communicator, not in the arena.
//!   [`scratch_bytes`] says how much a plan needs.

use std::sync::Arc;

use super::address::DeviceAddress;
use super::command::Command;
use super::failure::CudaFailure;
use super::kernels::{CombineOperand, CopyOperand, ExpandOperand, Kernels};
use super::nccl::{Communicator, Transfer};
use super::signal::{Home, Meeting, MemoryOperations, Signals};
use crate::backend::local::{Collective, Move, Pull};
use crate::config::Reduce;
use crate::format::ElementType;
use crate::id::{CommId, RankId};
use crate::layout::{ALIGNMENT, Region};
use crate::op::Reduction;

/// What a lane with collectives has beside its stream.
#[derive(Clone, Debug)]
pub(super) struct Communication {
    pub(super) communicator: CommId,
    pub(super) nccl: Option<Arc<Communicator>>,
}

/// One rank's way to its peers, for the collectives of one communicator.
#[derive(Debug)]
pub(super) struct Route<'a> {
    pub(super) rank: RankId,
    pub(super) homes: &'a [Home],
    pub(super) communicator: CommId,
    /// NCCL's communicator; pulls without.
    pub(super) nccl: Option<Arc<Communicator>>,
    pub(super) reduce: Reduce,
    pub(super) scratch: DeviceAddress,
}

/// Bytes of scratch one collective needs.
pub(super) fn scratch_bytes(op: &Collective, ranks: usize) -> usize {
    let each = |bytes: usize| bytes.next_multiple_of(ALIGNMENT).saturating_mul(ranks);
    match &op.pull {
        Pull::Gather(_) => 0,
        Pull::ReduceScatter(part) => each(part.from.bytes),
        Pull::AllReduce(_, moves) => moves.iter().map(|part| each(part.from.bytes)).sum(),
    }
}

impl Route<'_> {
    /// The commands of one collective.
    pub(super) fn collective(&self, kernels: &Kernels, op: &Collective) -> Result<Vec<Command>, CudaFailure> {
        let mut commands = match &op.pull {
            Pull::Gather(moves) => self.gather(kernels, moves)?,
            Pull::ReduceScatter(part) => self.reduce_scatter(kernels, op.source, *part)?,
            Pull::AllReduce(reduction, moves) => self.all_reduce(kernels, *reduction, moves)?,
        };
        if let Some(expand) = op.expand {
            let plane = self.own().plus(expand.plane.offset);
            let operand = ExpandOperand { shape: expand.shape, compact: plane, plane };
            let launch = kernels.expand_scale(expand.format, expand.orientation, &[operand])?;
            commands.push(Command::Kernel(launch));
        }
        Ok(commands)
    }

    /// Every rank's part, one after the other, and zeroes behind.
    fn gather(&self, kernels: &Kernels, moves: &[Move]) -> Result<Vec<Command>, CudaFailure> {
        let own = self.own();
        let parts = moves.iter().flat_map(|part| {
            let to = own.plus(part.to.offset);
            let place = move |peer: RankId| to.plus(part.from.bytes * peer.index());
            let ranks = self.peers().chain([self.rank]);
            ranks.map(move |peer| Part { peer, from: part.from, to: place(peer) })
        });
        let mut commands = match &self.nccl {
            None => self.pull(kernels, parts)?,
            Some(communicator) => {
                let all = moves.iter().filter(|part| part.from.bytes > 0).map(|part| Transfer::AllGather {
                    from: own.plus(part.from.offset),
                    to: own.plus(part.to.offset),
                    bytes: part.from.bytes,
                });
                vec![group(communicator, all.collect())]
            }
        };
        for part in moves {
            let filled = part.from.bytes * self.homes.len();
            let rest = part.to.part(filled, part.to.bytes - filled).unwrap_or_default();
            commands.extend(Command::zero(own, rest));
        }
        Ok(commands)
    }

    /// This rank's part of everybody's source, summed.
    fn reduce_scatter(
        &self,
        kernels: &Kernels,
        source: Region,
        part: Move,
    ) -> Result<Vec<Command>, CudaFailure> {
        let (own, to) = (self.own(), self.own().plus(part.to.offset));
        let count = part.from.bytes / size_of::<f32>();
        if let (Some(communicator), Reduce::Nccl) = (&self.nccl, self.reduce) {
            let sums = Transfer::ReduceScatter { from: own.plus(source.offset), to, count };
            return Ok(vec![group(communicator, vec![sums])]);
        }
        let held = self.held(self.scratch, part.from.bytes);
        let arrived = |peer: RankId| {
            if peer == self.rank { own.plus(part.from.offset) } else { held(peer) }
        };
        let mut commands = match &self.nccl {
            None => {
                self.pull(kernels, self.peers().map(|peer| Part { peer, from: part.from, to: held(peer) }))?
            }
            Some(communicator) => {
                let bytes = part.from.bytes;
                let theirs = |peer: RankId| own.plus(source.offset + bytes * peer.index());
                let exchange = self.peers().flat_map(|peer| {
                    [
                        Transfer::Send { from: theirs(peer), bytes, peer },
                        Transfer::Receive { to: held(peer), bytes, peer },
                    ]
                });
                let exchange = if bytes == 0 { Vec::new() } else { exchange.collect() };
                vec![group(communicator, exchange)]
            }
        };
        let sources = self.ranks().map(arrived).collect();
        let sum = CombineOperand { sources, to, elements: count };
        commands.push(Command::Kernel(kernels.combine(Reduction::Sum, ElementType::F32, &[sum])?));
        Ok(commands)
    }

    /// Everybody's values, combined on every rank alike.
    fn all_reduce(
        &self,
        kernels: &Kernels,
        reduction: Reduction,
        moves: &[Move],
    ) -> Result<Vec<Command>, CudaFailure> {
        let own = self.own();
        let (mut parts, mut gathers, mut reductions) = (Vec::new(), Vec::new(), Vec::new());
        let mut scratch = self.scratch;
        for part in moves {
            let bytes = part.from.bytes;
            // NCCL gathers without gaps; pulls keep to aligned places.
            let stride = if self.nccl.is_some() { bytes } else { bytes.next_multiple_of(ALIGNMENT) };
            let held = move |peer: RankId| scratch.plus(stride * peer.index());
            let from = own.plus(part.from.offset);
            let pulled = self.nccl.is_none();
            parts.extend(self.peers().map(|peer| Part { peer, from: part.from, to: held(peer) }));
            gathers.extend((bytes > 0).then_some(Transfer::AllGather { from, to: scratch, bytes }));
            let arrived = |peer: RankId| if pulled && peer == self.rank { from } else { held(peer) };
            reductions.push(CombineOperand {
                sources: self.ranks().map(arrived).collect(),
                to: own.plus(part.to.offset),
                elements: bytes / size_of::<f32>(),
            });
            scratch = scratch.plus(bytes.next_multiple_of(ALIGNMENT) * self.homes.len());
        }
        let mut commands = match &self.nccl {
            None => self.pull(kernels, parts)?,
            Some(communicator) => vec![group(communicator, gathers)],
        };
        commands.push(Command::Kernel(kernels.combine(reduction, ElementType::F32, &reductions)?));
        Ok(commands)
    }

    /// Pulls parts between two meetings, all with one kernel.
    fn pull(
        &self,
        kernels: &Kernels,
        parts: impl IntoIterator<Item = Part>,
    ) -> Result<Vec<Command>, CudaFailure> {
        let mut copies = Vec::new();
        for part in parts {
            let home = self.homes.get(part.peer.index());
            let home =
                home.ok_or_else(|| CudaFailure::Refused(format!("{} is not in the world", part.peer)))?;
            let from = home.arena.plus(part.from.offset);
            if part.from.bytes > 0 && from != part.to {
                copies.push(CopyOperand { from, to: part.to, bytes: part.from.bytes });
            }
        }
        let ready = Command::Memory(self.meet(Meeting::Ready)?);
        let done = Command::Memory(self.meet(Meeting::Done)?);
        Ok(vec![ready, Command::Kernel(kernels.copy(&copies)?), done])
    }

    fn meet(&self, meeting: Meeting) -> Result<MemoryOperations, CudaFailure> {
        Signals::new(self.homes.len()).meet(self.rank, self.homes, self.communicator, meeting)
    }

    /// Where the values of each peer wait.
    fn held(&self, scratch: DeviceAddress, bytes: usize) -> impl Fn(RankId) -> DeviceAddress + use<> {
        let stride = bytes.next_multiple_of(ALIGNMENT);
        move |peer| scratch.plus(stride * peer.index())
    }

    fn own(&self) -> DeviceAddress {
        self.homes.get(self.rank.index()).map_or(DeviceAddress::NULL, |home| home.arena)
    }

    fn ranks(&self) -> impl Iterator<Item = RankId> + use<> {
        (0..self.homes.len()).map(RankId::at)
    }

    /// All others, beginning with the next: so that not all ranks pull from the same one at once.
    fn peers(&self) -> impl Iterator<Item = RankId> + use<> {
        let (own, ranks) = (self.rank.index(), self.homes.len());
        (1..ranks).map(move |step| RankId::at((own + step) % ranks))
    }
}

/// Bytes of one rank's arena on their way here.
#[derive(Clone, Copy, Debug)]
struct Part {
    peer: RankId,
    from: Region,
    to: DeviceAddress,
}

fn group(communicator: &Arc<Communicator>, transfers: Vec<Transfer>) -> Command {
    Command::Group { communicator: Arc::clone(communicator), transfers }
}
