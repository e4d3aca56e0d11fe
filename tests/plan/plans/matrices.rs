//! Whole-matrix optimizers in plans: the weights of a round, the order of rounds, the work beside them, their memory,
//! and refusals.

use std::collections::{BTreeMap, BTreeSet};

use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::{Content, LaneKind, RoundStage, StateLayout, Weights};
use warpweft_plan::model::{
    Accumulation, Form, Group, Mesh, Model, NonNegative, ParameterGroup, Phase, StepProgram, WeightSpec,
};
use warpweft_plan::op::{ExchangeRows, Op, Prepare, PrepareOperand, Transform, Update};
use warpweft_plan::plan::{PlanError, Policy, ResidentLayout, StepPlan};
use warpweft_session::config::Config;
use warpweft_session::session::plan_program;

use super::collective_calls::before;
use super::{policy, position};

use RoundStage::{Gathered, Prepared, Returned, Transformed};

pub(crate) const WHOLE: ParameterGroup =
    ParameterGroup { weight_decay: None, learning_rate_scale: None, whole_matrix: true };

pub(crate) fn whole(name: &str, rows: usize, cols: usize, format: Format) -> WeightSpec {
    let mut spec = WeightSpec::sharded(name, rows, cols, format);
    spec.parameters = WHOLE;
    spec
}

/// So many square matrices.
pub(crate) fn squares(count: usize, size: usize) -> Vec<WeightSpec> {
    (0..count).map(|number| whole(&format!("w{number}"), size, size, Format::Bf16)).collect()
}

fn model(specs: &[WeightSpec]) -> Model {
    let mut model = Model::builder();
    for spec in specs {
        model.add(spec.clone()).unwrap();
    }
    model.build()
}

/// Each weight is used by a call, and the gradient of each that trains is written by another.
pub(crate) fn program(specs: &[WeightSpec]) -> StepProgram {
    let model = model(specs);
    let mut program = StepProgram::builder("train", &model);
    for (weight, spec) in model.entries() {
        let call = program.call(&format!("f {}", spec.name), Phase::Forward);
        call.uses(weight, Orientation::Rowwise, Form::Dense).add().unwrap();
    }
    for (weight, spec) in model.entries().filter(|(_, spec)| !spec.frozen) {
        program.call(&format!("b {}", spec.name), Phase::Backward).gradient(weight).add().unwrap();
    }
    program.build_training().unwrap()
}

pub(crate) fn planned(program: &StepProgram, policy: &Policy, mesh: Mesh) -> StepPlan {
    let state = StateLayout { custom_states: Some(1), ..StateLayout::default() };
    let weights = Weights::new(program.model().weights(), mesh).with_state(state);
    let resident = ResidentLayout::new(&weights, &[program]).unwrap();
    StepPlan::within(program, &weights, &resident, policy).unwrap()
}

pub(crate) fn plan(specs: &[WeightSpec], mesh: Mesh) -> StepPlan {
    planned(&program(specs), &policy(1), mesh)
}

pub(crate) fn ranks(ranks: u32) -> Mesh {
    Mesh::new(ranks).unwrap()
}

/// A round as it stands in a plan, by the positions of its tasks.
pub(crate) struct Round {
    weights: Vec<WeightId>,
    prepare: usize,
    /// There and back.
    exchanges: Option<[usize; 2]>,
    transform: usize,
    update: usize,
    /// Where its rows are on their way, and how far they have come there.
    slots: Vec<(SlotId, RoundStage)>,
}

/// Every round, in the order in which they are prepared: from each preparation along what reads its rows.
pub(crate) fn rounds(plan: &StepPlan) -> Vec<Round> {
    let reads = |slot: SlotId| {
        let reads = |op: &Op| op.accesses().iter().any(|(other, access)| *other == slot && access.reads());
        let mut readers = plan.tasks.iter().enumerate().filter(|(_, task)| reads(&task.op));
        let (reader, _) = readers.next().expect("someone reads it");
        assert_eq!(readers.count(), 0, "one task goes on with it");
        reader
    };
    let prepares = plan.tasks.iter().enumerate().filter_map(|(position, task)| match &task.op {
        Op::Prepare(Prepare { bucket, states, to, .. }) => Some((position, *bucket, states, *to)),
        _ => None,
    });
    let of = |(prepare, in_bucket, states, mut slot): (usize, _, &Vec<_>, SlotId)| {
        let of_round: Vec<WeightId> = states.iter().map(|state: &PrepareOperand| state.weight).collect();
        let (mut slots, mut exchanges, mut transform) = (vec![slot], Vec::new(), None);
        loop {
            let reader = reads(slot);
            match &plan.tasks[reader].op {
                Op::ExchangeRows(ExchangeRows { weights, to, .. }) if *weights == of_round => {
                    exchanges.push(reader);
                    slot = *to;
                }
                Op::Transform(Transform { bucket, weights, to, .. }) if *weights == of_round => {
                    assert_eq!((*bucket, transform.replace(reader)), (in_bucket, None));
                    slot = *to;
                }
                Op::Update(Update { bucket, states, .. }) => {
                    assert!(states.iter().map(|state| state.weight).eq(of_round.iter().copied()));
                    assert_eq!(*bucket, in_bucket);
                    let stage = |slot: SlotId| match plan.arena.slot(slot).content {
                        Content::Round(first, stage) if first == of_round[0] => (slot, stage),
                        other => panic!("rows of {of_round:?} in a slot for {other:?}"),
                    };
                    return Round {
                        prepare,
                        exchanges: (!exchanges.is_empty()).then(|| exchanges.try_into().unwrap()),
                        transform: transform.unwrap(),
                        update: reader,
                        slots: slots.into_iter().map(stage).collect(),
                        weights: of_round,
                    };
                }
                other => panic!("a {} reads rows of {of_round:?}", other.name()),
            }
            slots.push(slot);
        }
    };
    prepares.map(of).collect()
}

/// First and last task of every slot of a round.
pub(crate) fn lives(plan: &StepPlan) -> Vec<(WeightId, SlotId, std::ops::RangeInclusive<usize>)> {
    let slots = plan.arena.entries().filter_map(|(id, slot)| match slot.content {
        Content::Round(first, _) => Some((id, first)),
        _ => None,
    });
    let life = |(slot, first)| {
        let uses = |op: &Op| op.accesses().iter().any(|(other, _)| *other == slot);
        let tasks = || plan.tasks.iter();
        let (from, to) = (tasks().position(|task| uses(&task.op)), tasks().rposition(|task| uses(&task.op)));
        (first, slot, from.unwrap()..=to.unwrap())
    };
    slots.map(life).collect()
}

fn names(plan: &StepPlan, round: &Round) -> Vec<String> {
    round.weights.iter().map(|weight| plan.weights.layout(*weight).name.clone()).collect()
}

/// Two buckets of quantized weights and one of replicated ones, four sizes, two parameter groups, and weights that are
/// in no round.
fn mixed() -> Vec<WeightSpec> {
    let mut specs: Vec<WeightSpec> = Vec::new();
    let mut add = |count: usize, rows, cols, format| -> Vec<usize> {
        let new = specs.len()..specs.len() + count;
        specs.extend(new.clone().map(|number| whole(&format!("w{number}"), rows, cols, format)));
        new.collect()
    };
    add(5, 64, 64, Format::NVFP4_2D);
    add(3, 96, 64, Format::NVFP4_2D);
    let slow = add(4, 64, 64, Format::Bf16)[1..3].to_vec();
    add(3, 33, 7, Format::Bf16);
    // Another shape, as many elements.
    add(2, 32, 128, Format::Bf16);
    let replicated = add(2, 64, 64, Format::F32);
    let [plain, frozen] = [add(1, 64, 64, Format::Bf16)[0], add(2, 64, 64, Format::Bf16)[1]];
    for number in slow {
        specs[number].parameters.learning_rate_scale = NonNegative::new(0.5);
    }
    for number in replicated {
        let spec = &specs[number];
        let parameters = spec.parameters;
        specs[number] = WeightSpec::replicated(&spec.name, 64, 64);
        specs[number].parameters = parameters;
    }
    specs[plain].parameters.whole_matrix = false;
    specs[frozen].frozen = true;
    specs
}

#[test]
fn a_round_is_weights_of_one_bucket_group_and_size_and_as_many_as_there_are_ranks_for_them() {
    for (ranks, replicas) in [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1), (2, 2), (4, 2), (6, 3)] {
        let plan = plan(&mixed(), Mesh::hybrid(ranks, replicas).unwrap());
        let kind = |weight: WeightId| {
            let layout = plan.weights.layout(weight);
            (layout.bucket, layout.parameters, layout.shard.ranks, layout.stored_elements())
        };
        let mut alike: BTreeMap<_, Vec<WeightId>> = BTreeMap::new();
        for weight in (0..plan.weights.layouts.len()).map(WeightId::at) {
            let layout = plan.weights.layout(weight);
            if layout.parameters.whole_matrix && !layout.frozen {
                alike.entry(kind(weight)).or_default().push(weight);
            }
        }
        let mut found: BTreeMap<_, Vec<Vec<WeightId>>> = BTreeMap::new();
        for round in rounds(&plan) {
            let ranks = plan.weights.layout(round.weights[0]).shard.ranks;
            assert_eq!(round.exchanges.is_some(), ranks > 1, "{:?}", names(&plan, &round));
            found.entry(kind(round.weights[0])).or_default().push(round.weights);
        }
        // All of them, in their order; only what is left over is a round of fewer.
        let wanted = alike.into_iter().map(|(kind, weights)| {
            (kind, weights.chunks(kind.2 as usize).map(<[_]>::to_vec).collect::<Vec<_>>())
        });
        assert_eq!(found, wanted.collect(), "{ranks} ranks, {replicas} replicas");
    }
}

/// What counts is how many elements a rank has of each.
#[test]
fn matrices_of_two_shapes_and_one_size_share_a_round() {
    let specs = [("tall", 64, 64), ("flat", 32, 128), ("taller", 128, 64), ("uneven", 61, 64)]
        .map(|(name, rows, cols)| whole(name, rows, cols, Format::Bf16));
    let plan = plan(&specs, ranks(4));
    let rounds: Vec<_> = rounds(&plan).iter().map(|round| names(&plan, round)).collect();
    assert_eq!(rounds, [vec!["taller"], vec!["tall", "flat", "uneven"]]);
}

/// PL-4. By what came back, if and only if its optimizer requests that.
#[test]
fn every_weight_that_trains_is_updated_once() {
    for mesh in [ranks(1), ranks(4), Mesh::hybrid(4, 2).unwrap()] {
        let plan = plan(&mixed(), mesh);
        let mut updated: Vec<WeightId> = Vec::new();
        for task in &plan.tasks {
            let Op::Update(Update { states, transformed, .. }) = &task.op else { continue };
            for state in states {
                let layout = plan.weights.layout(state.weight);
                assert_eq!(transformed.is_some(), layout.parameters.whole_matrix, "{}", layout.name);
                assert_eq!(plan.arena.slot(state.master).content, Content::Master(state.weight));
                updated.push(state.weight);
            }
        }
        updated.sort_unstable();
        let trains = |weight: &WeightId| !plan.weights.layout(*weight).frozen;
        let wanted: Vec<_> = (0..plan.weights.layouts.len()).map(WeightId::at).filter(trains).collect();
        assert_eq!(updated, wanted);
    }
}

/// PL-6. Whatever the stage, however few the matrices of a round: a whole one.
#[test]
fn each_slot_of_a_round_has_the_bytes_of_one_matrix_with_its_padding_rows() {
    for (mesh, count, stages) in [
        (ranks(1), 1, &[Prepared, Returned][..]),
        (ranks(3), 1, &[Prepared, Gathered, Transformed, Returned]),
        (ranks(3), 3, &[Prepared, Gathered, Transformed, Returned]),
        (Mesh::hybrid(6, 2).unwrap(), 2, &[Prepared, Gathered, Transformed, Returned]),
    ] {
        let specs: Vec<_> =
            (0..count).map(|number| whole(&format!("w{number}"), 64, 5, Format::Bf16)).collect();
        let plan = plan(&specs, mesh);
        let rounds = rounds(&plan);
        assert_eq!(rounds.len(), 1);
        assert!(rounds[0].slots.iter().map(|(_, stage)| stage).eq(stages));
        let rows = 64_usize.next_multiple_of(mesh.shards() as usize);
        for (slot, stage) in &rounds[0].slots {
            assert_eq!(plan.arena.region(*slot).bytes, rows * 5 * 4, "{stage:?}");
        }
    }
}

/// Replicated weights, one rank, replicas of one rank.
#[test]
fn weights_that_every_rank_has_whole_are_rounds_of_one_and_nothing_is_exchanged() {
    let replicated: Vec<_> = squares(3, 64)
        .iter()
        .map(|spec| {
            let mut replicated = WeightSpec::replicated(&spec.name, 64, 64);
            replicated.parameters = WHOLE;
            replicated
        })
        .collect();
    for (specs, mesh) in [
        (replicated.clone(), ranks(4)),
        (replicated, Mesh::hybrid(4, 2).unwrap()),
        (squares(3, 64), ranks(1)),
        (squares(3, 64), Mesh::hybrid(3, 3).unwrap()),
    ] {
        let plan = plan(&specs, mesh);
        let found = rounds(&plan);
        let sizes: Vec<_> =
            found.iter().map(|round| (round.weights.len(), round.exchanges.is_some())).collect();
        assert_eq!(sizes, [(1, false); 3], "{mesh:?}");
        assert!(!plan.tasks.iter().any(|task| matches!(task.op, Op::ExchangeRows(_))));
        assert!(
            found.iter().all(|round| round.slots.iter().map(|(_, stage)| *stage).eq([Prepared, Returned]))
        );
    }
}

/// CO-1, PL-5. Where gradients are reduced, among the ranks of a replica.
#[test]
fn parts_of_a_custom_optimizer_run_where_calls_do_and_rows_are_exchanged_within_a_replica() {
    for (mesh, communicators) in [(ranks(3), 1), (ranks(3), 2), (Mesh::hybrid(6, 2).unwrap(), 3)] {
        let plan = planned(&program(&squares(4, 64)), &Policy { communicators, ..policy(1) }, mesh);
        let reduction = position(&plan, |op, _| matches!(op, Op::ExchangeGradient(_)));
        for round in rounds(&plan) {
            for task in [round.prepare, round.transform, round.update] {
                assert_eq!((plan.tasks[task].lane, plan.tasks[task].op.group()), (plan.compute_lane(), None));
            }
            for task in round.exchanges.unwrap() {
                let task = &plan.tasks[task];
                assert_eq!((task.lane, task.op.group()), (plan.tasks[reduction].lane, Some(Group::Shard)));
                assert!(matches!(plan.lanes[task.lane.index()].kind, LaneKind::Communicator(_)));
            }
        }
    }
}

/// The order in which a rank issues them.
#[test]
fn a_round_is_gathered_before_the_one_before_is_transformed_and_this_before_the_one_before_that_is_updated() {
    for (mesh, count) in [(ranks(1), 5), (ranks(2), 9), (ranks(4), 3), (Mesh::hybrid(4, 2).unwrap(), 8)] {
        let plan = plan(&squares(count, 64), mesh);
        let rounds = rounds(&plan);
        let mut order = Vec::new();
        for turn in 0..rounds.len() + 2 {
            if let Some(round) = rounds.get(turn) {
                order.extend([Some(round.prepare), round.exchanges.map(|[there, _]| there)]);
            }
            if let Some(round) = turn.checked_sub(1).and_then(|before| rounds.get(before)) {
                order.extend([Some(round.transform), round.exchanges.map(|[_, back]| back)]);
            }
            if let Some(round) = turn.checked_sub(2).and_then(|before| rounds.get(before)) {
                order.push(Some(round.update));
            }
        }
        let order: Vec<_> = order.into_iter().flatten().collect();
        assert!(order.is_sorted(), "{order:?}");
        // Nothing else is between them, as every weight is in a round.
        assert_eq!(order.len(), order[order.len() - 1] - order[0] + 1);
    }
}

/// Nothing is held up by an exchange that could run beside it, nor holds one up: not even for memory.
#[test]
fn exchanges_of_a_round_may_run_beside_the_transformations_of_its_neighbours() {
    for (communicators, shards) in [(1, 2), (2, 2), (3, 2), (2, 4)] {
        let policy = Policy { communicators, ..policy(1) };
        let plan = planned(&program(&squares(12, 64)), &policy, ranks(shards));
        let rounds = rounds(&plan);
        let before: Vec<Vec<bool>> = (0..plan.tasks.len()).map(|task| before(&plan, task)).collect();
        let apart = |one: usize, other: usize| !before[one][other] && !before[other][one];
        for pair in rounds.windows(2) {
            let [there, _] = pair[1].exchanges.unwrap();
            assert!(apart(there, pair[0].transform), "{communicators} communicators, {shards} ranks");
            let [_, back] = pair[0].exchanges.unwrap();
            assert!(apart(back, pair[1].transform), "{communicators} communicators, {shards} ranks");
        }
        for Round { prepare, exchanges, transform, update, .. } in &rounds {
            let [there, back] = exchanges.unwrap();
            let chain = [*prepare, there, *transform, back, *update];
            assert!(chain.array_windows().all(|[first, then]| before[*then][*first]), "{chain:?}");
        }
    }
}

#[test]
fn updates_that_need_no_matrix_come_while_the_rows_of_the_first_round_are_on_their_way() {
    let mut specs = squares(5, 64);
    specs.extend(["plain", "bare"].map(|name| WeightSpec::sharded(name, 64, 64, Format::NVFP4_2D)));
    specs.push(WeightSpec::replicated("bias", 1, 64));
    let updates = |plan: &StepPlan| {
        let is_other = |op: &Op| matches!(op, Op::Update(Update { transformed: None, .. }));
        let tasks = plan.tasks.iter().enumerate();
        tasks.filter(|(_, task)| is_other(&task.op)).map(|(position, _)| position).collect::<Vec<_>>()
    };
    let shared = plan(&specs, ranks(2));
    let (others, found) = (updates(&shared), rounds(&shared));
    assert_eq!(others.len(), 2, "one of each bucket");
    let [there, _] = found[0].exchanges.unwrap();
    for other in others {
        assert!((there..found[1].prepare).contains(&other));
        assert!(!before(&shared, other)[there] && !before(&shared, there)[other]);
        assert!(before(&shared, found[0].transform)[other], "it is not what the exchange waits for");
    }
    // Where nothing is on its way, they come at the same place.
    let alone = plan(&specs, ranks(1));
    let found = rounds(&alone);
    assert!(updates(&alone).iter().all(|other| (found[0].prepare..found[1].prepare).contains(other)));
    // With no round, they are all there is.
    specs.drain(..5);
    assert_eq!(updates(&plan(&specs, ranks(2))).len(), 2);
}

#[test]
fn frozen_weights_are_in_no_round() {
    let mut specs = squares(5, 64);
    specs[1].frozen = true;
    let partly = plan(&specs, ranks(2));
    let found: Vec<_> = rounds(&partly).iter().map(|round| names(&partly, round)).collect();
    assert_eq!(found, [vec!["w0", "w2"], vec!["w3", "w4"]]);
    specs.iter_mut().for_each(|spec| spec.frozen = spec.name != "w0");
    specs[0].parameters.whole_matrix = false;
    let none = plan(&specs, ranks(2));
    assert!(rounds(&none).is_empty() && lives(&none).is_empty());
    assert!(!none.tasks.iter().any(|task| matches!(task.op, Op::Transform(_) | Op::ExchangeRows(_))));
}

/// Gradients of one step do not update anything, nor do evaluations.
#[test]
fn steps_that_update_nothing_have_no_rounds() {
    let training = program(&squares(4, 64)).accumulating().unwrap();
    for (part, count) in [(Accumulation::First, 0), (Accumulation::Next, 0), (Accumulation::Last, 2)] {
        let plan = planned(&training.part(part), &policy(1), ranks(2));
        assert_eq!(rounds(&plan).len(), count, "{part}");
        assert_eq!(lives(&plan).len(), 4 * count, "{part}");
    }
    assert!(rounds(&planned(&evaluation(), &policy(1), ranks(2))).is_empty());
}

fn evaluation() -> StepProgram {
    let model = model(&squares(2, 64));
    let mut program = StepProgram::builder("evaluate", &model);
    for (weight, spec) in model.entries() {
        let call = program.call(&spec.name, Phase::Forward);
        call.uses(weight, Orientation::Rowwise, Form::Dense).add().unwrap();
    }
    program.build_evaluation().unwrap()
}

#[test]
fn adam_gets_no_whole_matrices() {
    let mut replicated = WeightSpec::replicated("gain", 1, 64);
    replicated.parameters = WHOLE;
    for (specs, named) in [
        (squares(2, 64), "w0"),
        (vec![WeightSpec::sharded("rows", 64, 64, Format::Bf16), squares(1, 64).remove(0)], "w0"),
        (vec![WeightSpec::sharded("rows", 64, 64, Format::Bf16), replicated], "gain"),
    ] {
        for mesh in [ranks(1), ranks(2)] {
            let error = StepPlan::build(&program(&specs), &policy(1), mesh).unwrap_err();
            assert!(matches!(&error, PlanError::WholeMatrix { weight } if weight == named), "{error}");
            let said = error.to_string();
            assert!(said.contains(&format!("`{named}` is to be updated as a whole matrix")), "{said}");
            assert!(said.contains("SessionBuilder::optimizer"), "{said}");
        }
        let mut config = Config::default();
        let said = plan_program(&program(&specs), &config, 2).unwrap_err().to_string();
        assert!(said.contains(&format!("`{named}` is to be updated as a whole matrix")), "{said}");
        config.optimizer.custom_states = Some(0);
        assert_eq!(rounds(&plan_program(&program(&specs), &config, 2).unwrap()).len(), 1);
    }
    // Where Adam does not update them, there is nothing to refuse.
    StepPlan::build(&evaluation(), &policy(1), ranks(2)).unwrap();
    let mut specs = squares(2, 64);
    specs[0].frozen = true;
    specs[1].parameters.whole_matrix = false;
    StepPlan::build(&program(&specs), &policy(1), ranks(2)).unwrap();
}

/// PL-1: ranks that would make other rounds do not start.
#[test]
fn equal_rounds_give_equal_plans_and_whole_matrices_are_part_of_the_fingerprint() {
    let specs = squares(5, 64);
    assert_eq!(plan(&specs, ranks(2)), plan(&specs, ranks(2)));
    let without = |number: usize| {
        let mut specs = specs.clone();
        specs[number].parameters.whole_matrix = false;
        plan(&specs, ranks(2)).fingerprint()
    };
    let all = (0..specs.len()).map(without).chain([plan(&specs, ranks(2)).fingerprint()]);
    assert_eq!(all.collect::<BTreeSet<_>>().len(), specs.len() + 1);
}

/// What is measured of a task goes by its name, so no two have one; `warpweft plan --tasks` prints it.
#[test]
fn tasks_of_rounds_have_names_of_their_own() {
    let plan = plan(&mixed(), ranks(4));
    let mut seen = BTreeSet::new();
    let text = plan.to_string();
    for round in rounds(&plan) {
        let tasks = [round.prepare, round.transform, round.update].into_iter();
        for task in tasks.chain(round.exchanges.into_iter().flatten()) {
            let task = &plan.tasks[task];
            assert!(seen.insert((task.op.name(), &task.subject)), "{} of {}", task.op.name(), task.subject);
            assert!(text.contains(&task.subject), "{}", task.subject);
            let first = &plan.weights.layout(round.weights[0]).name;
            assert!(task.subject.starts_with(first.as_str()), "{}", task.subject);
        }
    }
    let updates = plan.tasks.iter().filter(|task| matches!(task.op, Op::Update(_)));
    let names: BTreeSet<_> = updates.clone().map(|task| &task.subject).collect();
    assert_eq!(names.len(), updates.count());
}
