//! Delayed scaling of per-tensor FP8, end to end.

use safetensors::SafeTensors;
use warpweft_format::{AmaxChoice, Format, Fp8Scale};
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore};
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::trainer::{Mischief, Trainer, feed, losses, within_a_minute};

const FORMATS: [Format; 2] = [Format::FP8_TENSOR_E4M3, Format::FP8_TENSOR_E5M2_POW2];

fn config(depth: u32, capture: Capture) -> Config {
    let mut config = Config { capture, check: true, ..Config::default() };
    config.prefetch.depth = Some(depth);
    config.optimizer.lr = 3e-3;
    config.optimizer.max_norm = 1.0;
    config.quantize.scaling = Scaling::Delayed;
    config.quantize.amax_history = 3;
    config
}

async fn start(layers: usize, format: Format, config: Config, ranks: u32) -> Session {
    Trainer::new(layers, format).start(config, ranks).await.unwrap()
}

/// EX-1
#[test]
fn losses_are_bit_identical_for_every_depth_eager_and_captured() {
    within_a_minute(async {
        for format in FORMATS {
            let mut reference = None;
            for depth in [0, 1, 2, 4] {
                for capture in [Capture::Off, Capture::Step] {
                    for communicators in [1, 2] {
                        let config = Config { communicators: Some(communicators), ..config(depth, capture) };
                        let mut session = start(3, format, config, 4).await;
                        let found = losses(&mut session, 4, 0..7).await;
                        let expected = reference.get_or_insert_with(|| found.clone());
                        assert_eq!(&found, expected, "{format}, depth {depth}, {capture:?}");
                        assert!(f32::from_bits(found[6]) < f32::from_bits(found[0]), "{format} learns");
                    }
                }
            }
        }
    });
}

/// DS-1, FO-3. At a learning rate of 0 the masters stay, so any number of ranks must remember the same amaxes and
/// cast the same bytes. From the second step on the scale is that of the masters.
#[test]
fn bytes_scales_and_history_are_identical_for_any_number_of_ranks() {
    within_a_minute(async {
        for format in FORMATS {
            let mut reference = None;
            for ranks in 1..=4 {
                let mut config = config(1, Capture::Step);
                config.optimizer.lr = 0.0;
                let mut session = start(2, format, config, ranks).await;
                let begin = session.export().await.unwrap();
                losses(&mut session, ranks, 0..4).await;
                let end = session.export().await.unwrap();
                let Format::Fp8Tensor(tensor) = format else { unreachable!() };
                for (state, before) in end.weights[..2].iter().zip(&begin.weights) {
                    let largest =
                        |amax: f32, value: &f32| amax.max(half::bf16::from_f32(*value).to_f32().abs());
                    let amax = state.master.iter().fold(0.0, largest);
                    let scale = Fp8Scale::new(tensor.element, tensor.scale, tensor.epsilon, amax);
                    let delayed = state.delayed.as_ref().unwrap();
                    assert_eq!((delayed.scale, state.tensor_scale), (scale.encode, scale.decode), "{format}");
                    assert_eq!(delayed.history, [amax; 3], "{format}");
                    let fresh = before.delayed.as_ref().unwrap();
                    assert_eq!((fresh.scale, fresh.history.as_slice()), (1.0, &[0.0; 3][..]));
                    assert_ne!(state.planes, before.planes, "{format}: another scale, other bytes");
                }
                assert!(end.weights[2].delayed.is_none(), "the bias is not quantized");
                let found: Vec<_> = (begin.weights.into_iter().chain(end.weights))
                    .map(|state| (state.planes, state.tensor_scale, state.delayed))
                    .collect();
                assert!(*reference.get_or_insert_with(|| found.clone()) == found, "{format}, {ranks} ranks");
            }
        }
    });
}

/// EX-2. A skipped step leaves scale and history as they were, on every rank.
#[test]
fn a_skipped_step_is_not_remembered() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let (trainer, mischief) = (Trainer::new(2, FORMATS[0]), Mischief::default());
            let mut session = trainer.builder(config(2, capture), &mischief).start_cpu(2).await.unwrap();
            losses(&mut session, 2, 0..3).await;
            let before = session.export().await.unwrap();
            for kind in [3, 1] {
                mischief.set(kind);
                feed(&mut session, "train", 2, 3);
                match session.step("train").await {
                    Ok(report) => assert!(matches!(report.outcome, Outcome::Skipped { .. })),
                    Err(error) => assert!(matches!(error, SessionError::Closure { .. }), "{error}"),
                }
                assert_eq!(session.export().await.unwrap(), before);
            }
            mischief.set(0);
            losses(&mut session, 2, 3..4).await;
            let after = session.export().await.unwrap();
            let history = |checkpoint: &Checkpoint| checkpoint.weights[0].delayed.clone().unwrap().history;
            assert_eq!(history(&after)[1..], history(&before)[..2], "one amax came in");
        }
    });
}

#[test]
fn an_evaluation_between_steps_changes_nothing() {
    within_a_minute(async {
        let mut plain = start(2, FORMATS[0], config(1, Capture::Off), 2).await;
        let expected = losses(&mut plain, 2, 0..4).await;
        let mut session = start(2, FORMATS[0], config(1, Capture::Step), 2).await;
        for step in 0..4 {
            feed(&mut session, "evaluate", 2, step);
            let evaluated = session.step("evaluate").await.unwrap().mean_output("loss").unwrap();
            let trained = losses(&mut session, 2, step..step + 1).await;
            assert_eq!(trained, expected[step as usize..=step as usize]);
            assert_eq!(evaluated.to_bits(), trained[0]);
        }
    });
}

/// FO-5. The scale in use is part of a checkpoint: the imported masters are cast to the bytes they were exported
/// with, and everything goes on bit for bit.
#[test]
fn an_imported_export_continues_bit_for_bit() {
    within_a_minute(async {
        for format in FORMATS {
            let mut first = start(2, format, config(1, Capture::Off), 2).await;
            losses(&mut first, 2, 0..3).await;
            let folder = tempfile::tempdir().unwrap();
            let store = FileStore::new(folder.path().join("weights.safetensors"));
            let exported = first.export().await.unwrap();
            store.save(&exported).await.unwrap();
            let expected = losses(&mut first, 2, 3..7).await;
            let end = first.export().await.unwrap();

            let mut second = start(2, format, config(2, Capture::Step), 2).await;
            losses(&mut second, 2, 7..9).await;
            let loaded = store.load().await.unwrap();
            second.import(&loaded).await.unwrap();
            assert_eq!(second.export().await.unwrap(), exported);
            assert_eq!(losses(&mut second, 2, 3..7).await, expected);
            assert_eq!(second.export().await.unwrap(), end);

            for ranks in [1, 3] {
                let mut other = start(2, format, config(1, Capture::Off), ranks).await;
                other.import(&loaded).await.unwrap();
                assert_eq!(other.export().await.unwrap(), exported, "{ranks} ranks");
            }
        }
    });
}

/// A checkpoint written without delayed scaling, or with another history, is no other model.
#[test]
fn a_checkpoint_of_another_scaling_is_taken_with_what_it_has() {
    within_a_minute(async {
        let mut current = config(1, Capture::Off);
        current.quantize.scaling = Scaling::Current;
        let mut plain = start(2, FORMATS[0], current.clone(), 2).await;
        losses(&mut plain, 2, 0..2).await;
        let without = plain.export().await.unwrap();
        assert!(without.weights.iter().all(|weight| weight.delayed.is_none()));

        let mut session = start(2, FORMATS[0], config(1, Capture::Off), 2).await;
        losses(&mut session, 2, 0..3).await;
        let with = session.export().await.unwrap();
        session.import(&without).await.unwrap();
        let delayed = session.export().await.unwrap().weights[0].delayed.clone().unwrap();
        assert_eq!((delayed.scale, delayed.history), (1.0, vec![0.0; 3]), "it begins anew");
        plain.import(&with).await.unwrap();
        assert!(plain.export().await.unwrap().weights[0].delayed.is_none());

        let known = with.weights[0].delayed.clone().unwrap();
        for (length, expected) in
            [(2, known.history[..2].to_vec()), (4, [&known.history[..], &[0.0]].concat())]
        {
            let mut config = config(1, Capture::Off);
            config.quantize.amax_history = length;
            let mut other = start(2, FORMATS[0], config, 2).await;
            other.import(&with).await.unwrap();
            let found = other.export().await.unwrap();
            assert_eq!(found.weights[0].delayed.clone().unwrap().history, expected);
            assert_eq!(found.weights[0].planes, with.weights[0].planes);
        }

        let mut broken = with;
        for amax in [-1.0, f32::NAN, f32::INFINITY] {
            let history = &mut broken.weights[1].delayed.as_mut().unwrap().history;
            let valid = std::mem::replace(&mut history[1], amax);
            let error = session.import(&broken).await.unwrap_err().to_string();
            assert!(error.contains(&format!("amax history of `layer1` has {amax}")), "{error}");
            broken.weights[1].delayed.as_mut().unwrap().history[1] = valid;
        }
        for scale in [0.0, -1.0, 1e-39, f32::NAN, f32::INFINITY] {
            broken.weights[1].delayed.as_mut().unwrap().scale = scale;
            let error = session.import(&broken).await.unwrap_err();
            assert!(error.to_string().contains("`layer1` has the delayed scale"), "{error}");
            // Ignored as it is, as an import of parts does.
            plain.import(&broken).await.unwrap();
        }
        // What a tiny amax gives; its reciprocal is subnormal.
        broken.weights[1].delayed.as_mut().unwrap().scale = f32::MAX;
        session.import(&broken).await.unwrap();
    });
}

/// The largest E5M2 code is 128 times the largest of E4M3: a scale of the one saturates the other.
#[test]
fn a_checkpoint_of_another_fp8_format_keeps_its_history_and_gets_the_scale_of_its_new_format() {
    within_a_minute(async {
        for (from, to) in [(FORMATS[0], FORMATS[1]), (FORMATS[1], FORMATS[0])] {
            let mut first = start(2, from, config(1, Capture::Off), 2).await;
            losses(&mut first, 2, 0..3).await;
            let exported = first.export().await.unwrap();
            let mut second = start(2, to, config(1, Capture::Off), 2).await;
            second.import(&exported).await.unwrap();
            let imported = second.export().await.unwrap();
            let Format::Fp8Tensor(tensor) = to else { unreachable!() };
            for (new, old) in imported.weights[..2].iter().zip(&exported.weights) {
                let (new, old) = (new.delayed.as_ref().unwrap(), old.delayed.as_ref().unwrap());
                assert_eq!(new.history, old.history, "{from} to {to}");
                let amax = old.history.iter().copied().fold(0.0, f32::max);
                assert!(amax > 0.0);
                let scale = Fp8Scale::new(tensor.element, tensor.scale, tensor.epsilon, amax);
                assert_eq!(new.scale, scale.encode, "{from} to {to}");
                assert_ne!(new.scale, old.scale, "{from} to {to}");
            }
            let found = losses(&mut second, 2, 3..6).await;
            let expected = losses(&mut first, 2, 3..6).await;
            for (found, expected) in
                found.into_iter().zip(expected).map(|(a, b)| (f32::from_bits(a), f32::from_bits(b)))
            {
                assert!((found - expected).abs() < 0.2 * expected, "{from} to {to}: {found}, {expected}");
            }
        }
    });
}

/// A file that has lost half of what a scale needs is not taken for one without delayed scaling. Before version 3
/// nothing else tells of it.
#[test]
fn a_file_with_a_scale_and_no_history_is_refused() {
    within_a_minute(async {
        let mut session = start(1, FORMATS[0], config(1, Capture::Off), 1).await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        let store = FileStore::new(&path);
        store.save(&session.export().await.unwrap()).await.unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut about = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
        about.retain(|key, _| key != "metadata_digest");
        about.insert("warpweft_checkpoint".to_owned(), "2".to_owned());
        about.insert("digests".to_owned(), "{}".to_owned());
        for (lost, kept) in [("amax_history", "delayed_scale"), ("delayed_scale", "amax_history")] {
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let rest = tensors.iter().filter(|(name, _)| !name.ends_with(lost));
            let torn = safetensors::serialize(rest, Some(about.clone())).unwrap();
            std::fs::write(&path, torn).unwrap();
            let error = store.load().await.unwrap_err().to_string();
            assert!(error.contains(&format!("`layer0.{kept}` alone")) && error.contains(lost), "{error}");
        }
    });
}

/// Weights that outgrow every amax remembered saturate for one step, and no longer.
#[test]
fn values_beyond_the_scale_saturate_until_their_amax_is_remembered() {
    within_a_minute(async {
        let mut config = config(1, Capture::Off);
        config.optimizer.lr = 0.0;
        config.quantize.amax_choice = AmaxChoice::Latest;
        let mut session = start(1, FORMATS[0], config, 2).await;
        losses(&mut session, 2, 0..3).await;
        let mut checkpoint = session.export().await.unwrap();
        checkpoint.weights[0].master[0] = 100.0;
        session.import(&checkpoint).await.unwrap();
        let mut shown = Vec::new();
        for step in 0..3 {
            let state = session.export().await.unwrap().weights.remove(0);
            // Code 0x7E is 448, the largest.
            assert_eq!(state.planes[0].planes[0][0], 0x7E);
            shown.push(448.0 * state.tensor_scale);
            losses(&mut session, 2, step..step + 1).await;
        }
        assert!(shown[0] < 0.2 && shown[1] < 0.2 && (shown[2] - 100.0).abs() < 1e-4, "{shown:?}");
    });
}

#[test]
fn delayed_scaling_works_beside_other_formats_and_is_refused_without_a_weight_it_is_for() {
    within_a_minute(async {
        let rules = "[[weights]]\nmatch = \"layer1\"\nformat = \"fp8_tensor_e4m3\"\n\
                     [quantize]\nscaling = \"delayed\"\namax_history = 5\namax_choice = \"latest\"";
        let rules = Config::from_toml_str(rules, "rules.toml").unwrap();
        assert_eq!(rules.quantize.amax_choice, AmaxChoice::Latest);
        let trainer = Trainer::refined(3, Format::NVFP4_2D, &rules);
        let mut reference = None;
        for depth in [0, 2] {
            let weights = rules.weights.clone();
            let config = Config { quantize: rules.quantize, weights, ..config(depth, Capture::Step) };
            let mut session = trainer.start(config, 3).await.unwrap();
            let found = losses(&mut session, 3, 0..4).await;
            assert_eq!(&found, reference.get_or_insert_with(|| found.clone()));
            let exported = session.export().await.unwrap();
            let delayed: Vec<bool> = exported.weights.iter().map(|weight| weight.delayed.is_some()).collect();
            assert_eq!(delayed, [false, true, false, false]);
            assert_eq!(exported.weights[1].delayed.as_ref().unwrap().history.len(), 5);
        }
        let plain = Trainer::new(2, Format::NVFP4_2D);
        let error = plain.start(config(1, Capture::Off), 2).await.unwrap_err().to_string();
        assert!(error.contains("quantize.scaling") && error.contains("nvfp4_2d"), "{error}");
    });
}
