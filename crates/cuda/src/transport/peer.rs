//! Writes to neighbours' memory inside a host, and NCCL between the counterparts of several hosts.
//!
//! Laws:
//! - On one host nothing goes by NCCL. Over several, whatever leaves a host leaves it once and goes from a
//!   rank to its counterpart. What is gathered is spread on each host by neighbours. What is to be summed
//!   first comes together at the counterpart of its owner, each contribution by itself (no sums on the way,
//!   which would round in another order).
//! - In the receive buffer of an all-reduce, the value of rank r waits at number r. The receive buffer of an exchange
//!   holds what neighbours gave for other hosts, host by host, starting with the next one (the *relay*). No number is
//!   written twice in one collective.
//! - A rank sends what neighbours pushed after the meeting that follows their pushes. It says that it may be
//!   written again only in the next collective, whose first meeting comes after its sends in the stream.

use super::communicator::Transfer;
use super::receive_buffers::{relayed, stride};
use super::{Carrier, Stage, View, whole};
use crate::DeviceAddress;
use crate::kernels::{CombineOperand, CopyOperand, GivenOperand, SlotShape};
use warpweft_backend::local::{Combination, Filled, Move, PlanePiece, Slices};
use warpweft_base::id::RankId;
use warpweft_plan::op::Reduction;

/// Bytes of every other rank's part, at their place: a rank gets those of its counterparts, and gives its
/// column to its neighbours.
pub(super) fn gather(view: &View<'_>, pieces: &[PlanePiece]) -> Vec<Stage> {
    let (own, hosts) = (view.own(), view.hosts);
    let place =
        |piece: &PlanePiece, rank: RankId| piece.to.offset + piece.first + piece.stride * rank.index();
    let copy = |piece: &PlanePiece, of: RankId, to: RankId| CopyOperand {
        from: own.plus(if of == view.rank { piece.from.offset } else { place(piece, of) }),
        to: view.arena(to).plus(place(piece, of)),
        bytes: piece.from.bytes,
    };
    let mut exchange = Vec::new();
    for (peer, piece) in
        hosts.counterparts(view.rank).flat_map(|peer| pieces.iter().map(move |piece| (peer, piece)))
    {
        let bytes = piece.from.bytes;
        if bytes > 0 {
            exchange.push(Transfer::Send { from: own.plus(piece.from.offset), bytes, peer });
            exchange.push(Transfer::Receive { to: own.plus(place(piece, peer)), bytes, peer });
        }
    }
    let mut pushes = Vec::new();
    for neighbour in hosts.neighbours(view.rank) {
        for piece in pieces {
            pushes.extend(hosts.column(view.rank).map(|of| copy(piece, of, neighbour)));
        }
    }
    vec![Stage::Exchange(exchange), Stage::Push(Carrier::Engines, pushes)]
}

/// The same, with the rank's own part among the others.
pub(super) fn concatenate(view: &View<'_>, part: Move) -> Vec<Stage> {
    let Move { from, to } = part;
    let own = view.own();
    let place = own.plus(to.offset + from.bytes * view.rank.index());
    let placed = CopyOperand { from: own.plus(from.offset), to: place, bytes: from.bytes };
    let mut stages = vec![Stage::Place(vec![placed])];
    stages.extend(gather(view, &whole(&[part])));
    stages
}

/// This rank's slices of all ranks' sources into their slot: a neighbour gets what is for its column, a
/// counterpart what this host has for it.
pub(super) fn exchange(view: &View<'_>, parts: &[Slices]) -> Vec<Stage> {
    let (own, hosts) = (view.own(), view.hosts);
    let (mut pushes, mut transfers) = (Vec::new(), Vec::new());
    let mut ahead = 0;
    for part in parts.iter().filter(|part| part.bytes > 0) {
        let bytes = part.bytes;
        let slice = |taker: RankId| own.plus(part.given(taker.index()));
        let slot = |giver: RankId, taker: RankId| {
            view.arena(taker).plus(part.received_at(giver.index(), taker.index()))
        };
        // Where `holder`, of this host, has what rank `giver` of this host has for rank `taker` of the
        // holder's column.
        let given = |holder: RankId, giver: RankId, taker: RankId| match hosts.distance(holder, taker) {
            0 => slot(giver, taker),
            distance => {
                view.received(holder, ahead, bytes, (distance - 1) * hosts.each() + hosts.place(giver))
            }
        };
        for neighbour in hosts.neighbours(view.rank) {
            pushes.extend(hosts.column(neighbour).map(|taker| CopyOperand {
                from: slice(taker),
                to: given(neighbour, view.rank, taker),
                bytes,
            }));
        }
        for peer in hosts.counterparts(view.rank) {
            for place in 0..hosts.each() {
                let giver = hosts.rank(hosts.host(view.rank), place);
                let from = if giver == view.rank { slice(peer) } else { given(view.rank, giver, peer) };
                let theirs = hosts.rank(hosts.host(peer), place);
                transfers.push(Transfer::Send { from, bytes, peer });
                transfers.push(Transfer::Receive { to: slot(theirs, view.rank), bytes, peer });
            }
        }
        ahead += stride(bytes) * relayed(hosts);
    }
    vec![Stage::Push(Carrier::Engines, pushes), Stage::Exchange(transfers)]
}

/// The filled rows of this rank's slots to all ranks of one host, from the next one on, itself last.
pub(super) fn dispatch(view: &View<'_>, filled: &Filled) -> Stage {
    let Filled { slices, slots, capacity, row, .. } = *filled;
    let (own, giver) = (view.own(), view.rank.index());
    let given = |taker: RankId| GivenOperand {
        from: own.plus(slices.given(taker.index())),
        to: view.arena(taker).plus(slices.received_at(giver, taker.index())),
        counts: own.plus(filled.counts_at(filled.given, taker.index()).offset),
        taken: match filled.known {
            true => DeviceAddress::NULL,
            false => view.arena(taker).plus(filled.counts_at(filled.taken, giver).offset),
        },
    };
    let takers = view.others().chain(std::iter::once(view.rank));
    Stage::Dispatch(SlotShape { slots, capacity, row }, takers.map(given).collect())
}

/// The largest maximum that a kernel brings, whatever it calls small: more than the amaxes of 10,000 weights. A buffer
/// that a program compares over ranks may be larger.
const FEW_BYTES: usize = 64 << 10;

/// All ranks' values, combined by every rank: gathered into the receive buffer.
pub(super) fn all_reduce(view: &View<'_>, combination: Combination, moves: &[Move]) -> Vec<Stage> {
    let (own, hosts) = (view.own(), view.hosts);
    let (mut exchange, mut pushes, mut reductions) = (Vec::new(), Vec::new(), Vec::new());
    let mut ahead = 0;
    for part in moves {
        let (from, bytes) = (own.plus(part.from.offset), part.from.bytes);
        let received = |holder: RankId, of: RankId| view.received(holder, ahead, bytes, of.index());
        if bytes > 0 {
            for peer in hosts.counterparts(view.rank) {
                exchange.push(Transfer::Send { from, bytes, peer });
                exchange.push(Transfer::Receive { to: received(view.rank, peer), bytes, peer });
            }
            for neighbour in hosts.neighbours(view.rank) {
                pushes.extend(hosts.column(view.rank).map(|of| CopyOperand {
                    from: if of == view.rank { from } else { received(view.rank, of) },
                    to: received(neighbour, of),
                    bytes,
                }));
            }
        }
        reductions.push(CombineOperand {
            sources: arrived(view, from, ahead, bytes),
            to: own.plus(part.to.offset),
            elements: bytes / combination.element.bytes(),
        });
        ahead += stride(bytes) * hosts.ranks();
    }
    let bytes: usize = moves.iter().map(|part| part.from.bytes).sum();
    let carrier = match combination.reduction {
        Reduction::Max if bytes <= FEW_BYTES => Carrier::Kernel,
        Reduction::Max | Reduction::Sum => Carrier::Engines,
    };
    vec![Stage::Exchange(exchange), Stage::Push(carrier, pushes), Stage::Combine(combination, reductions)]
}

/// All ranks' values of `bytes` bytes, in rank order: this rank's at `own`, the others' in its receive buffer.
fn arrived(view: &View<'_>, own: DeviceAddress, ahead: usize, bytes: usize) -> Vec<DeviceAddress> {
    let received = |rank: RankId| view.received(view.rank, ahead, bytes, rank.index());
    view.ranks().map(|rank| if rank == view.rank { own } else { received(rank) }).collect()
}
