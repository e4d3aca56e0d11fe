//! Invariants for arbitrary input bytes, shared by the bounded runs of the test suite and by `fuzz/`.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "a fuzz target takes its part, and fails by panicking"
)]

use std::path::Path;

use safetensors::SafeTensors;
use warpweft_cli::{QuantizeOptions, ToolError, dequantize_checkpoint, quantize_checkpoint};
use warpweft_format::Format;
use warpweft_session::checkpoint::{CheckpointStore, FileStore, PretrainedFiles};
use warpweft_session::config::Config;

/// Any bytes as a checkpoint: each reader takes them or refuses them. A file that is written is valid and
/// whole, and otherwise nothing is left behind. `folder` is an empty folder, and empty again afterwards.
/// Whether any conversion succeeded is returned.
pub fn checkpoint(bytes: &[u8], folder: &Path) -> bool {
    let (input, output) = (folder.join("in"), folder.join("out"));
    std::fs::write(&input, bytes).unwrap();
    let quantize = |format| quantize_checkpoint(&input, &output, &QuantizeOptions::new(format), &mut ());
    let dequantize = || dequantize_checkpoint(&input, &output, false, &mut ());
    let mut succeeded = false;
    for result in
        [&|| quantize(Format::NVFP4_2D) as _, &|| quantize(Format::FP8_BLOCK1X128_POW2), &dequantize]
            as [&dyn Fn() -> Result<_, ToolError>; 3]
    {
        match result() {
            Ok(report) => {
                let written = std::fs::read(&output).unwrap();
                assert_eq!(written.len() as u64, report.output_bytes);
                // Sound by the reckoning of the library, too.
                SafeTensors::deserialize(&written).unwrap();
                std::fs::remove_file(&output).unwrap();
                succeeded = true;
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_eq!(folder.read_dir().unwrap().count(), 1, "only the input is there");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _ = runtime.block_on(FileStore::new(&input).load());
    pretrained(&input);
    std::fs::remove_file(&input).unwrap();
    succeeded
}

/// Any file as one of weights: what is in an opened one can be read, or is refused.
fn pretrained(path: &Path) {
    let files = match PretrainedFiles::open([path]) {
        Ok(files) => files,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for name in files.tensor_names() {
        let shape = files.shape(name).unwrap();
        let (columns, elements) = (shape.last().copied().unwrap_or(1), shape.iter().product::<usize>());
        // Larger ones than the file are none of f32, bf16 or f16.
        let mut values = vec![0.0; elements.min(1 << 16)];
        let _ = files.rows(name, 0, columns, &mut values);
        let _ = files.rows(name, usize::MAX, columns, &mut values);
    }
}

/// Any text as a configuration: it is refused, or valid and prints as what loads back as the same (CF-1, CF-4).
/// Whether it was accepted is returned.
pub fn configuration(text: &str) -> bool {
    match Config::from_toml_str(text, "hostile.toml") {
        Ok(config) => {
            config.validate().unwrap();
            assert_eq!(Config::from_toml_str(&config.effective(), "effective.toml").unwrap(), config);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}
