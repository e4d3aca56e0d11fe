//! Neighbours' memory written inside of a host, and NCCL between the counterparts of several hosts.
//!
//! Laws:
//! - On one host nothing goes by NCCL. Over several, whatever leaves a host leaves it once and goes from a rank to
//!   its counterpart: what is gathered is spread on each host by neighbours, what is summed comes together at the
//!   counterpart of its owner first, each contribution for itself (no sums on the way, which would round in another order).
//! - In the landing, a value of rank r waits at number r; behind these numbers, and in reductions alone, wait what neighbours gave for
//!   other hosts, host by host from the next one on (the *relay*). Nobody writes a number twice in one collective.
//! - A rank sends what neighbours pushed after the meeting behind their pushes, and says that it may be written
//!   again only in the next collective, whose first meeting stands behind its sends in the stream.

use super::{Carrier, Stage, View};
use crate::backend::cuda::DeviceAddress;
use crate::backend::cuda::kernels::{CombineOperand, CopyOperand};
use crate::backend::cuda::landing::{relayed, stride};
use crate::backend::cuda::nccl::Transfer;
use crate::backend::local::{Move, Scatter};
use crate::format::ElementType;
use crate::id::RankId;
use crate::op::Reduction;

/// Every other rank's part, at its place: a rank gets the parts of its counterparts, and gives its column to its neighbours.
pub(super) fn gather(view: &View<'_>, moves: &[Move]) -> Vec<Stage> {
    let (own, hosts) = (view.own(), view.hosts);
    let place = |part: &Move, rank: RankId| part.to.offset + part.from.bytes * rank.index();
    let copy = |part: &Move, of: RankId, to: RankId| CopyOperand {
        from: own.plus(if of == view.rank { part.from.offset } else { place(part, of) }),
        to: view.arena(to).plus(place(part, of)),
        bytes: part.from.bytes,
    };
    let mut exchange = Vec::new();
    for (peer, part) in
        hosts.counterparts(view.rank).flat_map(|peer| moves.iter().map(move |part| (peer, part)))
    {
        let bytes = part.from.bytes;
        if bytes > 0 {
            exchange.push(Transfer::Send { from: own.plus(part.from.offset), bytes, peer });
            exchange.push(Transfer::Receive { to: own.plus(place(part, peer)), bytes, peer });
        }
    }
    let mut pushes = Vec::new();
    for neighbour in hosts.neighbours(view.rank) {
        for part in moves {
            pushes.extend(hosts.column(view.rank).map(|of| copy(part, of, neighbour)));
        }
    }
    vec![Stage::Exchange(exchange), Stage::Push(Carrier::Engines, pushes)]
}

/// The same, and the rank's own part beside the others.
pub(super) fn records(view: &View<'_>, records: Move) -> Vec<Stage> {
    let Move { from, to } = records;
    let own = view.own();
    let place = own.plus(to.offset + from.bytes * view.rank.index());
    let placed = CopyOperand { from: own.plus(from.offset), to: place, bytes: from.bytes };
    let mut stages = vec![Stage::Place(vec![placed])];
    stages.extend(gather(view, &[records]));
    stages
}

/// This rank's slices of everybody's sources, summed: a neighbour gets what is for its column, a counterpart what this host has for it.
pub(super) fn reduce_scatter(view: &View<'_>, element: ElementType, parts: &[Scatter]) -> Vec<Stage> {
    let (own, hosts) = (view.own(), view.hosts);
    let (mut pushes, mut exchange, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    let mut ahead = 0;
    for part in parts {
        let bytes = part.own.from.bytes;
        let slice = |rank: RankId| own.plus(part.source.offset + bytes * rank.index());
        // Where `holder`, of this host, has what rank `from` of this host gives for rank `to` of the holder's column.
        let landed = |holder: RankId, from: RankId, to: RankId| match hosts.distance(holder, to) {
            0 => view.landed(holder, ahead, bytes, from.index()),
            distance => view.landed(
                holder,
                ahead,
                bytes,
                hosts.ranks() + (distance - 1) * hosts.each() + hosts.place(from),
            ),
        };
        if bytes > 0 {
            for neighbour in hosts.neighbours(view.rank) {
                pushes.extend(hosts.column(neighbour).map(|to| CopyOperand {
                    from: slice(to),
                    to: landed(neighbour, view.rank, to),
                    bytes,
                }));
            }
            for peer in hosts.counterparts(view.rank) {
                for place in 0..hosts.each() {
                    let given = hosts.rank(hosts.host(view.rank), place);
                    let from = if given == view.rank { slice(peer) } else { landed(view.rank, given, peer) };
                    let theirs = hosts.rank(hosts.host(peer), place);
                    let to = view.landed(view.rank, ahead, bytes, theirs.index());
                    exchange.push(Transfer::Send { from, bytes, peer });
                    exchange.push(Transfer::Receive { to, bytes, peer });
                }
            }
        }
        sums.push(CombineOperand {
            sources: arrived(view, slice(view.rank), ahead, bytes),
            to: own.plus(part.own.to.offset),
            elements: bytes / element.bytes(),
        });
        ahead += stride(bytes) * (hosts.ranks() + relayed(hosts));
    }
    vec![
        Stage::Push(Carrier::Engines, pushes),
        Stage::Exchange(exchange),
        Stage::Combine(Reduction::Sum, element, sums),
    ]
}

/// Everybody's values, combined on every rank alike: gathered into the landing.
pub(super) fn all_reduce(view: &View<'_>, reduction: Reduction, moves: &[Move]) -> Vec<Stage> {
    let (own, hosts) = (view.own(), view.hosts);
    let (mut exchange, mut pushes, mut reductions) = (Vec::new(), Vec::new(), Vec::new());
    let mut ahead = 0;
    for part in moves {
        let (from, bytes) = (own.plus(part.from.offset), part.from.bytes);
        let landed = |holder: RankId, of: RankId| view.landed(holder, ahead, bytes, of.index());
        if bytes > 0 {
            for peer in hosts.counterparts(view.rank) {
                exchange.push(Transfer::Send { from, bytes, peer });
                exchange.push(Transfer::Receive { to: landed(view.rank, peer), bytes, peer });
            }
            for neighbour in hosts.neighbours(view.rank) {
                pushes.extend(hosts.column(view.rank).map(|of| CopyOperand {
                    from: if of == view.rank { from } else { landed(view.rank, of) },
                    to: landed(neighbour, of),
                    bytes,
                }));
            }
        }
        reductions.push(CombineOperand {
            sources: arrived(view, from, ahead, bytes),
            to: own.plus(part.to.offset),
            elements: bytes / size_of::<f32>(),
        });
        ahead += stride(bytes) * hosts.ranks();
    }
    vec![
        Stage::Exchange(exchange),
        Stage::Push(Carrier::Kernel, pushes),
        Stage::Combine(reduction, ElementType::F32, reductions),
    ]
}

/// Everybody's values of `bytes` bytes, in rank order: this rank's at `own`, the others' in its landing.
fn arrived(view: &View<'_>, own: DeviceAddress, ahead: usize, bytes: usize) -> Vec<DeviceAddress> {
    let landed = |rank: RankId| view.landed(view.rank, ahead, bytes, rank.index());
    view.ranks().map(|rank| if rank == view.rank { own } else { landed(rank) }).collect()
}
