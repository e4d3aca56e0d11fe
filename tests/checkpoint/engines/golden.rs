//! Folders that the packages of the engines wrote.

use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use warpweft::f16;
use warpweft_session::checkpoint::PretrainedFiles;

use super::values;

/// EN-3.
#[test]
fn what_the_packages_wrote_is_read_as_they_read_it_to_the_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/engines");
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        let files = PretrainedFiles::open_model(&folder).unwrap_or_else(|error| panic!("{error}"));
        let golden = PretrainedFiles::open([folder.join("values.safetensors")]).unwrap();
        assert!(golden.tensor_names().len() > 0);
        for name in golden.tensor_names() {
            let (ours, theirs) = (values(&files, name), values(&golden, name));
            let differs =
                ours.iter().zip(&theirs).position(|(ours, theirs)| ours.to_bits() != theirs.to_bits());
            assert_eq!(differs, None, "{} {name}", folder.display());
            // From the middle of a block as well.
            let cols = files.shape(name).unwrap()[1];
            let mut row = vec![0.0; cols];
            let last = ours.len() / cols - 1;
            files.rows(name, last, cols, &mut row).unwrap();
            assert_eq!(row, ours[last * cols..]);
            compared += 1;
        }
        assert!(
            files.tensor_names().all(|name| !name.contains("weight_")),
            "codes and scales are no weights"
        );
    }
    assert!(compared > 40, "{compared}");
}

/// What no golden folder has: scales of rows, and scales in f16, which round what they are multiplied with.
#[test]
fn scales_of_rows_and_scales_in_f16_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let weights = |strategy: &str| serde_json::json!({ "weights": { "num_bits": 8, "type": "float", "strategy": strategy, "symmetric": true } });
    let config = serde_json::json!({ "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": { "group_0": weights("channel"), "group_1": weights("tensor") },
    }});
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    // 1, 1.5 and −2 in E4M3.
    let codes = [0x38_u8, 0x3c, 0xc0, 0x38];
    let rows: Vec<u8> = [0.5_f32, 3.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
    // A third, which f16 rounds, and so it does the products.
    let third = f16::from_f32(1.0 / 3.0);
    let tensor = third.to_le_bytes();
    let view = |dtype, shape: &[usize], bytes| TensorView::new(dtype, shape.to_vec(), bytes).unwrap();
    let tensors = [
        ("rows.weight", view(Dtype::F8_E4M3, &[2, 2], &codes[..])),
        ("rows.weight_scale", view(Dtype::F32, &[2, 1], &rows[..])),
        ("whole.weight", view(Dtype::F8_E4M3, &[2, 2], &codes[..])),
        ("whole.weight_scale", view(Dtype::F16, &[1], &tensor[..])),
    ];
    safetensors::serialize_to_file(tensors, None, &folder.path().join("model.safetensors")).unwrap();
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    assert_eq!(values(&files, "rows.weight"), [0.5, 0.75, -6.0, 3.0]);
    let by_third = |value: f32| f16::from_f32(value * third.to_f32()).to_f32();
    assert_eq!(values(&files, "whole.weight"), [1.0, 1.5, -2.0, 1.0].map(by_third));
}
