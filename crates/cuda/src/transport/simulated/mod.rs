//! Every transport on byte vectors: what ranks do in a collective fits together, and its outcome does not
//! depend on the transport.
//!
//! A collective of a group runs on all ranks of the mesh, every team by itself, in the memory of one world.
//! All ranks go through their stages in step. Within a stage everything is read before anything is written,
//! no byte is written twice, and none is written that another reads. So the outcome is the same in whatever
//! order the ranks proceed between two stages. What leaves its host by anything other than NCCL finds no
//! memory.

mod collectives;
mod stages;

use std::collections::{BTreeMap, VecDeque};

use half::bf16;

use super::communicator::Transfer;
use super::receive_buffers::needed;
use super::signal::Home;
use super::{Stage, stages};
use crate::DeviceAddress;
use crate::kernels::{CopyOperand, GivenOperand, SlotShape};
use crate::options::Transport;
use crate::transport::View;
use crate::world::hosts::Hosts;
use crate::world::placement::Network;
use crate::world::team::Team;
use crate::world::team::samples::hosts;
use warpweft_backend::local::{Combination, Pull};
use warpweft_base::id::RankId;
use warpweft_format::ElementType;
use warpweft_plan::compute::SPOILED;
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::Reduction;

/// Where the lane's part of the receive buffer begins.
const RECEIVE_BUFFER: usize = 512;

/// Bytes of addresses of one rank; its receive buffer begins in the middle.
const SPACE: u64 = 1 << 32;

fn home(rank: usize) -> Home {
    let arena = DeviceAddress::new((rank as u64 + 1) * SPACE);
    Home { arena, signals: DeviceAddress::NULL, receive_buffer: arena.plus(1 << 31) }
}

/// The memory of all ranks.
#[derive(Clone)]
struct Memory {
    /// Arena and receive buffer of each.
    ranks: Vec<[Vec<u8>; 2]>,
}

impl Memory {
    /// Whose memory, arena or receive buffer, and where in it.
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

/// Bytes of a count.
const COUNT: usize = size_of::<u32>();

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

    /// The filled rows of slots, and their counts.
    fn dispatch(&mut self, memory: &Memory, shape: SlotShape, given: &GivenOperand) {
        for slot in 0..shape.slots {
            let counted = given.counts.plus(COUNT * slot);
            let count = memory.read(counted, COUNT);
            let count = u32::from_ne_bytes(count.try_into().unwrap()).min(shape.capacity as u32);
            let at = |address: DeviceAddress| address.plus(shape.row * shape.capacity * slot);
            self.copy(
                memory,
                &CopyOperand { from: at(given.from), to: at(given.to), bytes: shape.row * count as usize },
            );
            self.reads.push((counted, COUNT));
            if given.taken != DeviceAddress::NULL {
                self.writes.push((given.taken.plus(COUNT * slot), count.to_ne_bytes().to_vec()));
            }
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

fn value(element: ElementType, bytes: &[u8], number: usize) -> f32 {
    match element {
        ElementType::Bf16 => bf16::from_ne_bytes(bytes[number * 2..][..2].try_into().unwrap()).to_f32(),
        _ => f32::from_ne_bytes(bytes[number * 4..][..4].try_into().unwrap()),
    }
}

/// The bytes of a value of that type, rounded to it.
fn bytes_of(element: ElementType, value: f32) -> Vec<u8> {
    match element {
        ElementType::Bf16 => bf16::from_f32(value).to_ne_bytes().to_vec(),
        _ => value.to_ne_bytes().to_vec(),
    }
}

/// Values of ranks, in rank order.
fn combined(reduction: Reduction, values: impl Iterator<Item = f32>) -> f32 {
    let combine = |one: f32, other: f32| match reduction {
        Reduction::Sum => one + other,
        Reduction::Max => one.max(other),
    };
    values.reduce(combine).unwrap()
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
        Team::of(network, self.mesh, rank, self.group)
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
            Stage::Dispatch(shape, given) => {
                given.iter().for_each(|given| traffic.dispatch(memory, shape, given));
            }
            Stage::Lower { counts, slots, capacity } => {
                let most = u32::try_from(capacity).unwrap();
                let found = memory.read(counts, 4 * slots);
                let lowered =
                    bytemuck::pod_collect_to_vec::<u8, u32>(&found).into_iter().map(|count| count.min(most));
                // In place: each count is read and written by one thread.
                traffic.writes.push((counts, lowered.flat_map(u32::to_ne_bytes).collect()));
            }
            Stage::Spoil { first, counts, shape } => {
                for slot in 0..shape.slots {
                    let count = memory.read(counts.plus(COUNT * slot), COUNT);
                    let count = u32::from_ne_bytes(count.try_into().unwrap()).min(shape.capacity as u32);
                    let filled = shape.row * count as usize;
                    let bytes = shape.row * shape.capacity;
                    traffic.writes.push((first.plus(bytes * slot + filled), vec![SPOILED; bytes - filled]));
                }
            }
            Stage::Combine(Combination { reduction, element }, operands) => {
                for operand in operands {
                    let bytes = operand.elements * element.bytes();
                    traffic.reads.extend(operand.sources.iter().map(|source| (*source, bytes)));
                    let sources: Vec<_> =
                        operand.sources.iter().map(|source| memory.read(*source, bytes)).collect();
                    let combined = (0..operand.elements).flat_map(|number| {
                        let values = sources.iter().map(|source| value(element, source, number));
                        bytes_of(element, combined(reduction, values))
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

/// A collective by one transport: the arenas of all ranks after it.
fn collective(
    before: &[Vec<u8>],
    scene: Scene,
    (network, reaches): (Network, Hosts),
    pull: &Pull,
) -> Vec<Vec<u8>> {
    let ranks = before.len();
    let receive_buffer = RECEIVE_BUFFER + needed(pull, scene.team(network, RankId::new(0)).hosts());
    let arenas = before.iter().map(|arena| [arena.clone(), vec![0xEE; receive_buffer]]);
    let mut memory = Memory { ranks: arenas.collect() };
    let mut queues: Vec<VecDeque<Stage>> = (0..ranks)
        .map(|rank| {
            let reached = |other: usize| reaches.share_host(RankId::at(rank), RankId::at(other));
            let null = DeviceAddress::NULL;
            let nowhere = Home { arena: null, signals: null, receive_buffer: null };
            let team = scene.team(network, RankId::at(rank));
            let reach = |other: RankId| if reached(other.index()) { home(other.index()) } else { nowhere };
            let homes: Vec<_> = team.iter().map(reach).collect();
            let view =
                View { rank: team.own(), homes: &homes, hosts: team.hosts(), receive_buffer: RECEIVE_BUFFER };
            let mut stages: VecDeque<Stage> = stages(&view, team.transport(), pull).into();
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

/// All transports for ranks on these hosts, with the hosts inside which memory is reached.
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

/// Checks that every transport gives the same outcome, and that it is this one.
fn every_way(before: &[Vec<u8>], scene: Scene, pull: &Pull, expected: &[Vec<u8>]) {
    for way in ways(scene.hosts) {
        let after = collective(before, scene, way, pull);
        assert!(after == expected, "{scene:?}: {:?} differs", way.0);
    }
}
