//! Pretrained weights from files of other tools, and exports for other tools.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use warpweft::{bf16, f16};
use warpweft_format::{ElementType, Format};
use warpweft_plan::model::Model;
use warpweft_session::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, FileStore, PretrainedFiles, WeightState,
};
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{ExecError, SessionError, block_on};
use warpweft_testing::trainer::{self, Mischief, SIZE, Trainer, initial, within_a_minute};

/// What the files call the trainer's weights.
fn tensor_of(weight: &str) -> Option<String> {
    Some(format!("model.{weight}.weight"))
}

/// A tensor to be.
struct Given {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn given(name: &str, dtype: Dtype, shape: &[usize], values: &[f32]) -> Given {
    let bytes = match dtype {
        Dtype::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    Given { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

fn write(path: &Path, tensors: &[Given]) {
    let views = tensors.iter().map(|Given { name, dtype, shape, bytes }| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The trainer's own masters of a weight of `rows`.
fn masters(weight: &str, rows: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows * SIZE];
    initial(MasterRows::from_the_first(weight, SIZE), &mut values);
    values
}

/// Three layers in three types and a bias of one dimension, in two files, with a tensor beside that is no
/// weight.
fn shards(folder: &Path) -> [PathBuf; 2] {
    let paths = ["model-00001-of-00002", "model-00002-of-00002"];
    let paths = paths.map(|name| folder.join(format!("{name}.safetensors")));
    let layer = |number: usize, dtype| {
        let values = masters(&format!("layer{number}"), SIZE);
        given(&format!("model.layer{number}.weight"), dtype, &[SIZE, SIZE], &values)
    };
    let steps = Given { name: "steps".into(), dtype: Dtype::I64, shape: vec![], bytes: vec![7; 8] };
    write(&paths[0], &[layer(1, Dtype::BF16), layer(0, Dtype::F32), steps]);
    write(
        &paths[1],
        &[layer(2, Dtype::F16), given("model.bias.weight", Dtype::F32, &[SIZE], &masters("bias", 1))],
    );
    paths
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn master<'checkpoint>(checkpoint: &'checkpoint Checkpoint, weight: &str) -> &'checkpoint [f32] {
    &checkpoint.weight(weight).unwrap().master
}

#[test]
fn masters_from_files_of_three_types_are_the_same_on_any_number_of_ranks() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let trainer = Trainer::new(3, Format::F32);
        let files = PretrainedFiles::open(shards(folder.path())).unwrap();
        assert_eq!(files.tensor_names().len(), 5);
        let expected = |weight: &str| {
            let rounded = |value: &f32| match weight {
                "layer1" => bf16::from_f32(*value).to_f32(),
                "layer2" => f16::from_f32(*value).to_f32(),
                _ => *value,
            };
            let rows = if weight == "bias" { 1 } else { SIZE };
            masters(weight, rows).iter().map(rounded).collect::<Vec<_>>()
        };
        for ranks in [1, 2, 5] {
            let pretrained = files.initializer(&trainer.model, tensor_of).unwrap();
            let builder = trainer.builder(Config::default(), &Mischief::default());
            let mut session = builder.try_initialize(pretrained).start_cpu(ranks).await.unwrap();
            let checkpoint = session.export().await.unwrap();
            for weight in ["layer0", "layer1", "layer2", "bias"] {
                assert_eq!(
                    bits(master(&checkpoint, weight)),
                    bits(&expected(weight)),
                    "{weight}, {ranks} ranks"
                );
            }
        }
    });
}

/// The number that a half has, by its definition.
fn half(word: u16) -> f64 {
    let (sign, exponent, fraction) = (word >> 15, i32::from(word >> 10 & 31), f64::from(word & 1023));
    let magnitude = match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

#[test]
fn every_value_of_both_16_bit_types_comes_out_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let all =
        |name: &str, dtype| Given { name: name.into(), dtype, shape: vec![4, 64, 256], bytes: bytes.clone() };
    write(&path, &[all("bf16", Dtype::BF16), all("f16", Dtype::F16)]);
    let files = PretrainedFiles::open([&path]).unwrap();
    for (first, rows) in [(0, 256), (1, 200), (255, 1), (256, 0)] {
        for name in ["bf16", "f16"] {
            let mut values = vec![1.0; rows * 256];
            files.rows(name, first, 256, &mut values).unwrap();
            for (at, value) in values.iter().enumerate() {
                let word = u16::try_from(first * 256 + at).unwrap();
                let expected = match name {
                    "bf16" => f32::from_bits(u32::from(word) << 16),
                    _ => half(word) as f32,
                };
                let same = value.to_bits() == expected.to_bits() || value.is_nan() && expected.is_nan();
                assert!(same, "{name} {word:#06x}: {value} and not {expected}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_the_model_is_refused_before_a_session_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let zeros =
        |name: &str, dtype, shape: &[usize]| given(name, dtype, shape, &vec![0.0; shape.iter().product()]);
    let mut bytes = zeros("bytes", Dtype::F32, &[8, 1]);
    (bytes.dtype, bytes.shape) = (Dtype::U8, vec![8, 4]);
    let shapes = [("up.weight", &[4, 8][..]), ("stack", &[2, 4, 4]), ("vector", &[8]), ("one", &[])];
    let tensors: Vec<Given> =
        shapes.iter().map(|(name, shape)| zeros(name, Dtype::BF16, shape)).chain([bytes]).collect();
    write(&path, &tensors);
    let files = PretrainedFiles::open([&path]).unwrap();
    let refused = |tensor: &'static str, rows, cols| {
        let mut model = Model::builder();
        model.replicated("up", rows, cols).unwrap();
        files.initializer(&model.build(), |_| Some(tensor.to_owned())).err()
    };
    for (tensor, rows, cols) in
        [("up.weight", 4, 8), ("stack", 8, 4), ("vector", 1, 8), ("vector", 8, 1), ("one", 1, 1)]
    {
        assert!(refused(tensor, rows, cols).is_none(), "{tensor} as {rows}×{cols}");
    }
    for (tensor, rows, cols, expected) in [
        ("up.wieght", 4, 8, &["none of the 1 files", "names near it: `up.weight`"][..]),
        ("lm_head", 4, 8, &["`lm_head`", "PretrainedFiles::tensor_names"]),
        ("up.weight", 8, 4, &["model.safetensors", "[4, 8]", "8×4", "transpose it"]),
        ("up.weight", 4, 4, &["[4, 8]", "4×4", "declare the weight in the tensor's shape"]),
        ("stack", 2, 16, &["[2, 4, 4]", "2×16"]),
        ("vector", 2, 4, &["[8]", "2×4"]),
        ("bytes", 8, 4, &["`bytes`", "is in U8", "convert it"]),
    ] {
        let error = refused(tensor, rows, cols).unwrap();
        let said = error.to_string();
        assert!(matches!(&error, CheckpointError::Weight { weight, .. } if weight == "up"), "{said}");
        assert!(said.contains("weight `up`") && said.contains(tensor), "{said}");
        expected.iter().for_each(|expected| assert!(said.contains(expected), "{said}"));
    }
}

#[test]
fn rows_that_a_tensor_does_not_have_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(
        &path,
        &[given("w", Dtype::F32, &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), {
            given("none", Dtype::F32, &[0, 3], &[])
        }],
    );
    let files = PretrainedFiles::open([&path]).unwrap();
    let rows = |tensor: &str, first, columns, count| {
        let mut values = vec![0.0; count];
        files.rows(tensor, first, columns, &mut values).map(|()| values)
    };
    assert_eq!(rows("w", 1, 3, 3).unwrap(), [4.0, 5.0, 6.0]);
    assert!(rows("w", 2, 3, 0).is_ok());
    assert!(rows("none", 0, 3, 0).is_ok());
    for (tensor, first, columns, count) in [
        ("w", 1, 3, 6),
        ("w", 3, 3, 0),
        ("w", usize::MAX, 3, 3),
        ("w", 0, 3, 4),
        ("w", 0, 2, 2),
        ("w", 0, 0, 0),
        ("w", 0, 1, 1),
        ("none", 0, 3, 3),
    ] {
        let error = rows(tensor, first, columns, count).unwrap_err();
        assert!(matches!(error, CheckpointError::Rows { .. }), "{error}");
    }
}

/// A file of `json` as its header and `data` bytes.
fn file_of(json: &str, data: usize) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn a_hostile_file_is_refused_with_what_is_wrong_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.safetensors");
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
    };
    let of = |tensors: &[(&str, String)], data| {
        let listed: Vec<String> = tensors.iter().map(|(name, about)| format!("\"{name}\":{about}")).collect();
        file_of(&format!("{{{}}}", listed.join(",")), data)
    };
    let four = |offsets: &str| tensor("F32", "[1]", offsets);
    let cases = [
        (Vec::new(), "has 0 bytes"),
        (vec![0; 7], "has 7 bytes"),
        (
            u64::MAX.to_le_bytes().to_vec(),
            "the header has 18446744073709551615 bytes, more than the 100000000",
        ),
        (100_000_000_u64.to_le_bytes().to_vec(), "the header has 100000000 bytes, but only 0 follow"),
        (file_of("[]", 0), "expected an object of tensors"),
        (file_of("{", 0), "EOF"),
        (file_of("{\"w\":\u{1b}}", 0), "expected"),
        (of(&[("w", tensor("F33", "[1]", "[0,4]"))], 4), "unknown variant"),
        (of(&[("w", tensor(&"F".repeat(1 << 20), "[1]", "[0,4]"))], 4), "unknown variant"),
        (of(&[("w", tensor("F32", "[-1]", "[0,4]"))], 4), "integer `-1`"),
        (of(&[("w", tensor("F32", "[2]", "[0,4]"))], 4), "takes 8 bytes, but the header gives it 4"),
        (of(&[("w", tensor("F32", "[4611686018427387904,4]", "[0,0]"))], 0), "has no size"),
        (
            of(&[("w", tensor("F32", "[9223372036854775807,9223372036854775807,0]", "[0,0]"))], 0),
            "has no size",
        ),
        (of(&[("w", four("[4,0]"))], 4), "its bytes end at 0"),
        (of(&[("w", four("[0,4]"))], 3), "reaches to byte 4, but only 3 follow"),
        (of(&[("w", four("[0,4]"))], 5), "ends at byte 4, but 1 more follow"),
        (of(&[("w", four("[4,8]"))], 8), "the bytes 0..4 in front of tensor `w`"),
        (of(&[("v", four("[0,4]")), ("w", four("[2,6]"))], 6), "`w` begins at byte 2, but `v` reaches to 4"),
        (of(&[("v", four("[0,4]")), ("w", four("[0,4]"))], 4), "begins at byte 0, but"),
        (of(&[("w", four("[0,4]")), ("w", four("[4,8]"))], 8), "describes tensor `w` twice"),
        (
            of(&[("w", tensor("F32", &format!("[{}1]", "1,".repeat(64)), "[0,4]"))], 4),
            "more than 64 dimensions",
        ),
        (of(&[("w", four("[18446744073709551612,18446744073709551616]"))], 4), "expected u64"),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&path, &bytes).unwrap();
        let error = PretrainedFiles::open([&path]).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, CheckpointError::Invalid { .. }), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(said.contains("hostile.safetensors") && said.contains("fetch it again"), "{said}");
        assert!(said.len() < 1000 && !said.contains('\u{1b}'), "{said:?}");
    }
    std::fs::write(&path, file_of(r#"{"__metadata__":{"a":"b"}}"#, 0)).unwrap();
    assert_eq!(PretrainedFiles::open([&path]).unwrap().tensor_names().len(), 0);
    let missing = PretrainedFiles::open([folder.path().join("none")]).unwrap_err();
    assert!(matches!(&missing, CheckpointError::File { .. }), "{missing}");
}

#[test]
fn a_name_that_two_files_have_is_refused_with_both_files() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    write(&one, &[given("v", Dtype::F32, &[1], &[1.0]), given("w", Dtype::F32, &[1], &[1.0])]);
    write(&two, &[given("w", Dtype::F32, &[1], &[2.0])]);
    let error = PretrainedFiles::open([&one, &two]).unwrap_err();
    let CheckpointError::Twice { tensor, first, second } = &error else { panic!("{error}") };
    assert_eq!((tensor.as_str(), first, second), ("w", &one, &two));
    assert!(PretrainedFiles::open([&one, &one]).is_err());
}

/// The headers were fine; then the disk is not.
#[test]
fn a_file_that_cannot_be_read_any_more_ends_the_start_with_the_weight_and_the_file() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let trainer = Trainer::new(3, Format::F32);
        let paths = shards(folder.path());
        let pretrained =
            PretrainedFiles::open(&paths).unwrap().initializer(&trainer.model, tensor_of).unwrap();
        let bytes = paths[1].metadata().unwrap().len();
        std::fs::File::options().write(true).open(&paths[1]).unwrap().set_len(bytes / 2).unwrap();
        let builder = trainer.builder(Config::default(), &Mischief::default());
        let error = builder.try_initialize(pretrained).start_cpu(2).await.unwrap_err();
        let said = error.to_string();
        let SessionError::Exec(ExecError::Initializer { weight, .. }) = error else { panic!("{said}") };
        assert!(["layer2", "bias"].contains(&weight.as_str()), "{said}");
        assert!(said.contains("model-00002-of-00002") && said.contains("failed to fill"), "{said}");
    });
}

#[test]
fn a_weight_that_the_files_do_not_have_begins_as_the_caller_says_and_never_as_zeros_unnoticed() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let trainer = Trainer::new(3, Format::F32);
        let files = PretrainedFiles::open(shards(folder.path())).unwrap();
        let without = |weight: &str| (weight != "bias").then(|| format!("model.{weight}.weight"));
        let pretrained = files.initializer(&trainer.model, without).unwrap();
        let builder = || trainer.builder(Config::default(), &Mischief::default());
        let error = builder().try_initialize(pretrained.clone()).start_cpu(1).await.unwrap_err().to_string();
        assert!(error.contains("weight `bias` was given no tensor"), "{error}");
        let builder = builder().try_initialize(move |rows, values| match rows.weight {
            "bias" => {
                values.fill(0.5);
                Ok(())
            }
            _ => pretrained(rows, values),
        });
        let checkpoint = builder.start_cpu(2).await.unwrap().export().await.unwrap();
        assert_eq!(master(&checkpoint, "bias"), [0.5; SIZE]);
        assert_eq!(master(&checkpoint, "layer0"), masters("layer0", SIZE));
    });
}

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

#[test]
fn a_checkpoint_gives_its_masters_to_a_session_that_begins_with_them() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let trainer = Trainer::new(1, Format::F32);
        let mut session = trainer.start(Config::default(), 2).await.unwrap();
        trainer::losses(&mut session, 2, 0..2).await;
        let checkpoint = session.export().await.unwrap();
        FileStore::new(&path).save(&checkpoint).await.unwrap();
        let files = PretrainedFiles::open([&path]).unwrap();
        let pretrained =
            files.initializer(&trainer.model, |weight| Some(format!("{weight}.master"))).unwrap();
        let builder = trainer.builder(Config::default(), &Mischief::default()).try_initialize(pretrained);
        let again = builder.start_cpu(1).await.unwrap().export().await.unwrap();
        assert_eq!(again.optimizer_step, 0);
        for state in &checkpoint.weights {
            assert_eq!(bits(master(&again, &state.name)), bits(&state.master));
        }
    });
}

#[test]
fn a_file_of_weights_that_is_no_checkpoint_is_told_where_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let error = block_on(FileStore::new(&shards(folder.path())[0]).load()).unwrap_err().to_string();
    assert!(error.contains("no session saved it") && error.contains("`PretrainedFiles`"), "{error}");
}

/// The index of the hub for these tensors and files.
fn write_index(folder: &Path, entries: &[(&str, &str)]) {
    let map: serde_json::Map<String, serde_json::Value> =
        entries.iter().map(|(tensor, file)| ((*tensor).to_owned(), (*file).into())).collect();
    let json = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), json.to_string()).unwrap();
}

#[test]
fn a_folder_of_the_hub_is_opened_by_its_index_or_by_its_only_file() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    shards(folder.path());
    // A file that the index does not name is none of the model's.
    write(
        &folder.path().join("other.safetensors"),
        &[given("model.layer0.weight", Dtype::F32, &[1], &[0.0])],
    );
    let listed = [
        ("model.layer0.weight", first),
        ("model.layer1.weight", first),
        ("model.layer2.weight", second),
        ("model.bias.weight", second),
    ];
    write_index(folder.path(), &listed);
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    assert_eq!(files.tensor_names().len(), 4, "what the index does not list is not there");
    let error = files.shape("steps").unwrap_err().to_string();
    assert!(error.contains("their index does not list it"), "{error}");
    let mut values = [0.0; SIZE];
    files.rows("model.layer0.weight", 0, SIZE, &mut values).unwrap();
    assert_eq!(bits(&values), bits(&masters("layer0", 1)));

    let alone = tempfile::tempdir().unwrap();
    let hub = PretrainedFiles::open_model("meta-llama/Llama-3-8B").unwrap_err();
    assert!(matches!(hub, CheckpointError::NoFolder { .. }), "{hub}");
    let words = "the name of a model on the Hugging Face hub: nothing is downloaded here";
    assert!(hub.to_string().contains(words), "{hub}");
    assert!(hub.to_string().contains("hf download meta-llama/Llama-3-8B --local-dir"), "{hub}");
    let nowhere = PretrainedFiles::open_model(alone.path().join("models")).unwrap_err().to_string();
    assert!(nowhere.contains("there is no folder") && !nowhere.contains("Hugging Face"), "{nowhere}");
    let missing = PretrainedFiles::open_model(alone.path()).unwrap_err();
    assert!(matches!(&missing, CheckpointError::File { path, .. } if path.ends_with("model.safetensors")));
    write(&alone.path().join("model.safetensors"), &[given("w", Dtype::F32, &[2], &[1.0, 2.0])]);
    assert_eq!(PretrainedFiles::open_model(alone.path()).unwrap().shape("w").unwrap(), [2]);
}

/// Both have it, and the index says which of them counts.
#[test]
fn of_two_files_with_one_tensor_the_one_counts_that_the_index_lists() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a.safetensors", "b.safetensors"];
    for (name, value) in names.into_iter().zip([1.0, 2.0]) {
        let alone = given(name, Dtype::F32, &[1], &[value]);
        write(&folder.path().join(name), &[given("shared", Dtype::F32, &[1], &[value]), alone]);
    }
    for (counts, value) in names.into_iter().zip([1.0, 2.0]) {
        let of_each = names.map(|name| (name, name));
        write_index(folder.path(), &[("shared", counts), of_each[0], of_each[1]]);
        let files = PretrainedFiles::open_model(folder.path()).unwrap();
        let mut values = [0.0];
        files.rows("shared", 0, 1, &mut values).unwrap();
        assert_eq!(values, [value], "{counts}");
    }
}

#[test]
fn an_index_that_is_wrong_about_its_folder_is_refused_with_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    shards(folder.path());
    let refused = |parts: &[&str]| {
        let error = PretrainedFiles::open_model(folder.path()).unwrap_err();
        assert!(matches!(error, CheckpointError::Index { .. }), "{error}");
        for part in parts.iter().chain(&["model.safetensors.index.json", "fetch"]) {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    };
    for outside in ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", ""] {
        write_index(folder.path(), &[("model.layer0.weight", outside)]);
        refused(&["no file of this folder"]);
    }
    write_index(folder.path(), &[("model.layer0.weight", second)]);
    refused(&["model.layer0.weight", second]);
    write_index(folder.path(), &[("model.layer0.weight", first), ("model.head.weight", first)]);
    refused(&["model.head.weight", first]);
    let index = folder.path().join("model.safetensors.index.json");
    let twice = format!("{{\"weight_map\": {{\"t\": \"{second}\", \"t\": \"{first}\"}}}}");
    std::fs::write(&index, twice).unwrap();
    refused(&["`t` twice"]);
    write_index(folder.path(), &[]);
    refused(&["no tensor"]);
    write_index(folder.path(), &[("model.layer0.weight", "model-00003-of-00002.safetensors")]);
    let error = PretrainedFiles::open_model(folder.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::File { .. }), "{error}");
    for text in ["", "{", "[]", "{\"weight_map\": 3}", "{\"weight_map\": {\"a\": null}}"] {
        std::fs::write(folder.path().join("model.safetensors.index.json"), text).unwrap();
        refused(&[]);
    }
}
