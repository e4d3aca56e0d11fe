//! Mutation testing of the verifier: random plans, random edits, and a judge that shares nothing with it.
//!
//! | file | idea |
//! |---|---|
//! | `random_programs` of the testing crate | random programs, planned in random ways |
//! | `damage`, `operands`, `rounds`, `books`, `plan_books` of the testing crate | one random edit of a plan |
//! | `happens_before`, `meaning`, `ops`, `part`, `harm` | is the edited plan harmful? by brute force, without the verifier |
//! | `conservative` | why the verifier may refuse what is harmless |
//! | `properties` | what holds of random plans, and of families of edits |
//! | `machine`, `schedules` | what is accepted runs on the CPU in adversarial orders and leaves the same bits |
//! | `peers` | no rank touches the memory of one that does not stand still |
//! | `reference`, `parameter`, `sessions` | what the builder makes gives the bits of an unsharded trainer |
//! | `custom_optimizer`, `whole_matrix_optimizer` | what updates weights where Adam does not |
//!
//! `cargo test` runs a share of seconds.
//! `WARPWEFT_MUTANTS=10000 cargo test --test plan verify_mutations:: -- --nocapture` runs as many harmful mutants
//! and valid programs as it says, in proportion more of the rest, and prints all counts.

mod books;
mod closure;
mod conservative;
mod custom_optimizer;
mod damage;
mod happens_before;
mod harm;
mod machine;
mod meaning;
mod operands;
mod ops;
mod parameter;
mod part;
mod peers;
mod properties;
mod reference;
mod rounds;
mod schedules;
mod sessions;
mod tensor_parts;
mod whole_matrix_optimizer;

use std::collections::BTreeMap;

use conservative::Class;
use damage::Edit;
use harm::{Harm, Original};
use part::keeps_its_word;
use warpweft_base::id::LaneId;
use warpweft_plan::model::Call;
use warpweft_plan::op::Op;
use warpweft_plan::plan::{StepPlan, verify};
use warpweft_testing::random_programs::{Draw, samples};

/// How many harmful mutants and valid programs a run takes.
fn wanted() -> usize {
    std::env::var("WARPWEFT_MUTANTS")
        .map_or(2000, |count| count.parse().expect("WARPWEFT_MUTANTS is a number"))
}

/// PL-2 to PL-6, PL-9, PL-10. No false alarm: the builder returns no plan that the verifier refuses, the
/// proof speaks of every use, gradient and buffer access, and the judge agrees.
#[test]
fn no_valid_plan_is_refused_and_the_judge_finds_no_harm_in_any() {
    let mut tasks = 0;
    for (seed, _, prologue, step) in samples(1 << 32).take(wanted()) {
        for plan in [prologue, step] {
            let proof = verify(&plan).unwrap_or_else(|error| panic!("seed {seed}: a false alarm: {error}"));
            tasks += proof.tasks;
            let declared = |count: fn(&Call) -> usize| plan.calls.iter().map(count).sum::<usize>();
            assert_eq!(proof.uses, declared(|call| call.uses.len()), "seed {seed}");
            assert_eq!(proof.gradients, declared(|call| call.gradients.len()), "seed {seed}");
            assert_eq!(proof.buffers, declared(|call| call.buffers.len()), "seed {seed}");
            assert_eq!(Original::new(&plan).harm(&plan), None, "seed {seed}");
            let order: Vec<usize> = (0..plan.tasks.len()).collect();
            assert!(keeps_its_word(&plan, &order), "seed {seed}: it is not the {} step", plan.accumulation);
        }
    }
    println!("{} random programs, {tasks} tasks: no false alarm", wanted());
}

/// PL-2 to PL-6, PL-9, PL-10. Every harmful mutant is refused; and what is refused without harm is of a known
/// class.
#[test]
fn every_harmful_mutant_is_refused() {
    let mut caught: BTreeMap<(Edit, Harm), usize> = BTreeMap::new();
    let mut conservative: BTreeMap<Class, usize> = BTreeMap::new();
    let (mut accepted, mut harmful, mut plans) = (0, 0, 0);
    let (mut of_rules, mut of_exchanges, mut of_rounds, mut of_experts) = (0, 0, 0, 0);
    for (seed, _, _, plan) in samples(0) {
        if harmful >= wanted() {
            break;
        }
        plans += 1;
        let original = Original::new(&plan);
        let draw = &mut Draw::new(!seed);
        // Tasks and exchanges of a custom optimizer are few among many, and each of their operands is to be hit.
        let more = |tasks: Said<'_>| if tasks.is_empty() { 0 } else { 10 };
        let more = std::iter::repeat_n(Edit::ChangeOptimizer, more(updates(&plan)))
            .chain(std::iter::repeat_n(Edit::ChangeCollectiveCall, more(exchanges(&plan))))
            .chain(std::iter::repeat_n(Edit::ChangeRound, 3 * more(rounds(&plan))));
        for edit in Edit::ALL.into_iter().chain(more) {
            let Some(mutant) = edit.apply(&plan, draw) else { continue };
            match (original.harm(&mutant), verify(&mutant)) {
                (Some(harm), Err(_)) => {
                    *caught.entry((edit, harm)).or_default() += 1;
                    harmful += 1;
                    of_rules += usize::from(updates(&mutant) != updates(&plan));
                    of_exchanges += usize::from(exchanges(&mutant) != exchanges(&plan));
                    of_rounds += usize::from(rounds(&mutant) != rounds(&plan));
                    of_experts += usize::from(has_own_experts(&plan));
                }
                (Some(harm), Ok(_)) => panic!("seed {seed}: {edit:?} does harm ({harm:?}) and is accepted"),
                (None, Err(error)) => {
                    let class = Class::of(&original, &mutant, &error);
                    let class = class.unwrap_or_else(|| panic!("seed {seed}: {edit:?} is harmless: {error}"));
                    *conservative.entry(class).or_default() += 1;
                }
                (None, Ok(_)) => accepted += 1,
            }
        }
    }
    println!(
        "{plans} plans; {harmful} harmful mutants, {of_rules} of rules of updates, {of_exchanges} of exchanges and {of_rounds} of rounds of matrices, {of_experts} where ranks share the experts, all refused:"
    );
    for edit in Edit::ALL {
        let of = |((_, harm), count): (&(Edit, Harm), &usize)| format!("{harm:?} {count}");
        let counts: Vec<String> = caught.iter().filter(|((other, _), _)| *other == edit).map(of).collect();
        println!("  {edit:?}: {}", counts.join(", "));
    }
    println!("{accepted} harmless ones accepted; {} refused:", conservative.values().sum::<usize>());
    conservative.iter().for_each(|(class, count)| println!("  {class:?}: {count}"));
    let silent: Vec<_> =
        Edit::ALL.iter().filter(|edit| !caught.keys().any(|(other, _)| other == *edit)).collect();
    assert!(silent.iter().all(|edit| edit.is_about_books()), "no harm came of {silent:?}");
    assert!(of_rules >= wanted() / 20, "{of_rules}");
    assert!(of_exchanges >= wanted() / 20, "{of_exchanges}");
    assert!(of_rounds >= wanted() / 20, "{of_rounds}");
    assert!(of_experts >= wanted() / 20, "{of_experts}");
    for harm in [Harm::Space, Harm::Deadlock, Harm::Race, Harm::Content] {
        assert!(caught.keys().any(|(_, other)| *other == harm), "{harm:?} never came up");
    }
}

/// Do ranks have other experts than others?
fn has_own_experts(plan: &StepPlan) -> bool {
    plan.weights.layouts.iter().any(|layout| layout.shard.expert > Some(1))
}

/// What a plan says of some tasks: each with its lane and how many fences it waits for.
type Said<'p> = Vec<(&'p Op, LaneId, usize)>;

/// Of updates by the custom optimizer.
fn updates(plan: &StepPlan) -> Said<'_> {
    said(plan, |op| matches!(op, Op::Update(_)))
}

/// Of collective calls.
fn exchanges(plan: &StepPlan) -> Said<'_> {
    said(plan, |op| matches!(op, Op::CollectiveCall(_)))
}

/// Of what rounds of matrices do, but for the updates after it.
fn rounds(plan: &StepPlan) -> Said<'_> {
    said(plan, |op| matches!(op, Op::Prepare(_) | Op::ExchangeRows(_) | Op::Transform(_)))
}

fn said(plan: &StepPlan, wanted: impl Fn(&Op) -> bool) -> Said<'_> {
    let tasks = plan.tasks.iter().filter(|task| wanted(&task.op));
    tasks.map(|task| (&task.op, task.lane, task.waits.len())).collect()
}
