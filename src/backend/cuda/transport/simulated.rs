//! Every way on byte vectors: what ranks do of a collective fits together, and its outcome does not depend on the way.
//!
//! All ranks go through their stages in step. Within a stage everything is read before anything is written, no byte is
//! written twice, and none is written that another reads: so the outcome is the same in whatever order the ranks get on
//! between two stages. What leaves its host by another way than NCCL finds no memory.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{Carrier, Stage, stages};
use crate::backend::cuda::DeviceAddress;
use crate::backend::cuda::hosts::Hosts;
use crate::backend::cuda::kernels::CopyOperand;
use crate::backend::cuda::landing::needed;
use crate::backend::cuda::machine::Network;
use crate::backend::cuda::members::Members;
use crate::backend::cuda::nccl::Transfer;
use crate::backend::cuda::options::Transport;
use crate::backend::cuda::signal::Home;
use crate::backend::cuda::transport::View;
use crate::backend::local::{Move, Pull, Slices};
use crate::id::RankId;
use crate::layout::Region;
use crate::op::Reduction;
use crate::rendezvous::HostName;

/// Where the lane's part of the landing begins.
const LANDING: usize = 512;

/// Bytes of addresses of one rank; its landing begins in the middle.
const SPACE: u64 = 1 << 32;

fn hosts(count: usize, each: usize) -> Hosts {
    let names: Vec<_> = (0..count * each).map(|rank| HostName::new(&format!("{}", rank / each))).collect();
    Hosts::of(&names.iter().collect::<Vec<_>>()).unwrap()
}

fn home(rank: usize) -> Home {
    let arena = DeviceAddress::new((rank as u64 + 1) * SPACE);
    Home { arena, signals: DeviceAddress::NULL, landing: arena.plus(1 << 31) }
}

/// The memory of all ranks.
#[derive(Clone)]
struct Memory {
    /// Arena and landing of each.
    ranks: Vec<[Vec<u8>; 2]>,
}

impl Memory {
    /// Whose memory, arena or landing, and where in it.
    fn place(at: DeviceAddress) -> (usize, usize, usize) {
        assert!(at.number() >= SPACE, "memory that is not reached");
        let (rank, offset) = (at.number() / SPACE - 1, at.number() % SPACE);
        (rank as usize, (offset >> 31) as usize, (offset % (1 << 31)) as usize)
    }

    fn read(&self, at: DeviceAddress, bytes: usize) -> Vec<u8> {
        let (rank, part, offset) = Self::place(at);
        self.ranks[rank][part][offset..offset + bytes].to_vec()
    }

    fn write(&mut self, at: DeviceAddress, bytes: &[u8]) {
        let (rank, part, offset) = Self::place(at);
        self.ranks[rank][part][offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// What a stage of all ranks reads and writes.
#[derive(Default)]
struct Traffic {
    reads: Vec<(DeviceAddress, usize)>,
    writes: Vec<(DeviceAddress, Vec<u8>)>,
}

impl Traffic {
    fn copy(&mut self, memory: &Memory, copy: &CopyOperand) {
        if copy.from != copy.to {
            self.reads.push((copy.from, copy.bytes));
            self.writes.push((copy.to, memory.read(copy.from, copy.bytes)));
        }
    }

    /// Writes, unless a byte is written twice, or read and written.
    fn apply(self, memory: &mut Memory) {
        let mut written = BTreeMap::new();
        for (at, bytes) in self.writes.iter().filter(|(_, bytes)| !bytes.is_empty()) {
            let (begin, end) = (at.number(), at.number() + bytes.len() as u64);
            let before = written.range(..end).next_back().map_or(0, |(_, end)| *end);
            assert!(before <= begin, "written twice: {at}");
            written.insert(begin, end);
        }
        for (at, bytes) in self.reads {
            let end = at.number() + bytes as u64;
            let before = written.range(..end).next_back().map_or(0, |(_, end)| *end);
            assert!(bytes == 0 || before <= at.number(), "read while it is written: {at}");
        }
        for (at, bytes) in self.writes {
            memory.write(at, &bytes);
        }
    }
}

fn value(bytes: &[u8], number: usize) -> f32 {
    f32::from_ne_bytes(bytes[number * 4..][..4].try_into().unwrap())
}

/// One stage of all ranks.
fn run(memory: &mut Memory, network: Network, all: Vec<Stage>) {
    let mut traffic = Traffic::default();
    let mut sent: BTreeMap<(RankId, RankId), VecDeque<Vec<u8>>> = BTreeMap::new();
    let mut received = Vec::new();
    let mut gathers: Vec<Vec<(DeviceAddress, DeviceAddress, usize)>> = Vec::new();
    for (rank, stage) in all.into_iter().enumerate().map(|(rank, stage)| (RankId::at(rank), stage)) {
        match stage {
            Stage::Place(copies) | Stage::Push(_, copies) => {
                copies.iter().for_each(|copy| traffic.copy(memory, copy));
            }
            Stage::Exchange(transfers) => {
                let mut own = Vec::new();
                for transfer in transfers {
                    match transfer {
                        Transfer::Send { from, bytes, peer } => {
                            traffic.reads.push((from, bytes));
                            sent.entry((rank, peer)).or_default().push_back(memory.read(from, bytes));
                        }
                        Transfer::Receive { to, bytes, peer } => received.push((peer, rank, to, bytes)),
                        Transfer::AllGather { from, to, bytes } => own.push((from, to, bytes)),
                        Transfer::ReduceScatter { .. } => panic!("sums of the library are its own"),
                    }
                }
                gathers.push(own);
            }
            Stage::Combine(reduction, operands) => {
                for operand in operands {
                    let bytes = operand.elements * size_of::<f32>();
                    let sources: Vec<_> =
                        operand.sources.iter().map(|source| memory.read(*source, bytes)).collect();
                    let combined = (0..operand.elements).flat_map(|number| {
                        let values = sources.iter().map(|source| value(source, number));
                        let combine = |one: f32, other: f32| match reduction {
                            Reduction::Sum => one + other,
                            Reduction::Max => one.max(other),
                        };
                        values.reduce(combine).unwrap().to_ne_bytes()
                    });
                    let combined: Vec<u8> = combined.collect();
                    traffic.writes.push((operand.to, combined));
                }
            }
        }
    }
    for (from, to, at, bytes) in received {
        let members = Members::of(network, to).expect("a communicator");
        assert!(members.iter().any(|member| member == from), "{to} shares no communicator with {from}");
        let arrived = sent.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("a send");
        assert_eq!(arrived.len(), bytes, "{from} to {to}");
        traffic.writes.push((at, arrived));
    }
    assert!(sent.values().all(VecDeque::is_empty), "something was sent that nobody takes");
    for parts in gathers.iter().flat_map(|own| own.iter().enumerate()).map(|(part, own)| (part, *own)) {
        let (part, (_, to, bytes)) = parts;
        let all: Vec<u8> = gathers.iter().flat_map(|theirs| memory.read(theirs[part].0, bytes)).collect();
        traffic.writes.push((to, all));
    }
    traffic.apply(memory);
}

/// A collective by one way: the arenas of all ranks behind it.
fn collective(before: &[Vec<u8>], network: Network, reaches: Hosts, pulls: &[Pull]) -> Vec<Vec<u8>> {
    let ranks = before.len();
    let landing = LANDING + needed(&pulls[0], network.hosts);
    let arenas = before.iter().map(|arena| [arena.clone(), vec![0xEE; landing]]);
    let mut memory = Memory { ranks: arenas.collect() };
    let mut queues: Vec<VecDeque<Stage>> = (0..ranks)
        .map(|rank| {
            let reached = |other: usize| reaches.share_host(RankId::at(rank), RankId::at(other));
            let null = DeviceAddress::NULL;
            let nowhere = Home { arena: null, signals: null, landing: null };
            let homes: Vec<_> =
                (0..ranks).map(|other| if reached(other) { home(other) } else { nowhere }).collect();
            let view = View { rank: RankId::at(rank), homes: &homes, hosts: network.hosts, landing: LANDING };
            stages(&view, network.transport, &pulls[rank]).into()
        })
        .collect();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let all: Vec<_> = queues.iter_mut().map(|queue| queue.pop_front().expect("equally many")).collect();
        let kind = std::mem::discriminant(&all[0]);
        assert!(all.iter().all(|stage| std::mem::discriminant(stage) == kind), "the same stages");
        run(&mut memory, network, all);
    }
    memory.ranks.into_iter().map(|[arena, _]| arena).collect()
}

/// All ways there are for ranks on these hosts, with the hosts inside of which memory is reached.
fn ways(hosts: Hosts) -> [(Network, Hosts); 4] {
    let (all, each) = (Hosts::one(hosts.ranks()), self::hosts(hosts.ranks(), 1));
    let network = |transport, hosts| Network { transport, hosts };
    [
        (network(Transport::Peer, hosts), hosts),
        (network(Transport::Peer, all), all),
        (network(Transport::Peer, each), each),
        (network(Transport::Nccl, all), each),
    ]
}

/// The same outcome by every way, and it is this one.
fn every_way(before: &[Vec<u8>], hosts: Hosts, pulls: &[Pull], expected: &[Vec<u8>]) {
    for (network, reaches) in ways(hosts) {
        let after = collective(before, network, reaches, pulls);
        assert!(after == expected, "{network:?} differs");
    }
}

/// Arenas of values that round when they are added, so that an order shows.
fn arenas(ranks: usize, bytes: usize) -> Vec<Vec<u8>> {
    let word = |rank: usize, number: usize| {
        let mixed = (rank * 7919 + number * 104_729 + 12_345) % 65_521;
        ((mixed as f32 - 30_000.0) * 1.000_1_f32.powi((mixed % 97) as i32)).to_ne_bytes()
    };
    (0..ranks).map(|rank| (0..bytes / 4).flat_map(|number| word(rank, number)).collect()).collect()
}

/// Regions one behind the other.
#[derive(Default)]
struct Places {
    end: usize,
}

impl Places {
    fn next(&mut self, bytes: usize) -> Region {
        let region = Region { offset: self.end, bytes };
        self.end = (self.end + bytes).next_multiple_of(256);
        region
    }
}

fn check_gather(hosts: Hosts, parts: &[usize]) {
    let mut places = Places::default();
    let moves: Vec<_> = (parts.iter())
        .map(|bytes| Move { from: places.next(*bytes), to: places.next(bytes * hosts.ranks()) })
        .collect();
    let before = arenas(hosts.ranks(), places.end);
    let mut expected = before.clone();
    for part in &moves {
        for (rank, source) in before.iter().enumerate() {
            let from = &source[part.from.offset..][..part.from.bytes];
            for arena in &mut expected {
                arena[part.to.offset + rank * from.len()..][..from.len()].copy_from_slice(from);
            }
        }
    }
    let pulls: Vec<_> = before.iter().map(|_| Pull::Gather(moves.clone())).collect();
    for (network, reaches) in ways(hosts) {
        let mut after = collective(&before, network, reaches, &pulls);
        // A rank's own part is nobody's promise: a task behind the gather puts it there.
        for (rank, arena) in after.iter_mut().enumerate() {
            for part in &moves {
                let from = &before[rank][part.from.offset..][..part.from.bytes];
                arena[part.to.offset + rank * from.len()..][..from.len()].copy_from_slice(from);
            }
        }
        assert!(after == expected, "{network:?} differs");
    }
}

fn check_records(hosts: Hosts, bytes: usize) {
    let mut places = Places::default();
    let records = Move { from: places.next(bytes), to: places.next(bytes * hosts.ranks()) };
    let before = arenas(hosts.ranks(), places.end);
    let all: Vec<u8> =
        before.iter().flat_map(|arena| arena[records.from.offset..][..bytes].to_vec()).collect();
    let mut expected = before.clone();
    expected.iter_mut().for_each(|arena| arena[records.to.offset..][..all.len()].copy_from_slice(&all));
    let pulls: Vec<_> = before.iter().map(|_| Pull::Records(records)).collect();
    every_way(&before, hosts, &pulls, &expected);
}

/// Slices of so many bytes each, unsummed, the own one left where it is.
fn check_exchange(hosts: Hosts, parts: &[usize]) {
    let ranks = hosts.ranks();
    let mut places = Places::default();
    let slices: Vec<_> = (parts.iter())
        .map(|bytes| {
            let (source, landed) = (places.next(bytes * ranks), places.next(bytes * (ranks - 1)));
            Slices { source, landed, bytes: *bytes }
        })
        .collect();
    let before = arenas(ranks, places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        for part in &slices {
            let others = before.iter().enumerate().filter(|(other, _)| *other != rank);
            let given =
                others.flat_map(|(_, other)| &other[part.source.offset + rank * part.bytes..][..part.bytes]);
            let given: Vec<u8> = given.copied().collect();
            arena[part.landed.offset..][..given.len()].copy_from_slice(&given);
        }
    }
    let pulls: Vec<_> = before.iter().map(|_| Pull::Exchange(slices.clone())).collect();
    every_way(&before, hosts, &pulls, &expected);
}

fn check_all_reduce(hosts: Hosts, reduction: Reduction, parts: &[usize]) {
    let mut places = Places::default();
    let moves: Vec<_> = (parts.iter())
        .map(|elements| Move { from: places.next(elements * 4), to: places.next(elements * 4) })
        .collect();
    let before = arenas(hosts.ranks(), places.end);
    let mut expected = before.clone();
    for part in &moves {
        for number in 0..part.from.bytes / 4 {
            let at = |arena: &Vec<u8>| value(&arena[part.from.offset..], number);
            let combined = match reduction {
                Reduction::Sum => before.iter().map(at).reduce(|one, other| one + other),
                Reduction::Max => before.iter().map(at).reduce(f32::max),
            };
            for arena in &mut expected {
                arena[part.to.offset + number * 4..][..4].copy_from_slice(&combined.unwrap().to_ne_bytes());
            }
        }
    }
    let pulls: Vec<_> = before.iter().map(|_| Pull::AllReduce(reduction, moves.clone())).collect();
    every_way(&before, hosts, &pulls, &expected);
}

#[test]
fn two_hosts_of_two_and_three_of_two_do_what_one_host_does() {
    for hosts in [hosts(2, 2), hosts(3, 2)] {
        check_gather(hosts, &[48, 300, 0]);
        check_records(hosts, 16);
        check_exchange(hosts, &[20, 0, 256]);
        check_exchange(hosts, &[6, 258]);
        check_all_reduce(hosts, Reduction::Max, &[1, 3]);
        check_all_reduce(hosts, Reduction::Sum, &[7]);
    }
}

fn slices() -> Slices {
    Slices {
        source: Region { offset: 0, bytes: 4 * 256 },
        landed: Region { offset: 1024, bytes: 3 * 256 },
        bytes: 256,
    }
}

/// What needs no multiprocessor waits for none: peers of one host exchange gradients by meetings and engines alone.
#[test]
fn on_one_host_no_kernel_moves_a_gradient() {
    let homes: Vec<_> = (0..4).map(home).collect();
    let view = View { rank: RankId::new(2), homes: &homes, hosts: hosts(1, 4), landing: 0 };
    let stages = stages(&view, Transport::Peer, &Pull::Exchange(vec![slices(), slices()]));
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
    assert_eq!(needed(&Pull::Exchange(vec![slices()]), hosts(1, 4)), 0, "nothing lands beside the arena");
}

/// The law that keeps gathers off multiprocessors: on one host there is nothing to exchange, and engines write the peers' memory and no
/// byte of the rank's own.
#[test]
fn on_one_host_a_gather_of_planes_launches_no_kernel() {
    let (hosts, each) = (Hosts::one(4), 256);
    let homes: Vec<_> = (0..4).map(home).collect();
    let from = Region { offset: 0, bytes: each };
    let moves = vec![Move { from, to: Region { offset: 1024, bytes: 4 * each } }; 2];
    for rank in 0..4 {
        let view = View { rank: RankId::at(rank), homes: &homes, hosts, landing: 0 };
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
    let nowhere = Home { arena: null, signals: null, landing: null };
    let view = View { rank: RankId::new(1), homes: &[home(0), home(1), nowhere, nowhere], hosts, landing: 0 };
    let stages = stages(&view, Transport::Peer, &Pull::Exchange(vec![slices()]));
    let [Stage::Push(_, pushes), Stage::Exchange(transfers)] = &stages[..] else { panic!("{stages:?}") };
    let slice = |rank: usize| home(1).arena.plus(256 * rank);
    let slot = |holder: usize, place: usize| home(holder).arena.plus(1024 + 256 * place);
    // Numbers 0 and 1 wait for the holder's counterpart.
    let relay = |holder: usize, number: usize| home(holder).landing.plus(256 * number);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// PL-4, as far as a transport goes: every contribution reaches its owner once, whole, at its place in rank order.
    #[test]
    fn any_hosts_get_what_one_host_gets(
        count in 1..5_usize,
        each in 1..5_usize,
        parts in prop::collection::vec(0..200_usize, 1..4),
    ) {
        let hosts = hosts(count, each);
        check_gather(hosts, &parts);
        check_records(hosts, parts[0]);
        check_exchange(hosts, &parts);
        check_all_reduce(hosts, Reduction::Sum, &parts);
        check_all_reduce(hosts, Reduction::Max, &parts);
    }
}
