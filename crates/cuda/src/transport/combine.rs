//! Values of all ranks combined, on every rank alike or on each its slice, by whatever transport.
//!
//! Laws:
//! - An element is combined in rank order by one kernel, on every rank or on one for all ([`Division`]), so its bits
//!   do not depend on which.
//! - Slices of a value land in its target, each where its giver's own slice would be; the rank's own is read where it
//!   was. So the kernel writes the only slice of the target that it does not read, and of such values nothing waits in
//!   the receive buffer to be combined.
//! - The string of what is left over is copied into the receive buffer, lands beside that, and is copied to its targets
//!   from there. What its pads hold does not matter.
//! - Outcomes reach another rank when it has read what its target held before: neighbours write them after a meeting
//!   that follows that rank's kernel, and what it receives by NCCL follows the kernel in its stream.

use super::receive_buffers::{self, stride, string};
use super::{Stage, View, nccl, peer, stages};
use crate::kernels::{CombineOperand, CopyOperand};
use crate::options::Transport;
use warpweft_backend::local::{Combination, Move, Pull, Slices};
use warpweft_format::ElementType;
use warpweft_plan::layout::Region;
use warpweft_plan::op::{Division, Reduction};

pub(super) fn all_reduce(
    view: &View<'_>,
    transport: Transport,
    combination: Combination,
    division: Division,
    moves: &[Move],
) -> Vec<Stage> {
    if !division.is_in_slices() {
        return match transport {
            Transport::Peer => peer::all_reduce(view, combination, moves),
            Transport::Nccl => nccl::all_reduce(view, combination, moves),
        };
    }
    let mut slices: Vec<_> = moves.iter().filter_map(|part| of_value(division, *part)).collect();
    let (of_string, into, out) = strung(view, division, moves);
    // Whatever is passed on for neighbours waits after the string.
    let after = View { receive_buffer: view.receive_buffer + string(division, moves), ..*view };
    slices.extend(of_string);
    let own = |part: &Slices| {
        let place = part.received_at(view.rank.index(), view.rank.index());
        own_slice(view, part, place, combination.element)
    };
    let combined = slices.iter().map(own).collect();
    let given = slices.iter().map(|part| given(view, part)).collect();
    let mut all = vec![Stage::Place(into)];
    all.extend(stages(&after, transport, &Pull::ExchangeGradient(slices)));
    all.push(Stage::Combine(combination, combined));
    all.extend(stages(&after, transport, &Pull::Gather(given)));
    all.push(Stage::Place(out));
    all
}

/// A reduce-scatter: this rank's slices of all ranks' values come into the receive buffer, and their sum to its target.
pub(super) fn sum_slices(
    view: &View<'_>,
    transport: Transport,
    element: ElementType,
    part: Move,
) -> Vec<Stage> {
    let bytes = part.to.bytes;
    let received = Region {
        offset: view.receive_buffer_from_arena(),
        bytes: bytes * view.hosts.ranks().saturating_sub(1),
    };
    let slices = Slices { source: part.from, received, with_own: false, bytes };
    let after =
        View { receive_buffer: view.receive_buffer + receive_buffers::slices(part, view.hosts), ..*view };
    let mut all = stages(&after, transport, &Pull::ExchangeGradient(vec![slices]));
    let sum = Combination { reduction: Reduction::Sum, element };
    all.push(Stage::Combine(sum, vec![own_slice(view, &slices, part.to.offset, element)]));
    all
}

/// The slices of a value that is cut by itself, from its source to its target.
fn of_value(division: Division, part: Move) -> Option<Slices> {
    let (bytes, all) = (division.slice(part.from.bytes), part.from.bytes - division.rest(part.from.bytes));
    let first = |region: Region| Region { offset: region.offset, bytes: all };
    let slices = Slices { source: first(part.from), received: first(part.to), with_own: true, bytes };
    (bytes > 0).then_some(slices)
}

/// The slices of the string, from one place in the receive buffer to another, and the copies into and out of it.
fn strung(
    view: &View<'_>,
    division: Division,
    moves: &[Move],
) -> (Option<Slices>, Vec<CopyOperand>, Vec<CopyOperand>) {
    let bytes = division.slice_of_string(moves.iter().map(|part| part.from.bytes));
    let all = bytes * view.hosts.ranks();
    let source = Region { offset: view.receive_buffer_from_arena(), bytes: all };
    let received = Region { offset: source.offset + stride(all), bytes: all };
    let (own, mut at) = (view.own(), 0);
    let (mut into, mut out) = (Vec::new(), Vec::new());
    for Move { from, to } in moves {
        let rest = division.rest(from.bytes);
        let cut = from.bytes - rest;
        let copy =
            |from: usize, to: usize| CopyOperand { from: own.plus(from), to: own.plus(to), bytes: rest };
        into.push(copy(from.offset + cut, source.offset + at));
        out.push(copy(received.offset + at, to.offset + cut));
        at += division.in_string(from.bytes);
    }
    let slices = Slices { source, received, with_own: true, bytes };
    ((bytes > 0).then_some(slices), into, out)
}

/// What this rank combines, into a place of its arena.
fn own_slice(view: &View<'_>, part: &Slices, to: usize, element: ElementType) -> CombineOperand {
    let (own, rank) = (view.own(), view.rank.index());
    let source = |giver: usize| match giver == rank {
        true => own.plus(part.given(rank)),
        false => own.plus(part.received_at(giver, rank)),
    };
    CombineOperand {
        sources: view.ranks().map(|giver| source(giver.index())).collect(),
        to: own.plus(to),
        elements: part.bytes / element.bytes(),
    }
}

/// From this rank's slice of the target to its place in every target.
const fn given(view: &View<'_>, part: &Slices) -> Move {
    let offset = part.received_at(view.rank.index(), view.rank.index());
    Move { from: Region { offset, bytes: part.bytes }, to: part.received }
}
