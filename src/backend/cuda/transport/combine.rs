//! Values of all ranks combined on every rank alike, by whatever transport.
//!
//! Laws:
//! - An element is combined in rank order by one kernel, on every rank or on one for all ([`Division`]), so its bits
//!   do not depend on which.
//! - Slices land in the target, each where its giver's own slice would be; the rank's own is read where it was. So the
//!   kernel writes the only slice of the target that it does not read, and nothing waits in the landing.
//! - Outcomes are written to others only after the meeting that follows the kernel: by then every rank has read what
//!   its target held before.
//! - What is left over behind the slices goes whole, and first, in a part of the landing of its own.

use super::{Stage, View, nccl, peer, stages};
use crate::backend::cuda::kernels::CombineOperand;
use crate::backend::cuda::landing::stride;
use crate::backend::cuda::options::Transport;
use crate::backend::local::{Move, Pull, Slices};
use crate::format::ElementType;
use crate::layout::Region;
use crate::op::{Division, Reduction};

pub(super) fn all_reduce(
    view: &View<'_>,
    transport: Transport,
    reduction: Reduction,
    division: Division,
    moves: &[Move],
) -> Vec<Stage> {
    let (slices, whole) = divided(division, moves);
    let mut all = match transport {
        _ if whole.is_empty() => Vec::new(),
        Transport::Peer => peer::all_reduce(view, reduction, &whole),
        Transport::Nccl => nccl::all_reduce(view, reduction, &whole),
    };
    if !slices.is_empty() {
        let landed: usize = whole.iter().map(|part| stride(part.from.bytes) * view.hosts.ranks()).sum();
        let behind = View { landing: view.landing + landed, ..*view };
        let combined = slices.iter().map(|part| own_slice(view, part)).collect();
        let given = slices.iter().map(|part| given(view, part)).collect();
        all.extend(stages(&behind, transport, &Pull::ExchangeGradient(slices)));
        all.push(Stage::Combine(reduction, combined));
        all.extend(stages(&behind, transport, &Pull::Gather(given)));
    }
    all
}

/// What each rank combines for all, from every source to its place in the target, and what every rank combines by
/// itself.
fn divided(division: Division, moves: &[Move]) -> (Vec<Slices>, Vec<Move>) {
    let (mut slices, mut whole) = (Vec::new(), Vec::new());
    for Move { from, to } in moves {
        let (slice, rest) = (division.slice(from.bytes), division.rest(from.bytes));
        let all = from.bytes - rest;
        let first = |region: &Region| Region { offset: region.offset, bytes: all };
        let behind = |region: &Region| Region { offset: region.offset + all, bytes: rest };
        if slice > 0 {
            slices.push(Slices { source: first(from), landed: first(to), with_own: true, bytes: slice });
        }
        if rest > 0 || slice == 0 {
            whole.push(Move { from: behind(from), to: behind(to) });
        }
    }
    (slices, whole)
}

/// What this rank combines for all.
fn own_slice(view: &View<'_>, part: &Slices) -> CombineOperand {
    let (own, rank) = (view.own(), view.rank.index());
    let source = |giver: usize| match giver == rank {
        true => own.plus(part.given(rank)),
        false => own.plus(part.landing(giver, rank)),
    };
    CombineOperand {
        sources: view.ranks().map(|giver| source(giver.index())).collect(),
        to: own.plus(part.landing(rank, rank)),
        elements: part.bytes / ElementType::F32.bytes(),
    }
}

/// From this rank's slice of the target to its place in every target.
const fn given(view: &View<'_>, part: &Slices) -> Move {
    let offset = part.landing(view.rank.index(), view.rank.index());
    Move { from: Region { offset, bytes: part.bytes }, to: part.landed }
}
