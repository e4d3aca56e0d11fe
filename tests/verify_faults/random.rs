//! Random programs: no false alarm on a valid plan, and no disagreement with a brute-force search.
//!
//! The generator writes programs that train or evaluate: all formats and placements, current and delayed scaling, any number of
//! uses and gradients per call, buffers of every role and lifetime, policies by depth, 1 to 5 shards in 1 to 3 replicas. It writes no program that reduces
//! gradients without an optimizer, declares reuse of uses alone, and makes no schedule by hand.

use proptest::collection::vec;
use proptest::prelude::*;
use warpweft::config::{AcrossMicroBatches, Backward, Columnwise, ReduceDtype, ReduceEvery};
use warpweft::format::{AmaxChoice, ElementType, Format, Orientation};
use warpweft::id::{EventId, TaskId, WeightId};
use warpweft::layout::{Delayed, Residency, StateLayout, Weights};
use warpweft::model::{
    Access, BufferSpec, CallBuilder, Form, Lifetime, Mesh, Model, Phase, Placement, Reuse, Role, StepProgram,
};
use warpweft::op::Op;
use warpweft::plan::{Policy, Prefetch, ResidentLayout, StepPlan, VerifyError, verify};

use crate::edit::{remove, serialize};
use crate::programs::policy;

const FORMATS: [Format; 6] = [
    Format::F32,
    Format::Bf16,
    Format::NVFP4_2D,
    Format::Mxfp8,
    Format::FP8_BLOCK128_POW2,
    Format::FP8_TENSOR_E4M3,
];

/// Numbers from which a call is made; each is taken modulo what there is to choose from.
#[derive(Clone, Debug)]
struct Choice {
    uses: Vec<(usize, bool, bool)>,
    gradients: u8,
    buffers: Vec<(usize, u8)>,
}

#[derive(Clone, Debug)]
struct Recipe {
    /// Format, rows, columns, replicated.
    weights: Vec<(usize, usize, usize, bool)>,
    /// Role and lifetime.
    buffers: Vec<(u8, u8)>,
    calls: Vec<Choice>,
    micro_batches: u32,
    /// Weights of a group, less one.
    grouped: usize,
    trains: bool,
    shards: u32,
    replicas: u32,
    /// Delayed scaling, if there is a weight to delay it for.
    delayed: bool,
    policy: Policy,
}

fn choice() -> impl Strategy<Value = Choice> {
    (vec((0..8usize, any::<bool>(), any::<bool>()), 0..4), any::<u8>(), vec((0..8usize, 0..3u8), 0..4))
        .prop_map(|(uses, gradients, buffers)| Choice { uses, gradients, buffers })
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let reduce_every =
        prop_oneof![Just(ReduceEvery::Call), Just(ReduceEvery::MicroBatch), Just(ReduceEvery::Step)];
    (0..6u32, 1..3u32, any::<[bool; 4]>(), reduce_every).prop_map(
        |(depth, communicators, [regather, across, on_demand, rounded], reduce_every)| Policy {
            prefetch: Prefetch::Depth(depth),
            communicators,
            backward: if regather { Backward::Regather } else { Backward::Keep },
            across_micro_batches: if across {
                AcrossMicroBatches::Regather
            } else {
                AcrossMicroBatches::Keep
            },
            reduce_every,
            reduce_dtype: if rounded { ReduceDtype::Bf16 } else { ReduceDtype::F32 },
            columnwise: if on_demand { Columnwise::OnDemand } else { Columnwise::Keep },
            ..policy()
        },
    )
}

fn recipe() -> impl Strategy<Value = Recipe> {
    let weights = vec((0..6usize, 1..5usize, 1..4usize, prop::bool::weighted(0.25)), 1..6);
    let buffers = vec((0..3u8, 0..3u8), 1..6);
    let flags = (any::<bool>(), any::<bool>());
    (weights, buffers, vec(choice(), 1..10), (1..4u32, 0..4usize), flags, (1..6u32, 1..4u32), any_policy())
        .prop_map(
            |(
                weights,
                buffers,
                calls,
                (micro_batches, grouped),
                (trains, delayed),
                (shards, replicas),
                policy,
            )| Recipe {
                weights,
                buffers,
                calls,
                micro_batches,
                grouped,
                trains,
                shards,
                replicas,
                delayed,
                policy,
            },
        )
}

fn model(recipe: &Recipe) -> Model {
    let mut model = Model::builder();
    for (number, (format, rows, cols, replicated)) in recipe.weights.iter().enumerate() {
        let name = format!("w{number}");
        let format = FORMATS[*format];
        let (rows, cols) = match format {
            Format::Nvfp4(_) | Format::Mxfp8 => (rows * 32, cols * 32),
            _ => (rows * 7, cols * 5),
        };
        if *replicated {
            model.replicated(&name, rows, cols).unwrap();
        } else {
            model.sharded(&name, rows, cols, format).unwrap();
        }
    }
    let sharded: Vec<WeightId> =
        (0..recipe.weights.len()).filter(|weight| !recipe.weights[*weight].3).map(WeightId::at).collect();
    // A split of the sharded weights into two groups and the rest, or all in one.
    for (number, part) in sharded.chunks(1 + recipe.grouped).take(2).enumerate() {
        model.group(&format!("g{number}"), part).unwrap();
    }
    model.build()
}

fn program(recipe: &Recipe) -> StepProgram {
    let model = model(recipe);
    let mut program = StepProgram::builder("random", &model);
    program.micro_batches(recipe.micro_batches).unwrap();
    let specs: Vec<BufferSpec> =
        recipe.buffers.iter().enumerate().map(|(n, kind)| buffer(n, *kind)).collect();
    let ids: Vec<_> = specs.iter().map(|spec| program.buffer(spec.clone()).unwrap()).collect();
    let mut filled: Vec<bool> =
        specs.iter().map(|spec| spec.role == Role::Input || spec.lifetime == Lifetime::Carried).collect();
    let mut written = vec![false; specs.len()];
    let mut taken = vec![false; specs.len()];
    let mut owed: Vec<bool> = vec![recipe.trains; recipe.weights.len()];
    for (number, choice) in recipe.calls.iter().enumerate() {
        let is_last = number + 1 == recipe.calls.len();
        let mut call = program.call(&format!("c{number}"), Phase::Forward);
        for (weight, columnwise, dense) in &choice.uses {
            call = uses(call, &model, *weight, *columnwise, *dense);
        }
        for (weight, spec) in model.entries() {
            let asked = choice.gradients >> weight.index() & 1 == 1;
            if recipe.trains && (asked || is_last && owed[weight.index()]) {
                call = call.gradient(weight);
                owed[weight.index()] = false;
            }
            assert!(!spec.name.is_empty());
        }
        let mut accesses: Vec<Option<Access>> = vec![None; specs.len()];
        for (buffer, access) in &choice.buffers {
            accesses[buffer % specs.len()] =
                Some([Access::Read, Access::Write, Access::Update][usize::from(*access)]);
        }
        for (buffer, spec) in specs.iter().enumerate() {
            if is_last && spec.role == Role::Output && !written[buffer] && !taken[buffer] {
                accesses[buffer] = Some(Access::Write);
            }
            let Some(wanted) = accesses[buffer] else { continue };
            if spec.lifetime == Lifetime::Call && std::mem::replace(&mut taken[buffer], true) {
                continue;
            }
            let access = match wanted {
                _ if spec.role == Role::Input => Access::Read,
                _ if !filled[buffer] => Access::Write,
                wanted => wanted,
            };
            filled[buffer] |= access.writes();
            written[buffer] |= access.writes();
            call = call.accesses(ids[buffer], access);
        }
        call.add().unwrap();
    }
    if recipe.trains { program.build_training().unwrap() } else { program.build_evaluation().unwrap() }
}

fn buffer(number: usize, (role, lifetime): (u8, u8)) -> BufferSpec {
    BufferSpec {
        name: format!("b{number}"),
        elements: 1 + number * 97,
        element: ElementType::F32,
        role: [Role::Internal, Role::Input, Role::Output][usize::from(role)],
        lifetime: [Lifetime::Step, Lifetime::Call, Lifetime::Carried][usize::from(lifetime)],
    }
}

/// A use in the next orientation and form that the weight can serve.
fn uses<'p>(
    call: CallBuilder<'p>,
    model: &Model,
    weight: usize,
    columnwise: bool,
    dense: bool,
) -> CallBuilder<'p> {
    let (id, spec) = model.entries().nth(weight % model.weights().len()).unwrap();
    if spec.placement == Placement::Replicated {
        return call.uses(id, Orientation::Rowwise, Form::Dense);
    }
    let orientation = if columnwise { Orientation::Columnwise } else { Orientation::Rowwise };
    let call = call.uses(id, orientation, if dense { Form::Dense } else { Form::Planes });
    match weight % 4 {
        0 => call.reuse(Reuse::Keep),
        1 => call.reuse(Reuse::Regather),
        _ => call,
    }
}

fn weights(recipe: &Recipe, program: &StepProgram) -> Weights {
    let specs = program.model().weights();
    let delays = recipe.delayed && specs.iter().any(|spec| spec.format == Format::FP8_TENSOR_E4M3);
    let settings = Delayed { history: 3, choice: AmaxChoice::Latest };
    let state = StateLayout { delayed: delays.then_some(settings), ..StateLayout::default() };
    let mesh = Mesh::hybrid(recipe.shards * recipe.replicas, recipe.replicas).unwrap();
    Weights::new(specs, mesh).with_state(state)
}

fn build(recipe: &Recipe) -> StepPlan {
    let program = program(recipe);
    let weights = weights(recipe, &program);
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    StepPlan::within(&program, &weights, &resident, &recipe.policy)
        .unwrap_or_else(|error| panic!("{error}\n{recipe:#?}"))
}

/// Does some pair of conflicting accesses, or of release and gather, lack an order? Found by
/// following lanes and waits from every task, without clocks and without a sweep.
fn has_unordered_conflict(plan: &StepPlan) -> bool {
    let tasks = plan.tasks.len();
    let mut before = vec![vec![false; tasks]; tasks];
    for later in 0..tasks {
        let task = &plan.tasks[later];
        let on_lane = (0..later).filter(|earlier| plan.tasks[*earlier].lane == task.lane);
        for direct in task.waits.iter().map(|wait| wait.index()).chain(on_lane).collect::<Vec<_>>() {
            let reached = before[direct].clone();
            before[later].iter_mut().zip(reached).for_each(|(mine, theirs)| *mine |= theirs);
            before[later][direct] = true;
        }
    }
    let conflict = |earlier: usize, later: usize| {
        let first = plan.tasks[earlier].op.accesses();
        plan.tasks[later].op.accesses().iter().any(|(slot, access)| {
            first.iter().any(|(other, how)| {
                (access.writes() || how.writes())
                    && plan.arena.region(*slot).overlaps(plan.arena.region(*other))
            })
        })
    };
    (0..tasks).any(|later| {
        let released = plan.tasks[later].release.is_none_or(|release| before[later][release.index()]);
        !released || (0..later).any(|earlier| !before[later][earlier] && conflict(earlier, later))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// No false alarm, and the proof speaks of every use, gradient and buffer access.
    #[test]
    fn plans_of_random_programs_are_proven_whole(recipe in recipe()) {
        let plan = build(&recipe);
        let proof = verify(&plan).unwrap();
        prop_assert_eq!(proof.uses, plan.calls.iter().map(|call| call.uses.len()).sum::<usize>());
        prop_assert_eq!(proof.gradients, plan.calls.iter().map(|call| call.grads.len()).sum::<usize>());
        prop_assert_eq!(proof.buffers, plan.calls.iter().map(|call| call.buffers.len()).sum::<usize>());
        prop_assert!(!has_unordered_conflict(&plan));
        let program = program(&recipe);
        let weights = weights(&recipe, &program);
        let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
        prop_assert!(StepPlan::prologue(&weights, &resident, &recipe.policy).is_ok());
    }

    /// PL-3, PL-5. With fences added and taken away at random, the verifier and a brute-force
    /// search over all pairs agree on which plans are safe.
    #[test]
    fn races_are_exactly_what_a_brute_force_search_finds(
        recipe in recipe(),
        added in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..12),
        dropped in vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut plan = build(&recipe);
        for (position, task) in plan.tasks.iter_mut().enumerate() {
            task.signals = Some(EventId::at(position));
        }
        plan.events = plan.tasks.len();
        for (one, other) in added {
            let (one, other) = (one.index(plan.tasks.len()), other.index(plan.tasks.len()));
            if one != other {
                plan.tasks[one.max(other)].waits.push(TaskId::at(one.min(other)));
            }
        }
        for fence in dropped {
            let mut waits: Vec<(usize, usize)> = Vec::new();
            for (task, found) in plan.tasks.iter().enumerate() {
                waits.extend((0..found.waits.len()).map(|wait| (task, wait)));
            }
            if !waits.is_empty() {
                let (task, wait) = waits[fence.index(waits.len())];
                plan.tasks[task].waits.remove(wait);
            }
        }
        prop_assert_eq!(verify(&plan).is_err(), has_unordered_conflict(&plan));
    }

    /// PL-3. Slots moved onto each other are never accepted where the search finds a conflict.
    #[test]
    fn moved_slots_are_refused_wherever_a_brute_force_search_finds_a_race(
        recipe in recipe(),
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
    ) {
        let mut plan = build(&recipe);
        let transient: Vec<usize> = (0..plan.arena.slots.len())
            .filter(|slot| plan.arena.slots[*slot].residency == Residency::Transient)
            .collect();
        if transient.len() > 1 {
            let (one, other) = (transient[one.index(transient.len())], transient[other.index(transient.len())]);
            plan.arena.slots[one].region.offset = plan.arena.slots[other].region.offset;
            prop_assert!(!has_unordered_conflict(&plan) || verify(&plan).is_err());
        }
    }

    /// PL-2, PL-4, PL-9, PL-10. No task of a plan is there for nothing: each one is missed.
    #[test]
    fn every_lost_task_is_missed(recipe in recipe(), lost in any::<prop::sample::Index>()) {
        let mut plan = build(&recipe);
        let lost = lost.index(plan.tasks.len());
        let name = plan.describe(TaskId::at(lost));
        remove(&mut plan, lost);
        prop_assert!(verify(&plan).is_err(), "{} may be dropped", name);
    }

    /// PL-2, PL-4, PL-9, PL-10. Two neighbours of T in each other's place, everything in one row: what
    /// is accepted leaves the same content behind, because the two do not depend on each other.
    #[test]
    fn swapped_tasks_are_refused_unless_they_commute(recipe in recipe(), at in any::<prop::sample::Index>()) {
        let mut plan = build(&recipe);
        if plan.tasks.len() > 1 {
            let first = at.index(plan.tasks.len() - 1);
            let commute = commute(&plan, first, first + 1);
            plan.tasks.swap(first, first + 1);
            serialize(&mut plan);
            // Tasks that commute may still change how many bytes are alive between them.
            let refused = verify(&plan).err().filter(|error| !matches!(**error, VerifyError::Bytes { .. }));
            prop_assert_eq!(refused.is_none(), commute, "{:?}", refused);
        }
    }
}

/// May two neighbours of T change places? They may if they share no written byte, and in one more
/// case: a closure writes the real rows of a gradient, which are not its padding.
fn commute(plan: &StepPlan, first: usize, second: usize) -> bool {
    match (&plan.tasks[first].op, &plan.tasks[second].op) {
        (Op::Compute { .. }, Op::ZeroPadding { .. }) => true,
        (first, second) => !first.accesses().iter().any(|(one, how)| {
            second.accesses().iter().any(|(other, access)| {
                (how.writes() || access.writes())
                    && plan.arena.region(*one).overlaps(plan.arena.region(*other))
            })
        }),
    }
}
