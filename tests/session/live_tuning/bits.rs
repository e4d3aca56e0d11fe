//! TU-6: what a session computes does not depend on whether it tunes.

use warpweft_format::Format;
use warpweft_session::config::{Config, Tune};
use warpweft_session::session::Session;
use warpweft_testing::trainer::{Shaped, Trainer, feed, losses, within_a_minute};

use super::dictated::config;

const STEPS: u32 = Tune::MOST_STEPS + 6;

fn untuned(mut config: Config) -> Config {
    config.tune.steps = 0;
    config
}

async fn run(trainer: &Trainer, config: Config, ranks: u32) -> (Vec<u32>, Session) {
    let mut session = trainer.start(config, ranks).await.unwrap();
    let found = losses(&mut session, ranks, 0..STEPS).await;
    (found, session)
}

/// TU-6, over real times: whatever the trials choose.
#[test]
fn a_session_that_tunes_computes_what_one_that_does_not_computes() {
    within_a_minute(async {
        for (format, ranks) in [(Format::F32, 1), (Format::NVFP4_2D, 2), (Format::NVFP4_2D, 4)] {
            let trainer = Trainer::new(3, format);
            let (expected, session) = run(&trainer, untuned(config(1, None)), ranks).await;
            assert!(session.tuning().is_none());
            for check in [false, true] {
                let (found, mut session) = run(&trainer, Config { check, ..config(1, None) }, ranks).await;
                assert_eq!(found, expected, "{format}, {ranks} ranks, check = {check}");
                let tuning = session.tuning().unwrap();
                assert!(tuning.is_frozen() && tuning.log().len() > 2, "{tuning}");
                feed(&mut session, "evaluate", ranks, 7);
                session.step("evaluate").await.unwrap();
            }
        }
    });
}

/// TU-6, with weights that are used twice, sums over micro-batches and planes that are kept where they fit.
#[test]
fn bits_do_not_depend_on_tuning_where_a_plan_has_much_to_choose() {
    within_a_minute(async {
        let shaped =
            Shaped { layers: 4, weights: 3, recomputes: true, micro_batches: 2, ..Shaped::default() };
        let trainer = Trainer::shaped(shaped, Format::NVFP4_2D, &Config::default());
        let (expected, _) = run(&trainer, untuned(config(0, None)), 2).await;
        let (found, session) = run(&trainer, config(0, None), 2).await;
        assert_eq!(found, expected, "{}", session.tuning().unwrap());
    });
}

/// The whole state, not the losses alone; and what a checkpoint of the middle of a trial goes on to.
#[test]
fn a_checkpoint_taken_and_put_back_between_trials_changes_nothing() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut plain = trainer.start(untuned(config(1, None)), 2).await.unwrap();
        let mut tuned = trainer.start(config(1, None), 2).await.unwrap();
        for step in 0..STEPS {
            for session in [&mut plain, &mut tuned] {
                feed(session, "train", 2, step);
                session.step("train").await.unwrap();
            }
            if step % 5 == 4 {
                let exported = tuned.export().await.unwrap();
                assert_eq!(exported, plain.export().await.unwrap(), "after step {step}");
                tuned.import(&exported).await.unwrap();
            }
        }
        assert!(tuned.tuning().unwrap().is_frozen());
    });
}
