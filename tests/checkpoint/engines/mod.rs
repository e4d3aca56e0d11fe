//! Checkpoints that inference engines load.
//!
//! `tests/data/engines` has folders that the packages of the engines wrote, with the values that they read
//! (`tests/engines/make_golden.py`).

mod golden;
mod refused;
mod round_trip;
mod written;

use std::ops::ControlFlow;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use warpweft::bf16;
use warpweft_session::checkpoint::engines::{EngineModel, EngineOptions, EngineReport, PlainWeights};
use warpweft_session::checkpoint::{CheckpointError, PretrainedFiles};

/// A tensor of a model in bf16.
#[derive(Clone)]
struct Bf16 {
    name: String,
    shape: Vec<usize>,
    values: Vec<bf16>,
}

/// A tensor of values that look random, of magnitudes up to `largest`.
fn tensor(name: &str, shape: &[usize], largest: f32) -> Bf16 {
    let seed = name.bytes().fold(17_u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut state = seed | 1;
    let values = (0..shape.iter().product::<usize>()).map(|_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
        bf16::from_f32(unit * unit * unit * largest)
    });
    Bf16 { name: name.to_owned(), shape: shape.to_vec(), values: values.collect() }
}

/// One block of a model as Llama has it, with an expert beside, whose parts have magnitudes far from each other.
fn llama() -> Vec<Bf16> {
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    vec![
        tensor("model.embed_tokens.weight", &[64, 256], 1.0),
        tensor("lm_head.weight", &[64, 256], 1.0),
        tensor(&layer("input_layernorm"), &[256], 1.0),
        tensor(&layer("self_attn.q_proj"), &[256, 256], 0.5),
        tensor(&layer("self_attn.k_proj"), &[128, 256], 4.0),
        tensor(&layer("self_attn.v_proj"), &[128, 256], 0.01),
        tensor(&layer("self_attn.o_proj"), &[256, 256], 0.3),
        tensor(&layer("mlp.gate"), &[4, 256], 1.0),
        tensor(&layer("mlp.down_proj"), &[256, 384], 0.3),
        tensor("model.layers.0.mlp.experts.w1", &[2, 128, 256], 2.0),
        tensor("model.layers.0.mlp.experts.w3", &[2, 128, 256], 1.0),
    ]
}

/// Writes a model's folder.
fn write(folder: &Path, tensors: &[Bf16], config: &str) {
    std::fs::create_dir_all(folder).unwrap();
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        (tensor.name.as_str(), TensorView::new(Dtype::BF16, tensor.shape.clone(), bytes).unwrap())
    });
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    std::fs::write(folder.join("config.json"), config).unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{}").unwrap();
}

fn convert(
    weights: &dyn PlainWeights,
    options: EngineOptions,
    target: &Path,
) -> Result<EngineReport, CheckpointError> {
    EngineModel::plan(weights, options)?.write(target, &mut |_, _| ControlFlow::Continue(()))
}

/// All values of a tensor of two dimensions.
fn values(files: &PretrainedFiles, name: &str) -> Vec<f32> {
    let shape = files.shape(name).unwrap();
    let (cols, count) = (*shape.last().unwrap(), shape.iter().product());
    let mut values = vec![0.0; count];
    files.rows(name, 0, cols, &mut values).unwrap();
    values
}
