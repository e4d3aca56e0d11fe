//! Optimizer state in fewer bytes: training is the same, and exports do not show it.

use warpweft_format::{Format, Via};
use warpweft_plan::policy::{Masters, Moments};
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Capture, Config, OptimizerConfig};
use warpweft_session::session::Session;
use warpweft_testing::trainer::{Trainer, losses, within_a_minute};

use super::{config, run};

fn with_bf16_moments(config: Config) -> Config {
    Config {
        optimizer: OptimizerConfig { moments: Moments::Bf16, beta2: 0.99, ..config.optimizer },
        ..config
    }
}

/// Conformance H6, and EX-1 for moments stored as bf16.
#[test]
fn h6_bf16_moments_train_like_f32_moments_with_bit_identical_losses_for_every_depth() {
    within_a_minute(async {
        for format in [Format::Bf16, Format::NVFP4_2D] {
            let exact = run(format, 3, config(0, Capture::Off, true), 7).await;
            let reference = run(format, 3, with_bf16_moments(config(0, Capture::Off, true)), 7).await;
            for (found, expected) in reference.iter().zip(&exact) {
                let (found, expected) = (f32::from_bits(*found), f32::from_bits(*expected));
                assert!((found / expected - 1.0).abs() < 2e-2, "{format}: {found} instead of {expected}");
            }
            assert_ne!(reference, exact, "{format}: the moments were rounded");
            for depth in [1, 2, 4] {
                for capture in [Capture::Off, Capture::Step] {
                    let found = run(format, 3, with_bf16_moments(config(depth, capture, true)), 7).await;
                    assert_eq!(found, reference, "{format}, depth {depth}, {capture:?}");
                }
            }
        }
    });
}

#[test]
fn bf16_moments_are_exported_as_f32_and_imported_without_loss() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let config = || with_bf16_moments(config(1, Capture::Off, true));
        let mut first = trainer.start(config(), 2).await.unwrap();
        losses(&mut first, 2, 0..3).await;
        let checkpoint = first.export().await.unwrap();
        let moments: Vec<f32> = checkpoint.weights.iter().flat_map(|weight| weight.states.concat()).collect();
        assert!(moments.iter().all(|moment| moment.to_bits() & 0xFFFF == 0), "they are bf16 values");
        assert!(moments.iter().any(|moment| *moment != 0.0));
        let weight = &checkpoint.weights[1];
        assert_eq!(checkpoint.weight(&weight.name), Some(weight));
        assert_eq!(checkpoint.weight("no such weight"), None);
        let expected = losses(&mut first, 2, 3..6).await;
        let mut second = trainer.start(config(), 2).await.unwrap();
        second.import(&checkpoint).await.unwrap();
        assert_eq!(second.export().await.unwrap(), checkpoint);
        assert_eq!(losses(&mut second, 2, 3..6).await, expected);
    });
}

fn with_split_masters(config: Config) -> Config {
    Config { optimizer: OptimizerConfig { masters: Masters::Bf16Remainder, ..config.optimizer }, ..config }
}

/// EX-1 for masters of bf16 shard and remainder.
#[test]
fn split_masters_train_like_f32_masters_with_bit_identical_losses_for_every_depth() {
    within_a_minute(async {
        let whole = run(Format::Bf16, 3, config(0, Capture::Off, true), 6).await;
        let reference = run(Format::Bf16, 3, with_split_masters(config(0, Capture::Off, true)), 6).await;
        for (found, expected) in reference.iter().zip(&whole) {
            // They differ where a weight lies half-way between two bf16 values.
            let (found, expected) = (f32::from_bits(*found), f32::from_bits(*expected));
            assert!((found / expected - 1.0).abs() < 1e-3, "{found} instead of {expected}");
        }
        for depth in [0, 1, 2, 4] {
            for capture in [Capture::Off, Capture::Step] {
                let found = run(Format::Bf16, 3, with_split_masters(config(depth, capture, true)), 6).await;
                assert_eq!(found, reference, "depth {depth}, {capture:?}");
            }
        }
    });
}

/// FO-5: a checkpoint does not tell how masters were stored.
#[test]
fn split_masters_are_exported_joined_and_imported_without_loss_on_any_number_of_ranks() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::Bf16);
        let split = || with_split_masters(config(1, Capture::Off, true));
        let mut first = trainer.start(split(), 2).await.unwrap();
        let mut whole = trainer.start(config(1, Capture::Off, true), 2).await.unwrap();
        let masters = |checkpoint: &Checkpoint| -> Vec<Vec<f32>> {
            checkpoint.weights.iter().map(|weight| weight.master.clone()).collect()
        };
        let begin = first.export().await.unwrap();
        assert_eq!(masters(&begin), masters(&whole.export().await.unwrap()), "initial masters are exact");
        assert!(masters(&begin)[0].iter().any(|master| master.to_bits() & 0xFFFF != 0));
        assert_eq!(begin.optimizer_step, 0);
        for weight in &begin.weights {
            assert!(weight.states.concat().iter().all(|moment| *moment == 0.0));
        }
        losses(&mut first, 2, 0..3).await;
        let checkpoint = first.export().await.unwrap();
        assert_ne!(masters(&checkpoint), masters(&begin));
        let expected = losses(&mut first, 2, 3..6).await;
        let mut second = trainer.start(split(), 2).await.unwrap();
        second.import(&checkpoint).await.unwrap();
        assert_eq!(losses(&mut second, 2, 3..6).await, expected);
        let mut alone = trainer.start(split(), 1).await.unwrap();
        alone.import(&checkpoint).await.unwrap();
        assert_eq!(alone.export().await.unwrap(), checkpoint);
        whole.import(&checkpoint).await.unwrap();
        assert_eq!(masters(&whole.export().await.unwrap()), masters(&checkpoint));
    });
}

/// Conformance H11: a block-quantized weight needs masters of its own. (The row's other half, a refusal of such
/// weights in a captured step, is a limit of other kernels: here they are captured, see EX-1 above.)
#[test]
fn h11_splitting_the_masters_of_a_quantized_weight_is_refused_before_anything_runs() {
    within_a_minute(async {
        let refuses = |format: &Format| format.check_weight().is_ok() && *format != Format::Bf16;
        for format in Format::CANONICAL.into_iter().filter(refuses) {
            let trainer = Trainer::new(2, format);
            let config = with_split_masters(Config::default());
            let error = trainer.start(config, 2).await.unwrap_err().to_string();
            assert!(error.contains("optimizer.masters") && error.contains("`layer0`"), "{error}");
        }
    });
}

/// Expects that a checkpoint is refused in these words, and that the session is as it was.
async fn refused(session: &mut Session, checkpoint: &Checkpoint, words: &[&str]) {
    let before = session.export().await.unwrap();
    let error = session.import(checkpoint).await.unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    assert_eq!(session.export().await.unwrap(), before);
}

/// f32 has finite numbers that bf16 has not: as a master, one of them ruins its block or its tensor.
#[test]
fn a_master_that_is_finite_only_before_it_is_rounded_is_refused_by_its_place() {
    within_a_minute(async {
        for (format, via, fits) in [
            (Format::NVFP4_2D, Via::Bf16, false),
            (Format::FP8_TENSOR_E4M3, Via::Bf16, false),
            (Format::FP8_TENSOR_E4M3, Via::None, true),
            (Format::Bf16, Via::None, false),
            (Format::F32, Via::Bf16, true),
        ] {
            let mut config = config(1, Capture::Off, true);
            config.quantize.via = via;
            let mut session = Trainer::new(2, format).start(config, 2).await.unwrap();
            let mut checkpoint = session.export().await.unwrap();
            let columns = checkpoint.weights[1].shape.cols;
            checkpoint.weights[1].master[3 * columns + 5] = -3.4e38;
            if fits {
                session.import(&checkpoint).await.unwrap();
            } else {
                let words = ["`layer1` holds -3.4e38 in row 3, column 5, which bf16 rounds to -inf"];
                refused(&mut session, &checkpoint, &words).await;
            }
            checkpoint.weights[1].master[3 * columns + 5] = 3.38e38;
            session.import(&checkpoint).await.unwrap();
        }
        let config = with_split_masters(config(1, Capture::Off, true));
        let mut session = Trainer::new(2, Format::Bf16).start(config, 2).await.unwrap();
        let mut checkpoint = session.export().await.unwrap();
        checkpoint.weights[0].master[0] = f32::MAX;
        refused(&mut session, &checkpoint, &["`layer0` holds", "which bf16 rounds to inf"]).await;
    });
}

#[test]
fn a_moment_that_is_finite_only_before_it_is_stored_is_refused_by_its_place() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut whole = trainer.start(config(1, Capture::Off, true), 2).await.unwrap();
        let mut session = trainer.start(with_bf16_moments(config(1, Capture::Off, true)), 2).await.unwrap();
        losses(&mut session, 2, 0..1).await;
        let exported = session.export().await.unwrap();
        for which in ["first", "second"] {
            let mut checkpoint = exported.clone();
            let weight = &mut checkpoint.weights[0];
            let moment = &mut weight.states[usize::from(which != "first")];
            moment[7] = f32::MAX;
            let what = format!("the {which} moment of `layer0` is 3.4028235e38 in row 0, column 7");
            refused(&mut session, &checkpoint, &[&what, "bf16 rounds to inf", "optimizer.moments"]).await;
            whole.import(&checkpoint).await.unwrap();
        }
    });
}
