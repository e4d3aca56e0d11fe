//! Sessions end to end on the CPU backend.

mod checking;
mod collective_calls;
mod compare_replicas;
mod custom_optimizer;
mod elements;
mod executors;
mod frozen;
mod loss_scale;
mod matrices;
mod optimizers;
mod programs;
mod states;
mod virtual_time;

use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::trainer::{self, Mischief, Trainer, feed, losses, within_a_minute};

fn config(depth: u32, capture: Capture, check: bool) -> Config {
    let mut config = Config { capture, check, ..Config::default() };
    config.prefetch.depth = Some(depth);
    config.optimizer.lr = 3e-3;
    config.optimizer.max_norm = 1.0;
    config
}

async fn run(format: Format, ranks: u32, config: Config, steps: u32) -> Vec<u32> {
    let mut session = Trainer::new(3, format).start(config, ranks).await.unwrap();
    let losses = losses(&mut session, ranks, 0..steps).await;
    session.close().await.unwrap();
    losses
}

/// EX-1, and the promise that scheduling never changes a number. A plain format, and one with every kernel
/// there is.
#[test]
fn losses_are_bit_identical_for_every_depth_eager_and_captured_with_and_without_checking() {
    within_a_minute(async {
        for format in [Format::Bf16, Format::NVFP4_2D] {
            let reference = run(format, 4, config(0, Capture::Off, false), 6).await;
            assert!(f32::from_bits(reference[5]) < f32::from_bits(reference[0]), "{format} learns");
            for depth in [0, 1, 2, 4] {
                for capture in [Capture::Off, Capture::Step] {
                    for check in [false, true] {
                        let found = run(format, 4, config(depth, capture, check), 6).await;
                        assert_eq!(found, reference, "{format}, depth {depth}, {capture:?}, check {check}");
                    }
                }
            }
        }
    });
}

/// Every format a weight may have, on a number of ranks that leaves one of them without rows.
#[test]
fn every_weight_format_learns_and_gives_bit_identical_losses_for_every_depth() {
    within_a_minute(async {
        for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
            let reference = run(format, 4, config(0, Capture::Off, true), 4).await;
            assert!(f32::from_bits(reference[3]) < f32::from_bits(reference[0]), "{format} learns");
            for depth in [1, 2, 4] {
                assert_eq!(
                    run(format, 4, config(depth, Capture::Step, true), 4).await,
                    reference,
                    "{format}"
                );
            }
        }
    });
}

#[test]
fn a_rule_mixes_formats_in_one_model_and_every_depth_gives_the_same_losses() {
    within_a_minute(async {
        let rules = "[[weights]]\nmatch = \"layer1\"\nformat = \"fp8_block\"\n\
                     [[weights]]\nmatch = \"layer2\"\nplacement = \"replicated\"";
        let rules = Config::from_toml_str(rules, "rules.toml").unwrap();
        let trainer = Trainer::refined(3, Format::NVFP4_2D, &rules);
        let formats: Vec<Format> = trainer.model.weights().iter().map(|weight| weight.format).collect();
        assert_eq!(formats[..3], [Format::NVFP4_2D, Format::FP8_BLOCK128_POW2, Format::F32]);
        let mut reference = None;
        for depth in [0, 1, 2, 4] {
            let config = Config { weights: rules.weights.clone(), ..config(depth, Capture::Step, true) };
            let mut session = trainer.start(config, 3).await.unwrap();
            let found = losses(&mut session, 3, 0..4).await;
            assert_eq!(&found, reference.get_or_insert_with(|| found.clone()), "depth {depth}");
        }
    });
}

#[test]
fn rules_that_were_not_applied_before_programs_were_declared_refuse_the_start() {
    within_a_minute(async {
        let rules = "[[weights]]\nmatch = \"layer1\"\nformat = \"fp8_block\"";
        let rules = Config::from_toml_str(rules, "rules.toml").unwrap();
        let plain = Trainer::new(3, Format::NVFP4_2D);
        let error = plain.start(rules.clone(), 2).await.unwrap_err();
        assert!(
            matches!(&error, SessionError::WeightRules { weight, rules }
                if weight == "layer1" && rules.contains("fp8_block") && rules.contains("rules.toml:2")),
            "{error}"
        );
        assert!(error.to_string().contains("apply_weight_rules"), "{error}");
        let error = warpweft_session::session::plan_program(&plain.train, &rules, 2).unwrap_err();
        assert!(matches!(&error, SessionError::WeightRules { .. }), "{error}");
        // A rule that says what was declared anyway changes nothing, and one that matches nothing is misspelt.
        let same = "[[weights]]\nmatch = \"layer*\"\nformat = \"nvfp4\"";
        let same = Config::from_toml_str(same, "rules.toml").unwrap();
        plain.start(same, 2).await.unwrap().close().await.unwrap();
        let misspelt = "[[weights]]\nmatch = \"leyer*\"\nformat = \"nvfp4\"";
        let misspelt = Config::from_toml_str(misspelt, "rules.toml").unwrap();
        let error = plain.start(misspelt, 2).await.unwrap_err();
        assert!(matches!(&error, SessionError::Config(_)), "{error}");
    });
}

#[test]
fn one_communicator_or_two_kept_or_gathered_again_give_the_same_losses() {
    use warpweft_plan::policy::{Backward, Columnwise};
    within_a_minute(async {
        let reference = run(Format::NVFP4_2D, 2, config(1, Capture::Off, true), 4).await;
        for communicators in [1, 2] {
            for backward in [Backward::Regather, Backward::Keep] {
                for columnwise in [Columnwise::OnDemand, Columnwise::Keep] {
                    let config = Config {
                        communicators: Some(communicators),
                        backward,
                        columnwise,
                        ..config(2, Capture::Step, true)
                    };
                    assert_eq!(run(Format::NVFP4_2D, 2, config, 4).await, reference);
                }
            }
        }
    });
}

/// EX-1: where what a call reads is made changes when it is made, and no bit of it.
#[test]
fn what_calls_read_derived_ahead_gives_the_same_losses_issued_and_captured_whole_and_in_chunks() {
    use warpweft_plan::op::Op;
    use warpweft_plan::policy::ByteSize;
    within_a_minute(async {
        for format in [Format::Bf16, Format::NVFP4_2D] {
            let reference = run(format, 4, config(0, Capture::Off, true), 4).await;
            for (depth, chunk) in [(1, None), (2, None), (2, Some(1024))] {
                for capture in [Capture::Off, Capture::Step] {
                    let mut config = Config { derive_ahead: true, ..config(depth, capture, true) };
                    config.prefetch.chunk = chunk.map(ByteSize::new);
                    let mut session = Trainer::new(3, format).start(config, 4).await.unwrap();
                    let plan = session.plan("train").unwrap();
                    let calls =
                        plan.tasks.iter().find(|task| matches!(task.op, Op::Compute(_))).unwrap().lane;
                    let derives = |op: &Op| matches!(op, Op::Assemble(_) | Op::Dequantize(_));
                    assert!(plan.tasks.iter().all(|task| task.lane != calls || !derives(&task.op)));
                    let found = losses(&mut session, 4, 0..4).await;
                    assert_eq!(found, reference, "{format}, depth {depth}, chunk {chunk:?}, {capture:?}");
                    session.close().await.unwrap();
                }
            }
        }
    });
}

/// FO-3: 96 rows are six tiles, two for each of four ranks, so the last owns nothing and still joins.
#[test]
fn quantized_bytes_from_the_same_masters_are_identical_for_any_number_of_ranks() {
    within_a_minute(async {
        let mut reference = None;
        for ranks in 1..=4 {
            let trainer = Trainer::new(2, Format::NVFP4_2D);
            let mut session = trainer.start(config(1, Capture::Off, true), ranks).await.unwrap();
            let planes: Vec<_> =
                session.export().await.unwrap().weights.into_iter().map(|weight| weight.planes).collect();
            assert!(planes[0][0].planes[0].iter().any(|byte| *byte != 0));
            let expected = reference.get_or_insert_with(|| planes.clone());
            assert_eq!(&planes, expected, "{ranks} ranks");
        }
    });
}

/// A program of gradients alone computes what a training step does, changes no weight, and the next step
/// begins its sums anew.
#[test]
fn a_step_of_gradients_alone_has_the_losses_of_a_training_step_and_leaves_no_trace() {
    within_a_minute(async {
        for format in [Format::F32, Format::NVFP4_2D] {
            let trainer = Trainer::new(2, format);
            let reference = {
                let mut session = trainer.start(config(2, Capture::Off, true), 3).await.unwrap();
                let found = losses(&mut session, 3, 0..3).await;
                (found, session.export().await.unwrap())
            };
            let builder = trainer.builder(config(2, Capture::Off, true), &Mischief::default());
            let mut session = builder.program(trainer.gradients_alone()).start_cpu(3).await.unwrap();
            let before = session.export().await.unwrap();
            let mut found = Vec::new();
            for step in 0..3 {
                feed(&mut session, "gradients", 3, step);
                let report = session.step("gradients").await.unwrap();
                assert_eq!(report.outcome, Outcome::Evaluated);
                let loss = report.mean_output("loss").unwrap().to_bits();
                assert_eq!(loss, reference.0[step as usize], "{format}, step {step}");
                if step == 0 {
                    assert_eq!(session.export().await.unwrap(), before, "{format}");
                }
                found.extend(losses(&mut session, 3, step..step + 1).await);
            }
            assert_eq!(found, reference.0, "{format}");
            assert_eq!(session.export().await.unwrap(), reference.1, "{format}");
        }
    });
}

/// CO-2: the rank whose closure failed takes part in every collective after it, or its peers would wait past
/// the minute.
#[test]
fn a_closure_error_on_one_rank_is_named_changes_nothing_and_the_session_goes_on() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let (trainer, mischief) = (Trainer::new(2, Format::F32), Mischief::default());
            let builder = trainer.builder(config(2, capture, true), &mischief);
            let mut session = builder.start_cpu(3).await.unwrap();
            losses(&mut session, 3, 0..3).await;
            let before = session.export().await.unwrap();
            mischief.set(1);
            feed(&mut session, "train", 3, 3);
            let error = session.step("train").await.unwrap_err();
            let SessionError::Closure { rank, call, message, panicked, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((*rank, call.as_str(), *panicked), (RankId::new(1), "b0", None));
            assert!(message.contains("the dog ate it"));
            assert_eq!(session.export().await.unwrap(), before);
            mischief.set(0);
            let report = session.step("train").await.unwrap();
            assert!(
                matches!(report.outcome, Outcome::Updated { optimizer_step: 4, .. }),
                "{:?}",
                report.outcome
            );
        }
    });
}

#[test]
fn a_closure_panic_poisons_the_session_and_nobody_hangs() {
    within_a_minute(async {
        let (trainer, mischief) = (Trainer::new(2, Format::NVFP4_2D), Mischief::default());
        let mut session =
            trainer.builder(config(1, Capture::Off, true), &mischief).start_cpu(2).await.unwrap();
        losses(&mut session, 2, 0..2).await;
        mischief.set(2);
        feed(&mut session, "train", 2, 2);
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(&error, SessionError::Closure { panicked: Some(_), .. }), "{error}");
        assert!(error.to_string().contains("rank 1"), "{error}");
        let error = session.step("train").await.unwrap_err();
        assert!(matches!(&error, SessionError::Poisoned { exports: true, .. }), "{error}");
        session.close().await.unwrap();
    });
}

#[test]
fn after_a_closure_panic_the_weights_that_the_last_good_step_left_are_exported() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let (trainer, mischief) = (Trainer::new(2, Format::NVFP4_2D), Mischief::default());
            let mut session =
                trainer.builder(config(1, capture, true), &mischief).start_cpu(2).await.unwrap();
            losses(&mut session, 2, 0..3).await;
            let good = session.export().await.unwrap();
            mischief.set(2);
            feed(&mut session, "train", 2, 3);
            let error = session.step("train").await.unwrap_err().to_string();
            assert!(error.contains("no weight was changed") && error.contains("Session::export"), "{error}");
            assert_eq!(session.export().await.unwrap(), good);
            mischief.set(0);
            let error = session.step("train").await.unwrap_err().to_string();
            assert!(error.contains("Session::export"), "{error}");
            assert!(matches!(session.import(&good).await, Err(SessionError::Poisoned { .. })));
            // A new session goes on from it as if nothing had happened.
            let mut plain = trainer.start(config(1, capture, false), 2).await.unwrap();
            let expected = losses(&mut plain, 2, 0..5).await;
            let mut next = trainer.start(config(1, capture, false), 2).await.unwrap();
            next.import(&session.export().await.unwrap()).await.unwrap();
            assert_eq!(losses(&mut next, 2, 3..5).await, expected[3..]);
        }
    });
}

/// EX-2.
#[test]
fn a_gradient_that_is_not_a_number_skips_the_step_on_every_rank_and_changes_nothing() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let (trainer, mischief) = (Trainer::new(2, Format::NVFP4_2D), Mischief::default());
            let mut session =
                trainer.builder(config(2, capture, true), &mischief).start_cpu(2).await.unwrap();
            losses(&mut session, 2, 0..3).await;
            let before = session.export().await.unwrap();
            mischief.set(3);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
            assert_eq!(session.export().await.unwrap(), before);
            mischief.set(0);
            let report = session.step("train").await.unwrap();
            assert!(matches!(report.outcome, Outcome::Updated { optimizer_step: 4, .. }));
        }
    });
}

#[test]
fn an_evaluation_between_steps_leaves_the_weights_alone() {
    within_a_minute(async {
        let trainer = Trainer::new(3, Format::NVFP4_2D);
        let mut plain = trainer.start(config(1, Capture::Off, true), 2).await.unwrap();
        let expected = losses(&mut plain, 2, 0..4).await;
        let mut session = trainer.start(config(1, Capture::Step, true), 2).await.unwrap();
        let mut found = Vec::new();
        for step in 0..4 {
            feed(&mut session, "evaluate", 2, step);
            let report = session.step("evaluate").await.unwrap();
            assert_eq!(report.outcome, Outcome::Evaluated);
            found.extend(losses(&mut session, 2, step..step + 1).await);
            assert_eq!(report.mean_output("loss").unwrap().to_bits(), found[step as usize]);
        }
        assert_eq!(found, expected);
    });
}

#[test]
fn an_imported_export_continues_as_if_nothing_had_happened_on_another_number_of_ranks_too() {
    use warpweft_session::checkpoint::{CheckpointStore, FileStore};
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut first = trainer.start(config(1, Capture::Off, true), 2).await.unwrap();
        losses(&mut first, 2, 0..3).await;
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("weights.safetensors"));
        store.save(&first.export().await.unwrap()).await.unwrap();
        let expected = losses(&mut first, 2, 3..6).await;

        let mut second = trainer.start(config(2, Capture::Step, true), 2).await.unwrap();
        losses(&mut second, 2, 7..9).await;
        second.import(&store.load().await.unwrap()).await.unwrap();
        assert_eq!(losses(&mut second, 2, 3..6).await, expected);

        let mut alone = trainer.start(config(0, Capture::Off, true), 1).await.unwrap();
        alone.import(&store.load().await.unwrap()).await.unwrap();
        let planes =
            |checkpoint: warpweft_session::checkpoint::Checkpoint| checkpoint.weights[0].planes.clone();
        let mut again = trainer.start(config(0, Capture::Off, true), 3).await.unwrap();
        again.import(&store.load().await.unwrap()).await.unwrap();
        assert_eq!(planes(alone.export().await.unwrap()), planes(again.export().await.unwrap()));
    });
}

/// The closures of the sample trainer know no loss scale: what they compute then counts as a gradient of a
/// loss four times as large.
#[test]
fn a_loss_scale_divides_the_gradient_eagerly_and_replayed() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let mut session = Trainer::new(2, Format::Bf16).start(config(1, capture, true), 2).await.unwrap();
            session.set_learning_rate(0.0).unwrap();
            let mut norms = Vec::new();
            for scale in [1.0, 4.0, 0.5, 1.0] {
                session.set_loss_scale(scale).unwrap();
                feed(&mut session, "train", 2, 0);
                match session.step("train").await.unwrap().outcome {
                    Outcome::Updated { norm, .. } => norms.push(norm),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(norms[1..], [norms[0] / 4.0, norms[0] * 2.0, norms[0]], "{capture:?}");
        }
    });
}

#[test]
fn a_loss_scale_that_cannot_be_undone_is_refused() {
    within_a_minute(async {
        let mut session = Trainer::new(1, Format::F32).start(Config::default(), 1).await.unwrap();
        assert_eq!(session.loss_scale(), 1.0);
        session.set_loss_scale(8.0).unwrap();
        for scale in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, 1e-40] {
            let error = session.set_loss_scale(scale).unwrap_err();
            assert!(matches!(error, SessionError::LossScale { .. }), "{error}");
            assert_eq!(session.loss_scale(), 8.0);
        }
    });
}

#[test]
fn a_checkpoint_of_another_model_is_refused_and_changes_nothing() {
    within_a_minute(async {
        let mut small = Trainer::new(1, Format::F32).start(Config::default(), 1).await.unwrap();
        let mut large = Trainer::new(2, Format::F32).start(Config::default(), 1).await.unwrap();
        let before = large.export().await.unwrap();
        let error = large.import(&small.export().await.unwrap()).await.unwrap_err();
        assert!(matches!(&error, SessionError::Import { .. }), "{error}");
        assert_eq!(large.export().await.unwrap(), before);
    });
}

#[test]
fn a_checkpoint_with_its_weights_in_another_order_is_imported_by_their_names() {
    within_a_minute(async {
        let mut session = Trainer::new(2, Format::F32).start(config(1, Capture::Off, true), 2).await.unwrap();
        let before = session.export().await.unwrap();
        losses(&mut session, 2, 0..2).await;
        let mut checkpoint = before.clone();
        checkpoint.weights.reverse();
        session.import(&checkpoint).await.unwrap();
        assert_eq!(session.export().await.unwrap(), before);
        checkpoint.weights[0].name = "no such".into();
        let error = session.import(&checkpoint).await.unwrap_err().to_string();
        assert!(error.contains("the session has no `no such`"), "{error}");
    });
}

#[test]
fn a_dropped_step_finishes_in_the_background_and_the_next_call_awaits_it() {
    within_a_minute(async {
        let trainer = Trainer::new(3, Format::NVFP4_2D);
        let mut plain = trainer.start(config(1, Capture::Off, false), 2).await.unwrap();
        let expected = losses(&mut plain, 2, 0..3).await;
        let mut session = trainer.start(config(1, Capture::Off, false), 2).await.unwrap();
        feed(&mut session, "train", 2, 0);
        let polled = std::future::poll_fn(|context| {
            let mut step = std::pin::pin!(session.step("train"));
            let _ = step.as_mut().poll(context);
            std::task::Poll::Ready(())
        });
        polled.await;
        assert_eq!(losses(&mut session, 2, 1..3).await, expected[1..]);
    });
}

#[test]
fn wrong_names_and_sizes_are_refused_with_what_exists() {
    within_a_minute(async {
        let mut session: Session = Trainer::new(1, Format::F32).start(Config::default(), 2).await.unwrap();
        let error = session.step("trian").await.unwrap_err().to_string();
        assert!(error.contains("trian") && error.contains("train, evaluate"), "{error}");
        let error =
            session.write_input("train", RankId::new(0), "input", &[0f32; 3]).unwrap_err().to_string();
        assert!(error.contains("12 bytes") && error.contains("384"), "{error}");
        let error = session
            .write_input("train", RankId::new(2), "input", &[0f32; trainer::SIZE])
            .unwrap_err()
            .to_string();
        assert!(error.contains("rank 2"), "{error}");
        let error = session.write_input("train", RankId::new(0), "loss", &[0f32; 1]).unwrap_err().to_string();
        assert!(error.contains("loss"), "{error}");
        feed(&mut session, "train", 2, 0);
        let report = session.step("train").await.unwrap();
        assert!(report.output::<f32>(RankId::new(1), "input").is_err());
    });
}

#[test]
fn two_sessions_live_side_by_side() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let expected = run(Format::NVFP4_2D, 2, config(1, Capture::Off, false), 2).await;
        let mut one = trainer.start(config(1, Capture::Off, false), 2).await.unwrap();
        let mut two = trainer.start(config(2, Capture::Step, true), 3).await.unwrap();
        let mut alone =
            Trainer::new(3, Format::NVFP4_2D).start(config(1, Capture::Off, false), 2).await.unwrap();
        losses(&mut one, 2, 0..1).await;
        losses(&mut two, 3, 0..2).await;
        losses(&mut one, 2, 1..2).await;
        assert_eq!(losses(&mut alone, 2, 0..2).await, expected);
    });
}
