//! Properties of the plans of random programs, and of whole families of edits.

use warpweft_base::id::{EventId, TaskId};
use warpweft_plan::op::Op;
use warpweft_plan::plan::{StepPlan, VerifyError, verify};
use warpweft_testing::plan_books::serialize;
use warpweft_testing::random_programs::{Draw, features, samples};

use super::books::drop_task;
use super::happens_before::Before;
use super::harm::{Harm, Original};
use super::rounds::{change_places, rounds_of};
use super::wanted;

/// The generator's law: no case is lost.
#[test]
fn every_case_comes_up_among_random_programs() {
    let mut missing = features();
    for (_, sample, _, plan) in samples(9 << 32).take(1000) {
        missing.retain(|(_, has)| !has(&sample, &plan));
    }
    let names: Vec<&str> = missing.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.is_empty(), "among 1000 programs there is none with {names:?}");
}

/// PL-3, PL-5. With fences added and taken away at random, the verifier and a brute-force search over all
/// pairs agree on which plans are safe.
#[test]
fn races_are_exactly_what_a_brute_force_search_finds() {
    let (mut safe, mut unsafe_ones) = (0, 0);
    for (seed, _, _, mut plan) in samples(10 << 32).take(wanted()) {
        let draw = &mut Draw::new(!seed);
        for (position, task) in plan.tasks.iter_mut().enumerate() {
            task.signals = Some(EventId::at(position));
        }
        plan.events = plan.tasks.len();
        for _ in 0..draw.below(12) {
            let (one, other) = (draw.below(plan.tasks.len()), draw.below(plan.tasks.len()));
            if one != other {
                plan.tasks[one.max(other)].waits.push(TaskId::at(one.min(other)));
            }
        }
        for _ in 0..draw.below(4) {
            let waiting: Vec<usize> =
                (0..plan.tasks.len()).filter(|task| !plan.tasks[*task].waits.is_empty()).collect();
            if let Some(task) = draw.of(&waiting).copied() {
                let waits = &mut plan.tasks[task].waits;
                waits.remove(draw.below(waits.len()));
            }
        }
        let before = Before::of(&plan);
        let released = |(position, task): (usize, &warpweft_plan::plan::Task)| {
            task.release.is_none_or(|release| before.is(release.index(), position))
        };
        let is_safe = before.conflict(&plan).is_none() && plan.tasks.iter().enumerate().all(released);
        assert_eq!(verify(&plan).is_ok(), is_safe, "seed {seed}");
        *if is_safe { &mut safe } else { &mut unsafe_ones } += 1;
    }
    assert!(safe > wanted() / 10 && unsafe_ones > wanted() / 10, "{safe} safe, {unsafe_ones} not");
}

/// PL-2, PL-4, PL-9, PL-10. No task of a plan is there for nothing: each one is missed.
#[test]
fn every_lost_task_is_missed() {
    for (seed, _, _, plan) in samples(11 << 32).take(wanted()) {
        let lost = Draw::new(!seed).below(plan.tasks.len());
        let mut rest = plan.clone();
        drop_task(&mut rest, lost);
        serialize(&mut rest);
        assert!(verify(&rest).is_err(), "seed {seed}: {} may be dropped", plan.describe(TaskId::at(lost)));
    }
}

/// PL-2, PL-4, PL-9, PL-10. Two neighbours of T in each other's place, everything in one row: what is
/// accepted leaves the same content behind, because the two do not depend on each other.
#[test]
fn swapped_tasks_are_refused_unless_they_commute() {
    for (seed, _, _, mut plan) in samples(12 << 32).take(wanted()) {
        if plan.tasks.len() < 2 {
            continue;
        }
        let first = Draw::new(!seed).below(plan.tasks.len() - 1);
        let commute = commute(&plan, first, first + 1);
        plan.tasks.swap(first, first + 1);
        serialize(&mut plan);
        // Tasks that commute may still change how many bytes are alive between them.
        let refused = verify(&plan).err().filter(|error| !matches!(**error, VerifyError::Bytes { .. }));
        assert_eq!(refused.is_none(), commute, "seed {seed}: {refused:?}");
    }
}

/// PL-9. A round is the same weights in the same order in all of its tasks: where two of them change places in all
/// tasks up to some, or after it, the plan is refused.
#[test]
fn a_round_whose_weights_change_places_on_their_way_is_refused() {
    let (mut rounds, mut longest) = (0, 0);
    for (seed, _, _, plan) in samples(13 << 32) {
        if rounds >= wanted() / 100 {
            break;
        }
        let original = Original::new(&plan);
        for round in rounds_of(&plan).into_iter().filter(|round| round.weights.len() > 1) {
            rounds += 1;
            longest = longest.max(round.weights.len());
            let count = round.weights.len();
            let pairs = (0..count).flat_map(|one| (0..one).map(move |other| (one, other)));
            for (one, other) in pairs {
                for cut in 1..round.tasks.len() {
                    for side in [&round.tasks[..cut], &round.tasks[cut..]] {
                        let mut mutant = plan.clone();
                        change_places(&mut mutant, side, one, other);
                        assert_eq!(original.harm(&mutant), Some(Harm::Content), "seed {seed}");
                        assert!(verify(&mutant).is_err(), "seed {seed}: {one}, {other} from {side:?}");
                    }
                }
            }
        }
    }
    assert!(longest > 2, "{longest}");
}

/// May two neighbours of T change places? They may if they share no written byte, and in one more case: a
/// closure writes the real rows of a gradient, which are not its padding. But calls, collectives among them, take
/// turns.
fn commute(plan: &StepPlan, first: usize, second: usize) -> bool {
    match (&plan.tasks[first].op, &plan.tasks[second].op) {
        (Op::Compute(_), Op::ZeroPadding(_)) => true,
        (first, second) if first.call().is_some() && second.call().is_some() => false,
        (first, second) => !first.accesses().iter().any(|(one, how)| {
            second.accesses().iter().any(|(other, access)| {
                (how.writes() || access.writes())
                    && plan.arena.region(*one).overlaps(plan.arena.region(*other))
            })
        }),
    }
}
