//! Files without plain weights: what the tool and `PretrainedFiles` say of each kind.

use std::path::Path;

use safetensors::tensor::Dtype;
use warpweft_cli::{QuantizeOptions, ToolError, quantize_checkpoint};
use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointError, PretrainedFiles};

use super::checkpoint::{Contents, Folder, Tensor};

/// A kind of files, as the documentation calls it.
struct Kind {
    name: &'static str,
    file: Vec<u8>,
    /// A file beside it, and its text.
    beside: Option<(&'static str, &'static str)>,
    /// A tensor that is requested of it.
    requested: &'static str,
    /// Parts of what is said.
    says: &'static [&'static str],
}

fn kind(
    name: &'static str,
    tensors: &[(&str, Dtype, &[usize])],
    requested: &'static str,
    says: &'static [&'static str],
) -> Kind {
    Kind { name, file: file(tensors).to_bytes(), beside: None, requested, says }
}

/// These tensors, with bytes that are not all alike.
fn file(tensors: &[(&str, Dtype, &[usize])]) -> Contents {
    tensors.iter().fold(Contents::default(), |contents, (name, dtype, shape)| {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        contents.with(name, Tensor::new(*dtype, shape, (0..bytes).map(|at| at as u8 % 97).collect()))
    })
}

/// A file of another kind, by how it begins.
fn foreign(name: &'static str, start: &[u8], says: &'static [&'static str]) -> Kind {
    let file = [start, &[7; 64]].concat();
    Kind { name, file, beside: None, requested: "", says }
}

fn kinds() -> Vec<Kind> {
    use Dtype::{BF16, F8_E4M3, F16, F32, I8, I32, I64, U8, U32, U64};
    let norm = ("norm.weight", BF16, &[64][..]);
    let states =
        |dtype, names: [&'static str; 2]| [(names[0], dtype, &[8, 16][..]), (names[1], dtype, &[8, 16])];
    let unscaled = kind(
        "FP8 whose scales are in another file",
        &[("up.weight", F8_E4M3, &[32, 64])],
        "up.weight",
        &["holds codes whose scales are elsewhere", "`config.json` beside it says", "`fp8`"],
    );
    let config = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    let mut part = Contents::default().with("up.master", Tensor::f32s(&[16, 32], &[1.0; 512]));
    part.metadata.insert("warpweft_part".to_owned(), "2".to_owned());
    vec![
        kind(
            "DeepSeek FP8",
            &[("up.weight", F8_E4M3, &[256, 384]), ("up.weight_scale_inv", F32, &[2, 3]), norm],
            "up.weight_scale_inv",
            &[
                "`up.weight` (F8_E4M3 [256, 384]) holds FP8 codes, as DeepSeek has them",
                "with a scale for each 128×128 block in `up.weight_scale_inv` (F32 [2, 3])",
                "dequantize the model to bf16 or f32 first",
            ],
        ),
        kind(
            "compressed-tensors FP8 in blocks",
            &[("up.weight", F8_E4M3, &[256, 384]), ("up.weight_scale", F32, &[2, 3])],
            "up.weight",
            &["FP8 codes with a scale for each 128×128 block in `up.weight_scale`"],
        ),
        kind(
            "FP8 with a scale for each row (per-channel)",
            &[("up.weight", F8_E4M3, &[32, 64]), ("up.weight_scale", F32, &[32, 1]), ("up.bias", BF16, &[32])],
            "up.weight_scale",
            &["FP8 codes with a scale for each row"],
        ),
        kind(
            "ModelOpt FP8",
            &[("up.weight", F8_E4M3, &[32, 64]), ("up.weight_scale", F32, &[]), ("up.input_scale", F32, &[])],
            "up.weight",
            &["FP8 codes with one scale in `up.weight_scale`"],
        ),
        kind(
            "compressed-tensors NVFP4",
            &[
                ("up.weight_packed", U8, &[32, 32]),
                ("up.weight_scale", F8_E4M3, &[32, 4]),
                ("up.weight_global_scale", F32, &[1]),
                norm,
            ],
            "up.weight_global_scale",
            &["NVFP4 codes, as compressed-tensors has them, with a scale for each 16 columns in `up.weight_scale`"],
        ),
        kind(
            "ModelOpt NVFP4",
            &[
                ("up.weight", U8, &[32, 32]),
                ("up.weight_scale", F8_E4M3, &[32, 4]),
                ("up.weight_scale_2", F32, &[]),
            ],
            "up.weight",
            &["NVFP4 codes, as ModelOpt has them"],
        ),
        kind(
            "compressed-tensors MXFP8",
            &[("up.weight", F8_E4M3, &[32, 64]), ("up.weight_scale", U8, &[32, 2])],
            "up.weight",
            &["MXFP8 codes with a scale for each 32 columns"],
        ),
        kind(
            "GPT-OSS MXFP4",
            &[("experts.up_blocks", U8, &[2, 32, 4, 16]), ("experts.up_scales", U8, &[2, 32, 4])],
            "experts.up_blocks",
            &["MXFP4 codes, as GPT-OSS has them"],
        ),
        kind(
            "compressed-tensors INT4",
            &[
                ("up.weight_packed", I32, &[32, 32]),
                ("up.weight_scale", BF16, &[32, 2]),
                ("up.weight_shape", I64, &[2]),
            ],
            "up.weight_scale",
            &["packed integer codes, as compressed-tensors has them, with scales of groups"],
        ),
        kind(
            "AWQ",
            &[("up.qweight", I32, &[64, 4]), ("up.qzeros", I32, &[2, 4]), ("up.scales", F16, &[2, 32]), norm],
            "up.scales",
            &["`up.qweight` (I32 [64, 4]) holds packed integer codes, as AWQ has them", "`up.scales`"],
        ),
        kind(
            "GPTQ",
            &[
                ("up.qweight", I32, &[8, 32]),
                ("up.qzeros", I32, &[2, 4]),
                ("up.scales", F16, &[2, 32]),
                ("up.g_idx", I32, &[64]),
            ],
            "up.scales",
            &["packed integer codes, as GPTQ has them"],
        ),
        kind(
            "bitsandbytes, 4 bits",
            &[
                ("up.weight", U8, &[1024, 1]),
                ("up.weight.absmax", F32, &[32]),
                ("up.weight.quant_map", F32, &[16]),
                ("up.weight.quant_state.bitsandbytes__nf4", U8, &[80]),
            ],
            "up.weight.absmax",
            &["`up.weight` (U8 [1024, 1]) holds 4-bit codes, as bitsandbytes has them", "`up.weight.absmax`"],
        ),
        kind(
            "bitsandbytes, 8 bits",
            &[("up.weight", I8, &[32, 64]), ("up.SCB", F32, &[32]), ("up.weight_format", U8, &[])],
            "up.SCB",
            &["INT8 codes, as bitsandbytes has them, with a scale for each row in `up.SCB`"],
        ),
        kind(
            "MLX, 4 bits",
            &[("up.weight", U32, &[32, 16]), ("up.scales", F16, &[32, 2]), ("up.biases", F16, &[32, 2])],
            "up.scales",
            &["packed integer codes with scales of groups in `up.scales`"],
        ),
        kind(
            "TensorRT-LLM FP8",
            &[
                ("up.weight", F8_E4M3, &[32, 64]),
                ("up.weights_scaling_factor", F32, &[1]),
                ("up.activation_scaling_factor", F32, &[1]),
            ],
            "up.weight",
            &["FP8 codes, as TensorRT-LLM has them, with one scale in `up.weights_scaling_factor`"],
        ),
        kind(
            "TensorRT-LLM INT4-AWQ",
            &[
                ("up.weight", I8, &[256, 32]),
                ("up.weights_scaling_factor", F16, &[2, 64]),
                ("up.prequant_scaling_factor", F16, &[1, 256]),
            ],
            "up.weights_scaling_factor",
            &["packed integer codes, as TensorRT-LLM has them, with scales of groups"],
        ),
        kind(
            "Optimum-quanto, 4 bits",
            &[
                ("up.weight._data._data", U8, &[64, 64]),
                ("up.weight._scale", BF16, &[128, 1]),
                ("up.weight._shift", BF16, &[128, 1]),
            ],
            "up.weight._data._data",
            &["packed integer codes with scales of groups in `up.weight._scale`"],
        ),
        Kind { beside: Some(("config.json", config)), ..unscaled },
        Kind {
            name: "TensorRT-LLM FP8 whose scales are in another file",
            beside: Some(("config.json", r#"{"quantization": {"quant_algo": "FP8"}}"#)),
            ..kind(
                "",
                &[("up.weight", F8_E4M3, &[32, 64])],
                "up.weight",
                &["holds codes whose scales are elsewhere", "`config.json` beside it says", "`FP8`"],
            )
        },
        kind(
            "Adam's averages (PyTorch, Hugging Face)",
            &[
                &states(F32, ["state.0.exp_avg", "state.0.exp_avg_sq"])[..],
                &[("state.0.step", F32, &[])],
            ]
            .concat(),
            "state.0.exp_avg",
            &["the state of an optimizer: `state.0.exp_avg` (F32 [8, 16]) and `state.0.exp_avg_sq`"],
        ),
        kind(
            "Adam's averages (MLX)",
            &[&states(BF16, ["up.weight.m", "up.weight.v"])[..], &[("step", U64, &[])]].concat(),
            "up.weight.v",
            &["the state of an optimizer: `up.weight.m`"],
        ),
        kind(
            "Adam's averages (bitsandbytes, 8 bits)",
            &[
                &states(U8, ["state.0.state1", "state.0.state2"])[..],
                &[("state.0.absmax1", F32, &[2]), ("state.0.qmap1", F32, &[256])],
            ]
            .concat(),
            "state.0.state1",
            &["the state of an optimizer: `state.0.state1`"],
        ),
        kind(
            "momenta of SGD",
            &[("up.momentum_buffer", F32, &[32, 64]), ("down.momentum_buffer", F32, &[64, 32])],
            "up.momentum_buffer",
            &["the state of an optimizer", "all others are `momentum_buffer`"],
        ),
        kind(
            "averages of Lion",
            &[("0.exp_avg", F32, &[32, 64]), ("0.step", F32, &[]), ("1.exp_avg", F32, &[64])],
            "1.exp_avg",
            &["the state of an optimizer", "all others are `exp_avg`"],
        ),
        Kind {
            name: "one rank's part of a checkpoint of warpweft",
            file: part.to_bytes(),
            beside: None,
            requested: "up.master",
            says: &["one rank's part of a checkpoint", "`PartFiles::save_weights`"],
        },
        foreign("GGUF", b"GGUF\x03\0\0\0", &["a GGUF file, as llama.cpp reads it"]),
        foreign("torch.save, numpy.savez (zip)", b"PK\x03\x04\x14\0\x08\x08", &["a zip archive", "torch.save"]),
        foreign("a pickle", b"\x80\x02\x8a\x0al\xfc\x9cF", &["a Python pickle"]),
        foreign("Keras (HDF5)", b"\x89HDF\r\n\x1a\n", &["an HDF5 file"]),
        foreign("NumPy", b"\x93NUMPY\x01\0", &["an array of NumPy"]),
        foreign("gzip", b"\x1f\x8b\x08\x00\x01\x02\x03\x04", &["a gzip archive"]),
        foreign("a pointer of Git LFS", b"version https://git-lfs.github.com/spec/v1\n", &["git lfs pull"]),
        foreign(
            "the index of a model",
            br#"{"metadata": {"total_size": 1}, "weight_map": {"up.weight": "model-00001-of-00002.safetensors"}}"#,
            &["the index of a model in several files", "name the files that it lists", "open_model"],
        ),
        foreign("JSON", br#"{"hidden_size": 64}"#, &["JSON text"]),
    ]
}

/// What `PretrainedFiles` says of a file, or of a tensor in it.
fn pretrained(path: &Path, requested: &str) -> String {
    match PretrainedFiles::open([path]) {
        Err(CheckpointError::NotSafetensors { what, .. }) => what,
        Err(other) => panic!("{other}"),
        Ok(files) => match files.rows(requested, 0, 1, &mut []).unwrap_err() {
            CheckpointError::NotWeights { tensor, what, .. } if tensor == requested => what,
            other => panic!("{other}"),
        },
    }
}

/// FK-1.
#[test]
fn what_holds_no_plain_weights_is_refused_with_what_it_is_by_the_tool_and_by_pretrained_files() {
    let documented = include_str!("../../../../../docs/formats.md");
    for Kind { name, file, beside, requested, says } in kinds() {
        let folder = Folder::with(&file);
        if let Some((beside, text)) = beside {
            std::fs::write(folder.path(beside), text).unwrap();
        }
        let before = folder.files();
        for strict in [false, true] {
            let error =
                folder.quantize(&QuantizeOptions { strict, ..QuantizeOptions::new(Format::NVFP4_2D) });
            let ToolError::NotWeights { what, path } = error.unwrap_err() else { panic!("{name}") };
            assert_eq!((&path, folder.files()), (&folder.input(), before.clone()), "{name}");
            says.iter().for_each(|part| assert!(what.contains(part), "{name}: {part}: {what}"));
            assert_eq!(pretrained(&path, requested), what, "{name}");
        }
        assert!(documented.lines().any(|line| line.starts_with(&format!("| {name} |"))), "{name}");
    }
}

/// FK-1.
#[test]
fn a_folder_is_called_one_with_what_to_do() {
    let folder = Folder::with(&[]);
    let options = QuantizeOptions::new(Format::NVFP4_2D);
    let error = quantize_checkpoint(&folder.path("."), &folder.output(), &options, &mut ()).unwrap_err();
    let ToolError::NotWeights { what, .. } = error else { panic!("{error}") };
    assert!(what.contains("a folder") && what.contains("one safetensors file at a time"), "{what}");
    assert_eq!(pretrained(&folder.path("."), ""), what);
}

#[test]
fn what_the_tool_quantized_is_known_to_pretrained_files() {
    for format in [Format::NVFP4_2D, Format::Mxfp8, Format::FP8_TENSOR_E4M3, Format::FP8_BLOCK128_F32SCALE] {
        let folder =
            Folder::with(&Contents::default().with("up", Tensor::f32s(&[64, 64], &[1.0; 4096])).to_bytes());
        folder.quantize(&QuantizeOptions::new(format)).unwrap();
        for requested in ["up.rowwise_data", "up.columnwise_scale"] {
            let what = pretrained(&folder.output(), requested);
            assert!(
                what.contains("codes, as warpweft has them") && what.contains("`warpweft_quantized`"),
                "{what}"
            );
        }
    }
}
