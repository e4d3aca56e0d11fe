//! Collectives as commands: how bytes get from rank to rank.
//!
//! Laws:
//! - Whatever the transport, a gather leaves the same bytes, and with [`Reduce::Ordered`] a sum adds ranks
//!   0, 1, … in f32: values of peers wait in the landing ([`super::landing`]) and are summed by one kernel.
//! - [`Transport::Peer`](super::Transport::Peer) writes into the peers' memory between two meetings (PL-8, see
//!   [`super::signal`]): parts of weights and gradients by copy engines, which need no multiprocessor; the many small
//!   values of an all-reduce by one kernel.
//! - A rank writes and never reads peers, so its copies run on engines that no other rank queues for. Copies *from*
//!   peers behind a stream's wait for them never finished with three and more GPUs in a process, as if the driver queued
//!   the copies of several readers on the engine of the GPU they read, behind one another's waits.
//! - Within one GPU bytes are moved by kernels, whoever's they are: the driver would do the same with one it loads when it is
//!   first needed, and ranks that share a GPU would share its engines.

use std::sync::Arc;

use super::address::DeviceAddress;
use super::command::Command;
use super::failure::CudaFailure;
use super::kernels::{CombineOperand, CopyOperand, ExpandOperand, Kernels};
use super::landing::stride;
use super::nccl::{Communicator, Transfer};
use super::signal::{Home, Meeting, MemoryOperations, Signals};
use crate::backend::local::{Collective, Move, Pull, Scatter};
use crate::config::Reduce;
use crate::format::ElementType;
use crate::id::{CommId, RankId};
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
    /// NCCL's communicator; without one, peers' memory is written.
    pub(super) nccl: Option<Arc<Communicator>>,
    pub(super) reduce: Reduce,
    /// Where this lane's part of every rank's landing begins.
    pub(super) landing: usize,
    /// Has every rank a GPU of its own, whose engines may wait for peers?
    pub(super) has_engines: bool,
}

impl Route<'_> {
    /// The commands of one collective.
    pub(super) fn collective(&self, kernels: &Kernels, op: &Collective) -> Result<Vec<Command>, CudaFailure> {
        let mut commands = match &op.pull {
            Pull::Gather(moves) => self.gather(kernels, moves)?,
            Pull::ReduceScatter(element, parts) => self.reduce_scatter(kernels, *element, parts)?,
            Pull::AllReduce(reduction, moves) => self.all_reduce(kernels, *reduction, moves)?,
        };
        for expand in &op.expand {
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
        let mut commands = match &self.nccl {
            None => {
                let place = |part: &Move| part.to.offset + part.from.bytes * self.rank.index();
                let parts = |to: DeviceAddress| {
                    moves.iter().map(move |part| CopyOperand {
                        from: own.plus(part.from.offset),
                        to: to.plus(place(part)),
                        bytes: part.from.bytes,
                    })
                };
                let theirs = self.peers().flat_map(|(_, home)| parts(home.arena)).collect();
                let mut commands = self.copies(kernels, parts(own).collect(), false)?;
                commands.extend(self.between_meetings(self.copies(kernels, theirs, self.has_engines)?)?);
                commands
            }
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

    /// This rank's slices of everybody's sources, summed: all parts between two meetings, or in one group, and by one
    /// kernel. NCCL would sum bf16 in bf16, so it is left to sum f32 alone.
    fn reduce_scatter(
        &self,
        kernels: &Kernels,
        element: ElementType,
        parts: &[Scatter],
    ) -> Result<Vec<Command>, CudaFailure> {
        let own = self.own();
        if let (Some(communicator), Reduce::Nccl, ElementType::F32) = (&self.nccl, self.reduce, element) {
            let sums = parts.iter().map(|part| Transfer::ReduceScatter {
                from: own.plus(part.source.offset),
                to: own.plus(part.own.to.offset),
                count: part.own.from.bytes / element.bytes(),
            });
            return Ok(vec![group(communicator, sums.collect())]);
        }
        let (mut copies, mut exchange, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        let mut ahead = 0;
        for part in parts {
            let bytes = part.own.from.bytes;
            let slice = |rank: RankId| own.plus(part.source.offset + bytes * rank.index());
            let landed = |home: &Home, rank: RankId| self.landed(home, ahead, bytes, rank);
            for (peer, home) in self.peers().filter(|_| bytes > 0) {
                copies.push(CopyOperand { from: slice(peer), to: landed(home, self.rank), bytes });
                exchange.push(Transfer::Send { from: slice(peer), bytes, peer });
                exchange.push(Transfer::Receive { to: landed(self.home(), peer), bytes, peer });
            }
            let arrived =
                |rank: RankId| if rank == self.rank { slice(rank) } else { landed(self.home(), rank) };
            sums.push(CombineOperand {
                sources: self.ranks().map(arrived).collect(),
                to: own.plus(part.own.to.offset),
                elements: bytes / element.bytes(),
            });
            ahead += stride(bytes) * self.homes.len();
        }
        let mut commands = match &self.nccl {
            None => self.between_meetings(self.copies(kernels, copies, self.has_engines)?)?,
            Some(communicator) => vec![group(communicator, exchange)],
        };
        commands.push(Command::Kernel(kernels.combine(Reduction::Sum, element, &sums)?));
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
        let (mut copies, mut gathers, mut reductions) = (Vec::new(), Vec::new(), Vec::new());
        let mut ahead = 0;
        for part in moves {
            let (from, bytes) = (own.plus(part.from.offset), part.from.bytes);
            let pushed = self.nccl.is_none();
            // NCCL gathers without gaps.
            let landed = |home: &Home, rank: RankId| match pushed {
                true => self.landed(home, ahead, bytes, rank),
                false => self.landed(home, ahead, 0, rank).plus(bytes * rank.index()),
            };
            if bytes > 0 {
                copies.extend(self.peers().map(|(_, home)| CopyOperand {
                    from,
                    to: landed(home, self.rank),
                    bytes,
                }));
                gathers.push(Transfer::AllGather { from, to: landed(self.home(), RankId::new(0)), bytes });
            }
            let arrived =
                |rank: RankId| if pushed && rank == self.rank { from } else { landed(self.home(), rank) };
            reductions.push(CombineOperand {
                sources: self.ranks().map(arrived).collect(),
                to: own.plus(part.to.offset),
                elements: bytes / size_of::<f32>(),
            });
            ahead += stride(bytes) * self.homes.len();
        }
        let mut commands = match &self.nccl {
            None => self.between_meetings(self.copies(kernels, copies, false)?)?,
            Some(communicator) => vec![group(communicator, gathers)],
        };
        commands.push(Command::Kernel(kernels.combine(reduction, ElementType::F32, &reductions)?));
        Ok(commands)
    }

    /// Copies of so many bytes, by engines or by one kernel.
    fn copies(
        &self,
        kernels: &Kernels,
        mut copies: Vec<CopyOperand>,
        by_engines: bool,
    ) -> Result<Vec<Command>, CudaFailure> {
        copies.retain(|copy| copy.bytes > 0 && copy.from != copy.to);
        if by_engines {
            let engine =
                |copy: CopyOperand| Command::Copy { from: copy.from, to: copy.to, bytes: copy.bytes };
            return Ok(copies.into_iter().map(engine).collect());
        }
        Ok(if copies.is_empty() { Vec::new() } else { vec![Command::Kernel(kernels.copy(&copies)?)] })
    }

    /// `commands` once every peer's memory may be written, and behind them the wait for what peers write here.
    fn between_meetings(&self, commands: Vec<Command>) -> Result<Vec<Command>, CudaFailure> {
        let mut all = vec![Command::Memory(self.meet(Meeting::Ready)?)];
        all.extend(commands);
        all.push(Command::Memory(self.meet(Meeting::Done)?));
        Ok(all)
    }

    fn meet(&self, meeting: Meeting) -> Result<MemoryOperations, CudaFailure> {
        Signals::new(self.homes.len()).meet(self.rank, self.homes, self.communicator, meeting)
    }

    /// Where in the landing of `home`, `ahead` bytes into the lane's part, the `bytes` bytes of `rank` wait.
    fn landed(&self, home: &Home, ahead: usize, bytes: usize, rank: RankId) -> DeviceAddress {
        home.landing.plus(self.landing + ahead + stride(bytes) * rank.index())
    }

    fn home(&self) -> &Home {
        &self.homes[self.rank.index()]
    }

    fn own(&self) -> DeviceAddress {
        self.home().arena
    }

    fn ranks(&self) -> impl Iterator<Item = RankId> + use<> {
        (0..self.homes.len()).map(RankId::at)
    }

    /// All others, beginning with the next: so that not all ranks write to the same one at once.
    fn peers(&self) -> impl Iterator<Item = (RankId, &Home)> {
        let next = self.rank.index() + 1;
        let numbered = || self.homes.iter().enumerate().map(|(rank, home)| (RankId::at(rank), home));
        numbered().skip(next).chain(numbered().take(next - 1))
    }
}

fn group(communicator: &Arc<Communicator>, transfers: Vec<Transfer>) -> Command {
    Command::Group { communicator: Arc::clone(communicator), transfers }
}
