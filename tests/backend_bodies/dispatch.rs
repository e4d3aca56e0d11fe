//! Rows with counts: the contents of every rank after a dispatch, what goes the same way again, and what goes back,
//! issued and captured.
//!
//! Law: what is expected is computed here from the counts. All bytes of every arena are checked: where counts are read
//! on the way, what lies after them stays as it was, or is spoiled by the checking layer.

use warpweft_backend::{Backend, Checked};
use warpweft_base::id::{BufferId, CallId, SlotId};
use warpweft_format::ElementType;
use warpweft_plan::compute::SPOILED;
use warpweft_plan::layout::{Content, Region};
use warpweft_plan::model::{BufferSpec, CollectiveKind, Counts, Group, Lifetime, Mesh, Role};
use warpweft_plan::op::{CollectiveCall, CountSlots, Op};

use super::harness::{LINK, Plan, Rank};
use crate::device::{Device, DeviceOptions, most_captured_ranks, moves_filled_rows_alone, on_every_rank};

const CAPACITY: usize = 5;
/// Slots of a rank for each other one.
const SLOTS: usize = 2;
/// In which another count stands in each, two of them captured.
const ROUNDS: usize = 4;

/// Groups, and rows: one byte, some that no wide copy fits, and slots of several pieces.
const ROWS: [(Group, ElementType, usize); 7] = [
    (Group::World, ElementType::U8, 1),
    (Group::World, ElementType::Bf16, 7),
    (Group::World, ElementType::F32, 257),
    (Group::Expert, ElementType::F32, 12),
    (Group::Expert, ElementType::Bf16, 4_096),
    (Group::Shard, ElementType::U8, 13),
    (Group::Replicate, ElementType::Bf16, 64),
];

fn buffer(plan: &mut Plan, name: &str, element: ElementType, elements: usize) -> SlotId {
    let (role, lifetime) = (Role::Internal, Lifetime::Step);
    plan.buffers.push(BufferSpec { name: name.into(), elements, element, role, lifetime });
    // Of what no step writes: the checking layer takes it as there.
    plan.resident(name, Content::Buffer(BufferId::at(plan.buffers.len() - 1)))
}

/// Rows there, others there again, and others back, by the same counts.
#[derive(Clone, Copy, Debug)]
struct Planned {
    group: Group,
    /// Bytes of a row.
    row: usize,
    /// Given, taken.
    counts: [SlotId; 2],
    there: [SlotId; 2],
    again: [SlotId; 2],
    back: [SlotId; 2],
}

fn planned(mesh: Mesh) -> (Plan, Vec<Planned>) {
    let mut plan = Plan::over(mesh, &[]);
    let mut all = Vec::new();
    for (group, element, width) in ROWS {
        let slots = SLOTS * mesh.size(group) as usize;
        let mut pair = |name, element, elements| {
            [0, 1].map(|side| buffer(&mut plan, &format!("{name} {side}"), element, elements))
        };
        let counts = pair("counts", ElementType::U32, slots);
        let [there, again, back] =
            ["there", "again", "back"].map(|name| pair(name, element, slots * CAPACITY * width));
        all.push(Planned { group, row: width * element.bytes(), counts, there, again, back });
        let declared = Counts::new(BufferId::new(0), BufferId::new(1), CAPACITY);
        let known = Counts { known: true, ..declared };
        let [given, taken] = counts;
        let first = CountSlots { given, taken, declared };
        let second = CountSlots { given, taken, declared: known };
        let third = CountSlots { given: taken, taken: given, declared: known };
        for ([from, to], counts) in [(there, first), (again, second), (back, third)] {
            let (call, kind, counts) = (CallId::new(0), CollectiveKind::AllToAll, Some(counts));
            plan.op(LINK, Op::CollectiveCall(CollectiveCall { call, kind, group, from, to, counts }));
        }
    }
    (plan, all)
}

/// Some slots are empty, some full, in a round all of either; and one rank says that more are filled than there is
/// room for, where that is looked at on the way.
fn count(rank: usize, slot: usize, round: usize) -> u32 {
    let count = match round {
        2 => CAPACITY * (slot % 2),
        _ => (7 * rank + 3 * slot + 5 * round) % (CAPACITY + 1),
    };
    let overflows = rank == 1 && slot == 1 && round == 1 && moves_filled_rows_alone();
    if overflows { u32::MAX } else { count as u32 }
}

fn before(plan: &Plan, all: &[Planned], rank: usize, round: usize) -> Vec<u8> {
    // Any bytes, as many as these are.
    let seed = 64 * round + rank;
    let byte = |at: usize| ((at ^ (seed << 20)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8 & 0x7F;
    let mut arena: Vec<u8> = (0..plan.arena.bytes()).map(byte).collect();
    for one in all {
        let Region { offset, bytes } = plan.region(one.counts[0]);
        let counts = (0..bytes / 4).flat_map(|slot| count(rank, slot, round).to_le_bytes());
        arena[offset..][..bytes].copy_from_slice(&counts.collect::<Vec<_>>());
    }
    arena
}

/// What becomes of rows after the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Left,
    Spoiled,
    /// They come along.
    Moved,
}

/// One rank's arena afterwards, of what ranks had before.
fn after(
    plan: &Plan,
    all: &[Planned],
    had: &[Vec<u8>],
    (rank, round): (usize, usize),
    rest: Rest,
) -> Vec<u8> {
    let mesh = plan.weights.mesh;
    let own = mesh.iter().nth(rank).unwrap();
    let mut arena = had[rank].clone();
    for one in all {
        let place = mesh.position(own, one.group) as usize;
        for (giver, member) in mesh.members(own, one.group).enumerate() {
            let peer = &had[member.index()];
            for slot in 0..SLOTS {
                let (here, there) = (SLOTS * giver + slot, SLOTS * place + slot);
                let came = count(member.index(), there, round).min(CAPACITY as u32);
                let at = plan.region(one.counts[1]).offset + 4 * here;
                arena[at..at + 4].copy_from_slice(&came.to_le_bytes());
                let went = count(rank, here, round).min(CAPACITY as u32);
                for ([from, to], rows) in [(one.there, came), (one.again, came), (one.back, went)] {
                    let each = CAPACITY * one.row;
                    let filled = if rest == Rest::Moved { each } else { rows as usize * one.row };
                    let from = plan.region(from).offset + each * there;
                    let to = plan.region(to).offset + each * here;
                    arena[to..to + filled].copy_from_slice(&peer[from..from + filled]);
                    if rest == Rest::Spoiled {
                        arena[to + filled..to + each].fill(SPOILED);
                    }
                }
            }
        }
    }
    arena
}

/// Worlds of few ranks first: a body goes as far as there are GPUs, or as ranks may share them.
fn worlds() -> Vec<Mesh> {
    let [one, two, three, four] = [1, 2, 3, 4].map(|ranks| Mesh::new(ranks).unwrap());
    let replicas = Mesh::hybrid(4, 2).unwrap();
    let experts = [(two, 2, None), (four, 2, Some(2)), (replicas, 2, Some(1)), (four, 4, None)]
        .map(|(mesh, ep, ep_shard)| mesh.with_experts(ep, ep_shard).unwrap());
    let eight = Mesh::hybrid(8, 2).and_then(|mesh| mesh.with_experts(2, Some(2))).unwrap();
    [one, two, three, replicas].into_iter().chain(experts).chain([eight]).collect()
}

/// All rounds of every world: the bytes of every arena. `made` is the backend, or a layer on it.
fn check<B: Backend + 'static>(made: fn(Device) -> B, rest: Rest) {
    for mesh in worlds() {
        let (plan, all) = planned(mesh);
        let gave = all.clone();
        let captures = mesh.ranks() <= most_captured_ranks();
        let found = on_every_rank(plan.clone(), DeviceOptions::default(), move |backend, plan| {
            let mut rank = Rank::start(made(backend), plan, None).unwrap();
            let whole = Region { offset: 0, bytes: rank.plan.arena.bytes() };
            let mut graph = None;
            (0..ROUNDS)
                .map(|round| {
                    if captures && round == ROUNDS / 2 {
                        graph = Some(rank.capture_graph().unwrap());
                    }
                    let bytes = before(&rank.plan, &gave, rank.number(), round);
                    rank.backend.upload(&rank.memory, whole, &bytes).unwrap();
                    match &graph {
                        None => rank.step().unwrap(),
                        Some(graph) => rank.replay(graph).unwrap(),
                    }
                    let mut bytes = vec![0; whole.bytes];
                    rank.backend.download(&rank.memory, whole, &mut bytes).unwrap();
                    bytes
                })
                .collect::<Vec<_>>()
        });
        for round in 0..ROUNDS {
            let had: Vec<_> = (0..found.len()).map(|rank| before(&plan, &all, rank, round)).collect();
            for (rank, rounds) in found.iter().enumerate() {
                let (expected, found) = (after(&plan, &all, &had, (rank, round), rest), &rounds[round]);
                let differs = (0..expected.len()).find(|at| expected[*at] != found[*at]);
                assert_eq!(differs, None, "a byte of rank {rank}, {mesh}, round {round}");
            }
        }
    }
}

/// EX-1, CO-2: a count that is a fault moves no more than there is room for. Every round has other counts and rows.
fn of_each_slot_the_filled_rows_are_moved_there_again_and_back_and_no_byte_after_them() {
    check(|backend| backend, if moves_filled_rows_alone() { Rest::Left } else { Rest::Moved });
}

/// EX-1: a closure that reads beyond a count finds NaN.
fn the_checking_layer_spoils_what_lies_after_the_counts() {
    check(Checked::new, Rest::Spoiled);
}

bodies! {
    of_each_slot_the_filled_rows_are_moved_there_again_and_back_and_no_byte_after_them,
    the_checking_layer_spoils_what_lies_after_the_counts,
}
