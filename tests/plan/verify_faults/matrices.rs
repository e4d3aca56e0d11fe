//! PL-4, PL-9 and PL-10 for whole-matrix optimizers: the weights of a round, and the owners of its rows.
//!
//! The sample and the tools for damaging it are here; `prepared`, `stages` and `rounds` have the other faults.

use warpweft_base::id::{BucketId, SlotId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::{Content, RoundStage, StateLayout, Weights};
use warpweft_plan::model::{Form, Group, Mesh, Model, NonNegative, ParameterGroup, Phase, StepProgram};
use warpweft_plan::op::{self, ExchangeRows, Op, PrepareOperand, UpdateOperand};
use warpweft_plan::plan::{ResidentLayout, StepPlan, Task, VerifyError, verify};

use super::edit::{position, recount, refused, relocate, serialize, slot, spread, twin, weight};
use super::programs::{plan_of_state, policy};

use RoundStage::{Prepared, Returned};

const WHOLE: ParameterGroup =
    ParameterGroup { weight_decay: None, learning_rate_scale: None, whole_matrix: true };

/// On four ranks these are rounds: `wide`; `q`, `k`, `v`, `o`; `up`, `down`; `calm`, `still` of another parameter
/// group; `scale` and `shift`, which every rank has whole. `plain` and `bias` are updated by rows, `base` is frozen.
/// `up` gets two gradients.
fn program() -> StepProgram {
    let mut model = Model::builder();
    let mut square = |name| model.sharded(name, 64, 64, Format::NVFP4_2D).unwrap();
    let alike = ["q", "k", "v", "o", "up", "down"].map(&mut square);
    let [calm, still, plain, base] = ["calm", "still", "plain", "base"].map(square);
    let wide = model.sharded("wide", 128, 64, Format::NVFP4_2D).unwrap();
    let [scale, shift] = ["scale", "shift"].map(|name| model.replicated(name, 16, 64).unwrap());
    let bias = model.replicated("bias", 1, 64).unwrap();
    for weight in alike.into_iter().chain([base, wide, scale, shift]) {
        model.parameters(weight, WHOLE).unwrap();
    }
    let without_decay = ParameterGroup { weight_decay: NonNegative::new(0.0), ..WHOLE };
    for weight in [calm, still] {
        model.parameters(weight, without_decay).unwrap();
    }
    model.freeze(base).unwrap();
    let trained: Vec<_> = alike.into_iter().chain([calm, still, plain, wide, scale, shift, bias]).collect();
    let mut program = StepProgram::builder("train", &model.build());
    let call = program.call("forward", Phase::Forward);
    let uses = trained.iter().chain([&base]);
    uses.fold(call, |call, weight| call.uses(*weight, Orientation::Rowwise, Form::Dense)).add().unwrap();
    let call = program.call("backward", Phase::Backward);
    trained.iter().fold(call, |call, weight| call.gradient(*weight)).add().unwrap();
    program.call("backward again", Phase::Backward).gradient(alike[4]).add().unwrap();
    program.build_training().unwrap()
}

fn keeping(custom_states: Option<u8>) -> StateLayout {
    StateLayout { custom_states, ..StateLayout::default() }
}

/// Its step on four ranks, by a custom optimizer that keeps so many lists.
pub(crate) fn by_matrices(lists: u8) -> StepPlan {
    plan_of_state(&program(), keeping(Some(lists)))
}

/// The same, every transient slot in bytes of its own and every task after the one before it.
pub(crate) fn apart() -> StepPlan {
    let mut plan = by_matrices(1);
    spread(&mut plan);
    serialize(&mut plan);
    plan
}

/// The tasks of a round, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Prepare,
    There,
    Transform,
    Back,
    Update,
}

use Part::{Back, Prepare, There, Transform, Update};

pub(crate) const PARTS: [Part; 5] = [Prepare, There, Transform, Back, Update];

/// This task of the round that `first` begins.
#[track_caller]
pub(crate) fn task(plan: &StepPlan, part: Part, first: &str) -> usize {
    let first = weight(plan, first);
    position(plan, usize::from(part == Back), |op| match op {
        Op::Prepare(op::Prepare { states, .. }) => part == Prepare && states[0].weight == first,
        Op::ExchangeRows(ExchangeRows { weights, .. }) => matches!(part, There | Back) && weights[0] == first,
        Op::Transform(op::Transform { weights, .. }) => part == Transform && weights[0] == first,
        Op::Update(op::Update { states, .. }) => part == Update && states[0].weight == first,
        _ => false,
    })
}

#[track_caller]
pub(crate) fn op<'a>(plan: &'a mut StepPlan, part: Part, first: &str) -> &'a mut Op {
    let task = task(plan, part, first);
    &mut plan.tasks[task].op
}

/// Where the rows of the round that `first` begins are at this stage.
#[track_caller]
pub(crate) fn rows(plan: &StepPlan, first: &str, stage: RoundStage) -> SlotId {
    slot(plan, Content::Round(weight(plan, first), stage))
}

#[track_caller]
pub(crate) fn prepared(op: &mut Op) -> &mut Vec<PrepareOperand> {
    let Op::Prepare(op::Prepare { states, .. }) = op else { panic!("a {} prepares nothing", op.name()) };
    states
}

#[track_caller]
pub(crate) fn updated(op: &mut Op) -> &mut Vec<UpdateOperand> {
    let Op::Update(op::Update { states, .. }) = op else { panic!("a {} updates nothing", op.name()) };
    states
}

/// Names two of the round's weights in each other's place.
pub(crate) fn swap(op: &mut Op, one: usize, other: usize) {
    match op {
        Op::ExchangeRows(ExchangeRows { weights, .. }) | Op::Transform(op::Transform { weights, .. }) => {
            weights.swap(one, other)
        }
        Op::Prepare(_) => prepared(op).swap(one, other),
        _ => updated(op).swap(one, other),
    }
}

/// Leaves out the last of the round's weights.
pub(crate) fn shorten(op: &mut Op) {
    match op {
        Op::ExchangeRows(ExchangeRows { weights, .. }) | Op::Transform(op::Transform { weights, .. }) => {
            weights.pop();
        }
        Op::Prepare(_) => drop(prepared(op).pop()),
        _ => drop(updated(op).pop()),
    }
}

/// Names one more weight after those of the round.
#[track_caller]
pub(crate) fn join(plan: &mut StepPlan, part: Part, first: &str, joined: &str) {
    let id = weight(plan, joined);
    let kept: Vec<_> = Content::kept(plan.weights.state, id).map(|content| slot(plan, content)).collect();
    // Frozen weights have none; what stands for it is read by others as well.
    let main_grad = plan.arena.find(Content::MainGrad(id));
    let main_grad = main_grad.unwrap_or_else(|| slot(plan, Content::Hyperparameters));
    let master = plan.arena.find(Content::Master(id));
    let master = master.unwrap_or_else(|| slot(plan, Content::Shard(id, Orientation::Rowwise)));
    match op(plan, part, first) {
        Op::ExchangeRows(ExchangeRows { weights, .. }) | Op::Transform(op::Transform { weights, .. }) => {
            weights.push(id)
        }
        op @ Op::Prepare(_) => prepared(op).push(PrepareOperand { weight: id, kept, main_grad }),
        op => updated(op).push(UpdateOperand { weight: id, master, kept, main_grad }),
    }
    serialize(plan);
}

/// Lets a task of a round read its rows elsewhere.
#[track_caller]
pub(crate) fn read(op: &mut Op, slot: SlotId) {
    match op {
        Op::ExchangeRows(ExchangeRows { from, .. }) | Op::Transform(op::Transform { from, .. }) => {
            *from = slot
        }
        Op::Update(op::Update { transformed, .. }) => *transformed = Some(slot),
        other => panic!("a {} reads no rows of a round", other.name()),
    }
}

fn is_coverage(error: &VerifyError) -> bool {
    matches!(error, VerifyError::Coverage { .. })
}

#[track_caller]
pub(crate) fn not_covered(plan: &StepPlan, says: &[&str]) {
    let error = refused(plan, says);
    assert!(is_coverage(&error) && error.to_string().starts_with("PL-4 ("), "{error}");
}

#[track_caller]
pub(crate) fn wrong_state(plan: &StepPlan, says: &[&str]) {
    let error = refused(plan, says);
    assert!(matches!(error, VerifyError::Edge { .. }) && error.to_string().starts_with("PL-9 ("), "{error}");
}

/// PL-2 to PL-6, PL-9, PL-10.
#[test]
fn a_plan_with_rounds_of_matrices_is_accepted_with_no_one_or_two_lists() {
    for lists in 0..=2 {
        let mut plan = by_matrices(lists);
        verify(&plan).unwrap();
        let of = |task: &Task| match &task.op {
            Op::Prepare(op::Prepare { states, .. }) => {
                Some(states.iter().map(|state| state.weight).collect::<Vec<_>>())
            }
            _ => None,
        };
        let rounds: Vec<_> = plan.tasks.iter().filter_map(of).collect();
        let named = |names: &[&str]| names.iter().map(|name| weight(&plan, name)).collect::<Vec<_>>();
        let wanted: [&[&str]; 6] =
            [&["wide"], &["q", "k", "v", "o"], &["up", "down"], &["calm", "still"], &["scale"], &["shift"]];
        assert_eq!(rounds, wanted.map(named));
        spread(&mut plan);
        serialize(&mut plan);
        recount(&mut plan);
        verify(&plan).unwrap();
    }
}

/// PL-9, on one rank and where a replica is one: nothing is exchanged.
#[test]
fn rounds_that_every_rank_makes_for_itself_are_accepted() {
    for mesh in [Mesh::new(1).unwrap(), Mesh::hybrid(2, 2).unwrap(), Mesh::hybrid(4, 2).unwrap()] {
        let plan = on(mesh);
        verify(&plan).unwrap();
        let exchanges = plan.tasks.iter().filter(|task| matches!(task.op, Op::ExchangeRows(_))).count();
        assert_eq!(exchanges > 0, mesh.shards() > 1, "{mesh:?}");
    }
}

fn on(mesh: Mesh) -> StepPlan {
    let program = program();
    let weights = Weights::new(program.model().weights(), mesh).with_state(keeping(Some(1)));
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    StepPlan::within(&program, &weights, &resident, &policy()).unwrap()
}

/// PL-4. Two lists are two moments, byte by byte, so nothing else tells them apart.
#[test]
fn a_round_under_adam_is_refused() {
    let mut plan = by_matrices(2);
    plan.weights.state.custom_states = None;
    not_covered(&plan, &["(prepare of wide)", "makes matrices whole for Adam, which updates rows"]);
    // Where nothing is prepared, by what comes next.
    for (part, says) in [(There, "(exchange rows of wide, whole)"), (Transform, "(transform of wide)")] {
        let (mut plan, first) = (plan.clone(), task(&plan, Prepare, "wide"));
        let moved = task(&plan, part, "wide");
        relocate(&mut plan, moved, first);
        not_covered(&plan, &[says, "makes matrices whole for Adam, which updates rows"]);
    }
}

/// PL-4
#[test]
fn a_round_of_weights_that_do_not_ask_for_it_is_refused() {
    let says = "makes matrices whole whose optimizer does not request it";
    let mut plan = by_matrices(1);
    for name in ["q", "k", "v", "o"] {
        let weight = weight(&plan, name);
        plan.weights.layouts[weight.index()].parameters.whole_matrix = false;
    }
    not_covered(&plan, &["(prepare of q and 3 more)", says]);
    // One of them, where no group is compared.
    let mut plan = by_matrices(1);
    let plain = weight(&plan, "plain");
    let Op::ExchangeRows(ExchangeRows { weights, .. }) = op(&mut plan, There, "q") else { unreachable!() };
    weights[2] = plain;
    not_covered(&plan, &["(exchange rows of q and 3 more, whole)", says]);
    let mut plan = by_matrices(1);
    let Op::Transform(op::Transform { weights, .. }) = op(&mut plan, Transform, "q") else { unreachable!() };
    *weights = vec![plain];
    not_covered(&plan, &["(transform of q and 3 more)", says]);
}

/// PL-4. The parts of an exchange are equally large, and what a rank gets is one matrix.
#[test]
fn shards_of_several_sizes_in_one_round_are_refused() {
    for (part, says) in [
        (Prepare, "(prepare of up and 1 more)"),
        (There, "(exchange rows of up and 1 more, whole)"),
        (Transform, "(transform of up and 1 more)"),
        (Back, "(exchange rows of up and 1 more, back)"),
    ] {
        let mut plan = by_matrices(1);
        join(&mut plan, part, "up", "wide");
        not_covered(&plan, &[says, "puts shards of several sizes into one round"]);
    }
    // As large, but cut over four ranks and over one: 16 × 64 values are a shard here and a whole weight there.
    let mut plan = by_matrices(1);
    let [up, scale] = ["up", "scale"].map(|name| weight(&plan, name));
    let elements = |weight| plan.weights.layout(weight).stored_elements();
    assert_eq!(elements(up), elements(scale));
    let Op::ExchangeRows(ExchangeRows { weights, .. }) = op(&mut plan, There, "up") else { unreachable!() };
    weights[1] = scale;
    not_covered(&plan, &["(exchange rows of up", "puts shards of several sizes into one round"]);
}

/// PL-4. There is one rank for each.
#[test]
fn more_matrices_than_ranks_in_one_round_are_refused() {
    for (part, says) in [
        (Prepare, "(prepare of q and 3 more)"),
        (There, "(exchange rows of q and 3 more, whole)"),
        (Transform, "(transform of q and 3 more)"),
        (Back, "(exchange rows of q and 3 more, back)"),
    ] {
        let mut plan = by_matrices(1);
        join(&mut plan, part, "q", "up");
        not_covered(&plan, &[says, "puts 5 matrices into one round, for 4 ranks"]);
    }
    // Of what every rank has whole, there is one at a time.
    for (part, says) in [(Prepare, "(prepare of scale)"), (Transform, "(transform of scale)")] {
        let mut plan = by_matrices(1);
        join(&mut plan, part, "scale", "shift");
        not_covered(&plan, &[says, "puts 2 matrices into one round, for 1 ranks"]);
    }
    // Ranks of a replica count, not all of them.
    let mut plan = on(Mesh::hybrid(4, 2).unwrap());
    join(&mut plan, Prepare, "q", "v");
    not_covered(&plan, &["(prepare of q and 1 more)", "puts 3 matrices into one round, for 2 ranks"]);
}

/// PL-4. Each rank would get what it gave away.
#[test]
fn an_exchange_of_rows_that_every_rank_has_whole_is_refused() {
    for (of, stage) in [(Transform, Prepared), (Update, Returned)] {
        let mut plan = apart();
        let (after, scale) = (task(&plan, of, "scale"), weight(&plan, "scale"));
        let mut exchange = plan.tasks[task(&plan, There, "q")].clone();
        let from = rows(&plan, "scale", stage);
        let to = twin(&mut plan, from);
        exchange.op = Op::ExchangeRows(ExchangeRows { group: Group::Shard, weights: vec![scale], from, to });
        plan.tasks.insert(after, exchange);
        serialize(&mut plan);
        not_covered(
            &plan,
            &[
                "(exchange rows of",
                "exchanges rows that every rank has whole",
                "transform them where they are",
            ],
        );
    }
}

/// PL-4
#[test]
fn an_update_by_rows_that_its_optimizer_does_not_ask_for_is_refused() {
    for first in ["plain", "bias"] {
        let mut plan = apart();
        let (last, update) = (task(&plan, Update, "shift"), task(&plan, Update, first));
        let returned = rows(&plan, "wide", Returned);
        read(&mut plan.tasks[update].op, returned);
        // After all rounds, so that the rows are there.
        relocate(&mut plan, update, last);
        not_covered(
            &plan,
            &["(update of ", "updates weights by transformed rows that their optimizer does not request"],
        );
    }
}

/// PL-4: weight decay and learning rate of a task are its first weight's.
#[test]
fn two_parameter_groups_in_one_round_are_refused() {
    for (part, says) in [
        (Prepare, "(prepare of up and 1 more)"),
        (Transform, "(transform of up and 1 more)"),
        (Update, "(update of up and 1 more)"),
    ] {
        let mut plan = by_matrices(1);
        join(&mut plan, part, "up", "calm");
        not_covered(&plan, &[says, "`down` and `calm`, whose parameter groups differ"]);
    }
    // An exchange compares no groups; it finds that this is not what was prepared.
    for part in [There, Back] {
        let mut plan = by_matrices(1);
        join(&mut plan, part, "up", "calm");
        wrong_state(&plan, &["of up and 1 more", "of `up`, `down`, `calm`, but slot `up and 1 more"]);
    }
}

/// PL-4
#[test]
fn a_round_in_the_name_of_another_bucket_is_refused() {
    for part in [Prepare, Transform, Update] {
        let mut plan = by_matrices(1);
        let other = plan.weights.layout(weight(&plan, "scale")).bucket;
        let (Op::Prepare(op::Prepare { bucket, .. })
        | Op::Transform(op::Transform { bucket, .. })
        | Op::Update(op::Update { bucket, .. })) = op(&mut plan, part, "q")
        else {
            unreachable!()
        };
        assert_eq!(std::mem::replace(bucket, other), BucketId::new(0));
        not_covered(&plan, &["of q and 3 more)", &format!("`q`, which is not of {other}")]);
    }
}

/// PL-4
#[test]
fn a_frozen_weight_in_a_round_is_refused() {
    for (part, says) in
        [(Prepare, "(prepare of up"), (Transform, "(transform of up"), (Update, "(update of up")]
    {
        let mut plan = by_matrices(0);
        join(&mut plan, part, "up", "base");
        not_covered(&plan, &[says, "`base`, which is frozen; leave it out"]);
    }
}

/// PL-4: Adam would update rows of weights whose rule was to get their matrices.
#[test]
fn weights_that_are_to_be_whole_matrices_are_not_updated_by_adam() {
    let mut plan = super::programs::nvfp4_training();
    plan.weights.layouts.iter_mut().for_each(|layout| layout.parameters.whole_matrix = true);
    refused(&plan, &["PL-4", "(adam of", "lets Adam update weights whose optimizer needs whole matrices"]);
}
