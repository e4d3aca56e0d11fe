//! Contents of the files that the tool writes.

use half::{bf16, f16};
use safetensors::tensor::Dtype;
use warpweft_cli::QuantizeOptions;
use warpweft_format::{Directions, Format, Orientation, Shape, Via, quantize};
use warpweft_testing::random_weight::normal;

use super::checkpoint::{Contents, Folder, Tensor};

const SHAPE: Shape = Shape::new(48, 80);

/// Matrices of all three dtypes among tensors of all sorts.
fn mixed() -> Contents {
    let values = normal(SHAPE, 7);
    let shape = [SHAPE.rows, SHAPE.cols];
    let wide = values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect();
    let brain = values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect();
    let half = values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect();
    Contents::default()
        .with("blocks.0.up", Tensor::f32s(&shape, &values))
        .with("blocks.1.up", Tensor::new(Dtype::BF16, &shape, brain))
        .with("blocks.2.up", Tensor::new(Dtype::F16, &shape, half))
        .with("norm", Tensor::f32s(&[7], &values[..7]))
        .with("scalar", Tensor::f32s(&[], &values[..1]))
        .with("empty", Tensor::f32s(&[0, 3], &[]))
        .with("kernel", Tensor::f32s(&[2, 3, 2, 2], &values[..24]))
        .with("double", Tensor::new(Dtype::F64, &shape, wide))
        .with("tokens", Tensor::new(Dtype::I64, &[2, 2], (0..32).collect()))
        .with("mask", Tensor::new(Dtype::BOOL, &[3], vec![0, 1, 1]))
        .with("codes", Tensor::new(Dtype::F8_E4M3, &[16, 16], (0..=255).collect()))
        .with("nibbles", Tensor::new(Dtype::F4, &[3, 2], vec![1, 2, 3]))
        .with_metadata("format", "pt")
        .with_metadata("note", "über \"alles\"")
}

/// The matrices of [`mixed`] as f32.
fn matrices() -> [(&'static str, Vec<f32>); 3] {
    let values = normal(SHAPE, 7);
    let brain = values.iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
    let half = values.iter().map(|value| f16::from_f32(*value).to_f32()).collect();
    [("blocks.0.up", values), ("blocks.1.up", brain), ("blocks.2.up", half)]
}

fn options(format: Format) -> QuantizeOptions {
    QuantizeOptions::new(format)
}

#[test]
fn matrices_of_every_float_dtype_are_quantized_as_they_are_or_through_bf16() {
    for via in [Via::None, Via::Bf16] {
        let folder = Folder::with(&mixed().to_bytes());
        folder.quantize(&QuantizeOptions { via, ..options(Format::NVFP4_2D) }).unwrap();
        let written = folder.read("out.safetensors");
        for (name, values) in matrices() {
            let expected = quantize(Format::NVFP4_2D, Directions::Both, via, SHAPE, &values).unwrap();
            let (rowwise, columnwise) = (expected.rowwise.unwrap(), expected.columnwise.unwrap());
            for (part, bytes) in [
                ("rowwise_data", rowwise.data),
                ("rowwise_scale", rowwise.scale),
                ("columnwise_data", columnwise.data),
                ("columnwise_scale", columnwise.scale),
                ("amax", expected.amax.to_le_bytes().to_vec()),
            ] {
                assert_eq!(written.tensor(&format!("{name}.{part}")).bytes, bytes, "{name}.{part} {via:?}");
            }
        }
    }
}

#[test]
fn all_other_tensors_and_the_metadata_are_kept() {
    let before = mixed();
    let folder = Folder::with(&before.to_bytes());
    let report = folder.quantize(&options(Format::FP8_BLOCK128_F32SCALE)).unwrap();
    let written = folder.read("out.safetensors");
    let others: Vec<&str> = before.names().into_iter().filter(|name| !name.starts_with("blocks")).collect();
    assert_eq!((others.len(), report.copied.len(), report.tensors.len()), (9, 9, 3));
    for name in &others {
        assert_eq!(written.tensor(name), before.tensor(name), "{name}");
    }
    assert_eq!(written.tensors.len(), 9 + 3 * 5);
    let mut metadata = written.metadata.clone();
    let manifest: serde_json::Value =
        serde_json::from_str(&metadata.remove("warpweft_quantized").unwrap()).unwrap();
    assert_eq!(metadata, before.metadata);
    assert_eq!((&manifest["format"], &manifest["version"]), (&"fp8_block128_f32scale".into(), &2.into()));
    let original = serde_json::json!({"dtype": "BF16", "shape": [48, 80]});
    assert_eq!(manifest["tensors"]["blocks.1.up"], original);

    // The way back: matrices as f32, all else as it was.
    folder.dequantize().unwrap();
    let back = folder.read("back.safetensors");
    assert_eq!(back.names(), before.names());
    assert_eq!(back.metadata, before.metadata);
    for name in &others {
        assert_eq!(back.tensor(name), before.tensor(name), "{name}");
    }
    for (name, values) in matrices() {
        let quantized =
            quantize(Format::FP8_BLOCK128_F32SCALE, Directions::Rowwise, Via::None, SHAPE, &values).unwrap();
        let expected = quantized.dequantize(Orientation::Rowwise).unwrap();
        assert_eq!(back.tensor(name), &Tensor::f32s(&[SHAPE.rows, SHAPE.cols], &expected), "{name}");
    }
}

#[test]
fn the_report_counts_bytes_and_measures_the_error() {
    let folder = Folder::with(&mixed().to_bytes());
    let report = folder.quantize(&options(Format::FP8_TENSOR_E4M3)).unwrap();
    assert_eq!(report.input_bytes, folder.input().metadata().unwrap().len());
    assert_eq!(report.output_bytes, folder.output().metadata().unwrap().len());
    let tensor = &report.tensors[0];
    let elements = SHAPE.elements() as u64;
    // Two planes of codes; two scales and an amax.
    assert_eq!((tensor.bytes_before, tensor.bytes_after), (4 * elements, 2 * elements + 12));
    for (name, values) in matrices() {
        let tensor = report.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let back = quantize(Format::FP8_TENSOR_E4M3, Directions::Rowwise, Via::None, SHAPE, &values)
            .and_then(|quantized| quantized.dequantize(Orientation::Rowwise))
            .unwrap();
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
        let difference =
            norm(&mut values.iter().zip(&back).map(|(exact, near)| f64::from(*exact) - f64::from(*near)));
        let expected = difference / norm(&mut values.iter().map(|value| f64::from(*value)));
        let error = tensor.relative_error.unwrap();
        assert!((error - expected).abs() < 1e-9 && error > 1e-3 && error < 0.1, "{name}: {error}");
    }
}

#[test]
fn a_selection_leaves_all_else_as_it_is() {
    let before = mixed();
    let folder = Folder::with(&before.to_bytes());
    let only = vec!["blocks.0.*".to_owned(), "*.2.up".to_owned(), "norm".to_owned()];
    let report = folder.quantize(&QuantizeOptions { only, ..options(Format::NVFP4_1D) }).unwrap();
    let names: Vec<&str> = report.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["blocks.0.up", "blocks.2.up"]);
    let written = folder.read("out.safetensors");
    assert_eq!(written.tensor("blocks.1.up"), before.tensor("blocks.1.up"));
    assert_eq!(written.tensor("norm"), before.tensor("norm"));
    assert!(!written.tensors.contains_key("blocks.0.up"));
}

#[test]
fn a_shape_that_the_format_refuses_is_copied_and_told() {
    let values = normal(Shape::new(16, 20), 3);
    let before = Contents::default()
        .with("fits", Tensor::f32s(&[16, 16], &values[..256]))
        .with("odd", Tensor::f32s(&[16, 20], &values))
        .with("none", Tensor::f32s(&[0, 16], &[]));
    let folder = Folder::with(&before.to_bytes());
    let report = folder.quantize(&options(Format::NVFP4_2D)).unwrap();
    let copied = report.copied.iter();
    let mut refused: Vec<(&str, String)> =
        copied.map(|copied| (copied.name.as_str(), copied.reason.to_string())).collect();
    refused.sort();
    assert_eq!((refused.len(), refused[0].0, refused[1].0), (2, "none", "odd"));
    assert!(refused[0].1.contains("no elements"), "{}", refused[0].1);
    assert!(refused[1].1.contains("pad the columns to 32"), "{}", refused[1].1);
    let written = folder.read("out.safetensors");
    assert_eq!(written.tensor("odd"), before.tensor("odd"));
    assert_eq!(written.tensor("none"), before.tensor("none"));
    assert!(report.to_string().contains("odd: nvfp4_2d needs columns in multiples of 16"), "{report}");
}

/// FO-6.
#[test]
fn a_tensor_whose_rows_end_within_a_block_has_the_planes_of_whole_blocks_and_comes_back_in_its_own_shape() {
    for format in [Format::NVFP4_2D, Format::NVFP4_1D, Format::Mxfp8] {
        let (shape, whole) = (Shape::new(50, 64), Shape::new(64, 64));
        let mut values = normal(shape, 3);
        let written = |shape: Shape, values: &[f32]| {
            let tensor = Tensor::f32s(&[shape.rows, shape.cols], values);
            let folder = Folder::with(&Contents::default().with("embedding", tensor).to_bytes());
            folder.quantize(&QuantizeOptions { strict: true, ..options(format) }).unwrap();
            folder.dequantize().unwrap();
            (folder.read("out.safetensors").tensors, folder.read("back.safetensors"))
        };
        let (planes, back) = written(shape, &values);
        values.resize(whole.elements(), 0.0);
        let (of_whole, whole_back) = written(whole, &values);
        assert_eq!(planes, of_whole, "{format}");
        let (back, whole_back) = (back.tensor("embedding"), whole_back.tensor("embedding"));
        assert_eq!(back.shape, [50, 64]);
        assert_eq!(back.values(), whole_back.values()[..shape.elements()], "{format}");
    }
}

#[test]
fn columnwise_parts_may_be_stripped_before_going_back() {
    let folder = Folder::with(&mixed().to_bytes());
    folder.quantize(&options(Format::NVFP4_2D)).unwrap();
    folder.dequantize().unwrap();
    let whole = folder.read("back.safetensors");
    let mut stripped = folder.read("out.safetensors");
    let before = stripped.tensors.len();
    stripped.tensors.retain(|name, _| !name.contains(".columnwise_"));
    assert_eq!(stripped.tensors.len(), before - 6);
    std::fs::write(folder.output(), stripped.to_bytes()).unwrap();
    std::fs::remove_file(folder.path("back.safetensors")).unwrap();
    folder.dequantize().unwrap();
    assert_eq!(folder.read("back.safetensors"), whole);
}

#[test]
fn tensors_are_aligned_to_their_elements_in_the_order_of_the_safetensors_library() {
    let folder = Folder::with(&mixed().to_bytes());
    folder.quantize(&options(Format::FP8_BLOCK128_POW2)).unwrap();
    let written = std::fs::read(folder.output()).unwrap();
    // The library lays the same tensors out the same way. It prints metadata in the order of a hash map, so
    // only the data is compared; the header by what it says.
    let contents = folder.read("out.safetensors");
    let theirs = contents.to_bytes();
    let data =
        |bytes: &[u8]| bytes[8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize..].to_vec();
    assert!(data(&written) == data(&theirs));
    assert_eq!(written.len() - data(&written).len(), theirs.len() - data(&theirs).len());
    assert!((written.len() - data(&written).len()).is_multiple_of(8));
}

#[test]
fn every_tensor_that_is_copied_is_named_with_its_reason() {
    let folder = Folder::with(&mixed().to_bytes());
    let report = |pattern: &str| {
        let only = vec![pattern.to_owned()];
        folder.quantize(&QuantizeOptions { only, replace: true, ..options(Format::NVFP4_2D) }).unwrap()
    };
    let said = report("*").to_string();
    for line in [
        "  norm: F32 of shape [7] is no matrix",
        "  scalar: F32 of shape [] is no matrix",
        "  kernel: F32 of shape [2, 3, 2, 2] has 4 dimensions, and 2 or 3 are quantized",
        "  double: F64 of shape [48, 80], and F32, BF16 and F16 are quantized; convert it to one of these",
        "  tokens: I64 of shape [2, 2], and F32, BF16 and F16 are quantized; leave it out with --only",
        "  codes: F8_E4M3 of shape [16, 16], and F32, BF16 and F16 are quantized",
        "  empty: a weight of shape 0×3 has no elements",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let said = report("blocks.0.*").to_string();
    assert!(said.contains("  blocks.*.up (2 tensors): --only does not select it"), "{said}");
}
