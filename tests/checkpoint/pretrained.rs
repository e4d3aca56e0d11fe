//! Pretrained weights from files of other tools.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use warpweft::{bf16, f16};
use warpweft_format::Format;
use warpweft_plan::model::Model;
use warpweft_session::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, FileStore, PretrainedFiles,
};
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{ExecError, SessionError, block_on};
use warpweft_testing::trainer::{self, Mischief, SIZE, Trainer, initial, within_a_minute};

/// What the files call the trainer's weights.
pub(crate) fn tensor_of(weight: &str) -> Option<String> {
    Some(format!("model.{weight}.weight"))
}

/// A tensor to be.
pub(crate) struct Given {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

pub(crate) fn given(name: &str, dtype: Dtype, shape: &[usize], values: &[f32]) -> Given {
    let bytes = match dtype {
        Dtype::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    };
    Given { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes }
}

pub(crate) fn write(path: &Path, tensors: &[Given]) {
    let views = tensors.iter().map(|Given { name, dtype, shape, bytes }| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// The trainer's own masters of a weight of `rows`.
pub(crate) fn masters(weight: &str, rows: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows * SIZE];
    initial(MasterRows::from_the_first(weight, SIZE), &mut values);
    values
}

/// Three layers in three types and a bias of one dimension, in two files, with a tensor beside that is no
/// weight.
pub(crate) fn shards(folder: &Path) -> [PathBuf; 2] {
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

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn master<'checkpoint>(checkpoint: &'checkpoint Checkpoint, weight: &str) -> &'checkpoint [f32] {
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
