//! Every case of every quantizer file, bit for bit, through the tool: the cases' inputs are the tensors of a
//! checkpoint.

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::Command;

use safetensors::SafeTensors;
use warpweft_cli::QuantizeOptions;
use warpweft_format::Format;
use warpweft_testing::golden_file::{GoldenFile, assert_bytes, assert_f32s};

use super::checkpoint::{Contents, Folder, Tensor};

const FILES: [&str; 8] = [
    "nvfp4_2d",
    "nvfp4_1d",
    "fp8_block128_pow2",
    "fp8_block128_f32scale",
    "fp8_block1x128_pow2",
    "mxfp8",
    "fp8_tensor_e4m3",
    "fp8_tensor_e5m2_pow2",
];

const PARTS: [&str; 4] = ["rowwise_data", "rowwise_scale", "columnwise_data", "columnwise_scale"];

/// A folder with the inputs of all cases of a golden file as a checkpoint.
fn inputs(file: &str) -> Folder {
    let golden = GoldenFile::open(file);
    let mut contents = Contents::default();
    for case in golden.cases() {
        let shape = [case.dimension("M"), case.dimension("K")];
        contents = contents.with(&format!("{}/input", case.name), Tensor::f32s(&shape, &case.f32s("input")));
    }
    Folder::with(&contents.to_bytes())
}

/// Compares dtype, shape and bytes of every part, then what it dequantizes to.
fn compare(file: &str, quantized: &Contents, back: &Contents) {
    let golden = GoldenFile::open(file);
    let bytes =
        std::fs::read(format!("{}/../../tests/golden/{file}.safetensors", env!("CARGO_MANIFEST_DIR")))
            .unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let cases = golden.cases();
    for case in &cases {
        let what = |field: &str| format!("{file}: {}/{field}", case.name);
        for part in PARTS {
            let expected = tensors.tensor(&format!("{}/{part}", case.name)).unwrap();
            let actual = quantized.tensor(&format!("{}/input.{part}", case.name));
            assert_eq!(
                (actual.dtype, &actual.shape[..]),
                (expected.dtype(), expected.shape()),
                "{}",
                what(part)
            );
            assert_bytes(&what(part), &actual.bytes, expected.data());
        }
        let amax = quantized.tensor(&format!("{}/input.amax", case.name));
        assert_eq!(amax.shape, [1]);
        assert_f32s(&what("amax"), &amax.values(), &case.f32s("amax"));

        let values = back.tensor(&format!("{}/input", case.name));
        assert_eq!(values.shape, [case.dimension("M"), case.dimension("K")]);
        assert_f32s(&what("dequantized"), &values.values(), &case.f32s("dequantized"));
    }
    assert_eq!(quantized.tensors.len(), 5 * cases.len(), "{file}: nothing else is in the file");
    assert_eq!(back.tensors.len(), cases.len(), "{file}: nothing else is in the file");
}

/// TL-4, FO-2. Conformance I1.
#[test]
fn i1_every_golden_case_is_bit_exact_through_the_tool() {
    for file in FILES {
        let folder = inputs(file);
        let report = folder.quantize(&QuantizeOptions::new(file.parse().unwrap())).unwrap();
        assert!(report.copied.is_empty(), "{file}: every case is quantized");
        folder.dequantize().unwrap();
        compare(file, &folder.read("out.safetensors"), &folder.read("back.safetensors"));
    }
}

/// Conformance I1.
#[test]
fn i1_every_golden_case_is_bit_exact_through_the_program() {
    for file in FILES {
        let folder = inputs(file);
        let run = |arguments: &[&str], from: &Path, to: &Path| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_warpweft"));
            let output = program.arg("quantize").args(arguments).args([from, to]).output().unwrap();
            let complaint = String::from_utf8(output.stderr).unwrap();
            let table = String::from_utf8(output.stdout).unwrap();
            // One case holds values that do not come back.
            let lost = table.contains("LOST: ");
            assert_eq!(output.status.code(), Some(i32::from(lost)), "{file}: {complaint}");
            assert_eq!(complaint.contains("values that do not come back"), lost, "{file}: {complaint}");
            assert_eq!(complaint.is_empty(), !lost, "{file}: {complaint}");
            table
        };
        let table = run(&["--format", file], &folder.input(), &folder.output());
        run(&["--dequantize"], &folder.output(), &folder.path("back.safetensors"));
        for case in GoldenFile::open(file).cases() {
            assert!(table.lines().any(|line| line.starts_with(&format!("{}/input ", case.name))), "{table}");
        }
        compare(file, &folder.read("out.safetensors"), &folder.read("back.safetensors"));
    }
}

/// FO-3 on every golden case, through the flat partial cast.
#[test]
fn any_number_of_simulated_ranks_writes_the_same_file() {
    for file in FILES {
        let format: Format = file.parse().unwrap();
        if format.check_weight().is_err() {
            continue;
        }
        let folder = inputs(file);
        let mut options = QuantizeOptions::new(format);
        folder.quantize(&options).unwrap();
        let whole = std::fs::read(folder.output()).unwrap();
        options.replace = true;
        for ranks in [1, 3, 8] {
            options.shards = NonZeroUsize::new(ranks);
            folder.quantize(&options).unwrap();
            assert!(std::fs::read(folder.output()).unwrap() == whole, "{file} over {ranks} ranks");
        }
    }
}
