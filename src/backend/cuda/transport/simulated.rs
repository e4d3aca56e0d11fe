//! Every way on byte vectors: what ranks do of a collective fits together, and its outcome does not depend on the way.
//!
//! A collective of a group runs on all ranks of the mesh, every team for itself, in the memory of one world. All ranks go through their stages in step. Within a stage everything is read before anything is written, no byte is
//! written twice, and none is written that another reads: so the outcome is the same in whatever order the ranks get on
//! between two stages. What leaves its host by another way than NCCL finds no memory.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::{Carrier, Stage, stages, whole};
use crate::backend::cuda::DeviceAddress;
use crate::backend::cuda::hosts::Hosts;
use crate::backend::cuda::kernels::CopyOperand;
use crate::backend::cuda::landing::needed;
use crate::backend::cuda::machine::Network;
use crate::backend::cuda::nccl::Transfer;
use crate::backend::cuda::options::Transport;
use crate::backend::cuda::signal::Home;
use crate::backend::cuda::team::Team;
use crate::backend::cuda::transport::View;
use crate::backend::local::{Move, Piece, Pull, Scatter, Slices};
use crate::format::ElementType;
use crate::id::RankId;
use crate::layout::Region;
use crate::model::{Group, Mesh};
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

/// A collective's ranks: on which hosts, of which mesh, of which group.
#[derive(Clone, Copy, Debug)]
struct Scene {
    hosts: Hosts,
    mesh: Mesh,
    group: Group,
}

impl Scene {
    /// All ranks of these hosts.
    fn world(hosts: Hosts) -> Self {
        let mesh = Mesh::new(u32::try_from(hosts.ranks()).unwrap()).unwrap();
        Self { hosts, mesh, group: Group::World }
    }

    fn team(self, network: Network, rank: RankId) -> Team {
        Team::of(network, self.mesh, rank, self.group).unwrap()
    }

    /// Ranks of a team.
    fn size(self) -> usize {
        self.mesh.size(self.group) as usize
    }

    /// The team of a rank, in order.
    fn members(self, rank: usize) -> Vec<usize> {
        self.mesh.members(RankId::at(rank), self.group).map(RankId::index).collect()
    }

    /// The number of a rank in its team.
    fn own(self, rank: usize) -> usize {
        self.mesh.position(RankId::at(rank), self.group) as usize
    }
}

/// One stage of all ranks, whose transfers name ranks of the world.
fn run(memory: &mut Memory, network: Network, scene: Scene, all: Vec<Stage>) {
    let mut traffic = Traffic::default();
    let mut sent: BTreeMap<(RankId, RankId), VecDeque<Vec<u8>>> = BTreeMap::new();
    let mut received = Vec::new();
    let mut gathers = vec![Vec::new(); all.len()];
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
                gathers[rank.index()] = own;
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
        let members = scene.team(network, to).connected().expect("a communicator");
        assert!(members.iter().any(|member| member == from), "{to} shares no communicator with {from}");
        let arrived = sent.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("a send");
        assert_eq!(arrived.len(), bytes, "{from} to {to}");
        traffic.writes.push((at, arrived));
    }
    assert!(sent.values().all(VecDeque::is_empty), "something was sent that nobody takes");
    for (rank, own) in gathers.iter().enumerate() {
        for (part, (_, to, bytes)) in own.iter().enumerate() {
            let members = scene.team(network, RankId::at(rank)).connected().expect("a communicator");
            let theirs = |member: RankId| memory.read(gathers[member.index()][part].0, *bytes);
            traffic.writes.push((*to, members.iter().flat_map(theirs).collect()));
        }
    }
    traffic.apply(memory);
}

/// A collective by one way: the arenas of all ranks behind it.
fn collective(
    before: &[Vec<u8>],
    scene: Scene,
    (network, reaches): (Network, Hosts),
    pull: &Pull,
) -> Vec<Vec<u8>> {
    let ranks = before.len();
    let landing = LANDING + needed(pull, network.hosts.of_group(scene.mesh, scene.group).unwrap());
    let arenas = before.iter().map(|arena| [arena.clone(), vec![0xEE; landing]]);
    let mut memory = Memory { ranks: arenas.collect() };
    let mut queues: Vec<VecDeque<Stage>> = (0..ranks)
        .map(|rank| {
            let reached = |other: usize| reaches.share_host(RankId::at(rank), RankId::at(other));
            let null = DeviceAddress::NULL;
            let nowhere = Home { arena: null, signals: null, landing: null };
            let team = scene.team(network, RankId::at(rank));
            let reach = |other: RankId| if reached(other.index()) { home(other.index()) } else { nowhere };
            let homes: Vec<_> = team.iter().map(reach).collect();
            let view = View { rank: team.own(), homes: &homes, hosts: team.hosts(), landing: LANDING };
            let mut stages: VecDeque<Stage> = stages(&view, network.transport, pull).into();
            for stage in &mut stages {
                if let Stage::Exchange(transfers) = stage {
                    transfers.iter_mut().for_each(|transfer| transfer.renumber(|peer| team.in_world(peer)));
                }
            }
            stages
        })
        .collect();
    while queues.iter().any(|queue| !queue.is_empty()) {
        let all: Vec<_> = queues.iter_mut().map(|queue| queue.pop_front().expect("equally many")).collect();
        let kind = std::mem::discriminant(&all[0]);
        assert!(all.iter().all(|stage| std::mem::discriminant(stage) == kind), "the same stages");
        run(&mut memory, network, scene, all);
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
fn every_way(before: &[Vec<u8>], scene: Scene, pull: &Pull, expected: &[Vec<u8>]) {
    for way in ways(scene.hosts) {
        let after = collective(before, scene, way, pull);
        assert!(after == expected, "{scene:?}: {:?} differs", way.0);
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

/// Every other rank's bytes at their place in `pieces`, by every way.
fn check_gathered(scene: Scene, before: &[Vec<u8>], pieces: &[Piece], pull: &Pull) {
    let from = |rank: usize, piece: &Piece| &before[rank][piece.from.offset..][..piece.from.bytes];
    let place = |number: usize, piece: &Piece| piece.to.offset + piece.first + number * piece.stride;
    let mut expected = before.to_vec();
    for (rank, arena) in expected.iter_mut().enumerate() {
        for piece in pieces {
            for (number, member) in scene.members(rank).into_iter().enumerate() {
                arena[place(number, piece)..][..piece.from.bytes].copy_from_slice(from(member, piece));
            }
        }
    }
    for way in ways(scene.hosts) {
        let mut after = collective(before, scene, way, pull);
        // A rank's own part is nobody's promise: a task behind the gather puts it there.
        for (rank, arena) in after.iter_mut().enumerate() {
            for piece in pieces {
                arena[place(scene.own(rank), piece)..][..piece.from.bytes].copy_from_slice(from(rank, piece));
            }
        }
        assert!(after == expected, "{scene:?}: {:?} differs", way.0);
    }
}

fn check_gather(scene: Scene, parts: &[usize]) {
    let mut places = Places::default();
    let moves: Vec<_> = (parts.iter())
        .map(|bytes| Move { from: places.next(*bytes), to: places.next(bytes * scene.size()) })
        .collect();
    let before = arenas(scene.hosts.ranks(), places.end);
    check_gathered(scene, &before, &whole(&moves), &Pull::Gather(moves));
}

/// Of each part of so many bytes, those from `first` on that are in a chunk, `bytes` of them at most.
fn check_chunk(scene: Scene, parts: &[usize], first: usize, bytes: usize) {
    let mut places = Places::default();
    let pieces: Vec<_> = (parts.iter())
        .map(|all| {
            let (from, to) = (places.next(*all), places.next(all * scene.size()));
            let first = first.min(*all);
            let from = from.part(first, bytes.min(all - first)).unwrap();
            Piece { from, to, first, stride: *all }
        })
        .collect();
    let before = arenas(scene.hosts.ranks(), places.end);
    check_gathered(scene, &before, &pieces, &Pull::Chunk(pieces.clone()));
}

fn check_records(scene: Scene, bytes: usize) {
    let mut places = Places::default();
    let records = Move { from: places.next(bytes), to: places.next(bytes * scene.size()) };
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        let members = scene.members(rank).into_iter();
        let all = members.flat_map(|member| before[member][records.from.offset..][..bytes].to_vec());
        let all: Vec<u8> = all.collect();
        arena[records.to.offset..][..all.len()].copy_from_slice(&all);
    }
    every_way(&before, scene, &Pull::Records(records), &expected);
}

/// Slices of so many bytes each, unsummed, the own one left where it is.
fn check_exchange(scene: Scene, parts: &[usize]) {
    let size = scene.size();
    let mut places = Places::default();
    let slices: Vec<_> = (parts.iter())
        .map(|bytes| {
            let (source, landed) = (places.next(bytes * size), places.next(bytes * (size - 1)));
            Slices { source, landed, bytes: *bytes }
        })
        .collect();
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        for part in &slices {
            let others = scene.members(rank).into_iter().filter(|other| *other != rank);
            let slice = part.source.offset + scene.own(rank) * part.bytes;
            let given = others.flat_map(|other| &before[other][slice..][..part.bytes]);
            let given: Vec<u8> = given.copied().collect();
            arena[part.landed.offset..][..given.len()].copy_from_slice(&given);
        }
    }
    every_way(&before, scene, &Pull::Exchange(slices), &expected);
}

fn check_all_reduce(scene: Scene, reduction: Reduction, parts: &[usize]) {
    let mut places = Places::default();
    let moves: Vec<_> = (parts.iter())
        .map(|elements| Move { from: places.next(elements * 4), to: places.next(elements * 4) })
        .collect();
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        let members = scene.members(rank);
        for part in &moves {
            for number in 0..part.from.bytes / 4 {
                let values = members.iter().map(|member| value(&before[*member][part.from.offset..], number));
                let combined = match reduction {
                    Reduction::Sum => values.reduce(|one, other| one + other),
                    Reduction::Max => values.reduce(f32::max),
                };
                arena[part.to.offset + number * 4..][..4].copy_from_slice(&combined.unwrap().to_ne_bytes());
            }
        }
    }
    every_way(&before, scene, &Pull::AllReduce(reduction, moves), &expected);
}

/// The sum over one rank, which is all that a rank sums without the library.
fn check_sum_of_one(scene: Scene, elements: usize) {
    assert_eq!(scene.size(), 1);
    let mut places = Places::default();
    let own = Move { from: places.next(elements * 4), to: places.next(elements * 4) };
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for arena in &mut expected {
        let Region { offset, bytes } = own.from;
        arena.copy_within(offset..offset + bytes, own.to.offset);
    }
    let scatter = Scatter { source: own.from, own };
    every_way(&before, scene, &Pull::ReduceScatter(ElementType::F32, vec![scatter]), &expected);
}

/// All there is, in one scene.
fn check_all(scene: Scene, parts: &[usize]) {
    check_gather(scene, parts);
    check_chunk(scene, parts, parts[0] / 3, 40);
    check_records(scene, parts[0]);
    check_exchange(scene, parts);
    check_all_reduce(scene, Reduction::Sum, parts);
    check_all_reduce(scene, Reduction::Max, parts);
    if scene.size() == 1 {
        check_sum_of_one(scene, parts[0]);
    }
}

#[test]
fn two_hosts_of_two_and_three_of_two_do_what_one_host_does() {
    for scene in [hosts(2, 2), hosts(3, 2)].map(Scene::world) {
        check_gather(scene, &[48, 300, 0]);
        check_chunk(scene, &[48, 300, 0], 7, 100);
        check_records(scene, 16);
        check_exchange(scene, &[20, 0, 256]);
        check_exchange(scene, &[6, 258]);
        check_all_reduce(scene, Reduction::Max, &[1, 3]);
        check_all_reduce(scene, Reduction::Sum, &[7]);
    }
}

/// Every group of a mesh of replicas, which share a host, have one each, or several.
#[test]
fn every_team_of_every_group_does_what_a_world_of_its_ranks_does() {
    for (count, each, replicas) in [
        (1, 4, 2),
        (1, 4, 4),
        (1, 6, 3),
        (2, 2, 2),
        (2, 4, 4),
        (2, 4, 2),
        (4, 2, 2),
        (2, 2, 4),
        (4, 1, 2),
        (1, 1, 1),
    ] {
        let hosts = hosts(count, each);
        let mesh = Mesh::hybrid(u32::try_from(hosts.ranks()).unwrap(), replicas).unwrap();
        for group in [Group::Shard, Group::Replicate, Group::World] {
            check_all(Scene { hosts, mesh, group }, &[24, 132, 0]);
        }
    }
}

/// Rank 3 of two replicas of two on one host: the twin in the other replica is rank 1, by every name.
#[test]
fn a_team_meets_its_own_ranks_and_no_others() {
    let mesh = Mesh::hybrid(4, 2).unwrap();
    let network = Network { transport: Transport::Peer, hosts: Hosts::one(4) };
    let team = Team::of(network, mesh, RankId::new(3), Group::Replicate).unwrap();
    let homes: Vec<_> = team.iter().map(|rank| home(rank.index())).collect();
    let view = View { rank: team.own(), homes: &homes, hosts: team.hosts(), landing: 0 };
    let from = Region { offset: 0, bytes: 64 };
    let sum = Pull::AllReduce(Reduction::Sum, vec![Move { from, to: Region { offset: 256, bytes: 64 } }]);
    let stages = stages(&view, Transport::Peer, &sum);
    let [Stage::Exchange(transfers), Stage::Push(Carrier::Engines, pushes), Stage::Combine(_, operands)] =
        &stages[..]
    else {
        panic!("{stages:?}")
    };
    assert!(transfers.is_empty());
    // Number 1 in its team, in whose landing values lie by these numbers.
    let pushed = CopyOperand { from: home(3).arena, to: home(1).landing.plus(256), bytes: 64 };
    assert_eq!(*pushes, [pushed]);
    assert_eq!(operands[0].sources, [home(3).landing, home(3).arena], "in the order of replicas");
    assert_eq!(
        view.hosts.neighbours(view.rank).map(|one| team.in_world(one)).collect::<Vec<_>>(),
        [RankId::new(1)]
    );
}

/// A chunk is ranges of bytes, and no meeting more than a gather has.
#[test]
fn a_chunk_on_one_host_is_pushes_by_engines_alone() {
    let homes: Vec<_> = (0..3).map(home).collect();
    let view = View { rank: RankId::new(1), homes: &homes, hosts: Hosts::one(3), landing: 0 };
    let piece = Piece {
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
        check_all(Scene::world(hosts(count, each)), &parts);
    }

    /// As above, for every group of a mesh.
    #[test]
    fn any_team_gets_what_a_world_of_its_ranks_gets(
        count in 1..4_usize,
        each in 1..5_usize,
        fill in any::<bool>(),
        parts in prop::collection::vec(0..100_usize, 1..3),
    ) {
        let hosts = hosts(count, each);
        // Each rank, or each host, holds a replica.
        let replicas = if fill { count } else { hosts.ranks() };
        let mesh = Mesh::hybrid(u32::try_from(hosts.ranks()).unwrap(), u32::try_from(replicas).unwrap()).unwrap();
        for group in [Group::Shard, Group::Replicate] {
            check_all(Scene { hosts, mesh, group }, &parts);
        }
    }
}
