//! Everything by NCCL, among all ranks of a team.
//!
//! Law: gathers are NCCL's, except for pieces, which are not side by side and are sent one by one. Gradients
//! are exchanged contribution by contribution and summed elsewhere, unless NCCL is asked to sum. No memory of
//! a peer is addressed.

use super::communicator::Transfer;
use super::receive_buffers::stride;
use super::{Stage, View};
use crate::kernels::CombineOperand;
use warpweft_backend::local::{Combination, Move, PlanePiece, Scatter, Slices};
use warpweft_format::ElementType;

/// Every rank's part, one after the other; the rank's own comes along.
pub(super) fn gather(view: &View<'_>, moves: &[Move]) -> Vec<Stage> {
    let own = view.own();
    let parts = moves.iter().filter(|part| part.from.bytes > 0).map(|part| Transfer::AllGather {
        from: own.plus(part.from.offset),
        to: own.plus(part.to.offset),
        bytes: part.from.bytes,
    });
    vec![Stage::Exchange(parts.collect())]
}

/// Some bytes of every other rank's part, at their place.
pub(super) fn gather_pieces(view: &View<'_>, pieces: &[PlanePiece]) -> Vec<Stage> {
    let own = view.own();
    let mut transfers = Vec::new();
    for piece in pieces.iter().filter(|piece| piece.from.bytes > 0) {
        let bytes = piece.from.bytes;
        for peer in view.others() {
            let place = piece.to.offset + piece.first + piece.stride * peer.index();
            transfers.push(Transfer::Send { from: own.plus(piece.from.offset), bytes, peer });
            transfers.push(Transfer::Receive { to: own.plus(place), bytes, peer });
        }
    }
    vec![Stage::Exchange(transfers)]
}

/// This rank's slices of all ranks' f32 sources, summed in the library's order.
pub(super) fn sum_scatter(view: &View<'_>, parts: &[Scatter]) -> Vec<Stage> {
    let own = view.own();
    let sums = parts.iter().map(|part| Transfer::ReduceScatter {
        from: own.plus(part.source.offset),
        to: own.plus(part.own.to.offset),
        count: part.own.from.bytes / ElementType::F32.bytes(),
    });
    vec![Stage::Exchange(sums.collect())]
}

/// This rank's slices of all ranks' sources, straight into their slot.
pub(super) fn exchange(view: &View<'_>, parts: &[Slices]) -> Vec<Stage> {
    let (own, rank) = (view.own(), view.rank.index());
    let mut transfers = Vec::new();
    for part in parts.iter().filter(|part| part.bytes > 0) {
        let bytes = part.bytes;
        for peer in view.others() {
            transfers.push(Transfer::Send { from: own.plus(part.given(peer.index())), bytes, peer });
            transfers.push(Transfer::Receive {
                to: own.plus(part.received_at(peer.index(), rank)),
                bytes,
                peer,
            });
        }
    }
    vec![Stage::Exchange(transfers)]
}

/// All ranks' values, combined by every rank.
pub(super) fn all_reduce(view: &View<'_>, combination: Combination, moves: &[Move]) -> Vec<Stage> {
    let own = view.own();
    let (mut gathers, mut reductions) = (Vec::new(), Vec::new());
    let mut ahead = 0;
    for part in moves {
        let (from, bytes) = (own.plus(part.from.offset), part.from.bytes);
        // NCCL gathers without gaps.
        let to = view.received(view.rank, ahead, bytes, 0);
        if bytes > 0 {
            gathers.push(Transfer::AllGather { from, to, bytes });
        }
        reductions.push(CombineOperand {
            sources: view.ranks().map(|rank| to.plus(bytes * rank.index())).collect(),
            to: own.plus(part.to.offset),
            elements: bytes / combination.element.bytes(),
        });
        ahead += stride(bytes) * view.hosts.ranks();
    }
    vec![Stage::Exchange(gathers), Stage::Combine(combination, reductions)]
}
