//! Sharded checkpoints do not depend on how state was kept: split masters, rounded moments, delayed scales, frozen
//! weights.

use warpweft_format::{Directions, Format, Via, quantize};
use warpweft_plan::policy::{Masters, Moments};
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::config::{Config, Scaling};
use warpweft_session::session::Session;
use warpweft_testing::trainer::{Trainer, losses, within_a_minute};

use super::{config, notes};

/// A session after three steps, and its parts.
async fn saved(trainer: &Trainer, config: Config, ranks: u32) -> (Session, PartFiles, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let files = PartFiles::new(folder.path());
    let mut session = trainer.start(config, ranks).await.unwrap();
    losses(&mut session, ranks, 0..3).await;
    session.save_parts(&files, &notes(&[])).await.unwrap();
    (session, files, folder)
}

pub(crate) fn freezing(pattern: &str, config: Config) -> Config {
    let rules = Config::from_toml_str(&format!("[[weights]]\nmatch = '{pattern}'\nfrozen = true"), "rules");
    Config { weights: rules.unwrap().weights, ..config }
}

#[test]
fn split_masters_and_rounded_moments_come_back_bit_for_bit_and_fit_whole_ones() {
    within_a_minute(async {
        let mut halved = config();
        halved.optimizer.masters = Masters::Bf16Remainder;
        (halved.optimizer.moments, halved.optimizer.beta2) = (Moments::Bf16, 0.99);
        let trainer = Trainer::new(2, Format::Bf16);
        let (mut first, files, _folder) = saved(&trainer, halved.clone(), 3).await;
        let exported = first.export().await.unwrap();
        let expected = losses(&mut first, 3, 3..6).await;
        let mut second = trainer.start(halved.clone(), 3).await.unwrap();
        second.import_parts(&files).await.unwrap();
        assert_eq!(losses(&mut second, 3, 3..6).await, expected);
        for (other, ranks) in [(halved, 2), (config(), 5)] {
            let mut session = trainer.start(other, ranks).await.unwrap();
            session.import_parts(&files).await.unwrap();
            assert!(session.export().await.unwrap() == exported, "{ranks} ranks");
        }
    });
}

/// DS-1. Every rank needs them, and one part has them; another format takes the history, none of it leaves it out.
#[test]
fn delayed_scales_and_their_history_come_back_on_any_number_of_ranks_and_in_another_format() {
    within_a_minute(async {
        let mut delayed = config();
        delayed.quantize.scaling = Scaling::Delayed;
        delayed.quantize.amax_history = 3;
        let [one, other] =
            [Format::FP8_TENSOR_E4M3, Format::FP8_TENSOR_E5M2_POW2].map(|format| Trainer::new(2, format));
        let (mut first, files, _folder) = saved(&one, delayed.clone(), 4).await;
        let exported = first.export().await.unwrap();
        assert!(exported.weights[0].delayed.is_some());
        for (trainer, config, ranks) in
            [(&one, &delayed, 3), (&one, &delayed, 7), (&other, &delayed, 2), (&one, &config(), 2)]
        {
            let mut from_parts = trainer.start(config.clone(), ranks).await.unwrap();
            from_parts.import_parts(&files).await.unwrap();
            let mut from_whole = trainer.start(config.clone(), ranks).await.unwrap();
            from_whole.import(&exported).await.unwrap();
            assert!(
                from_parts.export().await.unwrap() == from_whole.export().await.unwrap(),
                "{ranks} ranks"
            );
        }
        // What was saved without begins anew where it is requested.
        let (_, current, _folder) = saved(&one, config(), 2).await;
        let mut session = one.start(delayed, 2).await.unwrap();
        session.import_parts(&current).await.unwrap();
        let state = session.export().await.unwrap().weights[0].delayed.clone().unwrap();
        assert_eq!((state.scale, state.history.as_slice()), (1.0, &[0.0; 3][..]));
    });
}

#[test]
fn a_weight_that_was_frozen_and_trains_begins_without_moments_and_others_keep_theirs() {
    within_a_minute(async {
        let frozen = freezing("layer1", config());
        let thawed = Trainer::new(2, Format::NVFP4_2D);
        let trainer = Trainer::refined(2, Format::NVFP4_2D, &frozen);
        let (mut first, files, _folder) = saved(&trainer, frozen.clone(), 3).await;
        let exported = first.export().await.unwrap();
        assert!(exported.weights[1].states.is_empty());
        let expected = losses(&mut first, 3, 3..5).await;
        let mut again = trainer.start(frozen.clone(), 3).await.unwrap();
        again.import_parts(&files).await.unwrap();
        assert_eq!(losses(&mut again, 3, 3..5).await, expected);

        let mut trains = thawed.start(config(), 2).await.unwrap();
        let before = trains.export().await.unwrap();
        trains.import_parts(&files).await.unwrap();
        assert_eq!(trains.thawed(), ["layer1"]);
        let from_parts = trains.export().await.unwrap();
        trains.import(&exported).await.unwrap();
        assert_eq!(trains.thawed(), ["layer1"]);
        let whole = trains.export().await.unwrap();
        for (thawed, master) in [
            // Parts have a digest of it; the session began with the same.
            (&from_parts, &before.weights[1].master[..]),
            (&whole, &*exported.weights[1].values().unwrap()),
        ] {
            assert_eq!(thawed.optimizer_step, exported.optimizer_step);
            assert_eq!(thawed.weights[1].master, master);
            assert_eq!(thawed.weights[1].states, [vec![0.0; master.len()], vec![0.0; master.len()]]);
            for other in [0, 2] {
                let (thawed, saved) = (&thawed.weights[other], &exported.weights[other]);
                assert_eq!((&thawed.master, &thawed.states), (&saved.master, &saved.states));
            }
        }
        losses(&mut trains, 2, 3..4).await;
        let said = trains.import_parts(&files).await.unwrap_err().to_string();
        assert!(said.contains("the weight `layer1` has other values here"), "{said}");
        trains.import(&exported.clone().restart_optimizer()).await.unwrap();
        let anew = trains.export().await.unwrap();
        assert_eq!(
            (anew.optimizer_step, &anew.weights[1].master[..]),
            (0, &*exported.weights[1].values().unwrap())
        );
        // The other way round, moments are ignored.
        let (mut all, of_all, _folder) = saved(&thawed, config(), 2).await;
        let mut freezes = trainer.start(frozen, 2).await.unwrap();
        freezes.import_parts(&of_all).await.unwrap();
        let (found, whole) = (freezes.export().await.unwrap(), all.export().await.unwrap());
        let frozen = &found.weights[1];
        assert!(frozen.master.is_empty() && frozen.states.is_empty());
        let planes =
            quantize(frozen.format, Directions::Rowwise, Via::Bf16, frozen.shape, &whole.weights[1].master);
        assert_eq!(frozen.planes[0].planes[0], planes.unwrap().rowwise.unwrap().data);
    });
}
