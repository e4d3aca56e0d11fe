//! Rows with counts: what of the slots is moved, and that the checking layer spoils the rest.
//!
//! Law: what is expected is computed here from the counts. All bytes of every arena are checked.

use warpweft_backend::cpu::CpuOptions;
use warpweft_backend::{Backend, Checked};
use warpweft_base::id::{BufferId, CallId, SlotId};
use warpweft_format::ElementType;
use warpweft_plan::compute::SPOILED;
use warpweft_plan::layout::{Content, Region};
use warpweft_plan::model::{BufferSpec, CollectiveKind, Counts, Group, Lifetime, Mesh, Role};
use warpweft_plan::op::{CollectiveCall, CountSlots, Op};

use crate::bodies::harness::{LINK, Plan, Rank, noise, run};
use crate::device::on_every_rank;

const CAPACITY: usize = 5;
/// Slots of a rank for each other one.
const SLOTS: usize = 2;

fn buffer(plan: &mut Plan, name: &str, element: ElementType, elements: usize) -> SlotId {
    let (role, lifetime) = (Role::Internal, Lifetime::Step);
    plan.buffers.push(BufferSpec { name: name.into(), elements, element, role, lifetime });
    // Of what no step writes: the checking layer takes it as there.
    plan.resident(name, Content::Buffer(BufferId::at(plan.buffers.len() - 1)))
}

/// Rows there, and others back by the same counts.
#[derive(Clone, Copy)]
struct Planned {
    group: Group,
    row: usize,
    /// Given, taken.
    counts: [SlotId; 2],
    there: [SlotId; 2],
    back: [SlotId; 2],
}

fn planned(mesh: Mesh) -> (Plan, Vec<Planned>) {
    let mut plan = Plan::over(mesh, &[]);
    let mut all = Vec::new();
    for (group, row) in [(Group::World, 1), (Group::World, 13), (Group::Shard, 7), (Group::Replicate, 64)] {
        let slots = SLOTS * mesh.size(group) as usize;
        let mut pair = |name, element, elements| {
            [0, 1].map(|side| buffer(&mut plan, &format!("{name} {side}"), element, elements))
        };
        let counts = pair("counts", ElementType::U32, slots);
        let [there, back] = ["there", "back"].map(|name| pair(name, ElementType::U8, slots * CAPACITY * row));
        all.push(Planned { group, row, counts, there, back });
        let declared = Counts::new(BufferId::new(0), BufferId::new(1), CAPACITY);
        let [given, taken] = counts;
        let first = CountSlots { given, taken, declared };
        let known = Counts { known: true, ..declared };
        let second = CountSlots { given: taken, taken: given, declared: known };
        for ([from, to], counts) in [(there, Some(first)), (back, Some(second))] {
            let (call, kind) = (CallId::new(0), CollectiveKind::AllToAll);
            plan.op(LINK, Op::CollectiveCall(CollectiveCall { call, kind, group, from, to, counts }));
        }
    }
    (plan, all)
}

/// Some slots are empty, some full, and one rank says that more are filled than there is room for.
fn count(rank: usize, slot: usize, round: usize) -> u32 {
    let count = (7 * rank + 3 * slot + 5 * round) % (CAPACITY + 1);
    if rank == 1 && slot == 1 && round == 1 { u32::MAX } else { count as u32 }
}

fn before(plan: &Plan, all: &[Planned], rank: usize, round: usize) -> Vec<u8> {
    let mut arena: Vec<u8> = noise(plan.arena.bytes(), (rank + 64 * round) as u32)
        .iter()
        .map(|value| (128.0 * value) as i8 as u8 & 0x7F)
        .collect();
    for one in all {
        let Region { offset, bytes } = plan.region(one.counts[0]);
        let counts = (0..bytes / 4).flat_map(|slot| count(rank, slot, round).to_le_bytes());
        arena[offset..][..bytes].copy_from_slice(&counts.collect::<Vec<_>>());
    }
    arena
}

/// One rank's arena afterwards, bytes after the counts being spoiled or left alone.
fn after(plan: &Plan, all: &[Planned], rank: usize, round: usize, spoiled: bool) -> Vec<u8> {
    let mesh = plan.weights.mesh;
    let own = mesh.iter().nth(rank).unwrap();
    let before = |rank: usize| before(plan, all, rank, round);
    let mut arena = before(rank);
    for one in all {
        let place = mesh.position(own, one.group) as usize;
        for (giver, member) in mesh.members(own, one.group).enumerate() {
            let peer = before(member.index());
            for slot in 0..SLOTS {
                let (here, there) = (SLOTS * giver + slot, SLOTS * place + slot);
                let came = count(member.index(), there, round).min(CAPACITY as u32);
                let at = plan.region(one.counts[1]).offset + 4 * here;
                arena[at..at + 4].copy_from_slice(&came.to_le_bytes());
                let went = count(rank, here, round).min(CAPACITY as u32);
                for ([from, to], rows) in [(one.there, came), (one.back, went)] {
                    let (each, filled) = (CAPACITY * one.row, rows as usize * one.row);
                    let from = plan.region(from).offset + each * there;
                    let to = plan.region(to).offset + each * here;
                    arena[to..to + filled].copy_from_slice(&peer[from..from + filled]);
                    if spoiled {
                        arena[to + filled..to + each].fill(SPOILED);
                    }
                }
            }
        }
    }
    arena
}

fn worlds() -> Vec<Mesh> {
    vec![Mesh::new(1).unwrap(), Mesh::new(3).unwrap(), Mesh::hybrid(4, 2).unwrap()]
}

/// CO-2: a count that is a fault moves no more than there is room for.
#[test]
fn of_each_slot_the_filled_rows_are_moved_and_no_byte_after_them_there_and_back() {
    for mesh in worlds() {
        let (plan, all) = planned(mesh);
        let gave = all.clone();
        let found = run(plan.clone(), move |rank| {
            let whole = Region { offset: 0, bytes: rank.plan.arena.bytes() };
            (0..2)
                .map(|round| {
                    let bytes = before(&rank.plan, &gave, rank.number(), round);
                    rank.backend.upload(&rank.memory, whole, &bytes).unwrap();
                    rank.step().unwrap();
                    let mut bytes = vec![0; whole.bytes];
                    rank.backend.download(&rank.memory, whole, &mut bytes).unwrap();
                    bytes
                })
                .collect::<Vec<_>>()
        });
        for (rank, rounds) in found.iter().enumerate() {
            for (round, found) in rounds.iter().enumerate() {
                let expected = after(&plan, &all, rank, round, false);
                let differs = (0..expected.len()).find(|at| expected[*at] != found[*at]);
                assert_eq!(differs, None, "a byte of rank {rank}, {mesh}, round {round}");
            }
        }
    }
}

#[test]
fn the_checking_layer_spoils_what_lies_after_the_counts() {
    let mesh = Mesh::hybrid(4, 2).unwrap();
    let (plan, all) = planned(mesh);
    let gave = all.clone();
    let found = on_every_rank(plan.clone(), CpuOptions::default(), move |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        let whole = Region { offset: 0, bytes: rank.plan.arena.bytes() };
        let bytes = before(&rank.plan, &gave, rank.number(), 0);
        rank.backend.upload(&rank.memory, whole, &bytes).unwrap();
        rank.step().unwrap();
        let mut bytes = vec![0; whole.bytes];
        rank.backend.download(&rank.memory, whole, &mut bytes).unwrap();
        bytes
    });
    for (rank, found) in found.iter().enumerate() {
        assert!(*found == after(&plan, &all, rank, 0, true), "rank {rank}");
    }
}
