//! The tuner, driven by made-up machines.

use super::*;
use crate::config::Tune;
use proptest::prelude::*;
use warpweft_plan::plan::GatherStart;

fn new(configured: GatherStart, limits: Limits) -> Tuner {
    Tuner::new(configured, limits).unwrap()
}

/// Runs a tuner to its end; `machine` gives step time and bytes of a policy.
fn tune(tuner: Tuner, machine: impl Fn(Candidate) -> TrialOutcome) -> Tuner {
    tune_by(tuner, machine)
}

/// As [`tune`], by a machine that changes.
fn tune_by(mut tuner: Tuner, mut machine: impl FnMut(Candidate) -> TrialOutcome) -> Tuner {
    while let Some(candidate) = tuner.next_trial() {
        assert_eq!(tuner.next_trial(), Some(candidate), "asking twice changes nothing");
        tuner.report(machine(candidate));
    }
    tuner
}

fn took(step: u64, bytes: usize) -> TrialOutcome {
    TrialOutcome::Measured { steps: vec![step; 2], bytes }
}

fn by_depth(candidate: Candidate) -> TrialOutcome {
    match candidate.prefetch {
        GatherStart::Depth(depth) => took(1000 - 100 * u64::from(depth.min(4)), 100 * depth as usize),
        _ => took(900, 50),
    }
}

#[test]
fn the_fastest_measured_policy_is_kept_even_over_what_the_model_prefers() {
    let tuner = tune(new(GatherStart::Depth(1), Limits::default()), by_depth);
    let choice = tuner.choice().unwrap();
    assert_eq!((choice.candidate.prefetch, choice.step, choice.bytes), (GatherStart::Depth(4), 600, 400));
}

/// TU-1: no clock, no chance. (`tune` asks twice for every trial, which must change nothing.)
#[test]
fn equal_answers_give_equal_decisions() {
    let decisions = |configured: GatherStart| -> Vec<String> {
        let tuner = tune(new(configured, Limits::default()), by_depth);
        tuner.log().iter().map(Decision::to_string).collect()
    };
    for configured in [GatherStart::Auto, GatherStart::Depth(1), GatherStart::Bytes(4096)] {
        assert!(decisions(configured).len() > 2);
        assert_eq!(decisions(configured), decisions(configured));
    }
}

/// TU-2
#[test]
fn a_trial_over_the_budget_never_becomes_the_choice() {
    let limits = Limits { budget: Some(250), ..Limits::default() };
    let tuner = tune(new(GatherStart::Depth(1), limits), by_depth);
    assert_eq!(tuner.choice().unwrap().candidate.prefetch, GatherStart::Depth(2));
    assert!(tuner.log().iter().any(|decision| matches!(decision.verdict, Verdict::OverBudget { .. })));
    let none = tune(new(GatherStart::Depth(1), Limits { budget: Some(1), ..limits }), by_depth);
    assert_eq!(none.choice(), None);
}

/// TU-2
#[test]
fn a_plan_over_the_budget_is_logged_and_not_run() {
    let mut tuner = new(GatherStart::Depth(1), Limits { budget: Some(250), ..Limits::default() });
    assert!(!tuner.planned(100), "nothing was requested yet");
    let first = tuner.next_trial().unwrap();
    assert!(tuner.planned(250));
    assert_eq!(tuner.next_trial(), Some(first), "a plan that fits is still to be run");
    assert!(!tuner.planned(251));
    assert_ne!(tuner.next_trial(), Some(first));
    let refused = &tuner.log()[0];
    assert_eq!((refused.step, &refused.verdict), (None, &Verdict::OverBudget { bytes: 251, budget: 250 }));
}

#[test]
fn a_hysteresis_that_is_no_share_is_refused() {
    for hysteresis in [f64::NAN, -0.1, 1.0, f64::INFINITY] {
        let limits = Limits { hysteresis, ..Limits::default() };
        let error = Tuner::new(GatherStart::Depth(1), limits).unwrap_err();
        assert!(error.to_string().contains("hysteresis is "), "{error}");
    }
}

#[test]
fn where_measurements_cannot_be_repeated_no_plan_is_made_of_them() {
    let limits = Limits { by_measurement: false, ..Limits::default() };
    let tuner = tune(new(GatherStart::Depth(1), limits), by_depth);
    assert!(tuner.log().iter().all(|decision| !decision.candidate.by_measurement));
    assert_eq!(tuner.choice().unwrap().candidate.prefetch, GatherStart::Depth(4));
}

/// TU-3
#[test]
fn no_more_steps_are_spent_than_there_are() {
    for (steps, per_trial) in [(20, 2), (7, 3), (1, 2), (100, 5)] {
        let limits = Limits { steps, per_trial, ..Limits::default() };
        let ever_faster = |candidate: Candidate| {
            let step = match candidate.prefetch {
                GatherStart::Depth(depth) => 10_000 / (1 + u64::from(depth)),
                _ => 20_000,
            };
            TrialOutcome::Measured { steps: vec![step; candidate.steps as usize], bytes: 1 }
        };
        let tuner = tune(new(GatherStart::Depth(0), limits), ever_faster);
        let spent: u32 = tuner.log().iter().map(|decision| decision.candidate.steps).sum();
        assert!(spent <= steps.min(Tune::MOST_STEPS), "{spent} of {steps}");
    }
}

#[test]
fn a_trial_that_was_slower_than_the_choice_says_so() {
    let tuner = tune(new(GatherStart::Depth(4), Limits::default()), by_depth);
    let said: Vec<String> = tuner.log().iter().map(Decision::to_string).collect();
    let of = |policy: &str| said.iter().find(|line| line.contains(policy)).unwrap();
    assert!(of("depth = 1:").ends_with("slower than 0.001 ms"), "{said:?}");
    let equal = super::decision::why_kept(Some(600), 600);
    assert_eq!(equal, "not faster by enough");
}

/// TU-4
#[test]
fn a_difference_within_the_hysteresis_changes_nothing() {
    let noisy =
        |candidate: Candidate| took(if candidate.prefetch == GatherStart::Depth(1) { 1000 } else { 991 }, 10);
    let tuner = tune(new(GatherStart::Depth(1), Limits::default()), noisy);
    assert_eq!(tuner.choice().unwrap().candidate.prefetch, GatherStart::Depth(1));
}

#[test]
fn a_policy_that_cannot_be_planned_is_logged_and_passed_over() {
    let machine = |candidate: Candidate| match candidate.prefetch {
        GatherStart::Auto => TrialOutcome::Refused { reason: "no costs".into() },
        _ => by_depth(candidate),
    };
    let tuner = tune(new(GatherStart::Depth(1), Limits::default()), machine);
    assert_eq!(tuner.choice().unwrap().candidate.prefetch, GatherStart::Depth(4));
    let lines: Vec<String> = tuner.log().iter().map(Decision::to_string).collect();
    assert!(lines.iter().any(|line| line == "prefetch.policy = \"auto\": refused: no costs"), "{lines:?}");
    assert!(lines[0].contains("the first choice"), "{lines:?}");
}

#[test]
fn after_another_choice_auto_is_planned_anew_by_what_was_measured_under_it() {
    let tuner = tune(new(GatherStart::Depth(1), Limits::default()), by_depth);
    let last = tuner.log().last().unwrap();
    assert!(last.candidate.by_measurement && last.candidate.prefetch == GatherStart::Auto, "{last}");
}

#[test]
fn ranks_agree_on_the_median_of_what_they_measured() {
    assert_eq!(agreed(&[vec![1, 9, 5], vec![3, 7, 5], vec![2, 8, 500]]), [2, 8, 5]);
    // A step waits for the later of two, whether or not that one timed its tasks, and whichever comes first.
    assert_eq!(agreed(&[vec![1, 2], vec![7]]), [7, 2]);
    assert_eq!(agreed(&[vec![7], vec![1, 2]]), [7, 2]);
    assert!(agreed(&[vec![], vec![]]).is_empty());
}

/// TU-3: a trial is spent once it ran, however many of its steps were measured.
#[test]
fn a_trial_of_which_no_step_was_measured_is_spent_and_never_the_choice() {
    let limits = Limits { steps: 6, per_trial: 3, ..Limits::default() };
    let nothing = |_| TrialOutcome::Measured { steps: Vec::new(), bytes: 1 };
    let tuner = tune(new(GatherStart::Depth(1), limits), nothing);
    let reasons: Vec<String> = tuner.log().iter().map(Decision::to_string).collect();
    assert_eq!((tuner.choice(), reasons.len()), (None, 2), "{reasons:?}");
    assert!(reasons[0].contains("no step was measured"), "{reasons:?}");
    assert_eq!(tuner.log()[0].candidate, tuner.log()[1].candidate);
}

/// Dynamic loss scaling skips the first steps of a run.
#[test]
fn a_policy_of_which_no_step_was_measured_is_tried_once_more_and_not_twice() {
    for failing in [1, 2] {
        let mut trials = 0;
        let tuner = tune_by(new(GatherStart::Depth(1), Limits::default()), |_| {
            trials += 1;
            if trials <= failing {
                return TrialOutcome::Measured { steps: Vec::new(), bytes: 1 };
            }
            took(1000, 1)
        });
        let of_first = |decision: &&Decision| decision.candidate == tuner.log()[0].candidate;
        assert_eq!(tuner.log().iter().filter(of_first).count(), 2, "{failing} failed");
        let first = tuner.choice().unwrap().candidate.prefetch;
        assert_eq!(first == GatherStart::Depth(1), failing == 1, "{failing} failed");
    }
}

#[test]
fn a_slow_step_of_two_does_not_discard_a_policy() {
    let slow_once = |candidate: Candidate| match candidate.prefetch {
        GatherStart::Depth(2) => TrialOutcome::Measured { steps: vec![9000, 100], bytes: 1 },
        _ => took(1000, 1),
    };
    let tuner = tune(new(GatherStart::Depth(2), Limits::default()), slow_once);
    let choice = tuner.choice().unwrap();
    assert_eq!((choice.candidate.prefetch, choice.step), (GatherStart::Depth(2), 100));
}

fn policies() -> impl Strategy<Value = GatherStart> {
    prop_oneof![
        (0u32..9).prop_map(GatherStart::Depth),
        (1usize..5000).prop_map(GatherStart::Bytes),
        Just(GatherStart::Auto)
    ]
}

proptest! {
    /// TU-5
    #[test]
    fn nothing_is_asked_for_that_was_not_foreseen(
        configured in policies(),
        deepest in 0u32..70,
        per_trial in 1u32..4,
        times in prop::collection::vec(1u64..100, 40),
    ) {
        let limits = Limits { per_trial, ..Limits::default() };
        let fits = |prefetch| match prefetch {
            GatherStart::Depth(depth) => depth <= deepest,
            GatherStart::Bytes(bytes) => bytes >= 100,
            GatherStart::Auto => true,
        };
        let known = foreseen(configured, limits, fits).unwrap();
        let mut times = times.into_iter();
        let tuner = tune_by(new(configured, limits), |candidate| {
            if !fits(candidate.prefetch) {
                return TrialOutcome::Refused { reason: "it does not fit".into() };
            }
            took(times.next().unwrap_or(7), 1)
        });
        for decision in tuner.log().iter().filter(|decision| decision.step.is_some()) {
            let Candidate { prefetch, by_measurement, .. } = decision.candidate;
            prop_assert!(by_measurement || known.contains(&prefetch), "{decision} of {known:?}");
        }
    }
}
