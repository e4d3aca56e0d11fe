//! Collectives as commands: how bytes get from rank to rank.
//!
//! Laws:
//! - A gather leaves the same bytes by every transport, and so does an exchange of gradients: every
//!   contribution reaches its owner undivided, in the slot that the plan has for it. Sums of gradients are
//!   not part of a collective but tasks of the plan, unless the library is asked to sum ([`Reduce::Nccl`]).
//!   Values of an all-reduce are combined in rank order by one kernel: on every rank all of them, or on each a slice
//!   for all ([`combine`]). So are the slices of a reduce-scatter of a buffer, on the rank that gets their sum.
//! - Where there are only neighbours, an exchange of gradients is meetings and copies by engines and nothing
//!   else, unless it is small. It has no kernel, so it waits for no multiprocessor, and holds up no lane
//!   while products have them all.
//! - To its transport, the ranks that a collective brings together are a world: they are numbered in their
//!   team ([`crate::world::team`]). This file speaks of ranks of the world only where words, or members of a
//!   communicator, are named.
//! - A transport says in which *stages* a collective goes, as data ([`stage`]); this file turns stages into
//!   commands and knows no transport.
//! - A gather of planes brings the peers' parts. Whether the rank's own part is written too is up to the
//!   transport, and nothing relies on it. Among neighbours it launches no kernel, unless it is small by
//!   [`Route::kernel_bytes`], so the lane waits for peers and for nothing that computes: meetings are
//!   operations on the stream's memory, and copies where it cannot set a peer's word, and engines move the bytes.
//! - Memory of peers is written between two meetings (PL-8, see [`crate::transport::signal`]). Parts of weights and
//!   gradients, including rows that are summed over replicas, are written by copy engines, which need no
//!   multiprocessor. A maximum of a few values, and whatever [`Route::kernel_bytes`] calls small, are
//!   written by one kernel that meets as well. That kernel waits for a multiprocessor, and costs the host a
//!   launch instead of a dozen calls.
//! - A rank writes and never reads peers, so its copies run on engines that no other rank queues for. Copies
//!   *from* peers, after a stream's wait for them, never finished with three and more GPUs in a process, as
//!   if the driver queued the copies of several readers on the engine of the GPU they read, one after the
//!   waits of another.
//! - Rows with counts go by one kernel inside a host, which reads the counts where they are. What leaves a
//!   host, or goes by NCCL, goes in whole slots: who enqueues knows no counts.
//! - Within one GPU bytes are moved by kernels, to whichever rank they belong: the driver would do the same
//!   with one it loads when it is first needed, and ranks that share a GPU would share its engines.
//! - Where ranks share a GPU, all of them meet on the host between the signals of a meeting and its waits
//!   ([`HostMeeting`]), since their streams share queues.

mod combine;
pub(crate) mod communicator;
pub(crate) mod lane_communicators;
mod nccl;
mod peer;
pub(crate) mod receive_buffers;
pub(crate) mod signal;
#[cfg(test)]
mod simulated;
mod stage;
pub(crate) mod strided_copy;
pub(crate) mod unique_id;
mod view;

use std::sync::Arc;

use self::lane_communicators::LaneCommunicators;
use self::signal::{Home, Meeting, MemoryOperations, Shared, Signals, copied};
use self::stage::{Carrier, Stage};
use self::strided_copy::StridedCopy;
use crate::bind::command::Command;
use crate::failure::CudaFailure;
use crate::kernels::{CopyOperand, GivenOperand, Kernels, Mark, Partner, SlotShape};
use crate::options::Transport;
use crate::world::HostMeeting;
use crate::world::team::Team;
use warpweft_backend::local::{Collective, Filled, Move, PlanePiece, Pull, Scatter, Slices};
use warpweft_base::id::RankId;
use warpweft_format::ElementType;
use warpweft_plan::model::Group;
use warpweft_plan::policy::Reduce;

pub(super) use view::View;

/// A part of a collective, as commands or before it becomes commands.
enum Part {
    Command(Command),
    /// One kernel that meets, copies and meets.
    Exchange(Vec<CopyOperand>),
    /// The same, up to counts.
    Dispatch(SlotShape, Vec<GivenOperand>),
}

/// One rank's route to the peers of one collective.
#[derive(Debug)]
pub(super) struct Route<'a> {
    /// The memory of the team.
    pub(super) view: View<'a>,
    pub(super) team: Team,
    pub(super) group: Group,
    /// The memory of all ranks of the world.
    pub(super) homes: &'a [Home],
    pub(super) transport: Transport,
    pub(super) reduce: Reduce,
    pub(super) communication: &'a LaneCommunicators,
    /// Where ranks meet on the host too, because some share a GPU.
    pub(super) on_host: Option<HostMeeting>,
    /// Up to this many bytes per neighbour go by one kernel, meetings included.
    pub(super) kernel_bytes: usize,
    /// Whether words of neighbours are set by copies.
    pub(super) copies_signals: bool,
    /// What is left for the host once a collective is done.
    pub(super) done: Mark,
}

impl Route<'_> {
    /// The commands of one collective; the last of them leaves the mark.
    pub(super) fn collective(&self, kernels: &Kernels, op: &Collective) -> Result<Vec<Command>, CudaFailure> {
        if let Pull::ReduceScatter(element, _) = &op.pull
            && !sums_by_itself(self.transport, self.reduce, *element)
        {
            return Err(CudaFailure::Refused(format!(
                "gradients in {element:?} are summed by tasks of the plan here; plan with the `reduce` that the backend was made with"
            )));
        }
        let mut parts = Vec::new();
        for stage in stages(&self.view, self.transport, &op.pull) {
            parts.extend(self.parts(kernels, stage)?);
        }
        self.marked(kernels, parts)
    }

    fn parts(&self, kernels: &Kernels, stage: Stage) -> Result<Vec<Part>, CudaFailure> {
        let commands = match stage {
            Stage::Place(copies) => by_kernel(kernels, copies)?,
            Stage::Push(carrier, copies) => return self.push(kernels, carrier, copies),
            Stage::Exchange(transfers) if transfers.is_empty() => Vec::new(),
            Stage::Exchange(mut transfers) => {
                let communicator = self.communication.of(self.group).ok_or_else(|| {
                    CudaFailure::Refused(format!(
                        "this lane has no communicator of NCCL for {} ranks",
                        self.group
                    ))
                })?;
                transfers.iter_mut().for_each(|transfer| transfer.renumber(|peer| self.team.in_world(peer)));
                vec![Command::Group { communicator: Arc::clone(communicator), transfers }]
            }
            Stage::Lower { counts, slots, capacity } => {
                vec![Command::kernel(kernels.lower_counts(counts, slots, capacity)?)]
            }
            Stage::Spoil { first, counts, shape } => {
                vec![Command::kernel(kernels.spoil_rest(first, counts, shape)?)]
            }
            Stage::Combine(combination, operands) => {
                vec![Command::kernel(kernels.combine(combination, &operands)?)]
            }
            Stage::Dispatch(shape, given) if self.has_engines() => {
                return Ok(vec![Part::Dispatch(shape, given)]);
            }
            Stage::Dispatch(shape, given) => {
                let dispatch = Command::kernel(kernels.dispatch(&given, shape, &[], None)?);
                self.between_meetings(kernels, vec![dispatch])?
            }
        };
        Ok(commands.into_iter().map(Part::Command).collect())
    }

    /// Copies to neighbours between two meetings: by one kernel if they are small, otherwise by engines
    /// between words.
    fn push(
        &self,
        kernels: &Kernels,
        carrier: Carrier,
        copies: Vec<CopyOperand>,
    ) -> Result<Vec<Part>, CudaFailure> {
        let neighbours = self.neighbours();
        if neighbours.is_empty() {
            return Ok(Vec::new());
        }
        let bytes: usize = copies.iter().map(|copy| copy.bytes).sum();
        let is_small = carrier == Carrier::Kernel || bytes / neighbours.len() <= self.kernel_bytes;
        if self.has_engines() && is_small {
            return Ok(vec![Part::Exchange(copies)]);
        }
        let carried = self.carried(kernels, copies)?;
        Ok(self.between_meetings(kernels, carried)?.into_iter().map(Part::Command).collect())
    }

    /// What writes into the memory of neighbours, if there are some, when they may be written to and until they have
    /// written.
    fn between_meetings(&self, kernels: &Kernels, writes: Vec<Command>) -> Result<Vec<Command>, CudaFailure> {
        let neighbours = self.neighbours();
        if neighbours.is_empty() {
            return Ok(writes);
        }
        let mut commands = self.meet(kernels, &neighbours, Meeting::Ready)?;
        commands.extend(writes);
        commands.extend(self.meet(kernels, &neighbours, Meeting::Done)?);
        Ok(commands)
    }

    /// The mark goes with the last part, where that can take it along.
    fn marked(&self, kernels: &Kernels, mut parts: Vec<Part>) -> Result<Vec<Command>, CudaFailure> {
        let last = parts.pop();
        let mut commands = Vec::with_capacity(parts.len() + 2);
        for part in parts {
            commands.push(match part {
                Part::Command(command) => command,
                Part::Exchange(copies) => {
                    Command::kernel(kernels.exchange(&copies, &self.partners()?, None)?)
                }
                Part::Dispatch(shape, given) => {
                    Command::kernel(kernels.dispatch(&given, shape, &self.partners()?, None)?)
                }
            });
        }
        match last {
            Some(Part::Exchange(copies)) => {
                let launch = kernels.exchange(&copies, &self.partners()?, Some(self.done))?;
                commands.push(Command::kernel(launch));
            }
            Some(Part::Dispatch(shape, given)) => {
                let launch = kernels.dispatch(&given, shape, &self.partners()?, Some(self.done))?;
                commands.push(Command::kernel(launch));
            }
            Some(Part::Command(Command::Memory(operations))) => {
                commands.push(Command::Memory(operations.then(MemoryOperations::mark(self.done))));
            }
            Some(Part::Command(command)) => {
                commands.extend([command, Command::Memory(MemoryOperations::mark(self.done))]);
            }
            None => commands.push(Command::Memory(MemoryOperations::mark(self.done))),
        }
        Ok(commands)
    }

    /// The neighbours of the team, as ranks of the world.
    fn neighbours(&self) -> Vec<RankId> {
        let neighbours = self.view.hosts.neighbours(self.view.rank);
        neighbours.map(|neighbour| self.team.in_world(neighbour)).collect()
    }

    fn partners(&self) -> Result<Vec<Partner>, CudaFailure> {
        let neighbours = self.neighbours();
        let ready = self.shared(&neighbours, Meeting::Ready)?;
        let done = self.shared(&neighbours, Meeting::Done)?;
        let partner = |(ready, done): (Shared, Shared)| Partner {
            ready_there: ready.there,
            ready_here: ready.here,
            done_there: done.there,
            done_here: done.here,
        };
        Ok(ready.into_iter().zip(done).map(partner).collect())
    }

    fn meet(
        &self,
        kernels: &Kernels,
        neighbours: &[RankId],
        meeting: Meeting,
    ) -> Result<Vec<Command>, CudaFailure> {
        let words = self.shared(neighbours, meeting)?;
        let mut waits = MemoryOperations::await_signals(&words);
        let mut commands = Vec::new();
        if self.copies_signals {
            let one = self.signals().one(self.view.own_signals());
            commands = self.carried(kernels, copied(one, &words))?;
        } else if self.has_engines() {
            waits = MemoryOperations::meet(&words);
        } else {
            commands.push(Command::Memory(MemoryOperations::signal(&words)));
        }
        commands.extend(self.on_host.clone().map(Command::MeetOnHost));
        commands.push(Command::Memory(waits));
        Ok(commands)
    }

    /// Whether every rank has a GPU of its own, whose engines may wait for peers.
    const fn has_engines(&self) -> bool {
        self.on_host.is_none()
    }

    /// Copies to neighbours, in the order of these.
    fn carried(&self, kernels: &Kernels, copies: Vec<CopyOperand>) -> Result<Vec<Command>, CudaFailure> {
        if !self.has_engines() {
            return by_kernel(kernels, copies);
        }
        let owner = |address| self.view.owner(address);
        Ok(StridedCopy::of(copies, owner).into_iter().map(Command::Push).collect())
    }

    fn shared(&self, neighbours: &[RankId], meeting: Meeting) -> Result<Vec<Shared>, CudaFailure> {
        let rank = self.team.in_world(self.view.rank);
        self.signals().shared(rank, neighbours, self.homes, self.communication.communicator, meeting)
    }

    fn signals(&self) -> Signals {
        Signals::new(self.homes.len())
    }
}

/// Whether the collective library sums gradients in this type. It would sum bf16 in bf16, so only f32 is left
/// to it.
fn sums_by_itself(transport: Transport, reduce: Reduce, element: ElementType) -> bool {
    (transport, reduce, element) == (Transport::Nccl, Reduce::Nccl, ElementType::F32)
}

/// What a rank does in a collective, and in what order.
fn stages(view: &View<'_>, transport: Transport, pull: &Pull) -> Vec<Stage> {
    // A rank that is alone has no communicator, and no neighbour either.
    let transport = if view.homes.len() == 1 { Transport::Peer } else { transport };
    match (transport, pull) {
        (Transport::Peer, Pull::Gather(moves)) => peer::gather(view, &whole(moves)),
        (Transport::Peer, Pull::Chunk(pieces)) => peer::gather(view, pieces),
        (Transport::Peer, Pull::Concatenate(part)) => peer::concatenate(view, *part),
        (Transport::Peer, Pull::ExchangeGradient(parts)) => peer::exchange(view, parts),
        (Transport::Peer, Pull::AllToAll(slices)) => with_own(view, &[*slices], peer::exchange),
        // With several ranks the library sums, or it is refused before its stages are requested.
        (Transport::Peer, Pull::ReduceScatter(_, parts)) => alone(view, parts),
        (Transport::Nccl, Pull::Gather(moves)) => nccl::gather(view, moves),
        (Transport::Nccl, Pull::Chunk(pieces)) => nccl::gather_pieces(view, pieces),
        (Transport::Nccl, Pull::Concatenate(part)) => nccl::gather(view, &[*part]),
        (Transport::Nccl, Pull::ReduceScatter(_, parts)) => nccl::sum_scatter(view, parts),
        (Transport::Nccl, Pull::ExchangeGradient(parts)) => nccl::exchange(view, parts),
        (Transport::Nccl, Pull::AllToAll(slices)) => with_own(view, &[*slices], nccl::exchange),
        (_, Pull::Filled(filled)) => filled_rows(view, transport, filled),
        (_, Pull::SumSlices(element, part)) => combine::sum_slices(view, transport, *element, *part),
        (_, Pull::AllReduce(combination, division, moves)) => {
            combine::all_reduce(view, transport, *combination, *division, moves)
        }
    }
}

/// Planes in one piece each.
fn whole(moves: &[Move]) -> Vec<PlanePiece> {
    let piece = |part: &Move| PlanePiece { from: part.from, to: part.to, first: 0, stride: part.from.bytes };
    moves.iter().map(piece).collect()
}

/// Slots up to their counts, or whole where nothing on the way reads counts.
fn filled_rows(view: &View<'_>, transport: Transport, filled: &Filled) -> Vec<Stage> {
    let mut stages = match transport {
        Transport::Peer if view.hosts.count() == 1 => vec![peer::dispatch(view, filled)],
        Transport::Peer => whole_slots(view, filled, peer::exchange),
        Transport::Nccl => whole_slots(view, filled, nccl::exchange),
    };
    if filled.spoiled {
        let Filled { slices, taken, capacity, row, .. } = *filled;
        let (first, counts) = (view.own().plus(slices.received.offset), view.own().plus(taken.offset));
        let shape = SlotShape { slots: taken.bytes / size_of::<u32>(), capacity, row };
        stages.push(Stage::Spoil { first, counts, shape });
    }
    stages
}

/// Slots as they are, filled or not, and their counts: what goes where nothing on the way reads counts. Those that
/// arrive may be anything where a call of another rank has failed, and closures go by them all the same.
fn whole_slots(
    view: &View<'_>,
    filled: &Filled,
    exchange: fn(&View<'_>, &[Slices]) -> Vec<Stage>,
) -> Vec<Stage> {
    let parts: Vec<Slices> = std::iter::once(filled.slices).chain(filled.counts()).collect();
    let mut stages = with_own(view, &parts, exchange);
    if !filled.known {
        let counts = view.own().plus(filled.taken.offset);
        let slots = filled.taken.bytes / size_of::<u32>();
        stages.push(Stage::Lower { counts, slots, capacity: filled.capacity });
    }
    stages
}

/// An exchange in which the rank's own slices have a place among the others, and get there by a kernel.
fn with_own(
    view: &View<'_>,
    parts: &[Slices],
    exchange: fn(&View<'_>, &[Slices]) -> Vec<Stage>,
) -> Vec<Stage> {
    let (own, rank) = (view.own(), view.rank.index());
    let copy = |slices: &Slices| CopyOperand {
        from: own.plus(slices.given(rank)),
        to: own.plus(slices.received_at(rank, rank)),
        bytes: slices.bytes,
    };
    let mut stages = vec![Stage::Place(parts.iter().map(copy).collect())];
    stages.extend(exchange(view, parts));
    stages
}

/// The sum over one rank.
fn alone(view: &View<'_>, parts: &[Scatter]) -> Vec<Stage> {
    let own = view.own();
    let copy = |Move { from, to }: Move| CopyOperand {
        from: own.plus(from.offset),
        to: own.plus(to.offset),
        bytes: from.bytes,
    };
    vec![Stage::Place(parts.iter().map(|part| copy(part.own)).collect())]
}

fn by_kernel(kernels: &Kernels, mut copies: Vec<CopyOperand>) -> Result<Vec<Command>, CudaFailure> {
    copies.retain(|copy| copy.bytes > 0 && copy.from != copy.to);
    Ok(if copies.is_empty() { Vec::new() } else { vec![Command::kernel(kernels.copy(&copies)?)] })
}
