//! PL-4 and PL-9 for custom optimizers: each gets what Adam gets, once for every weight that trains, and its states,
//! each with its own weight.

use warpweft_base::id::{SlotId, WeightId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::layout::{Content, StateLayout};
use warpweft_plan::model::{
    Access, Accumulation, Form, Model, NonNegative, ParameterGroup, Phase, StepProgram,
};
use warpweft_plan::op::{Op, SumGradient, Update, UpdateOperand};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{
    position, recount, refused, relocate, remove, repeat, serialize, slot, spread, twin, weight,
};
use super::programs::plan_of_state;

/// All of one shape: `base` is frozen, `up` and `down` are one parameter group of a bucket and `calm` is another,
/// `bias` is replicated. `up` gets two gradients.
fn program() -> StepProgram {
    let mut model = Model::builder();
    let [base, up, down, calm] =
        ["base", "up", "down", "calm"].map(|name| model.sharded(name, 64, 64, Format::NVFP4_2D).unwrap());
    let bias = model.replicated("bias", 1, 64).unwrap();
    model.freeze(base).unwrap();
    let without_decay = ParameterGroup { weight_decay: NonNegative::new(0.0), ..ParameterGroup::default() };
    model.parameters(calm, without_decay).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    for weight in [base, up, down, calm] {
        let name = format!("forward {weight}");
        let call = program.call(&name, Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense);
        call.uses(bias, Orientation::Rowwise, Form::Dense).add().unwrap();
    }
    let call = program.call("backward", Phase::Backward).uses(base, Orientation::Columnwise, Form::Dense);
    call.gradient(calm).gradient(down).gradient(up).gradient(bias).add().unwrap();
    program.call("backward again", Phase::Backward).gradient(up).add().unwrap();
    program.build_training().unwrap()
}

fn keeping(custom_states: Option<u8>) -> StateLayout {
    StateLayout { custom_states, ..StateLayout::default() }
}

fn training(lists: u8) -> StepPlan {
    plan_of_state(&program(), keeping(Some(lists)))
}

/// The update of `up` and `down`, that of `calm`, or that of `bias`.
#[track_caller]
fn update(plan: &StepPlan, first: &str) -> usize {
    let wanted = weight(plan, first);
    position(plan, 0, |op| matches!(op, Op::Update(Update { states, .. }) if states[0].weight == wanted))
}

#[track_caller]
fn states<'a>(plan: &'a mut StepPlan, first: &str) -> &'a mut Vec<UpdateOperand> {
    let task = update(plan, first);
    match &mut plan.tasks[task].op {
        Op::Update(Update { states, .. }) => states,
        _ => unreachable!(),
    }
}

/// Position of the first task of this name.
#[track_caller]
fn named(plan: &StepPlan, name: &str) -> usize {
    position(plan, 0, |op| op.name() == name)
}

fn is_coverage(error: &VerifyError) -> bool {
    matches!(error, VerifyError::Coverage { .. })
}

/// PL-2 to PL-6, PL-9, PL-10.
#[test]
fn a_plan_with_a_custom_optimizer_of_the_trainer_s_own_is_accepted_with_no_one_or_two_lists() {
    for lists in 0..=2 {
        let plan = training(lists);
        verify(&plan).unwrap();
        assert!(!plan.tasks.iter().any(|task| matches!(task.op, Op::Adam(_))), "{lists}");
        let mut updated: Vec<(WeightId, usize)> = Vec::new();
        for task in &plan.tasks {
            if let Op::Update(Update { states, .. }) = &task.op {
                assert_eq!(task.lane, plan.compute_lane());
                updated.extend(states.iter().map(|state| (state.weight, state.kept.len())));
            }
        }
        let wanted = ["up", "down", "calm", "bias"].map(|name| (weight(&plan, name), usize::from(lists)));
        updated.sort_unstable();
        assert_eq!(updated, wanted);
    }
}

/// PL-9
#[test]
fn a_weight_that_the_optimizer_skips_stays_a_version_behind() {
    for lists in 0..=2 {
        let mut plan = training(lists);
        states(&mut plan, "up").remove(1);
        let of_bucket = "needs the master of `down` at version 1, like its bucket's others";
        refused(&plan, &["PL-9", "(partial amax of", of_bucket, "at version 0"]);
        // Without a cast after it, the edge itself finds out: the replicated bias has none.
        let mut plan = training(lists);
        let lost = update(&plan, "bias");
        remove(&mut plan, lost);
        let needs = "needs the master of `bias` at version 1";
        refused(&plan, &["PL-9 (", "): the end of plan `train`", needs, "the master of `bias` at version 0"]);
    }
}

/// PL-9, and PL-3 where it is within one task.
#[test]
fn a_weight_that_the_optimizer_updates_twice_is_refused() {
    for lists in 0..=2 {
        let mut plan = training(lists);
        let task = update(&plan, "up");
        repeat(&mut plan, task);
        let needs = "(update of up and 1 more) needs the master of `up` at version 0";
        refused(&plan, &["PL-9", needs, "at version 1", "once a step"]);
        let mut plan = training(lists);
        let again = states(&mut plan, "up")[0].clone();
        states(&mut plan, "up").push(again);
        let error = refused(&plan, &["PL-3", "(update of", "writes slot `up master`", "must lie apart"]);
        assert!(matches!(error, VerifyError::Overlap { .. }));
    }
}

/// PL-4
#[test]
fn a_custom_optimizer_updates_the_weights_of_its_own_bucket() {
    let mut plan = training(1);
    let moved = states(&mut plan, "bias")[0].clone();
    states(&mut plan, "up").push(moved);
    let error = refused(&plan, &["PL-4", "(update of", "updates `bias`, which is not of bucket 1"]);
    assert!(is_coverage(&error));
}

/// PL-4
#[test]
fn a_frozen_weight_that_the_optimizer_updates_is_refused() {
    let mut plan = training(1);
    let base = weight(&plan, "base");
    states(&mut plan, "up")[0].weight = base;
    let error = refused(&plan, &["PL-4", "(update of", "updates `base`, which is frozen; leave it out"]);
    assert!(is_coverage(&error));
}

/// PL-4: weight decay and learning rate of a task are its first weight's.
#[test]
fn two_parameter_groups_are_not_updated_as_one_by_the_optimizer() {
    let mut plan = training(2);
    let moved = states(&mut plan, "calm")[0].clone();
    states(&mut plan, "up").push(moved);
    let differ = "updates `down` and `calm`, whose parameter groups differ, as one";
    assert!(is_coverage(&refused(&plan, &["PL-4", "(update of", differ])));
}

/// PL-10: a fault on any rank must stop it.
#[test]
fn a_custom_optimizer_under_no_vote_or_another_slot_is_refused() {
    let mut plan = training(1);
    let records = plan.arena.entries().find(|(_, slot)| slot.content == Content::NormRecords).unwrap().0;
    let task = update(&plan, "up");
    let Op::Update(Update { vote, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *vote = records;
    serialize(&mut plan);
    refused(&plan, &["PL-10", "(update of up and 1 more)", "the vote of this step"]);
    // All else that it needs is there before the vote is.
    let mut plan = training(1);
    let (task, vote) = (update(&plan, "up"), named(&plan, "vote"));
    relocate(&mut plan, task, vote);
    refused(&plan, &["PL-10", "(update of up and 1 more)", "the vote of this step"]);
}

/// PL-10
#[test]
fn a_custom_optimizer_without_the_hyperparameters_is_refused() {
    let mut plan = training(1);
    let scale = slot(&plan, Content::GradientScale);
    let task = update(&plan, "bias");
    let Op::Update(Update { hyperparameters, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *hyperparameters = scale;
    serialize(&mut plan);
    refused(
        &plan,
        &["PL-10", "(update of bucket", "the hyperparameters", "name the slot of the hyperparameters"],
    );
}

/// PL-4. A second sum is begun beside the one that the norm counts, and it never gets the other gradient of `up`.
#[test]
fn a_custom_optimizer_that_reads_a_main_grad_without_some_contribution_is_refused() {
    let mut plan = training(1);
    spread(&mut plan);
    let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "up")));
    let begun = position(&plan, 0, |op| op.accesses().contains(&(main_grad, Access::Write)));
    let elsewhere = twin(&mut plan, main_grad);
    repeat(&mut plan, begun);
    let Op::SumGradient(SumGradient { parts, .. }) = &mut plan.tasks[begun + 1].op else { unreachable!() };
    parts.retain(|part| part.into == main_grad);
    parts[0].into = elsewhere;
    recount(&mut plan);
    verify(&plan).unwrap();
    states(&mut plan, "up")[0].main_grad = elsewhere;
    recount(&mut plan);
    let lacks =
        "takes the main grad of `up` as complete, but the gradient of call `backward again` is not in it";
    let error = refused(&plan, &["PL-4", "(update of up and 1 more)", lacks]);
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}

/// PL-4
#[test]
fn a_custom_optimizer_that_reads_another_main_grad_than_the_norm_counted_is_refused() {
    // That of another weight.
    let mut plan = training(1);
    let other = slot(&plan, Content::MainGrad(weight(&plan, "calm")));
    states(&mut plan, "up")[0].main_grad = other;
    serialize(&mut plan);
    let says = ["PL-4", "(update of up and 1 more)", "main grad of `up`", "main grad of `calm`"];
    assert!(matches!(refused(&plan, &says), VerifyError::Gradient { .. }));
    // What this rank alone has added up of a replicated weight.
    let mut plan = training(1);
    let own = slot(&plan, Content::LocalGrad(weight(&plan, "bias")));
    states(&mut plan, "bias")[0].main_grad = own;
    serialize(&mut plan);
    refused(
        &plan,
        &["PL-4", "(update of bucket", "main grad of `bias`", "this rank's gradient sum of `bias`"],
    );
    // A sum that is begun anew after the norm.
    let mut plan = training(1);
    spread(&mut plan);
    let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "up")));
    let begun = position(&plan, 0, |op| op.accesses().contains(&(main_grad, Access::Write)));
    let (again, first) = (plan.tasks[begun].clone(), update(&plan, "up"));
    plan.tasks.insert(first, again);
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-4", "(sum gradient of up)", "begins the sum of `up` again"]);
}

/// PL-4: no vote is there before the main grads are complete, and no norm.
#[test]
fn a_custom_optimizer_before_its_main_grad_is_complete_is_refused() {
    let mut plan = training(1);
    let (task, last) =
        (update(&plan, "up"), plan.tasks.iter().rposition(|task| task.op.name() == "sum gradient").unwrap());
    relocate(&mut plan, task, last);
    refused(&plan, &["PL-10", "(update of up and 1 more)", "the vote of this step"]);
    // With a vote before it too, it is the norm that lacks gradients.
    let mut plan = training(1);
    for name in ["grad norm", "gather records", "vote"] {
        let from = named(&plan, name);
        let last = plan.tasks.iter().rposition(|task| task.op.name() == "sum gradient").unwrap();
        relocate(&mut plan, from, last);
    }
    refused(&plan, &["PL-4", "(grad norm of", "takes the main grad of"]);
}

/// PL-5: it enqueues like a call, on the stream that calls get.
#[test]
fn a_custom_optimizer_on_another_lane_than_that_of_calls_is_refused() {
    let plan = training(1);
    for lane in plan.lanes.iter().filter(|lane| lane.id != plan.compute_lane()) {
        let mut plan = plan.clone();
        let task = update(&plan, "up");
        plan.tasks[task].lane = lane.id;
        let runs = format!("runs on the {}", lane.kind);
        let error = refused(&plan, &["PL-5", "(update of up and 1 more)", &runs]);
        assert!(matches!(error, VerifyError::Order { .. }));
    }
}

/// PL-4
#[test]
fn a_list_too_few_or_too_many_is_refused() {
    for lists in 0..=2u8 {
        for edited in [lists.checked_sub(1), Some(lists + 1)].into_iter().flatten() {
            let mut plan = training(lists);
            let spare = slot(&plan, Content::MainGrad(weight(&plan, "down")));
            let spare = twin(&mut plan, spare);
            let kept = &mut states(&mut plan, "up")[1].kept;
            kept.push(spare);
            kept.truncate(usize::from(edited));
            serialize(&mut plan);
            recount(&mut plan);
            let updates = format!("updates {edited} lists of state of `down`, which has {lists}");
            assert!(is_coverage(&refused(&plan, &["PL-4", "(update of up and 1 more)", &updates])));
        }
    }
}

/// PL-9
#[test]
fn a_list_of_another_weight_or_in_another_s_place_is_refused() {
    for lists in 1..=2 {
        let mut plan = training(lists);
        let other = states(&mut plan, "calm")[0].kept[0];
        states(&mut plan, "up")[0].kept[0] = other;
        serialize(&mut plan);
        let task = "(update of up and 1 more)";
        refused(&plan, &["PL-9", task, "first state of `up` at version 0", "first state of `calm`"]);
    }
    let mut plan = training(2);
    states(&mut plan, "bias")[0].kept.swap(0, 1);
    serialize(&mut plan);
    refused(&plan, &["PL-9", "(update of", "first state of `bias` at version 0", "second state of `bias`"]);
    // A master of another weight, likewise.
    let mut plan = training(0);
    let other = states(&mut plan, "calm")[0].master;
    states(&mut plan, "up")[0].master = other;
    serialize(&mut plan);
    refused(&plan, &["PL-9", "(update of", "needs the master of `up` at version 0", "the master of `calm`"]);
}

/// PL-4
#[test]
fn adam_does_not_update_what_is_laid_out_for_a_custom_optimizer_nor_the_reverse() {
    let (own, adam) = (training(2), plan_of_state(&program(), keeping(None)));
    verify(&adam).unwrap();
    let ops = |plan: &StepPlan, name| plan.tasks.iter().filter(|task| task.op.name() == name).count();
    assert_eq!((ops(&own, "update"), ops(&adam, "adam")), (3, 3));
    // The layout of the other, on whose plan the ops stay: two lists are two moments, byte by byte.
    let mut by_adam = adam.clone();
    by_adam.weights.state.custom_states = Some(2);
    let lets = "lets Adam update weights that a custom optimizer updates";
    assert!(is_coverage(&refused(&by_adam, &["PL-4", "(adam of", lets])));
    let mut by_rule = own.clone();
    by_rule.weights.state.custom_states = None;
    let runs = "runs a custom optimizer on weights that Adam updates";
    assert!(is_coverage(&refused(&by_rule, &["PL-4", "(update of", runs])));
}

/// PL-9. Each step of the chain reads what the optimizer leaves.
#[test]
fn quantizing_before_the_optimizer_leaves_old_shards() {
    for (name, says) in [("partial amax", "(fused scale of"), ("partial cast", "(partial cast of")] {
        let mut plan = training(1);
        let from = plan.tasks.iter().rposition(|task| task.op.name() == name).unwrap();
        let to = update(&plan, "up").min(update(&plan, "calm"));
        relocate(&mut plan, from, to);
        let error = refused(&plan, &["PL-9", says, "at version 0"]);
        assert!(matches!(error, VerifyError::Edge { .. }));
    }
    // After one of the bucket's updates, and before the other.
    let mut plan = training(1);
    let from = plan.tasks.iter().rposition(|task| task.op.name() == "partial amax").unwrap();
    let to = update(&plan, "up").max(update(&plan, "calm"));
    relocate(&mut plan, from, to);
    refused(&plan, &["PL-9", "(partial amax of", "like its bucket's others"]);
}

/// PL-3. The vote is cast on the quantize lane, the custom optimizer runs where calls do, and amaxes are taken on the
/// quantize lane again.
#[test]
fn a_missing_fence_before_or_after_the_optimizer_is_a_race() {
    for lists in 0..=2 {
        let plan = training(lists);
        let first = plan.tasks.iter().position(|task| task.op.name() == "update").unwrap();
        let vote = named(&plan, "vote");
        let mut early = plan.clone();
        assert_ne!(early.tasks[first].lane, early.tasks[vote].lane);
        assert!(early.tasks[first].waits.iter().any(|wait| wait.index() == vote), "{:?}", early.tasks[first]);
        early.tasks[first].waits.retain(|wait| wait.index() != vote);
        let task = format!("nothing makes task {first} (update of");
        let error = refused(&early, &["PL-3", &task, &format!("wait for task {vote} (vote of")]);
        assert!(matches!(error, VerifyError::Race { .. }));
        let mut late = plan.clone();
        let amax = late.tasks.iter().rposition(|task| task.op.name() == "partial amax").unwrap();
        late.tasks[amax].waits.clear();
        let error =
            refused(&late, &["PL-3", &format!("nothing makes task {amax} (partial amax of"), "(update of"]);
        assert!(matches!(error, VerifyError::Race { .. }));
    }
}

/// PL-6, PL-9. What the optimizer does not keep has no bytes, and what it keeps has.
#[test]
fn resident_memory_has_the_lists_that_are_kept_and_no_others() {
    let lists_of = |plan: &StepPlan, name| -> Vec<SlotId> {
        let weight = weight(plan, name);
        let all = [Content::first_moment(weight), Content::second_moment(weight)];
        all.into_iter().filter_map(|content| plan.arena.find(content)).collect()
    };
    for lists in 0..=2u8 {
        let plan = training(lists);
        assert_eq!(lists_of(&plan, "base"), []);
        for name in ["up", "down", "calm", "bias"] {
            assert_eq!(lists_of(&plan, name).len(), usize::from(lists), "{name}");
        }
        // Where nobody updates, the edge finds out: a step of a sum that is not its last.
        let first = program().accumulating().unwrap().part(Accumulation::First);
        let plan = plan_of_state(&first, keeping(Some(lists)));
        verify(&plan).unwrap();
        for (kept, name) in lists_of(&plan, "up").into_iter().zip(["first state", "second state"]) {
            let mut plan = plan.clone();
            plan.arena.slots[kept.index()].content = Content::NormRecord;
            let needs = format!("needs a resident slot for the {name} of `up`, but has none");
            refused(&plan, &["PL-9 (", &needs]);
        }
    }
}
