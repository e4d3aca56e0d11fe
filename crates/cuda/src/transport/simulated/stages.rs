//! The stages of a collective on one rank: work without a multiprocessor, and the transfers between ranks.

use super::{Memory, home, hosts};
use crate::DeviceAddress;
use crate::kernels::{CopyOperand, GivenOperand, SlotShape};
use crate::options::Transport;
use crate::transport::communicator::Transfer;
use crate::transport::receive_buffers::needed;
use crate::transport::signal::Home;
use crate::transport::strided_copy::StridedCopy;
use crate::transport::{Carrier, Stage, View, stages};
use crate::world::hosts::Hosts;
use crate::world::placement::Network;
use crate::world::team::Team;
use warpweft_backend::local::{Combination, Filled, Move, PlanePiece, Pull, Slices};
use warpweft_base::id::RankId;
use warpweft_plan::layout::Region;
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{Division, Reduction};

const SUM: Combination = Combination::of_f32(Reduction::Sum);

fn slices() -> Slices {
    Slices {
        source: Region { offset: 0, bytes: 4 * 256 },
        received: Region { offset: 1024, bytes: 3 * 256 },
        with_own: false,
        bytes: 256,
    }
}

/// What needs no multiprocessor waits for none: peers of one host exchange gradients by meetings and engines
/// alone.
#[test]
fn on_one_host_no_kernel_moves_a_gradient() {
    let homes: Vec<_> = (0..4).map(home).collect();
    let view = View { rank: RankId::new(2), homes: &homes, hosts: hosts(1, 4), receive_buffer: 0 };
    let stages = stages(&view, Transport::Peer, &Pull::ExchangeGradient(vec![slices(), slices()]));
    let [Stage::Push(Carrier::Engines, pushes), Stage::Exchange(transfers)] = &stages[..] else {
        panic!("{stages:?}")
    };
    assert!(transfers.is_empty(), "and none by NCCL");
    // Each neighbour's slice, to where the neighbour has rank 2 among the others.
    let push = |to: usize, place: usize| CopyOperand {
        from: home(2).arena.plus(256 * to),
        to: home(to).arena.plus(1024 + 256 * place),
        bytes: 256,
    };
    let once = [push(3, 2), push(0, 1), push(1, 1)];
    assert_eq!(*pushes, [once, once].concat());
    assert_eq!(
        needed(&Pull::ExchangeGradient(vec![slices()]), hosts(1, 4)),
        0,
        "nothing lands beside the arena"
    );
}

/// Whether the rest of the slots is left alone depends on it: a kernel alone reads counts.
#[test]
fn on_one_host_rows_with_counts_go_by_one_kernel_that_reads_them_and_between_hosts_in_whole_slots() {
    let region = |offset, bytes| Region { offset, bytes };
    let slices =
        Slices { source: region(0, 4 * 256), received: region(1024, 4 * 256), with_own: true, bytes: 256 };
    let (given, taken) = (region(2048, 32), region(2304, 32));
    let filled =
        Filled { slices, given, taken, slots: 2, capacity: 4, row: 32, known: false, spoiled: false };
    let homes: Vec<_> = (0..4).map(home).collect();
    let view = View { rank: RankId::new(2), homes: &homes, hosts: Hosts::one(4), receive_buffer: 0 };
    let found = stages(&view, Transport::Peer, &Pull::Filled(filled));
    let to = |taker: usize| GivenOperand {
        from: home(2).arena.plus(256 * taker),
        to: home(taker).arena.plus(1024 + 256 * 2),
        counts: home(2).arena.plus(2048 + 8 * taker),
        taken: home(taker).arena.plus(2304 + 8 * 2),
    };
    let [Stage::Dispatch(shape, operands)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(*shape, SlotShape { slots: 2, capacity: 4, row: 32 });
    assert_eq!(*operands, [to(3), to(0), to(1), to(2)]);
    let back = Pull::Filled(Filled { known: true, ..filled });
    let found = stages(&view, Transport::Peer, &back);
    let [Stage::Dispatch(_, operands)] = &found[..] else { panic!("{found:?}") };
    assert!(operands.iter().all(|given| given.taken == DeviceAddress::NULL), "they know their counts");
    assert_eq!(needed(&Pull::Filled(filled), Hosts::one(4)), 0);
    // A neighbour's slots and counts wait here for the other host, 256 bytes each.
    assert_eq!(needed(&Pull::Filled(filled), hosts(2, 2)), 2 * (256 + 256));
    assert_eq!(needed(&back, hosts(2, 2)), 2 * 256);
    let found = stages(&view, Transport::Nccl, &Pull::Filled(filled));
    let [Stage::Place(own), Stage::Exchange(transfers), Stage::Lower { counts, slots, capacity }] =
        &found[..]
    else {
        panic!("{found:?}")
    };
    assert_eq!((*counts, *slots, *capacity), (home(2).arena.plus(2304), 8, 4));
    assert_eq!(own.iter().map(|copy| copy.bytes).collect::<Vec<_>>(), [256, 8]);
    assert_eq!(transfers.len(), 2 * 2 * 3);
}

/// Amaxes are in the way of the next cast, and few; a buffer of any size is like other large transfers.
#[test]
fn a_maximum_of_few_values_goes_by_a_kernel_and_one_of_many_by_engines() {
    let homes: Vec<_> = (0..4).map(home).collect();
    let view = View { rank: RankId::new(2), homes: &homes, hosts: Hosts::one(4), receive_buffer: 0 };
    for (reduction, bytes, expected) in [
        (Reduction::Max, 4, Carrier::Kernel),
        (Reduction::Max, 64 << 10, Carrier::Kernel),
        (Reduction::Max, (64 << 10) + 4, Carrier::Engines),
        (Reduction::Sum, 4, Carrier::Engines),
    ] {
        let region = |offset| Region { offset, bytes };
        let moves = vec![Move { from: region(0), to: region(1 << 20) }];
        let stages = stages(
            &view,
            Transport::Peer,
            &Pull::AllReduce(Combination::of_f32(reduction), Division::of([bytes].into_iter(), 4), moves),
        );
        let carriers: Vec<Carrier> = (stages.iter())
            .filter_map(|stage| if let Stage::Push(carrier, _) = stage { Some(*carrier) } else { None })
            .collect();
        assert!(carriers == [expected], "{reduction:?} of {bytes} bytes: {stages:?}");
    }
}

/// Weights of one shape travel as rows: one copy to each neighbour, within the memory of each.
#[test]
fn parts_of_one_length_are_one_copy_to_each_neighbour() {
    let homes: Vec<_> = (0..4).map(home).collect();
    let view = View { rank: RankId::new(2), homes: &homes, hosts: hosts(1, 4), receive_buffer: 0 };
    let part = |number: usize| Slices {
        source: Region { offset: 8192 + 2048 * number, bytes: 4 * 256 },
        received: Region { offset: 1024 * number, bytes: 3 * 256 },
        with_own: false,
        bytes: 256,
    };
    let stages = stages(&view, Transport::Peer, &Pull::ExchangeGradient((0..3).map(part).collect()));
    let [Stage::Push(Carrier::Engines, pushes), Stage::Exchange(_)] = &stages[..] else {
        panic!("{stages:?}")
    };
    let rows = StridedCopy::of(pushes.clone(), |address| view.owner(address));
    let found: Vec<_> = rows
        .iter()
        .map(|rows| (Memory::place(rows.to).0, rows.count, rows.from_pitch, rows.to_pitch))
        .collect();
    assert_eq!(found, [(3, 3, 2048, 1024), (0, 3, 2048, 1024), (1, 3, 2048, 1024)]);
    // Memory that is not reached has no address, and words and receive buffer lie after the arena.
    let nowhere = Home {
        arena: DeviceAddress::NULL,
        signals: DeviceAddress::NULL,
        receive_buffer: DeviceAddress::NULL,
    };
    let some = [home(0), nowhere, home(2), nowhere];
    let view = View { rank: RankId::new(0), homes: &some, hosts: hosts(2, 2), receive_buffer: 0 };
    assert_eq!(view.owner(home(2).receive_buffer.plus(5)), Some(home(2).arena));
    assert_eq!(view.owner(home(0).arena), Some(home(0).arena));
}

/// The law that keeps gathers off multiprocessors: on one host there is nothing to exchange, and engines
/// write the peers' memory and no byte of the rank's own.
#[test]
fn on_one_host_a_gather_of_planes_launches_no_kernel() {
    let (hosts, each) = (Hosts::one(4), 256);
    let homes: Vec<_> = (0..4).map(home).collect();
    let from = Region { offset: 0, bytes: each };
    let moves = vec![Move { from, to: Region { offset: 1024, bytes: 4 * each } }; 2];
    for rank in 0..4 {
        let view = View { rank: RankId::at(rank), homes: &homes, hosts, receive_buffer: 0 };
        let mut pushed = 0;
        for stage in stages(&view, Transport::Peer, &Pull::Gather(moves.clone())) {
            match stage {
                Stage::Exchange(transfers) => assert!(transfers.is_empty(), "{transfers:?}"),
                Stage::Push(Carrier::Engines, copies) => {
                    assert!(copies.iter().all(|copy| Memory::place(copy.to).0 != rank));
                    pushed += copies.len();
                }
                other => panic!("{other:?} takes a multiprocessor"),
            }
        }
        assert_eq!(pushed, 3 * moves.len(), "each plane to each peer");
    }
}

/// Rank 1 of two hosts of two: rank 0 is its neighbour, rank 3 its counterpart.
#[test]
fn a_slice_for_another_host_goes_to_the_neighbour_that_shares_a_place_with_its_owner() {
    let hosts = hosts(2, 2);
    let null = DeviceAddress::NULL;
    let nowhere = Home { arena: null, signals: null, receive_buffer: null };
    let view =
        View { rank: RankId::new(1), homes: &[home(0), home(1), nowhere, nowhere], hosts, receive_buffer: 0 };
    let stages = stages(&view, Transport::Peer, &Pull::ExchangeGradient(vec![slices()]));
    let [Stage::Push(_, pushes), Stage::Exchange(transfers)] = &stages[..] else { panic!("{stages:?}") };
    let slice = |rank: usize| home(1).arena.plus(256 * rank);
    let slot = |holder: usize, place: usize| home(holder).arena.plus(1024 + 256 * place);
    // Numbers 0 and 1 wait for the holder's counterpart.
    let relay = |holder: usize, number: usize| home(holder).receive_buffer.plus(256 * number);
    let push = |from: usize, to| CopyOperand { from: slice(from), to, bytes: 256 };
    assert_eq!(*pushes, [push(0, slot(0, 0)), push(2, relay(0, 1))]);
    let sent: Vec<_> = (transfers.iter())
        .filter_map(|transfer| match transfer {
            Transfer::Send { from, peer, .. } => Some((*from, peer.index())),
            _ => None,
        })
        .collect();
    assert_eq!(sent, [(relay(1, 0), 3), (slice(3), 3)]);
    let received: Vec<_> = (transfers.iter())
        .filter_map(|transfer| match transfer {
            Transfer::Receive { to, peer, .. } => Some((*to, peer.index())),
            _ => None,
        })
        .collect();
    assert_eq!(received, [(slot(1, 1), 3), (slot(1, 2), 3)]);
}

/// Rank 3 of two replicas of two on one host: the twin in the other replica is rank 1, by every name.
#[test]
fn a_team_meets_its_own_ranks_and_no_others() {
    let mesh = Mesh::hybrid(4, 2).unwrap();
    let network = Network { transport: Transport::Peer, hosts: Hosts::one(4) };
    let team = Team::of(network, mesh, RankId::new(3), Group::Replicate);
    let homes: Vec<_> = team.iter().map(|rank| home(rank.index())).collect();
    let view = View { rank: team.own(), homes: &homes, hosts: team.hosts(), receive_buffer: 0 };
    let from = Region { offset: 0, bytes: 64 };
    let part = Move { from, to: Region { offset: 256, bytes: 64 } };
    let sum = Pull::AllReduce(SUM, Division::of([64].into_iter(), 2), vec![part]);
    let stages = stages(&view, Transport::Peer, &sum);
    let [Stage::Exchange(transfers), Stage::Push(Carrier::Engines, pushes), Stage::Combine(_, operands)] =
        &stages[..]
    else {
        panic!("{stages:?}")
    };
    assert!(transfers.is_empty());
    // Number 1 in its team, in whose receive buffer values lie by these numbers.
    let pushed = CopyOperand { from: home(3).arena, to: home(1).receive_buffer.plus(256), bytes: 64 };
    assert_eq!(*pushes, [pushed]);
    assert_eq!(operands[0].sources, [home(3).receive_buffer, home(3).arena], "in the order of replicas");
    assert_eq!(
        view.hosts.neighbours(view.rank).map(|one| team.in_world(one)).collect::<Vec<_>>(),
        [RankId::new(1)]
    );
}

/// Many bytes: a rank gets its slice of each, combines those where its target has them, and gives the outcome to each.
/// What does not divide goes with them, by way of the receive buffer.
#[test]
fn a_sum_in_slices_lands_in_its_target_and_brings_two_slices_of_each_peer() {
    let homes: Vec<_> = (0..4).map(home).collect();
    let view = View { rank: RankId::new(2), homes: &homes, hosts: Hosts::one(4), receive_buffer: 512 };
    let (division, bytes) = (Division::in_slices_of(16, 4), 4 * 256 + 8);
    let (from, to) = (Region { offset: 0, bytes }, Region { offset: 4096, bytes });
    let sum = Pull::AllReduce(SUM, division, vec![Move { from, to }]);
    let stages = stages(&view, Transport::Peer, &sum);
    let [
        Stage::Place(into),
        Stage::Push(Carrier::Engines, slices),
        Stage::Exchange(_),
        Stage::Combine(SUM, operands),
        Stage::Exchange(_),
        Stage::Push(Carrier::Engines, sums),
        Stage::Place(out),
    ] = &stages[..]
    else {
        panic!("{stages:?}")
    };
    let of = |copies: &[CopyOperand]| -> Vec<usize> { copies.iter().map(|copy| copy.bytes).collect() };
    assert_eq!((of(slices), of(sums)), ([[256; 3], [16; 3]].concat(), [256, 16].repeat(3)));
    // The value's own slice, and that of the string of 8 bytes and a pad.
    let received = |giver: usize| home(2).arena.plus(4096 + 256 * giver);
    assert_eq!(operands[0].sources, [received(0), received(1), home(2).arena.plus(256 * 2), received(3)]);
    assert_eq!(operands[0].to, received(2), "no rank's slice lands there");
    let (given, string) = (home(2).receive_buffer.plus(512), home(2).receive_buffer.plus(512 + 256));
    assert_eq!(operands[1].sources, [string, string.plus(16), given.plus(32), string.plus(48)]);
    assert_eq!(operands[1].to, string.plus(32));
    let copy = |from, to| CopyOperand { from, to, bytes: 8 };
    assert_eq!(*into, [copy(home(2).arena.plus(1024), given)]);
    assert_eq!(*out, [copy(string, home(2).arena.plus(4096 + 1024))]);
    assert_eq!(needed(&sum, Hosts::one(4)), 2 * 256);
}

/// A chunk is ranges of bytes, with no more meetings than a gather has.
#[test]
fn a_chunk_on_one_host_is_pushes_by_engines_alone() {
    let homes: Vec<_> = (0..3).map(home).collect();
    let view = View { rank: RankId::new(1), homes: &homes, hosts: Hosts::one(3), receive_buffer: 0 };
    let piece = PlanePiece {
        from: Region { offset: 13, bytes: 50 },
        to: Region { offset: 1024, bytes: 3 * 256 },
        first: 13,
        stride: 256,
    };
    let stages = stages(&view, Transport::Peer, &Pull::Chunk(vec![piece]));
    let [Stage::Exchange(transfers), Stage::Push(Carrier::Engines, pushes)] = &stages[..] else {
        panic!("{stages:?}")
    };
    assert!(transfers.is_empty());
    let push = |to: usize| CopyOperand {
        from: home(1).arena.plus(13),
        to: home(to).arena.plus(1024 + 256 + 13),
        bytes: 50,
    };
    assert_eq!(*pushes, [push(2), push(0)]);
}
