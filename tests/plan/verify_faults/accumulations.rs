//! PL-4 in gradient accumulation: one step begins a sum, others continue it, and the last one uses it.

use warpweft_base::id::{SlotId, WeightId};
use warpweft_plan::layout::Content;
use warpweft_plan::model::Accumulation;
use warpweft_plan::op::{Accumulate, Adam, AllReduce, GradNorm, Op, Reduction, SumGradient, SumTarget};
use warpweft_plan::plan::{StepPlan, VerifyError, verify};

use super::edit::{position, recount, refused, relocate, remove, serialize, slot, twin, weight};
use super::programs::{by_collectives, evaluation, nvfp4_training, part, replicated_part};

use Accumulation::{First, Last, Next, Whole};

/// However ranks and replicas sum.
fn plans(of: Accumulation) -> [StepPlan; 3] {
    [part(of), by_collectives::part(of), replicated_part(of)]
}

/// The tasks that add to main grads, or to what a rank adds up of a replicated weight, each with its weight.
fn contributions(plan: &StepPlan) -> Vec<(usize, WeightId)> {
    let adds = |(task, found): (usize, &warpweft_plan::plan::Task)| match &found.op {
        Op::Accumulate(Accumulate { weight, .. }) => Some((task, *weight)),
        Op::SumGradient(SumGradient { parts, .. }) if parts[0].target.accumulates() => {
            Some((task, parts[0].weight))
        }
        _ => None,
    };
    plan.tasks.iter().enumerate().filter_map(adds).collect()
}

/// Lets what was added overwrite, and what overwrote be added.
fn turn(plan: &mut StepPlan, task: usize) {
    match &mut plan.tasks[task].op {
        Op::Accumulate(Accumulate { first, .. }) => *first = !*first,
        Op::SumGradient(SumGradient { parts, .. }) => {
            parts[0].target = match parts[0].target {
                SumTarget::First => SumTarget::More,
                _ => SumTarget::First,
            }
        }
        other => panic!("a {} adds nothing up", other.name()),
    }
    serialize(plan);
}

/// Lets every task of gradients name `to` in place of `from`.
fn redirect(plan: &mut StepPlan, from: SlotId, to: SlotId) {
    let moved = |slot: &mut SlotId| *slot = if *slot == from { to } else { *slot };
    for task in &mut plan.tasks {
        match &mut task.op {
            Op::Accumulate(Accumulate { into, .. }) => moved(into),
            Op::SumGradient(SumGradient { parts, .. }) => {
                parts.iter_mut().for_each(|part| moved(&mut part.into))
            }
            Op::AllReduce(AllReduce { pairs, .. }) => pairs.iter_mut().for_each(|(from, to)| {
                moved(from);
                moved(to);
            }),
            Op::GradNorm(GradNorm { main_grads, .. }) => {
                main_grads.iter_mut().for_each(|(_, slot)| moved(slot))
            }
            Op::Adam(Adam { states, .. }) => states.iter_mut().for_each(|state| moved(&mut state.main_grad)),
            _ => {}
        }
    }
    serialize(plan);
    recount(plan);
}

fn sum_over_ranks(plan: &StepPlan) -> usize {
    let local = slot(plan, Content::LocalGrad(weight(plan, "norm")));
    let is_sum = |op: &Op| match op {
        Op::AllReduce(AllReduce { reduction: Reduction::Sum, pairs, .. }) => {
            pairs.iter().any(|(from, _)| *from == local)
        }
        _ => false,
    };
    position(plan, 0, is_sum)
}

/// PL-4. The proof counts what a step adds itself, whatever was added before.
#[test]
fn every_part_of_an_accumulation_is_proven_with_the_gradients_of_its_own_calls() {
    for of in [First, Next, Last] {
        for plan in plans(of) {
            let declared: usize = plan.calls.iter().map(|call| call.gradients.len()).sum();
            assert_eq!(verify(&plan).unwrap().gradients, declared, "{of:?}");
            let overwrites = |op: &Op| match op {
                Op::Accumulate(Accumulate { first, .. }) => *first,
                Op::SumGradient(SumGradient { parts, .. }) => {
                    parts.iter().any(|part| part.target == SumTarget::First)
                }
                _ => false,
            };
            let first = plan.tasks.iter().filter(|task| overwrites(&task.op)).count();
            assert_eq!(first, if of == First { 4 } else { 0 }, "{of:?}: one for each weight, or none");
        }
    }
}

/// PL-4. *Gradients of earlier steps of a sum overwritten by a later one*, whichever contribution does it.
#[test]
fn a_contribution_that_overwrites_what_earlier_steps_added_is_refused() {
    let mut seeded = 0;
    for plan in [Next, Last].into_iter().flat_map(plans) {
        for (task, weight) in contributions(&plan) {
            let mut plan = plan.clone();
            turn(&mut plan, task);
            let name = plan.weights.layout(weight).name.clone();
            let begins = format!("begins the sum of `{name}` anew and loses what earlier steps added up");
            let error =
                refused(&plan, &["PL-4", &plan.describe(warpweft_base::id::TaskId::at(task)), &begins]);
            assert!(matches!(error, VerifyError::Accumulation { .. }));
            seeded += 1;
        }
    }
    assert_eq!(seeded, 2 * 3 * 6, "two of embedding and norm, one of each block");
}

/// PL-4. What lies in main grads before the first step is of no sum: an older one, or garbage.
#[test]
fn a_first_step_that_adds_to_what_was_there_is_refused() {
    for plan in plans(First) {
        let mut begun = Vec::new();
        for (task, weight) in contributions(&plan) {
            let mut plan = plan.clone();
            turn(&mut plan, task);
            let name = plan.weights.layout(weight).name.clone();
            if begun.contains(&weight) {
                refused(&plan, &["PL-4", &format!("begins the sum of `{name}` again and loses")]);
                continue;
            }
            begun.push(weight);
            let needs = format!("needs the sum of `{name}` that an earlier contribution of this step began");
            let overwrite = "the first contribution of a step must overwrite";
            refused(&plan, &["PL-4", &needs, "holds what an earlier step left", overwrite]);
        }
    }
}

/// PL-4. No norm requests the gradients of such a step: its end does.
#[test]
fn a_step_whose_sum_stays_open_and_that_loses_a_contribution_is_refused() {
    for of in [First, Next] {
        for plan in plans(of) {
            for (task, weight) in contributions(&plan) {
                let mut plan = plan.clone();
                let is_begun = match &plan.tasks[task].op {
                    Op::Accumulate(Accumulate { first, .. }) => *first,
                    Op::SumGradient(SumGradient { parts, .. }) => parts[0].target == SumTarget::First,
                    _ => unreachable!(),
                };
                remove(&mut plan, task);
                recount(&mut plan);
                let name = format!("`{}`", plan.weights.layout(weight).name);
                let error = refused(&plan, &["PL-4", &name]);
                if is_begun && matches!(error, VerifyError::Gradient { .. }) {
                    continue; // What came after it has nothing to be added to.
                }
                let VerifyError::LostGradient { task, .. } = &error else { panic!("{error}") };
                assert_eq!(*task, format!("the end of plan `train` (the {of} step of an accumulation)"));
            }
        }
    }
}

/// PL-4. The main grad still holds a sum: that of the steps before.
#[test]
fn a_next_step_that_does_not_sum_a_replicated_weight_over_the_ranks_is_refused() {
    for of in [First, Next, Last] {
        for mut plan in plans(of) {
            let dropped = sum_over_ranks(&plan);
            remove(&mut plan, dropped);
            recount(&mut plan);
            let error = refused(&plan, &["PL-4", "main grad of `norm`"]);
            if of == Next {
                let says =
                    "it was added to slot `norm local grad`, and no all-reduce after that brings it further";
                assert!(error.to_string().contains(says), "{error}");
            }
        }
    }
}

/// PL-4. What was all-reduced is there, and the next step would go on from something else.
#[test]
fn a_rank_s_own_sum_that_lies_where_the_next_step_does_not_look_is_refused() {
    for mut plan in plans(First) {
        let local = slot(&plan, Content::LocalGrad(weight(&plan, "norm")));
        let elsewhere = twin(&mut plan, local);
        redirect(&mut plan, local, elsewhere);
        let end = "the end of plan `train` (the first step of an accumulation)";
        let sum =
            "needs this rank's gradient sum of `norm` over call `block.1.backward`, call `block.0.backward`";
        let holds = "slot `norm local grad` holds what an earlier step left";
        refused(&plan, &["PL-4", end, sum, holds, "the next step of the accumulation adds to it"]);
        // Nobody goes on from it after a step with an optimizer.
        let mut plan = nvfp4_training();
        let local = slot(&plan, Content::LocalGrad(weight(&plan, "norm")));
        let elsewhere = twin(&mut plan, local);
        redirect(&mut plan, local, elsewhere);
        verify(&plan).unwrap();
    }
    for mut plan in plans(Next) {
        let local = slot(&plan, Content::LocalGrad(weight(&plan, "norm")));
        let elsewhere = twin(&mut plan, local);
        redirect(&mut plan, local, elsewhere);
        refused(
            &plan,
            &["PL-4", "needs the sum of `norm`", "slot `norm local grad elsewhere` holds nothing"],
        );
    }
}

/// PL-4. The session copies main grads out after every step that writes some, and the next step adds to them.
#[test]
fn a_complete_main_grad_that_lies_elsewhere_is_refused() {
    let lost = "is not in it: it was added up in slot `embedding main grad elsewhere`";
    let older = "slot `embedding main grad` holds what an earlier step left";
    for (mut plan, finds) in [(part(First), lost), (nvfp4_training(), older)] {
        let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "embedding")));
        let elsewhere = twin(&mut plan, main_grad);
        redirect(&mut plan, main_grad, elsewhere);
        refused(&plan, &["PL-4", "the end of plan `train`", "main grad of `embedding`", finds]);
    }
}

/// PL-4. An all-reduce before what it is to sum was added leaves the sum of earlier steps alone in the main grad.
#[test]
fn a_sum_over_the_ranks_before_this_step_added_to_it_is_refused() {
    for mut plan in plans(Last) {
        let norm = weight(&plan, "norm");
        let first = contributions(&plan).into_iter().find(|(_, of)| *of == norm).unwrap().0;
        let early = sum_over_ranks(&plan);
        relocate(&mut plan, early, first);
        recount(&mut plan);
        let says = [
            "PL-4",
            "(grad norm of main grads)",
            "main grad of `norm`",
            "call `block.1.backward` is not in it",
        ];
        refused(&plan, &says);
        let norm = position(&plan, 0, |op| matches!(op, Op::GradNorm(_)));
        let Op::GradNorm(GradNorm { main_grads, squares, .. }) = &mut plan.tasks[norm].op else {
            unreachable!()
        };
        let of_norm = main_grads.last().unwrap().1;
        squares.iter_mut().chain(main_grads).next().unwrap().1 = of_norm;
        refused(&plan, &["PL-4", "holds the main grad of `norm` over no call of this step"]);
    }
}

/// PL-4, PL-6. The sum over all ranks must not take the place of the rank's own.
#[test]
fn a_rank_s_own_sum_that_the_sum_over_all_overwrites_is_refused() {
    for mut plan in plans(Next) {
        let all_reduce = sum_over_ranks(&plan);
        let Op::AllReduce(AllReduce { pairs, .. }) = &mut plan.tasks[all_reduce].op else { unreachable!() };
        pairs[0].1 = pairs[0].0;
        refused(&plan, &["PL-3 (a race of a task with itself)", "norm local grad"]);
    }
}

/// PL-9. A sum that is looked for after the step has a slot that stays.
#[test]
fn a_sum_without_a_resident_slot_is_refused() {
    let cases = [
        (part(First), Content::LocalGrad as fn(WeightId) -> Content, "rank's own gradient sum"),
        (nvfp4_training(), Content::MainGrad, "main grad"),
    ];
    for (mut plan, content, absent) in cases {
        let resident = slot(&plan, content(weight(&plan, "norm")));
        let elsewhere = twin(&mut plan, resident);
        redirect(&mut plan, resident, elsewhere);
        plan.arena.slots[resident.index()].content = Content::NormRecord;
        let needs = format!("needs a resident slot for the {absent} of `norm`, but has none");
        refused(&plan, &["PL-9", &needs]);
    }
}

/// PL-4. A session runs a plan where its label says; each of these is another step's.
#[test]
fn a_plan_that_says_it_is_another_part_of_an_accumulation_is_refused() {
    let anew = "loses what earlier steps added up";
    let older = "holds what an earlier step left";
    let optimizer = "runs the optimizer on a sum that stays open for later steps";
    let none = "has no optimizer, and no later step has one for its sum";
    for (is, says, problem) in [
        (Whole, First, optimizer),
        (Whole, Next, optimizer),
        (Whole, Last, anew),
        (First, Next, anew),
        (First, Last, none),
        (Next, Whole, older),
        (Next, First, older),
        (Next, Last, none),
        (Last, Whole, older),
        (Last, First, optimizer),
        (Last, Next, optimizer),
    ] {
        for mut plan in plans(is) {
            plan.accumulation = says;
            refused(&plan, &["PL-4", problem]);
        }
    }
    for mut plan in plans(First) {
        plan.accumulation = Whole;
        // That of a program without an optimizer.
        verify(&plan).unwrap();
    }
}

/// PL-4. Main grads of a weight that no call writes would go on as whatever they were.
#[test]
fn a_part_of_an_accumulation_without_the_gradient_of_a_weight_that_trains_is_refused() {
    let mut plan = evaluation();
    plan.accumulation = First;
    refused(
        &plan,
        &[
            "PL-4",
            "plan `eval` (the first step of an accumulation)",
            "has no call that writes a gradient of `embedding`, which trains",
        ],
    );
}
