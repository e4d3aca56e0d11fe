//! Engine folders as written, byte for byte as the packages of the engines have read them.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use warpweft_format::Format;
use warpweft_session::checkpoint::PretrainedFiles;
use warpweft_session::checkpoint::engines::{Dialect, EngineOptions};

use super::{Bf16, convert, tensor, write};

/// The Llama of `tests/engines/make_written.py`.
fn model() -> Vec<Bf16> {
    let square = |name: &str| tensor(&format!("model.layers.0.{name}.weight"), &[128, 128], 1.0);
    let norm = |name: &str| tensor(&format!("model.{name}.weight"), &[128], 1.0);
    let mut model = ["gate_proj", "up_proj", "down_proj"].map(|name| square(&format!("mlp.{name}"))).to_vec();
    model.extend(["q_proj", "k_proj", "v_proj", "o_proj"].map(|name| square(&format!("self_attn.{name}"))));
    model.extend(["norm", "layers.0.input_layernorm", "layers.0.post_attention_layernorm"].map(norm));
    model.extend(
        ["model.embed_tokens", "lm_head"].map(|name| tensor(&format!("{name}.weight"), &[32, 128], 1.0)),
    );
    model
}

/// EN-1.
#[test]
fn folders_are_those_that_the_packages_have_read() {
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engines/written.json");
    let written: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_slice(&std::fs::read(written).unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    write(&source, &model(), "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    let mut compared = 0;
    for (dialect, formats) in written {
        for (format, digest) in formats {
            let target = folder.path().join(format!("{dialect}-{format}"));
            let (dialect, form): (Dialect, Format) = (dialect.parse().unwrap(), format.parse().unwrap());
            convert(&files, EngineOptions::new(dialect, form), &target).unwrap();
            let bytes = std::fs::read(target.join("model.safetensors")).unwrap();
            let found: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, digest, "{dialect} {format}");
            compared += 1;
        }
    }
    assert!(compared >= 8, "{compared}");
}
