//! Checkpoints that a session saved: their masters are quantized, and nothing else is there.

use warpweft::backend::cpu::CpuSurface;
use warpweft::compute::{ComputeContext, ComputeError};
use warpweft::config::Config;
use warpweft::format::{ElementType, Format, Via};
use warpweft::id::RankId;
use warpweft::model::{Call, Model, Phase, StepProgram};
use warpweft::session::initial::MasterRows;
use warpweft::session::{CheckpointStore, FileStore, Session, block_on};
use warpweft::tool::QuantizeOptions;

use crate::checkpoint::{Contents, Folder};

/// A folder whose input a session saved after one step: a matrix, a gain and a carried buffer.
fn saved() -> Folder {
    let mut model = Model::builder();
    let up = model.sharded("up", 64, 96, Format::NVFP4_2D).unwrap();
    let gain = model.replicated("gain", 64, 1).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let kept = program.carried("kept", 4, ElementType::F32).unwrap();
    program.call("fit", Phase::Backward).gradient(up).gradient(gain).updates(kept).add().unwrap();
    let closure = move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
        let mut gradient = context.gradient(up)?;
        gradient.iter_mut().enumerate().for_each(|(at, value)| *value = (at % 7) as f32 - 3.0);
        context.gradient(gain)?.fill(1.0);
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
    assert_eq!(after.tensor("gain"), before.tensor("gain.master"), "no format takes its shape");
    let mut keys: Vec<&str> = after.metadata.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["notes", "warpweft_quantized"], "it does not claim to be a session's");

    let (tensors, bytes) = report.left_out.unwrap();
    let left = before.names().into_iter().filter(|name| !name.ends_with(".master"));
    let sizes: Vec<u64> = left.map(|name| before.tensor(name).bytes.len() as u64).collect();
    assert_eq!((tensors, bytes), (sizes.len(), sizes.iter().sum()));
    assert!(report.to_string().contains(&format!("{tensors} other tensors")), "{report}");

    let back = folder.dequantize().unwrap();
    assert_eq!(back.left_out, None);
    assert_eq!(folder.read("back.safetensors").names(), ["gain", "up"]);
}

#[test]
fn patterns_select_weights_of_a_checkpoint_that_a_session_saved_by_their_names() {
    let folder = saved();
    let only = |pattern: &str| QuantizeOptions {
        only: vec![pattern.to_owned()],
        ..QuantizeOptions::new(Format::Mxfp8)
    };
    let error = folder.quantize(&only("*.exp_avg")).unwrap_err().to_string();
    assert!(error.contains("matches no tensor") && error.contains("`gain`"), "{error}");
    assert_eq!(folder.quantize(&only("up")).unwrap().tensors.len(), 1);
}

#[test]
fn a_checkpoint_of_a_session_without_a_master_that_it_lists_is_refused() {
    let saved = saved();
    let mut contents = Contents::read(&saved.input());
    contents.tensors.remove("up.master");
    for (damaged, said) in [
        (contents.clone(), "has no tensor `up.master`"),
        (contents.with_metadata("weights", "up, gain"), "lists its weights in a way that is not understood"),
    ] {
        let folder = Folder::with(&damaged.to_bytes());
        let error = folder.quantize(&QuantizeOptions::new(Format::NVFP4_2D)).unwrap_err().to_string();
        assert!(error.contains("was saved by a session and") && error.contains(said), "{error}");
        assert_eq!(folder.files(), ["in.safetensors"]);
    }
}
