//! TU-9: a failure in a trial is an ordinary failure, and measures nothing.

use warpweft_format::Format;
use warpweft_session::config::Config;
use warpweft_session::session::{Outcome, SessionError};
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};

use super::dictated::{config, start};

fn faster(bytes: usize) -> u64 {
    20_000_000_000 / bytes as u64
}

fn untuned() -> Config {
    let mut config = config(1, None);
    config.tune.steps = 0;
    config
}

/// Both measured steps of the second trial fail; the same in a session without trials.
#[test]
fn steps_that_fail_in_a_trial_are_told_as_ever_and_are_no_measurement() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let mut found = Vec::new();
        for config in [untuned(), config(1, None)] {
            let mischief = Mischief::default();
            let (mut session, _) = start(&trainer, config, 2, faster, &mischief).await;
            let mut told = Vec::new();
            for step in 0..24 {
                mischief.set(u32::from(step == 4 || step == 5));
                feed(&mut session, "train", 2, step);
                told.push(match session.step("train").await {
                    Ok(report) => format!("{:?}", report.outcome),
                    Err(error) => {
                        assert!(matches!(error, SessionError::Closure { panicked: None, .. }), "{error}");
                        error.to_string()
                    }
                });
            }
            if let Some(tuning) = session.tuning() {
                let text = tuning.log()[1].to_string();
                assert!(text.contains("no step was measured"), "{tuning}");
                let (failed, again) = (&tuning.log()[1], &tuning.log()[2]);
                assert!(again.candidate == failed.candidate && again.step.is_some(), "{tuning}");
                assert!(tuning.is_frozen() && tuning.choice().is_some(), "{tuning}");
            }
            found.push((told, session.export().await.unwrap()));
        }
        assert!(found[0] == found[1]);
    });
}

#[test]
fn a_skipped_step_is_no_measurement() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let mischief = Mischief::default();
        let (mut session, _) = start(&trainer, config(1, None), 2, faster, &mischief).await;
        for step in 0..3 {
            mischief.set(if step > 0 { 3 } else { 0 });
            feed(&mut session, "train", 2, step);
            let outcome = session.step("train").await.unwrap().outcome;
            assert_eq!(matches!(outcome, Outcome::Skipped { .. }), step > 0, "{outcome:?}");
        }
        let tuning = session.tuning().unwrap();
        assert!(tuning.log()[0].to_string().contains("no step was measured"), "{tuning}");
        // The configured policy is compared all the same.
        mischief.set(0);
        losses(&mut session, 2, 3..6).await;
        let tuning = session.tuning().unwrap();
        assert_eq!(tuning.choice().unwrap().candidate, tuning.log()[0].candidate, "{tuning}");
    });
}

#[test]
fn a_panic_in_a_trial_poisons_the_session_as_ever() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let mischief = Mischief::default();
        let (mut session, _) = start(&trainer, config(1, None), 2, faster, &mischief).await;
        losses(&mut session, 2, 0..4).await;
        mischief.set(2);
        feed(&mut session, "train", 2, 4);
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Closure { panicked: Some(_), .. }), "{error}");
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Poisoned { .. }), "{error}");
    });
}

/// A step whose future is dropped is one of its trial all the same.
#[test]
fn a_dropped_step_of_a_trial_is_counted_and_measured() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let (mut plain, _) = start(&trainer, config(1, None), 2, faster, &Mischief::default()).await;
        let expected = losses(&mut plain, 2, 0..24).await;
        let (mut session, _) = start(&trainer, config(1, None), 2, faster, &Mischief::default()).await;
        let mut found = Vec::new();
        for step in 0..24 {
            feed(&mut session, "train", 2, step);
            let stepping = session.step("train");
            if step % 3 == 1 {
                // Polled once: the command is on its way.
                let mut stepping = Box::pin(stepping);
                tokio::select! {
                    biased;
                    _ = &mut stepping => {}
                    () = std::future::ready(()) => {}
                }
                found.push(expected[step as usize]);
            } else {
                found.push(stepping.await.unwrap().mean_output("loss").unwrap().to_bits());
            }
        }
        assert_eq!(found, expected);
        assert_eq!(session.tuning().unwrap().log(), plain.tuning().unwrap().log());
    });
}
