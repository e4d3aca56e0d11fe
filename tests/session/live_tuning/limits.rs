//! Limits of tuning: never more memory, never more steps, and no change after the last trial.

use std::sync::atomic::Ordering;

use warpweft_format::Format;
use warpweft_session::config::Tune;
use warpweft_session::tune::Verdict;
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};

use super::dictated::{config, start};

/// TU-2, TU-3, TU-7: for budgets between what gathering on demand takes and what everything takes.
#[test]
fn no_trial_takes_more_than_the_budget_nor_more_steps_than_there_are() {
    within_a_minute(async {
        let trainer = Trainer::new(4, Format::F32);
        let mut plain = config(1, None);
        plain.tune.steps = 0;
        let bytes_of = |depth: u32| {
            let mut config = plain.clone();
            config.prefetch.depth = Some(depth);
            let trainer = trainer.clone();
            async move { trainer.start(config, 2).await.unwrap().plan("train").unwrap().bounds }
        };
        // What is alive is the least a plan can do with; holds are cut back to it before a plan is refused.
        let (least, most) = (bytes_of(1).await.live_bytes, bytes_of(4).await.transient_bytes);
        assert!(least < most);
        for budget in [least, least.midpoint(most), most] {
            let faster = |bytes| 20_000_000_000 / bytes as u64;
            let (mut session, watch) =
                start(&trainer, config(1, Some(budget)), 2, faster, &Mischief::default()).await;
            let resident = session.plan("train").unwrap().bounds.resident_bytes;
            assert!(watch.reserved.load(Ordering::SeqCst) <= resident + budget);
            let mut tried = 0;
            for step in 0..Tune::MOST_STEPS + 4 {
                feed(&mut session, "train", 2, step);
                session.step("train").await.unwrap();
                let plan = session.plan("train").unwrap();
                assert!(plan.bounds.transient_bytes <= budget, "step {step}");
                assert!(plan.arena.bytes() <= watch.reserved.load(Ordering::SeqCst), "step {step}");
                tried += u32::from(!session.tuning().unwrap().is_frozen());
            }
            let tuning = session.tuning().unwrap();
            assert!(tuning.is_frozen() && tried <= Tune::MOST_STEPS, "{tried} steps: {tuning}");
            let over = |verdict: &Verdict| matches!(verdict, Verdict::OverBudget { .. });
            assert!(budget < most || !tuning.log().iter().any(|one| over(&one.verdict)), "{tuning}");
            assert!(tuning.log().iter().filter(|one| !over(&one.verdict)).count() > 1, "{tuning}");
            assert!(tuning.choice().unwrap().bytes <= budget);
        }
    });
}

/// TU-10: captured once, after the last trial; plans that were tried are given back.
#[test]
fn a_capture_is_made_of_the_choice_alone_and_nothing_is_left_of_the_trials() {
    within_a_minute(async {
        let trainer = Trainer::new(3, Format::F32);
        let faster = |bytes| 20_000_000_000 / bytes as u64;
        let (mut session, watch) = start(&trainer, config(1, None), 2, faster, &Mischief::default()).await;
        let mut step = 0;
        while !session.tuning().unwrap().is_frozen() {
            assert_eq!(watch.captures(), 0, "step {step}");
            feed(&mut session, "train", 2, step);
            assert_eq!(session.step("train").await.unwrap().not_captured, []);
            step += 1;
        }
        assert!((Tune::PER_TRIAL..=Tune::MOST_STEPS + 1).contains(&step), "{step}");
        let (plan, log) = (session.plan("train").unwrap().clone(), session.tuning().unwrap().log().to_vec());
        losses(&mut session, 2, step..step + 6).await;
        assert_eq!(watch.captures(), 2, "one a rank");
        assert!(std::sync::Arc::ptr_eq(&plan, session.plan("train").unwrap()));
        assert_eq!(session.tuning().unwrap().log(), log);
        // The prologue, training and evaluation.
        assert_eq!(watch.bound(), [3, 3]);
    });
}

#[test]
fn fewer_steps_are_fewer_trials() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let mut few = config(1, None);
        few.tune.steps = Tune::LEAST_STEPS;
        let faster = |bytes| 20_000_000_000 / bytes as u64;
        let (mut session, _) = start(&trainer, few, 1, faster, &Mischief::default()).await;
        losses(&mut session, 1, 0..Tune::LEAST_STEPS).await;
        let tuning = session.tuning().unwrap();
        assert_eq!(tuning.log().iter().filter(|one| one.step.is_some()).count(), 2, "{tuning}");
        assert!(!tuning.is_frozen(), "the next step begins with the choice");
        losses(&mut session, 1, Tune::LEAST_STEPS..Tune::LEAST_STEPS + 1).await;
        assert!(session.tuning().unwrap().is_frozen());
    });
}
