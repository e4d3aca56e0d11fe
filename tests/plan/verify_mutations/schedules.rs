//! Accepted plans leave the same bits in every order that their lanes and fences allow.

use super::damage::Edit;
use super::harm::{Harm, Original};
use super::machine::{Left, masters, run};
use super::reference::{self, is_plain};
use super::rounds::rounds_of;
use super::wanted;
use warpweft_plan::model::Group;
use warpweft_plan::plan::{PlanError, StepPlan, verify};
use warpweft_plan::policy::Reduce;
use warpweft_testing::random_programs::Draw;
use warpweft_testing::random_programs::Sample;
use warpweft_testing::random_programs::samples;

const STEPS: usize = 2;

/// Schedules of each accepted mutant in a full run; a tenth in a short one.
const SCHEDULES: usize = 100;

fn schedules() -> usize {
    if wanted() < 10_000 { SCHEDULES / 10 } else { SCHEDULES }
}

fn bits(sample: &Sample, prologue: &StepPlan, plan: &StepPlan, seed: u64) -> Left {
    run(sample, prologue, &[plan; STEPS], &mut Draw::new(seed)).unwrap_or_else(|error| panic!("{error}"))
}

/// PL-3, EX-1. A proven plan gives the same bits whatever runs first.
#[test]
fn a_valid_plan_leaves_the_same_bits_in_adversarial_schedules() {
    let plans = wanted() / 100;
    for (seed, sample, prologue, plan) in samples(2 << 32).take(plans) {
        let expected = bits(&sample, &prologue, &plan, 0);
        assert!(expected.iter().flatten().flatten().any(|byte| *byte != 0), "seed {seed}");
        for schedule in 1..=schedules() as u64 {
            assert_eq!(bits(&sample, &prologue, &plan, schedule), expected, "seed {seed}, {schedule}");
        }
    }
    println!("{plans} valid plans, {} schedules each: the same bits", schedules());
}

/// PL-3, PL-4, EX-1. The plans of a sum of gradients, one after the other, leave the masters of an unsharded trainer
/// that adds the same gradients, whatever runs first.
#[test]
fn the_parts_of_a_sum_leave_the_masters_of_a_trainer_that_adds_the_same_gradients() {
    let programs = wanted() / 200;
    let accumulating = samples(7 << 32).filter(|(_, sample, ..)| sample.program.is_accumulating());
    let mut left = programs;
    // Where a collective sums, it does so in rank order, and the trainer in the levels of the mesh.
    let is_flat = |sample: &Sample| {
        [Group::Replica, Group::ExpertShard, Group::World].map(|over| sample.mesh().depth(over)) == [1; 3]
    };
    let sums_alike = |sample: &Sample| sample.reduce == Reduce::Ordered || is_flat(sample);
    for (seed, sample, prologue, _) in
        accumulating.filter(|(_, sample, ..)| is_plain(sample) && sums_alike(sample))
    {
        // A budget may have room for some of them alone.
        let steps: Result<Vec<StepPlan>, _> =
            sample.parts().map(|part| Ok(part.plans()?.1)).collect::<Result<_, PlanError>>();
        let Ok([whole, first, next, last]) = steps.map(|steps| <[StepPlan; 4]>::try_from(steps).unwrap())
        else {
            continue;
        };
        let plans = [&first, &next, &next, &last, &whole, &first, &last];
        let expected = reference::run(&sample, &[4, 1, 2]).masters;
        for schedule in 0..2 {
            let found = run(&sample, &prologue, &plans, &mut Draw::new(schedule))
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert_eq!(masters(&found, &last), expected, "seed {seed}, {schedule}");
        }
        left -= 1;
        if left == 0 {
            break;
        }
    }
    println!(
        "{programs} random programs: sums of gradients over several steps have the bits of an unsharded trainer"
    );
}

/// PL-2 to PL-4, PL-9, PL-10. An edit that the verifier accepts changes no bit, whatever runs first.
#[test]
fn accepted_mutants_leave_the_same_bits_in_adversarial_schedules() {
    let mutants = wanted() / 50;
    let mut left = mutants;
    for (seed, sample, prologue, plan) in samples(3 << 32) {
        if left == 0 {
            break;
        }
        let (original, draw) = (Original::new(&plan), &mut Draw::new(!seed));
        let mutants: Vec<(Edit, StepPlan)> = Edit::ALL
            .into_iter()
            .filter_map(|edit| Some((edit, edit.apply(&plan, draw)?)))
            .filter(|(_, mutant)| verify(mutant).is_ok())
            .collect();
        if mutants.is_empty() {
            continue;
        }
        let expected = bits(&sample, &prologue, &plan, 0);
        for (edit, mut mutant) in mutants.into_iter().take(left) {
            assert_eq!(original.harm(&mutant), None, "seed {seed}: {edit:?}");
            // What a plan is called decides what the driver lets it find and looks for after it, not what it does.
            mutant.accumulation = plan.accumulation;
            for schedule in 0..schedules() as u64 {
                let found = bits(&sample, &prologue, &mutant, schedule);
                assert!(
                    found == expected,
                    "seed {seed}: {edit:?} is accepted and changes bits in schedule {schedule}"
                );
            }
            left -= 1;
        }
    }
    println!(
        "{mutants} accepted mutants, {} schedules each: the bits of the plans they were made from",
        schedules()
    );
}

/// The machine would show it: edits that race, or leave other contents, do change bits or make a rank stop.
#[test]
fn harmful_mutants_show_on_the_machine() {
    let (mut shown, mut tried) = (0, 0);
    let with_rounds = samples(14 << 32).filter(|(.., plan)| !rounds_of(plan).is_empty());
    for (seed, sample, prologue, plan) in samples(5 << 32).take(10).chain(with_rounds.take(5)) {
        let (original, draw) = (Original::new(&plan), &mut Draw::new(!seed));
        let expected = bits(&sample, &prologue, &plan, 0);
        for edit in [
            Edit::DropFence,
            Edit::DropEvent,
            Edit::SwapSlots,
            Edit::MoveSlot,
            Edit::DropTask,
            Edit::ChangeCollectiveCall,
            Edit::ChangeRound,
        ] {
            let harmful = edit
                .apply(&plan, draw)
                .filter(|mutant| matches!(original.harm(mutant), Some(Harm::Race | Harm::Content)));
            let Some(mutant) = harmful else { continue };
            let differs = |schedule| {
                run(&sample, &prologue, &[&mutant; STEPS], &mut Draw::new(schedule)).ok().as_ref()
                    != Some(&expected)
            };
            tried += 1;
            shown += usize::from((0..20).any(differs));
        }
    }
    println!("{shown} of {tried} harmful mutants change bits within 20 schedules");
    assert!(shown * 2 > tried, "{shown} of {tried}");
}
