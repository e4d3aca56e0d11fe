//! Checkpoints of a session as input: their masters are quantized, everything else is left out.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_cli::{QuantizeOptions, ToolError};
use warpweft_format::{ElementType, Format, Via};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::checkpoint::{CheckpointError, CheckpointStore, FileStore, PretrainedFiles};
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Session, block_on};

use super::checkpoint::{Contents, Folder};

/// A folder whose input a session saved after one step: a matrix, a gain, a norm and a carried buffer.
fn saved() -> Folder {
    saved_where(false)
}

/// The same, where the gain may be frozen.
fn saved_where(frozen: bool) -> Folder {
    let mut model = Model::builder();
    let up = model.sharded("up", 64, 96, Format::NVFP4_2D).unwrap();
    let gain = model.replicated("gain", 64, 1).unwrap();
    let norm = model.replicated("norm", 1, 96).unwrap();
    if frozen {
        model.freeze(gain).unwrap();
    }
    let mut program = StepProgram::builder("train", &model.build());
    let kept = program.carried("kept", 4, ElementType::F32).unwrap();
    program
        .call("fit", Phase::Backward)
        .gradient(up)
        .gradient_if_trained(gain, ElementType::F32)
        .gradient(norm)
        .updates(kept)
        .add()
        .unwrap();
    let closure = move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
        let mut gradient = context.gradient(up)?;
        gradient.iter_mut().enumerate().for_each(|(at, value)| *value = (at % 7) as f32 - 3.0);
        if !frozen {
            context.gradient(gain)?.fill(1.0);
        }
        context.gradient(norm)?.fill(1.0);
        Ok::<_, ComputeError>(())
    };
    let program = program.build_training().unwrap();
    let builder = Session::builder(Config::default(), move |_: RankId| closure).program(program);
    let builder = builder.initialize(|MasterRows { first_row, .. }, values| {
        values.iter_mut().enumerate().for_each(|(at, value)| *value = 1.0 / (first_row + at + 3) as f32);
    });
    let folder = Folder::with(&[]);
    block_on(async {
        let mut session = builder.start_cpu(2).await.unwrap();
        session.step("train").await.unwrap();
        let mut checkpoint = session.export().await.unwrap();
        checkpoint.notes.insert("seed".to_owned(), "7".to_owned());
        FileStore::new(folder.input()).save(&checkpoint).await.unwrap();
    });
    folder
}

#[test]
fn of_a_checkpoint_that_a_session_saved_the_masters_alone_are_quantized_into_the_planes_that_it_had() {
    let folder = saved();
    let options = QuantizeOptions { via: Via::Bf16, ..QuantizeOptions::new(Format::NVFP4_2D) };
    let report = folder.quantize(&options).unwrap();
    let (before, after) = (folder.read("in.safetensors"), folder.read("out.safetensors"));
    assert_eq!(
        after.names(),
        [
            "gain",
            "norm",
            "up.amax",
            "up.columnwise_data",
            "up.columnwise_scale",
            "up.rowwise_data",
            "up.rowwise_scale"
        ]
    );
    for name in ["up.rowwise_data", "up.rowwise_scale", "up.amax"] {
        assert_eq!(after.tensor(name), before.tensor(name), "{name}");
    }
    for (name, master, length) in [("gain", "gain.master", 64), ("norm", "norm.master", 96)] {
        assert_eq!(after.tensor(name).bytes, before.tensor(master).bytes, "{name}");
        assert_eq!(after.tensor(name).shape, [length], "{name}");
    }
    let mut keys: Vec<&str> = after.metadata.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["format", "notes", "warpweft_quantized"], "it does not claim to be a session's");
    assert_eq!(after.metadata["format"], "pt");

    let (tensors, bytes) = report.left_out.unwrap();
    let left = before.names().into_iter().filter(|name| !name.ends_with(".master"));
    let sizes: Vec<u64> = left.map(|name| before.tensor(name).bytes.len() as u64).collect();
    assert_eq!((tensors, bytes), (sizes.len(), sizes.iter().sum()));
    assert!(report.to_string().contains(&format!("{tensors} other tensors")), "{report}");

    let back = folder.dequantize().unwrap();
    assert_eq!(back.left_out, None);
    assert_eq!(folder.read("back.safetensors").names(), ["gain", "norm", "up"]);
}

/// As an adapter's checkpoint does, whose base does not train.
#[test]
fn frozen_weights_that_a_session_did_not_save_are_named_and_refused_where_nothing_may_be_left_out() {
    let folder = saved_where(true);
    let strict = |only: &str| QuantizeOptions {
        strict: true,
        only: vec![only.to_owned()],
        ..QuantizeOptions::new(Format::NVFP4_2D)
    };
    let error = folder.quantize(&strict("*")).unwrap_err();
    assert!(matches!(&error, ToolError::Frozen { weights, .. } if weights == &["gain"]), "{error}");
    assert_eq!(folder.files(), ["in.safetensors"]);
    let report = folder.quantize(&strict("up")).unwrap();
    assert_eq!(report.absent, ["gain"]);
    assert!(report.to_string().contains("the output lacks `gain`"), "{report}");
}

#[test]
fn patterns_select_weights_of_a_checkpoint_that_a_session_saved_by_their_names() {
    let folder = saved();
    let only = |pattern: &str| QuantizeOptions {
        only: vec![pattern.to_owned()],
        ..QuantizeOptions::new(Format::Mxfp8)
    };
    let error = folder.quantize(&only("*.exp_avg")).unwrap_err().to_string();
    assert!(error.contains("matches no tensor") && error.contains("`up`"), "{error}");
    assert_eq!(folder.quantize(&only("up")).unwrap().tensors.len(), 1);
}

#[test]
fn a_checkpoint_of_a_session_without_a_master_that_it_lists_is_refused() {
    let saved = saved();
    let mut contents = Contents::read(&saved.input());
    contents.tensors.remove("up.master");
    for (damaged, said) in [
        (older(contents.clone()), "has no tensor `up.master`"),
        (
            older(contents.with_metadata("weights", "up, gain")),
            "lists its weights in a way that is not understood",
        ),
    ] {
        let folder = Folder::with(&damaged.to_bytes());
        let error = folder.quantize(&QuantizeOptions::new(Format::NVFP4_2D)).unwrap_err().to_string();
        assert!(error.contains("was saved by a session and") && error.contains(said), "{error}");
        assert_eq!(folder.files(), ["in.safetensors"]);
    }
}

/// What a session saved is no model's file to begin with, but for its masters.
#[test]
fn of_a_checkpoint_that_a_session_saved_only_masters_are_weights_to_pretrained_files() {
    let folder = saved();
    let files = PretrainedFiles::open([folder.input()]).unwrap();
    let names: Vec<String> = files.tensor_names().map(str::to_owned).collect();
    let mut refused = 0;
    for name in names.iter().filter(|name| !name.starts_with("carried.") && !name.ends_with(".amax")) {
        let read = files.rows(name, 0, files.shape(name).unwrap()[1], &mut []);
        assert_eq!(read.is_ok(), name.ends_with(".master"), "{name}");
        if let Err(error) = read {
            assert!(matches!(error, CheckpointError::NotWeights { .. }), "{error}");
            refused += 1;
        }
    }
    assert_eq!(refused, 2 * 3 + 2, "moments of three weights, codes and scales of one");
}

/// The same in version 2 of the file, which has digests of nothing.
fn older(contents: Contents) -> Contents {
    let mut contents = contents.with_metadata("warpweft_checkpoint", "2");
    contents.metadata.retain(|key, _| !matches!(key.as_str(), "digests" | "metadata_digest"));
    contents
}

/// What would be lost of norms and biases is not: formats with one scale for a tensor would take their shape.
#[test]
fn masters_of_one_row_or_one_column_are_copied_whatever_the_format() {
    let folder = saved();
    for format in [Format::FP8_TENSOR_E4M3, Format::FP8_BLOCK128_POW2] {
        let options = QuantizeOptions { replace: true, ..QuantizeOptions::new(format) };
        let report = folder.quantize(&options).unwrap();
        assert_eq!(report.tensors.iter().map(|tensor| tensor.name.as_str()).collect::<Vec<_>>(), ["up"]);
        let after = folder.read("out.safetensors");
        assert!(["gain", "norm"].iter().all(|name| after.names().contains(name)), "{:?}", after.names());
    }
}

/// Nothing that a session refuses to load is published without its digests.
#[test]
fn a_checkpoint_of_a_session_that_changed_since_is_refused_before_there_is_an_output() {
    let saved = saved();
    let valid = Contents::read(&saved.input());
    let changed = |change: &dyn Fn(&mut Contents)| {
        let mut contents = valid.clone();
        change(&mut contents);
        contents
    };
    let all = [
        (
            changed(&|contents| contents.tensors.get_mut("up.master").unwrap().bytes[1000] ^= 1),
            "`up.master` is not as it was saved",
        ),
        (
            changed(&|contents| contents.tensors.get_mut("norm.master").unwrap().shape = vec![96, 1]),
            "`norm.master` is not as it was saved",
        ),
        (valid.clone().with_metadata("notes", "{}"), "its metadata are not as they were saved"),
        (valid.clone().with_metadata("warpweft_checkpoint", "9"), "version 9"),
        (
            older(valid.clone()).with_metadata("weights", r#"[["up","nvfp4_2d"],["up","nvfp4_2d"]]"#),
            "lists the weight `up` twice",
        ),
    ];
    for (damaged, said) in all {
        let folder = Folder::with(&damaged.to_bytes());
        let error = folder.quantize(&QuantizeOptions::new(Format::NVFP4_2D)).unwrap_err().to_string();
        assert!(error.contains("was saved by a session and") && error.contains(said), "{error}");
        assert_eq!(folder.files(), ["in.safetensors"]);
    }
    // What is left out is not checked, and files from before digests are taken as they are.
    let moments = changed(&|contents| contents.tensors.get_mut("up.exp_avg").unwrap().bytes[0] ^= 1);
    for valid in [moments, older(valid)] {
        Folder::with(&valid.to_bytes()).quantize(&QuantizeOptions::new(Format::NVFP4_2D)).unwrap();
    }
}
