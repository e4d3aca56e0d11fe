//! Checkpoint files: what they are called inside, and what a failed save leaves.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod trainer;

use safetensors::{Dtype, SafeTensors};
use trainer::{Trainer, losses, within_a_minute};
use warpweft::config::Config;
use warpweft::format::{Directions, Format, quantize};
use warpweft::session::{CheckpointStore, FileStore, StoreError};

/// What a reader of the files of `warpweft quantize` looks for, with the same numbers in it.
#[test]
fn planes_in_a_checkpoint_are_those_of_quantize_by_name_type_shape_and_content() {
    within_a_minute(async {
        let formats = [
            (Format::NVFP4_2D, Some("amax")),
            (Format::FP8_TENSOR_E4M3, Some("rowwise_scale")),
            (Format::FP8_BLOCK128_POW2, None),
            (Format::Mxfp8, None),
        ];
        for (format, tensor_scale) in formats {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run.safetensors");
            let mut session = Trainer::new(1, format).start(Config::default(), 2).await.unwrap();
            losses(&mut session, 2, 0..2).await;
            let checkpoint = session.export().await.unwrap();
            FileStore::new(&path).save(&checkpoint).await.unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            let weight = &checkpoint.weights[0];
            let via = Config::default().quantize.via;
            let expected = quantize(format, Directions::Rowwise, via, weight.shape, &weight.master).unwrap();
            let planes = expected.rowwise.unwrap();
            let data = file.tensor("layer0.rowwise_data").unwrap();
            assert_eq!(data.data(), planes.data, "{format}");
            match tensor_scale {
                Some(suffix) => {
                    let scale = file.tensor(&format!("layer0.{suffix}")).unwrap();
                    assert_eq!((scale.dtype(), scale.shape()), (Dtype::F32, &[1][..]), "{format}");
                    assert_eq!(scale.data(), expected.tensor_scale.to_le_bytes(), "{format}");
                    assert_eq!(suffix == "amax", expected.tensor_scale == expected.amax, "{format}");
                }
                None => {
                    let scale = file.tensor("layer0.rowwise_scale").unwrap();
                    let is_f32 = matches!(format, Format::Fp8Block(_));
                    assert_eq!(scale.dtype(), if is_f32 { Dtype::F32 } else { Dtype::U8 }, "{format}");
                    assert_eq!(scale.data(), planes.scale, "{format}");
                }
            }
            let names = file.names();
            assert!(!names.iter().any(|name| name.ends_with("tensor_scale")), "{names:?}");
        }
    });
}

#[test]
fn a_save_that_fails_leaves_nothing_beside_what_was_there() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let mut session = Trainer::new(1, Format::F32).start(Config::default(), 1).await.unwrap();
        let checkpoint = session.export().await.unwrap();
        let target = folder.path().join("taken");
        std::fs::create_dir_all(target.join("full")).unwrap();
        let error = FileStore::new(&target).save(&checkpoint).await.unwrap_err();
        assert!(matches!(&error, StoreError::File { .. }), "{error}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1, "the folder that was there");
        let nowhere = FileStore::new(folder.path().join("missing").join("run.safetensors"));
        assert!(matches!(nowhere.save(&checkpoint).await, Err(StoreError::File { .. })));
        let good = FileStore::new(folder.path().join("run.safetensors"));
        good.save(&checkpoint).await.unwrap();
        good.save(&checkpoint).await.unwrap();
        assert_eq!(good.load().await.unwrap().weights[0].master, checkpoint.weights[0].master);
        assert_eq!(folder.path().read_dir().unwrap().count(), 2);
    });
}
