//! Exports of the weights of a sharded checkpoint, for other tools.

use warpweft_format::{ElementType, Format};
use warpweft_session::checkpoint::PartFiles;
use warpweft_testing::trainer::{Trainer, losses, within_a_minute};

use super::{config, files, notes, part};

fn tensor_of(weight: &str) -> Option<String> {
    (weight != "bias").then(|| format!("model.{weight}"))
}

#[test]
fn weights_published_from_parts_are_the_file_that_the_whole_checkpoint_gives() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path().join("parts"));
        let mut session = Trainer::new(2, Format::NVFP4_2D).start(config(), 3).await.unwrap();
        losses(&mut session, 3, 0..2).await;
        session.save_parts(&parts, &notes(&[])).await.unwrap();
        let whole = session.export().await.unwrap();
        for element in [ElementType::F32, ElementType::Bf16] {
            let [from_parts, from_whole] =
                ["parts", "whole"].map(|name| folder.path().join(format!("{name}.safetensors")));
            parts.save_weights(&from_parts, element, tensor_of).unwrap();
            whole.save_weights(&from_whole, element, tensor_of).unwrap();
            assert!(std::fs::read(&from_parts).unwrap() == std::fs::read(&from_whole).unwrap(), "{element}");
        }
        let error = parts.save_weights(folder.path().join("u8"), ElementType::U8, tensor_of).unwrap_err();
        assert!(error.to_string().contains("f32 or bf16"), "{error}");
    });
}

/// What is wrong is found while the file is written, and what was there stays.
#[test]
fn a_part_that_is_missing_leaves_what_was_published_before() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path().join("parts"));
        let mut session = Trainer::new(1, Format::F32).start(config(), 2).await.unwrap();
        session.save_parts(&parts, &notes(&[])).await.unwrap();
        let path = folder.path().join("model.safetensors");
        parts.save_weights(&path, ElementType::F32, tensor_of).unwrap();
        let before = std::fs::read(&path).unwrap();
        let lost = part(&folder.path().join("parts"), 1);
        std::fs::remove_file(&lost).unwrap();
        let error = parts.save_weights(&path, ElementType::F32, tensor_of).unwrap_err();
        assert!(error.to_string().contains(lost.file_name().unwrap().to_str().unwrap()), "{error}");
        assert!(std::fs::read(&path).unwrap() == before);
        assert_eq!(files(folder.path()).len(), 2, "no half file is left");
    });
}
