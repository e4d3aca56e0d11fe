//! Frozen weights: they stay bit for bit, and nothing else changes for it.

use warpweft_format::{Directions, Format, Orientation, Via, quantize};
use warpweft_plan::policy::{Masters, Moments};
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore};
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_session::session::initial::MasterRows;
use warpweft_testing::trainer::{SIZE, Trainer, initial, losses, within_a_minute};

use super::config;

/// With the weights frozen that `pattern` matches.
fn freezing(pattern: &str, config: Config) -> Config {
    let rules = Config::from_toml_str(&format!("[[weights]]\nmatch = '{pattern}'\nfrozen = true"), "rules");
    Config { weights: rules.unwrap().weights, ..config }
}

/// Losses of some steps on three ranks, and what is left.
async fn run(format: Format, config: Config) -> (Vec<u32>, Checkpoint) {
    let trainer = Trainer::refined(3, format, &config);
    let mut session = trainer.start(config, 3).await.unwrap();
    let losses = losses(&mut session, 3, 0..4).await;
    let checkpoint = session.export().await.unwrap();
    session.close().await.unwrap();
    (losses, checkpoint)
}

/// EX-1, PL-9. In every layout of the state, and with scales that look back.
#[test]
fn frozen_weights_stay_bit_for_bit_while_the_others_learn_at_every_depth() {
    within_a_minute(async {
        let halved = |config: &mut Config| {
            config.optimizer.masters = Masters::Bf16Remainder;
            (config.optimizer.moments, config.optimizer.beta2) = (Moments::Bf16, 0.99);
        };
        type State = fn(&mut Config);
        let cases: [(Format, State); 4] = [
            (Format::NVFP4_2D, |_| ()),
            (Format::Mxfp8, |_| ()),
            (Format::Bf16, halved),
            (Format::FP8_TENSOR_E4M3, |config| config.quantize.scaling = Scaling::Delayed),
        ];
        for (format, state) in cases {
            let made = |depth, capture| {
                let mut config = config(depth, capture, true);
                state(&mut config);
                freezing("layer1", config)
            };
            let (reference, left) = run(format, made(0, Capture::Off)).await;
            assert!(f32::from_bits(reference[3]) < f32::from_bits(reference[0]), "{format} learns");
            let mut begun = vec![0.0; SIZE * SIZE];
            initial(MasterRows::from_the_first("layer1", SIZE), &mut begun);
            let frozen = &left.weights[1];
            assert!(frozen.master.is_empty() && frozen.states.is_empty());
            let planes = quantize(format, Directions::Rowwise, Via::Bf16, frozen.shape, &begun).unwrap();
            assert_eq!(*frozen.values().unwrap(), planes.dequantize(Orientation::Rowwise).unwrap());
            let planes = planes.rowwise.unwrap();
            assert_eq!(frozen.planes[0].planes[0], planes.data, "{format}");
            assert!(frozen.planes[0].planes.get(1).is_none_or(|scale| *scale == planes.scale), "{format}");
            initial(MasterRows::from_the_first("layer0", SIZE), &mut begun);
            assert_ne!(left.weights[0].master, begun, "{format}");
            for depth in [1, 3] {
                for capture in [Capture::Off, Capture::Step] {
                    let (found, state) = run(format, made(depth, capture)).await;
                    assert_eq!(found, reference, "{format}, depth {depth}, {capture:?}");
                    assert_eq!(state, left, "{format}, depth {depth}, {capture:?}");
                }
            }
        }
    });
}

/// Into a file and out of it; where a weight trains that did not, its moments begin at zero and all others stay, and
/// where one does not that did, its moments are dropped.
#[test]
fn a_checkpoint_goes_from_frozen_weights_to_trained_ones_and_back() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path().join("run.safetensors"));
        let config = || config(1, Capture::Off, true);
        let (_, frozen) = run(Format::NVFP4_2D, freezing("layer*", config())).await;
        store.save(&frozen).await.unwrap();
        let mut loaded = store.load().await.unwrap();
        for (found, saved) in loaded.weights.iter_mut().zip(&frozen.weights) {
            assert_eq!(saved.frozen.is_some(), found.planes.is_empty() && found.master.is_empty());
            // Planes are not read back.
            (found.planes, found.tensor_scale) = (saved.planes.clone(), saved.tensor_scale);
        }
        assert_eq!(loaded, frozen);
        let trainer = Trainer::new(3, Format::NVFP4_2D);
        let mut session = trainer.start(config(), 3).await.unwrap();
        let begun = session.export().await.unwrap();
        // A file has a digest of what was frozen, and the session began with the same.
        session.import(&store.load().await.unwrap()).await.unwrap();
        let from_file = session.export().await.unwrap();
        session.import(&frozen).await.unwrap();
        assert_eq!(session.thawed(), ["layer0", "layer1", "layer2"]);
        let thawed = session.export().await.unwrap();
        assert_eq!([from_file.optimizer_step, thawed.optimizer_step], [frozen.optimizer_step; 2]);
        let all =
            from_file.weights.iter().zip(&begun.weights).zip(thawed.weights.iter().zip(&frozen.weights));
        for ((from_file, begun), (thawed, frozen)) in all {
            assert_eq!(thawed.master, *frozen.values().unwrap());
            assert_eq!((&from_file.planes, &from_file.states), (&thawed.planes, &thawed.states));
            if frozen.frozen.is_none() {
                assert_eq!((&from_file.master, &thawed.states), (&thawed.master, &frozen.states));
                continue;
            }
            assert_eq!(from_file.master, begun.master);
            assert!(thawed.states.iter().flatten().all(|moment| *moment == 0.0));
            assert_eq!(thawed.states[0].len(), thawed.master.len());
        }
        session.import(&frozen.clone().restart_optimizer()).await.unwrap();
        assert!(session.thawed().is_empty() && session.export().await.unwrap().optimizer_step == 0);
        // Other values than were frozen are another base.
        losses(&mut session, 3, 4..6).await;
        let refused = session.import(&store.load().await.unwrap()).await.unwrap_err().to_string();
        assert!(refused.contains("the weight `layer0` has other values here"), "{refused}");
        assert!(session.thawed().is_empty());
        session.import(&frozen).await.unwrap();
        losses(&mut session, 3, 4..6).await;
        let trained = session.export().await.unwrap();
        assert_ne!(trained.weights[0].master, *frozen.weights[0].values().unwrap());
        let config = freezing("layer*", config());
        let trainer = Trainer::refined(3, Format::NVFP4_2D, &config);
        let mut session = trainer.start(config, 2).await.unwrap();
        session.import(&trained).await.unwrap();
        let again = session.export().await.unwrap();
        assert!(again.weights[0].states.is_empty() && again.weights[0].master.is_empty());
        assert_eq!(again.weights[0].planes, trained.weights[0].planes);
    });
}

#[test]
fn a_checkpoint_with_one_moment_of_two_is_refused() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::F32);
        let mut session = trainer.start(config(1, Capture::Off, true), 2).await.unwrap();
        let mut checkpoint = session.export().await.unwrap();
        checkpoint.weights[1].states.pop();
        let error = session.import(&checkpoint).await.unwrap_err().to_string();
        assert!(error.contains("master of `layer1` the checkpoint has 1 list of state"), "{error}");
    });
}
