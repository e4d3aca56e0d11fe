//! Checkpoints of sessions whose weights share a scale of the tensor.

use std::collections::BTreeMap;

use warpweft_format::Format;
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore, PartFiles};
use warpweft_session::config::{Config, Scaling};
use warpweft_testing::trainer::{Shaped, Trainer, losses, within_a_minute};

use super::{config, notes, replicated};

const CASES: [(Format, Scaling); 3] = [
    (Format::NVFP4_2D, Scaling::Current),
    (Format::FP8_TENSOR_E4M3, Scaling::Current),
    (Format::FP8_TENSOR_E4M3, Scaling::Delayed),
];

/// A trainer of two layers that share a scale, or have their own.
fn trainer(format: Format, one_scale: bool) -> Trainer {
    Trainer::shaped(Shaped { one_scale, ..Shaped::default() }, format, &Config::default())
}

fn scaled(scaling: Scaling, mut config: Config) -> Config {
    config.quantize.scaling = scaling;
    // Far enough that largest magnitudes differ.
    config.optimizer.lr = 0.03;
    config
}

fn share(checkpoint: &Checkpoint) -> bool {
    let [one, other] = [0, 1].map(|layer: usize| &checkpoint.weights[layer]);
    let factor = |at: usize| checkpoint.weights[at].delayed.as_ref().map(|delayed| delayed.scale);
    one.tensor_scale == other.tensor_scale && factor(0) == factor(1)
}

/// FO-3, CK-2. Masters, planes, scales and what follows, whoever saved and whoever reads, in parts and in one file.
#[test]
fn a_session_with_a_scale_group_goes_on_bit_for_bit_and_any_mesh_makes_its_planes() {
    within_a_minute(async {
        for (format, scaling) in CASES {
            let folder = tempfile::tempdir().unwrap();
            let parts = PartFiles::new(folder.path().join("parts"));
            let store = FileStore::new(folder.path().join("one.safetensors"));
            let trainer = trainer(format, true);
            let mut first = trainer.start(scaled(scaling, replicated(2)), 4).await.unwrap();
            losses(&mut first, 4, 0..4).await;
            first.save_parts(&parts, &notes(&[])).await.unwrap();
            let exported = first.export().await.unwrap();
            store.save(&exported).await.unwrap();
            let expected = losses(&mut first, 4, 4..7).await;
            assert!(share(&exported), "{format} {scaling:?}");
            let layers = ["layer0", "layer1"].map(str::to_owned).to_vec();
            let groups = BTreeMap::from([("layers".to_owned(), layers)]);
            assert_eq!(parts.saved().unwrap().scale_groups, groups);

            for (ranks, replicas) in [(4, 2), (1, 1), (3, 1)] {
                let mut second = trainer.start(scaled(scaling, replicated(replicas)), ranks).await.unwrap();
                second.import_parts(&parts).await.unwrap();
                let found = second.export().await.unwrap();
                assert!(found.weights == exported.weights, "{format} {scaling:?} on {ranks} ranks");
                if ranks == 4 {
                    assert_eq!(losses(&mut second, 4, 4..7).await, expected, "{format} {scaling:?}");
                }
                second.import(&store.load().await.unwrap()).await.unwrap();
                assert!(second.export().await.unwrap().weights == exported.weights, "{format}, one file");
            }
        }
    });
}

/// DS-1. Current scales are shared at once, and delayed ones from the next step on.
#[test]
fn a_checkpoint_of_scales_of_their_own_goes_on_with_one() {
    within_a_minute(async {
        for (format, scaling) in CASES {
            let mut own = trainer(format, false).start(scaled(scaling, config()), 2).await.unwrap();
            losses(&mut own, 2, 0..4).await;
            let exported = own.export().await.unwrap();
            assert!(!share(&exported), "{format} {scaling:?}");
            let mut one = trainer(format, true).start(scaled(scaling, config()), 3).await.unwrap();
            one.import(&exported).await.unwrap();
            let imported = one.export().await.unwrap();
            assert_eq!(share(&imported), scaling == Scaling::Current, "{format} {scaling:?}");
            losses(&mut one, 3, 4..5).await;
            assert!(share(&one.export().await.unwrap()), "{format} {scaling:?}");
        }
    });
}
