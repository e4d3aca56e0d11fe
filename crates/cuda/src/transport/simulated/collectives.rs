//! The result of every collective on every rank, by every transport, for every group of a mesh, computed from the
//! arenas as they were.

use proptest::prelude::*;

use super::{Scene, bytes_of, collective, combined, every_way, hosts, value, ways};
use crate::transport::whole;
use crate::world::team::samples::worlds;
use warpweft_backend::local::{Combination, Filled, Move, PlanePiece, Pull, Scatter, Slices};
use warpweft_format::ElementType;
use warpweft_plan::compute::SPOILED;
use warpweft_plan::layout::Region;
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::op::{Division, Reduction};

/// Arenas of values that round when they are added, so that an order shows.
fn arenas(ranks: usize, bytes: usize) -> Vec<Vec<u8>> {
    let word = |rank: usize, number: usize| {
        let mixed = (rank * 7919 + number * 104_729 + 12_345) % 65_521;
        ((mixed as f32 - 30_000.0) * 1.000_1_f32.powi((mixed % 97) as i32)).to_ne_bytes()
    };
    (0..ranks).map(|rank| (0..bytes / 4).flat_map(|number| word(rank, number)).collect()).collect()
}

/// Regions, one after the other.
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

/// Every other rank's bytes at their place in `pieces`, by every transport.
fn check_gathered(scene: Scene, before: &[Vec<u8>], pieces: &[PlanePiece], pull: &Pull) {
    let from = |rank: usize, piece: &PlanePiece| &before[rank][piece.from.offset..][..piece.from.bytes];
    let place = |number: usize, piece: &PlanePiece| piece.to.offset + piece.first + number * piece.stride;
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
        // A rank's own part is not promised: a task after the gather puts it there, where planes are wanted.
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

/// Of each part, whose sizes are given, the bytes from `first` on that are in a chunk, at most `bytes` of
/// them.
fn check_chunk(scene: Scene, parts: &[usize], first: usize, bytes: usize) {
    let mut places = Places::default();
    let pieces: Vec<_> = (parts.iter())
        .map(|all| {
            let (from, to) = (places.next(*all), places.next(all * scene.size()));
            let first = first.min(*all);
            let from = from.part(first, bytes.min(all - first)).unwrap();
            PlanePiece { from, to, first, stride: *all }
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
    every_way(&before, scene, &Pull::Concatenate(records), &expected);
}

/// Slices of the given sizes, unsummed, with the rank's own one left where it is.
fn check_exchange(scene: Scene, parts: &[usize]) {
    let size = scene.size();
    let mut places = Places::default();
    let slices: Vec<_> = (parts.iter())
        .map(|bytes| {
            let (source, received) = (places.next(bytes * size), places.next(bytes * (size - 1)));
            Slices { source, received, with_own: false, bytes: *bytes }
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
            arena[part.received.offset..][..given.len()].copy_from_slice(&given);
        }
    }
    every_way(&before, scene, &Pull::ExchangeGradient(slices), &expected);
}

/// The slices that all ranks have for each, its own among them.
fn check_all_to_all(scene: Scene, bytes: usize) {
    let mut places = Places::default();
    let (source, received) = (places.next(bytes * scene.size()), places.next(bytes * scene.size()));
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        let slice = source.offset + scene.own(rank) * bytes;
        let given = scene.members(rank).into_iter().flat_map(|member| &before[member][slice..][..bytes]);
        let given: Vec<u8> = given.copied().collect();
        arena[received.offset..][..given.len()].copy_from_slice(&given);
    }
    let slices = Slices { source, received, with_own: true, bytes };
    every_way(&before, scene, &Pull::AllToAll(slices), &expected);
}

/// The filled rows that all ranks have for each, and their counts unless these are known. What lies after them is
/// undefined, or spoiled.
fn check_filled(scene: Scene, (known, spoiled): (bool, bool), slots: usize, capacity: usize, row: usize) {
    let (size, slot) = (scene.size(), capacity * row);
    let mut places = Places::default();
    let [source, received] = [0, 1].map(|_| places.next(slot * slots * size));
    let [given, taken] = [0, 1].map(|_| places.next(4 * slots * size));
    let slices = Slices { source, received, with_own: true, bytes: slot * slots };
    let filled = Filled { slices, given, taken, slots, capacity, row, known, spoiled };
    // Among them none and all that there is room for.
    let count = |giver: usize, taker: usize, slot: usize| (5 * giver + 3 * taker + slot) % (capacity + 1);
    let mut before = arenas(scene.hosts.ranks(), places.end);
    for (rank, arena) in before.iter_mut().enumerate() {
        for (number, member) in scene.members(rank).into_iter().enumerate() {
            for place in 0..slots {
                let at = 4 * (number * slots + place);
                let mut put = |region: Region, count: usize| {
                    arena[region.offset + at..][..4].copy_from_slice(&(count as u32).to_ne_bytes());
                };
                // A rank whose call failed may have left any number.
                let rows = count(rank, member, place);
                put(given, if !known && rows == capacity { u32::MAX as usize } else { rows });
                if known {
                    put(taken, count(member, rank, place));
                }
            }
        }
    }
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        for (number, member) in scene.members(rank).into_iter().enumerate() {
            for place in 0..slots {
                let rows = count(member, rank, place);
                let from = source.offset + slot * (slots * scene.own(rank) + place);
                let to = received.offset + slot * (slots * number + place);
                arena[to..][..row * rows].copy_from_slice(&before[member][from..][..row * rows]);
                let at = taken.offset + 4 * (number * slots + place);
                arena[at..][..4].copy_from_slice(&(rows as u32).to_ne_bytes());
            }
        }
    }
    for way in ways(scene.hosts) {
        let mut after = collective(&before, scene, way, &Pull::Filled(filled));
        for (rank, arena) in after.iter_mut().enumerate() {
            for (number, member) in scene.members(rank).into_iter().enumerate() {
                for place in 0..slots {
                    let to = received.offset + slot * (slots * number + place);
                    let undefined = to + row * count(member, rank, place)..to + slot;
                    if spoiled {
                        assert!(arena[undefined.clone()].iter().all(|byte| *byte == SPOILED), "{scene:?}");
                    }
                    arena[undefined.clone()].copy_from_slice(&expected[rank][undefined]);
                }
            }
        }
        assert!(after == expected, "{scene:?}: {:?} differs, known {known}", way.0);
    }
}

/// The slices that all ranks have for each, added in rank order.
fn check_sum_of_slices(scene: Scene, element: ElementType, elements: usize) {
    let each = element.bytes();
    let bytes = elements * each;
    let mut places = Places::default();
    let (source, to) = (places.next(bytes * scene.size()), places.next(bytes));
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        let (members, own) = (scene.members(rank), source.offset + scene.own(rank) * bytes);
        for number in 0..elements {
            let values = members.iter().map(|member| value(element, &before[*member][own..], number));
            let sum = bytes_of(element, combined(Reduction::Sum, values));
            arena[to.offset + number * each..][..each].copy_from_slice(&sum);
        }
    }
    every_way(&before, scene, &Pull::SumSlices(element, Move { from: source, to }), &expected);
}

fn check_all_reduce(scene: Scene, combination: Combination, parts: &[usize]) {
    let Combination { reduction, element } = combination;
    let each = element.bytes();
    let mut places = Places::default();
    let moves: Vec<_> = (parts.iter())
        .map(|elements| Move { from: places.next(elements * each), to: places.next(elements * each) })
        .collect();
    let before = arenas(scene.hosts.ranks(), places.end);
    let mut expected = before.clone();
    for (rank, arena) in expected.iter_mut().enumerate() {
        let members = scene.members(rank);
        for part in &moves {
            for number in 0..part.from.bytes / each {
                let from = part.from.offset;
                let values = members.iter().map(|member| value(element, &before[*member][from..], number));
                let combined = bytes_of(element, combined(reduction, values));
                arena[part.to.offset + number * each..][..each].copy_from_slice(&combined);
            }
        }
    }
    let whole = Division::of(std::iter::empty(), u32::try_from(scene.size()).unwrap());
    // Of short values, and of longer ones, each rank gets a slice; or all of them go as one string.
    let in_slices = [16, 64, usize::MAX].map(|least| Division::in_slices_of(least, scene.size()));
    for division in std::iter::once(whole).chain(in_slices) {
        every_way(&before, scene, &Pull::AllReduce(combination, division, moves.clone()), &expected);
    }
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

/// Everything, in one scene.
fn check_all(scene: Scene, parts: &[usize]) {
    check_gather(scene, parts);
    check_chunk(scene, parts, parts[0] / 3, 40);
    check_records(scene, parts[0]);
    check_exchange(scene, parts);
    check_all_to_all(scene, parts[0]);
    for spoiled in [false, true] {
        check_filled(scene, (false, spoiled), 2, 3, parts[0] / 2 + 1);
        check_filled(scene, (true, spoiled), 1, 4, parts[0] / 3 + 1);
    }
    for element in [ElementType::F32, ElementType::Bf16] {
        check_sum_of_slices(scene, element, parts[0]);
        for reduction in [Reduction::Sum, Reduction::Max] {
            check_all_reduce(scene, Combination { reduction, element }, parts);
        }
    }
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
        check_all_to_all(scene, 36);
        check_sum_of_slices(scene, ElementType::F32, 9);
        check_sum_of_slices(scene, ElementType::Bf16, 9);
        check_all_reduce(scene, Combination::of_f32(Reduction::Max), &[1, 3]);
        check_all_reduce(scene, Combination::of_f32(Reduction::Sum), &[7, 100]);
    }
}

/// Every group of a mesh of replicas, or of levels.
#[test]
fn every_team_of_every_group_does_what_a_world_of_its_ranks_does() {
    for (hosts, mesh) in worlds() {
        for group in mesh.groups() {
            check_all(Scene { hosts, mesh, group }, &[24, 132, 0]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// PL-4, as far as a transport goes: every contribution reaches its owner once, whole, at its place in
    /// rank order.
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

    /// As above, for every level of a mesh that has some, also where its blocks lie across hosts.
    #[test]
    fn ranks_of_a_level_get_what_a_world_of_them_gets(
        count in 1..4_usize,
        each in 1..5_usize,
        block in 2..7_u32,
        parts in prop::collection::vec(0..100_usize, 1..3),
    ) {
        let hosts = hosts(count, each);
        let mesh = Mesh::new(u32::try_from(hosts.ranks()).unwrap()).unwrap();
        let leveled = Levels::new(&[block]).and_then(|levels| mesh.with_levels(levels));
        for group in leveled.iter().flat_map(|mesh| mesh.groups()) {
            check_all(Scene { hosts, mesh: *leveled.as_ref().unwrap(), group }, &parts);
        }
    }
}
