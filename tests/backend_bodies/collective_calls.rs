//! Collectives of buffers: the contents of every rank after one of each kind, over every group, issued and captured.
//!
//! Law: what is expected is computed here, from what ranks give and a few lines for each kind. All bytes of every
//! arena are checked: what no collective writes stays as it was.

use half::bf16;
use warpweft_backend::Backend;
use warpweft_base::id::{BufferId, CallId, SlotId};
use warpweft_format::ElementType;
use warpweft_plan::layout::{Content, Region};
use warpweft_plan::model::{BufferSpec, CollectiveKind, Group, Lifetime, Mesh, Role};
use warpweft_plan::op::{self, CollectiveCall, Op};

use super::harness::{COMPUTE, LINK, Plan, Rank, noise, run};
use crate::device::{Device, meshes, most_captured_ranks};

pub(crate) const GROUPS: [Group; 6] =
    [Group::World, Group::Shard, Group::Replicate, Group::Replica, Group::Context, Group::Tensor];
const KINDS: [CollectiveKind; 5] = [
    CollectiveKind::AllGather,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllToAll,
    CollectiveKind::Sum,
    CollectiveKind::Max,
];

/// What each rank gives each other: bytes that no wide copy fits, a few, and many.
const MOVED: [(ElementType, usize); 5] = [
    (ElementType::U8, 1),
    (ElementType::U8, 13),
    (ElementType::Bf16, 3),
    (ElementType::F32, 5),
    (ElementType::U8, 40_001),
];
const COMBINED: [(ElementType, usize); 6] = [
    (ElementType::F32, 1),
    (ElementType::F32, 7),
    (ElementType::F32, 9_001),
    (ElementType::Bf16, 1),
    (ElementType::Bf16, 9),
    (ElementType::Bf16, 9_003),
];

/// Flat worlds from one rank on, meshes of replicas and with tensor parallelism: as many ranks as there are GPUs, and
/// two on one.
fn worlds() -> Vec<Mesh> {
    let most = most_captured_ranks();
    let flat = (1..=most.max(2)).map(|ranks| Mesh::new(ranks).unwrap());
    let cut = [(2, 1, 2), (4, 1, 2), (4, 2, 2)]
        .map(|(ranks, replicas, tensor)| Mesh::of(ranks, replicas, tensor, None));
    let others = meshes().into_iter().chain(cut.map(Result::unwrap));
    // Two of everything, last: a body goes as far as there are GPUs, or as ranks may share them.
    let cube = Mesh::of(8, 1, 2, None).and_then(|mesh| mesh.with_context(2)).unwrap();
    let few = others.filter(|mesh| most == 4 || mesh.ranks() <= most.max(2));
    flat.chain(few).chain([cube]).collect()
}

/// What a rank gets of what those of its group give, of which it is number `place`.
pub(crate) fn received(kind: CollectiveKind, element: ElementType, given: &[&[u8]], place: usize) -> Vec<u8> {
    let part = given[0].len() / given.len();
    match kind {
        CollectiveKind::AllGather => given.concat(),
        CollectiveKind::AllToAll => {
            given.iter().flat_map(|all| all[part * place..][..part].to_vec()).collect()
        }
        CollectiveKind::ReduceScatter => {
            let parts: Vec<&[u8]> = given.iter().map(|all| &all[part * place..][..part]).collect();
            received(CollectiveKind::Sum, element, &parts, place)
        }
        CollectiveKind::Sum => combined(element, given, |sum, value| sum + value),
        CollectiveKind::Max => combined(element, given, |most, value| match value.is_nan() || most > value {
            true => most,
            false => value,
        }),
    }
}

/// In rank order in f32, rounded once.
fn combined(element: ElementType, given: &[&[u8]], combine: fn(f32, f32) -> f32) -> Vec<u8> {
    let mut ranks = given.iter().map(|bytes| values_of(element, bytes));
    let mut all = ranks.next().unwrap();
    for values in ranks {
        all.iter_mut().zip(values).for_each(|(all, value)| *all = combine(*all, value));
    }
    bytes_of(element, &all)
}

fn values_of(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    match element {
        ElementType::Bf16 => {
            bytemuck::pod_collect_to_vec::<u8, bf16>(bytes).into_iter().map(bf16::to_f32).collect()
        }
        _ => bytemuck::pod_collect_to_vec(bytes),
    }
}

fn bytes_of(element: ElementType, values: &[f32]) -> Vec<u8> {
    match element {
        ElementType::Bf16 => {
            let rounded: Vec<bf16> = values.iter().copied().map(bf16::from_f32).collect();
            bytemuck::pod_collect_to_vec(&rounded)
        }
        _ => bytemuck::pod_collect_to_vec(values),
    }
}

/// What a rank gives: values of which another order of addition makes other sums, and for a maximum some that are
/// infinite or not numbers; any bytes where these only move.
pub(crate) fn given(
    kind: CollectiveKind,
    element: ElementType,
    bytes: usize,
    rank: usize,
    number: usize,
) -> Vec<u8> {
    let (seed, elements) = ((64 * number + rank) as u32, bytes / element.bytes());
    let values: Vec<f32> = match kind {
        CollectiveKind::AllGather | CollectiveKind::AllToAll => {
            return noise(bytes, seed).iter().map(|value| (128.0 * value) as i8 as u8).collect();
        }
        CollectiveKind::ReduceScatter | CollectiveKind::Sum => {
            let scale = [1e8, 1.0, -1e8, 3.0, 1e7, -1e7, 5e7, -2.0][rank];
            noise(elements, seed).iter().map(|value| value * scale).collect()
        }
        CollectiveKind::Max => {
            let odd = |at: usize, value: f32| match (at + 3 * rank + number) % 7 {
                0 | 3 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 if at.is_multiple_of(5) => f32::INFINITY,
                _ => value,
            };
            noise(elements, seed).into_iter().enumerate().map(|(at, value)| odd(at, value)).collect()
        }
    };
    bytes_of(element, &values)
}

/// The same bytes for every value that is not a number: devices differ in which of these a maximum of several is.
fn settle_nan(element: ElementType, bytes: &mut [u8]) {
    let mut values = values_of(element, bytes);
    values.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = f32::NAN);
    bytes.copy_from_slice(&bytes_of(element, &values));
}

fn buffer(plan: &mut Plan, name: &str, element: ElementType, elements: usize) -> SlotId {
    let (role, lifetime) = (Role::Internal, Lifetime::Step);
    plan.buffers.push(BufferSpec { name: name.into(), elements, element, role, lifetime });
    plan.transient(name, Content::Buffer(BufferId::at(plan.buffers.len() - 1)))
}

fn exchange(kind: CollectiveKind, group: Group, from: SlotId, to: SlotId) -> Op {
    Op::CollectiveCall(CollectiveCall { call: CallId::new(0), kind, group, from, to, counts: None })
}

/// A collective of a plan made by hand.
#[derive(Clone, Copy, Debug)]
struct Planned {
    kind: CollectiveKind,
    group: Group,
    element: ElementType,
    from: SlotId,
    to: SlotId,
}

/// Every kind over every group in every size, one after the other. Many bytes go among all ranks and among some: which
/// some changes nothing of how they go.
fn every_collective(mesh: Mesh) -> (Plan, Vec<Planned>) {
    let mut plan = Plan::over(mesh, &[]);
    let mut collectives = Vec::new();
    for (kind, group) in KINDS.into_iter().flat_map(|kind| GROUPS.map(|group| (kind, group))) {
        let sizes = if kind.combines() { &COMBINED[..] } else { &MOVED[..] };
        let goes_in_any_size = matches!(group, Group::World | Group::Shard);
        let fits = |(_, elements): &(ElementType, usize)| goes_in_any_size || *elements < 9_000;
        for (element, elements) in sizes.iter().copied().filter(fits) {
            let ranks = mesh.size(group);
            let parts = if kind.has_parts() { ranks as usize } else { 1 };
            let from = buffer(&mut plan, "from", element, elements * parts);
            let got = kind.received(elements * parts, ranks).unwrap();
            let to = buffer(&mut plan, "to", element, got);
            plan.op(LINK, exchange(kind, group, from, to));
            collectives.push(Planned { kind, group, element, from, to });
        }
    }
    (plan, collectives)
}

/// All bytes of a rank's arena before a step.
fn before(plan: &Plan, collectives: &[Planned], rank: usize, round: usize) -> Vec<u8> {
    let mut arena = given(CollectiveKind::AllGather, ElementType::U8, plan.arena.bytes(), rank, round);
    for (number, collective) in collectives.iter().enumerate() {
        let Region { offset, bytes } = plan.region(collective.from);
        let values = given(collective.kind, collective.element, bytes, rank, round + 8 * number);
        arena[offset..][..bytes].copy_from_slice(&values);
    }
    arena
}

fn check_arenas(plan: &Plan, collectives: &[Planned], round: usize, found: &[Vec<Vec<u8>>]) {
    let mesh = plan.weights.mesh;
    let given: Vec<Vec<u8>> =
        mesh.iter().map(|rank| before(plan, collectives, rank.index(), round)).collect();
    for rank in mesh.iter() {
        let (mut expected, mut found) = (given[rank.index()].clone(), found[rank.index()][round].clone());
        for Planned { kind, group, element, from, to } in collectives {
            let [from, to] = [*from, *to].map(|slot| plan.region(slot));
            let members = mesh.members(rank, *group);
            let gave: Vec<&[u8]> =
                members.map(|member| &given[member.index()][from.offset..from.end()]).collect();
            let got = received(*kind, *element, &gave, mesh.position(rank, *group) as usize);
            expected[to.offset..to.end()].copy_from_slice(&got);
            let what = format!("{kind} of {} bytes, {group}, {mesh}, {rank}, round {round}", from.bytes);
            for arena in [&mut expected, &mut found] {
                if *kind == CollectiveKind::Max {
                    settle_nan(*element, &mut arena[to.offset..to.end()]);
                }
            }
            assert!(found[to.offset..to.end()] == expected[to.offset..to.end()], "{what}: what it gets");
        }
        // With what ranks gave, and what lies between buffers.
        let differs = (0..expected.len()).find(|at| expected[*at] != found[*at]);
        assert_eq!(differs, None, "a byte of the arena of {rank}, {mesh}, round {round}");
    }
}

/// EX-1. Every round has other values, so what stayed of the round before would show.
fn a_collective_of_any_kind_size_and_group_leaves_each_rank_what_its_group_gave_and_all_else_alone() {
    for mesh in worlds() {
        let (plan, collectives) = every_collective(mesh);
        let is_recorded = mesh.ranks() <= most_captured_ranks();
        let planned = collectives.clone();
        let found = run(plan.clone(), move |rank: &mut Rank<Device>| {
            let all = Region { offset: 0, bytes: rank.plan.arena.bytes() };
            let put = |rank: &Rank<Device>, round: usize| {
                let bytes = before(&rank.plan, &planned, rank.number(), round);
                rank.backend.upload(&rank.memory, all, &bytes).unwrap();
            };
            let look = |rank: &Rank<Device>| {
                let mut bytes = vec![0; all.bytes];
                rank.backend.download(&rank.memory, all, &mut bytes).unwrap();
                bytes
            };
            let mut rounds = Vec::new();
            for round in 0..2 {
                put(rank, round);
                rank.step().unwrap();
                rounds.push(look(rank));
            }
            let graph = is_recorded.then(|| rank.capture_graph().unwrap());
            for (round, graph) in (2..4).zip(graph.iter().cycle()) {
                put(rank, round);
                rank.replay(graph).unwrap();
                rounds.push(look(rank));
            }
            rounds
        });
        for round in 0..found[0].len() {
            check_arenas(&plan, &collectives, round, &found);
        }
        assert_eq!(found[0].len(), if is_recorded { 4 } else { 2 });
    }
}

/// What a step does next with the buffers of a rank, by their numbers.
#[derive(Clone, Copy, Debug)]
enum Turn {
    Copy(usize, usize),
    Collective(CollectiveKind, usize, usize),
}

/// The second half of them captured.
const STEPS: usize = 8;

/// Two buffers that go back and forth, each overwritten right after what peers read of it, and read right before
/// what peers bring next.
const BACK_AND_FORTH: [Turn; 21] = {
    use CollectiveKind::{AllGather, AllToAll, Max, ReduceScatter, Sum};
    [
        Turn::Copy(2, 7),
        Turn::Collective(AllToAll, 7, 8),
        Turn::Copy(3, 7),
        Turn::Copy(8, 9),
        Turn::Collective(AllToAll, 7, 8),
        Turn::Copy(8, 10),
        Turn::Collective(Sum, 8, 7),
        Turn::Copy(7, 11),
        Turn::Collective(AllGather, 0, 8),
        Turn::Copy(1, 0),
        Turn::Copy(8, 12),
        Turn::Collective(AllGather, 0, 7),
        Turn::Collective(Max, 7, 8),
        Turn::Copy(4, 7),
        Turn::Collective(Max, 7, 5),
        Turn::Collective(Sum, 5, 7),
        Turn::Copy(7, 6),
        Turn::Copy(2, 7),
        Turn::Collective(ReduceScatter, 7, 0),
        Turn::Copy(3, 7),
        Turn::Collective(ReduceScatter, 7, 1),
    ]
};

/// What a rank writes into its buffers before a step. The two that go back and forth keep what they have.
fn written(number: usize, elements: usize, rank: usize, step: usize) -> Vec<u8> {
    given(CollectiveKind::Sum, ElementType::F32, 4 * elements, rank, 16 * step + number)
}

/// EX-1, PL-8: a rank that is done with a collective overwrites at once what it gave, and peers what it got.
fn buffers_that_collectives_use_again_and_again_hold_what_program_order_says() {
    let ranks = most_captured_ranks();
    let mesh = Mesh::new(ranks).unwrap();
    let part = 5003;
    let elements = move |number: usize| if number < 2 { part } else { part * ranks as usize };
    let mut plan = Plan::over(mesh, &[]);
    let slots: Vec<SlotId> =
        (0..13).map(|number| buffer(&mut plan, "buffer", ElementType::F32, elements(number))).collect();
    let mut last = LINK;
    for turn in BACK_AND_FORTH {
        let (lane, op) = match turn {
            Turn::Copy(from, to) => (COMPUTE, Op::Copy(op::Copy { from: slots[from], to: slots[to] })),
            Turn::Collective(kind, from, to) => (LINK, exchange(kind, Group::World, slots[from], slots[to])),
        };
        if lane != last {
            plan.fence(last, lane);
        }
        plan.op(lane, op);
        last = lane;
    }
    let found = run(plan, move |rank: &mut Rank<Device>| {
        let mut graph = None;
        let mut steps = Vec::new();
        for step in 0..STEPS {
            if step == STEPS / 2 {
                graph = Some(rank.capture_graph().unwrap());
            }
            for (number, slot) in slots.iter().enumerate().take(5) {
                rank.put(*slot, &written(number, elements(number), rank.number(), step));
            }
            match &graph {
                None => rank.step().unwrap(),
                Some(graph) => rank.replay(graph).unwrap(),
            }
            steps.push(slots.iter().map(|slot| rank.get::<u8>(*slot)).collect::<Vec<_>>());
        }
        steps
    });
    let mut state = vec![vec![Vec::new(); 13]; ranks as usize];
    for step in 0..STEPS {
        for (rank, buffers) in state.iter_mut().enumerate() {
            for (number, buffer) in buffers.iter_mut().enumerate().take(5) {
                *buffer = written(number, elements(number), rank, step);
            }
        }
        for turn in BACK_AND_FORTH {
            let before = state.clone();
            for (rank, buffers) in state.iter_mut().enumerate() {
                match turn {
                    Turn::Copy(from, to) => buffers[to] = before[rank][from].clone(),
                    Turn::Collective(kind, from, to) => {
                        let gave: Vec<&[u8]> = before.iter().map(|buffers| &buffers[from][..]).collect();
                        buffers[to] = received(kind, ElementType::F32, &gave, rank);
                    }
                }
            }
        }
        let found = found.iter().map(|steps| &steps[step]);
        for ((rank, expected), found) in state.iter().enumerate().zip(found) {
            let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
            assert_eq!(differs, None, "the first buffer that differs: rank {rank} of {ranks}, step {step}");
        }
    }
}

bodies! {
    a_collective_of_any_kind_size_and_group_leaves_each_rank_what_its_group_gave_and_all_else_alone,
    buffers_that_collectives_use_again_and_again_hold_what_program_order_says,
}
