//! Refused input: the message, and that nothing is left behind.

use std::num::NonZeroUsize;
use std::path::Path;

use safetensors::tensor::Dtype;
use warpweft_cli::{QuantizeOptions, ToolError, dequantize_checkpoint, quantize_checkpoint};
use warpweft_format::{Format, Via};

use super::checkpoint::{Contents, Folder, Tensor};

fn matrix(value: f32) -> Tensor {
    Tensor::f32s(&[16, 32], &[value; 512])
}

fn plain() -> Folder {
    Folder::with(
        &Contents::default().with("w", matrix(1.0)).with("b", Tensor::f32s(&[3], &[1.0; 3])).to_bytes(),
    )
}

fn options(format: Format) -> QuantizeOptions {
    QuantizeOptions::new(format)
}

/// Expects the error to contain a text, and the folder to hold the input alone.
fn refused(folder: &Folder, options: &QuantizeOptions, complaint: &str) {
    let error = folder.quantize(options).unwrap_err().to_string();
    assert!(error.contains(complaint), "{error}");
    assert_eq!(folder.files(), ["in.safetensors"], "{error}");
}

#[test]
fn a_format_that_does_not_quantize_names_those_that_do() {
    for format in [Format::F32, Format::Bf16] {
        refused(&plain(), &options(format), "does not quantize; choose one of nvfp4_2d, nvfp4_1d");
    }
}

#[test]
fn activation_formats_are_not_sharded() {
    for format in [Format::NVFP4_1D, Format::FP8_BLOCK1X128_POW2] {
        let options = QuantizeOptions { shards: NonZeroUsize::new(2), ..options(format) };
        refused(&plain(), &options, "--shards: ");
        assert!(plain().quantize(&QuantizeOptions { shards: None, ..options }).is_ok());
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_reported_with_a_name_that_could_be_meant() {
    let only = vec!["w".to_owned(), "v*".to_owned()];
    refused(
        &plain(),
        &QuantizeOptions { only, ..options(Format::Mxfp8) },
        "--only `v*` matches no tensor of",
    );
    let only = vec!["v*".to_owned()];
    let folder = Folder::with(&Contents::default().with("w", matrix(1.0)).to_bytes());
    let strict = QuantizeOptions { only, ..options(Format::NVFP4_2D) };
    refused(&folder, &strict, "one that can be quantized is `w`");
}

#[test]
fn strictness_refuses_every_selected_tensor_that_would_be_copied_and_is_no_vector() {
    let strict = |only: &[&str], format| QuantizeOptions {
        strict: true,
        only: only.iter().map(|&pattern| pattern.to_owned()).collect(),
        ..options(format)
    };
    let narrow = Contents::default().with("w", Tensor::f32s(&[32, 16], &[1.0; 512]));
    let narrow = Folder::with(&narrow.to_bytes());
    refused(&narrow, &strict(&[], Format::Mxfp8), "tensor `w`: mxfp8 needs columns in multiples of 32");
    assert!(plain().quantize(&strict(&[], Format::NVFP4_2D)).is_ok(), "a vector is copied");
    refused(&plain(), &strict(&["w", "b"], Format::NVFP4_2D), "tensor `b`: F32 of shape [3] is no matrix");
    for (tensor, said) in [
        (Tensor::new(Dtype::F64, &[16, 16], vec![0; 2048]), "F64 of shape [16, 16], and F32, BF16 and F16"),
        (Tensor::new(Dtype::F8_E4M3, &[16, 16], vec![0; 256]), "F8_E4M3 of shape [16, 16], and F32"),
        (Tensor::new(Dtype::I64, &[1, 2], vec![0; 16]), "I64 of shape [1, 2], and F32"),
        (Tensor::f32s(&[1, 1, 16, 16], &[0.0; 256]), "has 4 dimensions, and 2 or 3 are quantized"),
        (Tensor::f32s(&[2, 16, 8], &[0.0; 256]), "needs columns in multiples of 16"),
    ] {
        let contents = Contents::default().with("w", matrix(1.0)).with("x", tensor);
        let folder = Folder::with(&contents.to_bytes());
        refused(&folder, &strict(&[], Format::NVFP4_2D), "tensor `x`: ");
        refused(&folder, &strict(&["*"], Format::NVFP4_2D), said);
        let report = folder.quantize(&strict(&["w"], Format::NVFP4_2D)).unwrap();
        assert_eq!(report.copied.len(), 1, "only what is selected counts");
    }
}

#[test]
fn a_file_of_which_nothing_would_be_quantized_is_an_error_that_says_why() {
    let nothing = [
        (Contents::default(), "would be converted: it has no tensor"),
        (
            Contents::default().with("b", Tensor::f32s(&[3], &[1.0; 3])),
            "would be converted: `b`: F32 of shape [3] is no matrix",
        ),
        (
            Contents::default().with("d", Tensor::new(Dtype::F64, &[2, 2], vec![0; 32])),
            "`d`: F64 of shape [2, 2], and F32, BF16 and F16 are quantized",
        ),
    ];
    for (contents, said) in nothing {
        refused(&Folder::with(&contents.to_bytes()), &options(Format::NVFP4_2D), said);
    }
    let many = (0..9).fold(Contents::default(), |contents, at| {
        contents.with(&format!("b{at}"), Tensor::f32s(&[3], &[1.0; 3]))
    });
    refused(&Folder::with(&many.to_bytes()), &options(Format::NVFP4_2D), "; 5 others");
    let error = with_manifest(|manifest| manifest["tensors"] = serde_json::json!({}));
    assert!(error.contains("nothing in"), "{error}");
}

#[test]
fn a_value_that_is_not_finite_is_reported_with_its_tensor_and_place_in_every_format() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut values = [1.0; 1024];
        values[2 * 32 + 5] = value;
        let contents = Contents::default().with("w", Tensor::f32s(&[32, 32], &values));
        let folder = Folder::with(&contents.to_bytes());
        for format in [Format::NVFP4_2D, Format::NVFP4_1D, Format::Mxfp8, Format::FP8_TENSOR_E4M3] {
            refused(&folder, &options(format), &format!("tensor `w` holds {value} at [2, 5]"));
        }
        let sharded = QuantizeOptions { shards: NonZeroUsize::new(3), ..options(Format::NVFP4_2D) };
        refused(&folder, &sharded, "mend the checkpoint, or leave the tensor out: --only");
    }
}

#[test]
fn finite_values_that_come_back_as_others_are_told() {
    let folder = Folder::with(&Contents::default().with("w", matrix(3e38)).to_bytes());
    let report = folder.quantize(&options(Format::NVFP4_2D)).unwrap();
    let told = report.to_string();
    assert!(told.contains("LOST: ") && told.contains("  w: 3e38 at [0, 0] comes back as inf"), "{told}");
    let back = folder.dequantize().unwrap().to_string();
    assert!(back.contains("LOST: ") && back.contains("  w: at [0, 0] comes back as inf"), "{back}");
    assert!(plain().quantize(&options(Format::NVFP4_2D)).unwrap().lost.is_empty());
}

/// One such value would take all of its block, or of its tensor, with it.
#[test]
fn a_value_that_is_rounded_to_infinity_first_is_reported_with_its_place_in_every_format() {
    let mut values = [1000.0; 1024];
    values[2 * 32 + 5] = -3.4e38;
    let folder = || Folder::with(&Contents::default().with("w", Tensor::f32s(&[32, 32], &values)).to_bytes());
    let quantizing = |format: &Format| !matches!(format, Format::F32 | Format::Bf16);
    for format in Format::CANONICAL.into_iter().filter(quantizing) {
        let rounded = QuantizeOptions { via: Via::Bf16, ..options(format) };
        refused(&folder(), &rounded, "tensor `w` holds -3.4e38 at [2, 5], which --via rounds to -inf");
        assert!(folder().quantize(&options(format)).is_ok(), "{format}");
        if format.check_weight().is_ok() {
            let sharded = QuantizeOptions { shards: NonZeroUsize::new(3), ..rounded };
            refused(&folder(), &sharded, "leave --via out, or the tensor");
        }
    }
}

#[test]
fn a_name_that_a_part_would_take_is_refused() {
    let contents = Contents::default().with("w", matrix(1.0)).with("w.amax", Tensor::f32s(&[1], &[0.0]));
    refused(&Folder::with(&contents.to_bytes()), &options(Format::NVFP4_2D), "two tensors `w.amax`");
}

#[test]
fn a_file_is_quantized_once() {
    let folder = plain();
    folder.quantize(&options(Format::NVFP4_2D)).unwrap();
    let again = folder.path("again");
    let error = quantize_checkpoint(&folder.output(), &again, &options(Format::Mxfp8), &mut ()).unwrap_err();
    assert!(error.to_string().contains("holds weights in nvfp4_2d already"), "{error}");
    let error = dequantize_checkpoint(&folder.input(), &again, false, &mut ()).unwrap_err();
    assert!(error.to_string().contains("has no `warpweft_quantized`"), "{error}");
    assert_eq!(folder.files(), ["in.safetensors", "out.safetensors"]);
}

#[test]
fn files_that_are_none_are_refused() {
    let folder = plain();
    let quantize = |input: &Path, output: &Path, replace| {
        let options = QuantizeOptions { replace, ..options(Format::NVFP4_2D) };
        quantize_checkpoint(input, output, &options, &mut ()).unwrap_err()
    };
    let here = folder.path(".");
    let missing = folder.path("missing");
    let nowhere = folder.path("no/where");
    let error = quantize(&missing, &folder.output(), false);
    assert!(matches!(&error, ToolError::File { action: "read", path, .. } if *path == missing), "{error}");
    assert!(matches!(quantize(&here, &folder.output(), false), ToolError::NotWeights { .. }));
    for replace in [false, true] {
        assert!(matches!(quantize(&folder.input(), &here, replace), ToolError::NotAFile { .. }));
        let error = quantize(&folder.input(), &nowhere, replace);
        assert!(matches!(&error, ToolError::File { path, .. } if *path == nowhere), "{error}");
        let told = error.to_string();
        assert!(told.ends_with("; check the path, and that its folder is there"), "{told}");
        assert!(!told.contains(".part"), "{told}");
        assert!(matches!(quantize(&folder.input(), &folder.input(), replace), ToolError::SameFile { .. }));
        let roundabout = folder.path("./in.safetensors");
        assert!(matches!(quantize(&folder.input(), &roundabout, replace), ToolError::SameFile { .. }));
    }
    assert_eq!(folder.files(), ["in.safetensors"]);
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_waiting_for_it_and_a_link_to_the_input_is_the_input() {
    let folder = plain();
    let pipe = folder.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = folder.path("link");
    std::os::unix::fs::symlink(folder.input(), &link).unwrap();
    let options = QuantizeOptions { replace: true, ..options(Format::NVFP4_2D) };
    let quantize =
        |input: &Path, output: &Path| quantize_checkpoint(input, output, &options, &mut ()).unwrap_err();
    assert!(matches!(quantize(&pipe, &folder.output()), ToolError::NotAFile { .. }));
    assert!(matches!(quantize(&folder.input(), &pipe), ToolError::NotAFile { .. }));
    assert!(matches!(quantize(&folder.input(), &link), ToolError::SameFile { .. }));
    assert_eq!(folder.files(), ["in.safetensors", "link", "pipe"]);
}

#[test]
fn a_file_is_replaced_only_when_asked_and_only_by_a_whole_one() {
    let folder = plain();
    std::fs::write(folder.output(), "precious").unwrap();
    let error = folder.quantize(&options(Format::NVFP4_2D)).unwrap_err();
    assert!(matches!(error, ToolError::Exists { .. }) && error.to_string().contains("--force"), "{error}");

    // It fails while it writes: the older file stays.
    let broken = Contents::default().with("a", matrix(1.0)).with("w", matrix(f32::INFINITY));
    std::fs::write(folder.path("broken"), broken.to_bytes()).unwrap();
    let force = QuantizeOptions { replace: true, ..options(Format::NVFP4_2D) };
    quantize_checkpoint(&folder.path("broken"), &folder.output(), &force, &mut ()).unwrap_err();
    assert_eq!(std::fs::read(folder.output()).unwrap(), b"precious");

    folder.quantize(&force).unwrap();
    assert!(folder.read("out.safetensors").tensors.contains_key("w.amax"));
    assert_eq!(folder.files(), ["broken", "in.safetensors", "out.safetensors"]);
}

#[cfg(unix)]
#[test]
fn an_output_may_be_read_by_whoever_may_read_other_new_files() {
    use std::os::unix::fs::PermissionsExt;
    let folder = plain();
    folder.quantize(&options(Format::NVFP4_2D)).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&folder.output()), mode(&folder.input()));
}

/// A quantized file of which one thing was changed.
fn tampered(change: impl Fn(&mut Contents)) -> String {
    let folder = plain();
    folder.quantize(&options(Format::NVFP4_2D)).unwrap();
    let mut contents = folder.read("out.safetensors");
    change(&mut contents);
    std::fs::write(folder.output(), contents.to_bytes()).unwrap();
    let error = folder.dequantize().unwrap_err().to_string();
    assert_eq!(folder.files(), ["in.safetensors", "out.safetensors"], "{error}");
    error
}

fn with_manifest(change: impl Fn(&mut serde_json::Value)) -> String {
    tampered(|contents| {
        let text = contents.metadata.get_mut("warpweft_quantized").unwrap();
        let mut manifest = serde_json::from_str(text).unwrap();
        change(&mut manifest);
        *text = manifest.to_string();
    })
}

#[test]
fn a_part_that_is_missing_or_of_another_shape_is_named() {
    let error = tampered(|contents| drop(contents.tensors.remove("w.rowwise_scale")));
    assert!(error.contains("tensor `w.rowwise_scale` is missing"), "{error}");
    for part in ["w.rowwise_data", "w.columnwise_data"] {
        let error = tampered(|contents| {
            contents.tensors.insert(part.to_owned(), Tensor::new(Dtype::U8, &[4], vec![0; 4]));
        });
        assert!(
            error.contains(&format!("tensor `{part}` is U8 of shape [4], and not U8 of shape")),
            "{error}"
        );
    }
    let error = tampered(|contents| drop(contents.tensors.insert("w".to_owned(), matrix(1.0))));
    assert!(error.contains("two tensors `w`"), "{error}");
}

#[test]
fn metadata_that_makes_no_sense_is_refused() {
    let error = tampered(|contents| {
        contents.metadata.insert("warpweft_quantized".to_owned(), "nonsense".to_owned());
    });
    assert!(error.contains("`warpweft_quantized` is not understood"), "{error}");
    type Change = fn(&mut serde_json::Value);
    let changes: [(Change, &str); 6] = [
        (|manifest| manifest["version"] = 3.into(), "has version 3, and this program reads 1 to 2"),
        (|manifest| manifest["format"] = "fp3".into(), "unknown format `fp3`"),
        (|manifest| manifest["format"] = "bf16".into(), "names bf16, which does not quantize"),
        (|manifest| manifest["extra"] = 1.into(), "unknown field `extra`"),
        (|manifest| manifest["tensors"]["w"]["shape"] = serde_json::json!([16, 40]), "that cannot be: "),
        (
            |manifest| manifest["tensors"]["w"]["shape"] = serde_json::json!([u64::MAX, 16]),
            "more elements than this machine can address",
        ),
    ];
    for (change, complaint) in changes {
        let error = with_manifest(change);
        assert!(error.contains(complaint), "{error}");
    }
    let error = with_manifest(|manifest| {
        manifest["tensors"]["x"] = serde_json::json!({"dtype": "F32", "shape": [16, 16]});
    });
    assert!(error.contains("tensor `x.rowwise_data` is missing"), "{error}");
}
