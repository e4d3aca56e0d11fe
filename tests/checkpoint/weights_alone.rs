//! Weights that are saved alone, for other tools, in f32 or rounded to bf16.

use safetensors::tensor::{Dtype, SafeTensors};
use warpweft_format::{ElementType, Format};
use warpweft_session::checkpoint::{Checkpoint, CheckpointError, PretrainedFiles, WeightState};
use warpweft_session::config::Config;
use warpweft_session::session::block_on;
use warpweft_testing::trainer::{self, Mischief, SIZE, Trainer, within_a_minute};

use crate::pretrained::{bits, master, tensor_of};

#[test]
fn weights_saved_alone_and_opened_again_are_the_same_masters() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut session = trainer.start(Config::default(), 2).await.unwrap();
        trainer::losses(&mut session, 2, 0..2).await;
        let checkpoint = session.export().await.unwrap();
        for (element, dtype) in [(ElementType::F32, Dtype::F32), (ElementType::Bf16, Dtype::BF16)] {
            checkpoint.save_weights(&path, element, tensor_of).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
            let file = SafeTensors::deserialize(&bytes).unwrap();
            assert_eq!(file.len(), 3);
            for (tensor, shape) in
                [("layer0", &[SIZE, SIZE][..]), ("layer1", &[SIZE, SIZE]), ("bias", &[SIZE])]
            {
                let found = file.tensor(&tensor_of(tensor).unwrap()).unwrap();
                assert_eq!((found.dtype(), found.shape()), (dtype, shape), "{tensor}");
            }
            let files = PretrainedFiles::open([&path]).unwrap();
            let pretrained = files.initializer(&trainer.model, tensor_of).unwrap();
            let builder = trainer.builder(Config::default(), &Mischief::default());
            let mut again = builder.try_initialize(pretrained).start_cpu(3).await.unwrap();
            let again = again.export().await.unwrap();
            for state in &checkpoint.weights {
                let rounded = |value: &f32| match element {
                    ElementType::Bf16 => nearest_even(*value),
                    _ => *value,
                };
                let expected: Vec<f32> = state.master.iter().map(rounded).collect();
                assert_eq!(bits(master(&again, &state.name)), bits(&expected), "{} {element}", state.name);
            }
        }
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    });
}

/// A finite value in bf16, by its definition: the upper half, one more above the middle, and in it if odd.
fn nearest_even(value: f32) -> f32 {
    let bits = value.to_bits();
    let (upper, lower) = (bits >> 16, bits & 0xFFFF);
    f32::from_bits((upper + u32::from(lower > 0x8000 || lower == 0x8000 && upper % 2 == 1)) << 16)
}

/// A checkpoint of one weight.
fn of_one(rows: usize, cols: usize, master: Vec<f32>) -> Checkpoint {
    let mut session = block_on(Trainer::new(1, Format::F32).start(Config::default(), 1)).unwrap();
    let mut checkpoint = block_on(session.export()).unwrap();
    checkpoint.weights.truncate(1);
    let state = &mut checkpoint.weights[0];
    (state.name, state.shape.rows, state.shape.cols) = ("w".into(), rows, cols);
    state.master = master;
    checkpoint
}

#[test]
fn bf16_rounds_ties_to_even_over_more_than_one_piece() {
    const COUNT: usize = 40_001; // finite to the last

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let values: Vec<f32> = (0..COUNT as u32).map(|at| f32::from_bits(0x3F80_0000 + 0x4000 * at)).collect();
    let expected: Vec<f32> = values.iter().map(|value| nearest_even(*value)).collect();
    let checkpoint = of_one(COUNT, 1, values);
    checkpoint.save_weights(&path, ElementType::Bf16, |_| Some("w".into())).unwrap();
    let files = PretrainedFiles::open([&path]).unwrap();
    assert_eq!(files.shape("w").unwrap(), [COUNT, 1]);
    let mut read = vec![0.0; COUNT];
    files.rows("w", 0, 1, &mut read).unwrap();
    let other = bits(&read).iter().zip(bits(&expected)).position(|(read, expected)| *read != expected);
    assert_eq!(other, None);
}

#[test]
fn weights_that_cannot_be_saved_alone_are_refused_and_what_was_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.safetensors");
    let mut checkpoint = of_one(2, 2, vec![1.0; 4]);
    let save = |checkpoint: &Checkpoint, element, name: &str| {
        checkpoint.save_weights(&path, element, |weight| (weight != "out").then(|| name.to_owned()))
    };
    checkpoint.weights.push(WeightState { name: "out".into(), ..checkpoint.weights[0].clone() });
    save(&checkpoint, ElementType::F32, "w").unwrap();
    let before = std::fs::read(&path).unwrap();
    assert_eq!(SafeTensors::deserialize(&before).unwrap().names(), ["w"], "`out` is left out");
    let refused = |checkpoint: &Checkpoint, element, name: &str, expected: &str| {
        let error = save(checkpoint, element, name).unwrap_err();
        assert!(
            matches!(error, CheckpointError::Content { .. }) && error.to_string().contains(expected),
            "{error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), before);
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    };
    refused(&checkpoint, ElementType::U8, "w", "in f32 or bf16");
    refused(&checkpoint, ElementType::F32, "__metadata__", "name it otherwise");
    checkpoint.weights[1].name = "v".into();
    refused(&checkpoint, ElementType::F32, "w", "two weights would be called `w`");
    checkpoint.weights[1].name = "out".into();
    checkpoint.weights[0].master[1] = f32::MAX;
    refused(&checkpoint, ElementType::Bf16, "w", "in row 0, column 1, which is not finite in bf16");
    checkpoint.weights[0].master[1] = f32::NAN;
    refused(&checkpoint, ElementType::F32, "w", "NaN in row 0, column 1, which is not finite in f32");
    checkpoint.weights[0].master.pop();
    refused(&checkpoint, ElementType::F32, "w", "3 values of its master, and its shape 4");
    let nowhere = folder.path().join("missing").join("w");
    let error = of_one(1, 1, vec![0.0]).save_weights(&nowhere, ElementType::F32, |_| Some("w".into()));
    assert!(matches!(error, Err(CheckpointError::File { .. })));
}
