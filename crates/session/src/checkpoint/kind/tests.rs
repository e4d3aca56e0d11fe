//! The kinds of files of weights, recognized by dtypes, shapes and names.

use super::*;

fn found(tensors: &[(&str, Dtype, &[usize])], stated: &Stated) -> Vec<String> {
    let listed = tensors.iter().map(|(name, dtype, shape)| Listed::new(name, *dtype, shape));
    NotWeights::of(listed, stated).tensors.into_keys().collect()
}

/// FK-2.
#[test]
fn tensors_of_plain_models_are_weights_whatever_they_are_called() {
    let nothing = Stated::default();
    let plain: [&[(&str, Dtype, &[usize])]; 9] = [
        // A mask beside a number, as in GPT-2.
        &[("attn.bias", Dtype::U8, &[1, 1, 64, 64]), ("attn.masked_bias", Dtype::F32, &[])],
        // Scales of a cache, which a model in bf16 may have.
        &[("attn.k_scale", Dtype::F32, &[1]), ("attn.q.weight", Dtype::BF16, &[64, 64])],
        &[("logit_scale", Dtype::F32, &[]), ("position_ids", Dtype::I64, &[1, 77])],
        // Scales of a layer, and a table of them.
        &[("block.scale_shift_table", Dtype::F32, &[6, 64]), ("block.up.weight", Dtype::BF16, &[64, 64])],
        // 8-bit floats without scales.
        &[("up.weight", Dtype::F8_E4M3, &[64, 64]), ("up.bias", Dtype::BF16, &[64])],
        // Two weights that are called like averages, in a model that has others.
        &[("f.m", Dtype::F32, &[8, 8]), ("f.v", Dtype::F32, &[8, 8]), ("g.weight", Dtype::F32, &[8, 8])],
        // One number beside 8-bit floats that it is not named for, as in a text encoder cast to them.
        &[
            ("model.logit_scale", Dtype::F16, &[]),
            ("model.positional_embedding", Dtype::F8_E4M3, &[77, 64]),
            ("model.text_projection", Dtype::F8_E4M3, &[64, 64]),
        ],
        // One momentum among weights.
        &[("up.exp_avg", Dtype::F32, &[8, 8]), ("up.weight", Dtype::F32, &[8, 8])],
        // What is larger than the codes is no scale of theirs.
        &[("up.weight", Dtype::I8, &[8, 8]), ("up.scale_table", Dtype::F32, &[64, 64])],
    ];
    for tensors in plain {
        assert_eq!(found(tensors, &nothing), [""; 0], "{tensors:?}");
    }
}

/// FK-2.
#[test]
fn what_is_stated_decides_only_about_what_is_no_plain_float() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(folder.path().join("config.json"), r#"{"quantization_config":{"quant_method":"fp8"}}"#)
        .unwrap();
    let stated = Stated::of(&path, []);
    assert!(stated.quantized().is_some_and(|says| says.contains("by `fp8`")), "{stated:?}");
    let plain = ("up.weight", Dtype::BF16, &[64, 64][..]);
    assert_eq!(found(&[plain], &stated), [""; 0], "it was dequantized");
    let codes = ("down.weight", Dtype::F8_E4M3, &[64, 64][..]);
    assert_eq!(found(&[plain, codes], &stated), ["down.weight"]);
    // The codes are in another file.
    let scales = ("gate.weight_scale_inv", Dtype::F32, &[4, 4][..]);
    assert_eq!(found(&[plain, scales], &stated), ["gate.weight_scale_inv"]);
    assert_eq!(found(&[plain, scales], &Stated::default()), [""; 0]);
    // Scales of a layer, which no codes have.
    for name in ["scale_shift_table", "block.attn.logit_scale"] {
        assert_eq!(found(&[plain, (name, Dtype::F32, &[6, 64])], &stated), [""; 0], "{name}");
    }
    // No method is none.
    let config = |text: &str| {
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        Stated::of(&path, [])
    };
    assert!(config(r#"{"quantization":{"quant_algo":null}}"#).quantized().is_none());
    assert!(config(r#"{"quantization":{"quant_algo":"FP8"}}"#).quantized().is_some());
}

/// FK-2.
#[test]
fn one_scale_belongs_to_the_weight_that_it_is_named_for() {
    let codes = ("up.weight", Dtype::F8_E4M3, &[64, 64][..]);
    for name in ["up.scale", "up.scale_weight", "up.weight_scale", "up.weights_scaling_factor"] {
        assert_eq!(found(&[codes, (name, Dtype::F32, &[])], &Stated::default()).len(), 2, "{name}");
    }
}

/// FK-3: a comparison of all with all would take minutes here.
#[test]
fn a_module_of_any_number_of_codes_and_scales_is_told_in_time() {
    let names: Vec<[String; 2]> = (0..20_000).map(|at| [format!("w{at}"), format!("w{at}_scale")]).collect();
    let listed = names.iter().flat_map(|[codes, scale]| {
        let (name, dtype) = (codes.as_str(), Dtype::F8_E4M3);
        [Listed::new(name, dtype, &[64, 64]), Listed::new(scale, Dtype::F32, &[64])]
    });
    let found = NotWeights::of(listed, &Stated::default());
    assert!(names.iter().all(|[codes, _]| found.what(codes).is_some()));
}

/// FK-3: the dimensions of one scale, or its name, read again for each of the codes would take hours here.
#[test]
fn a_scale_of_any_number_of_dimensions_or_a_name_of_any_length_is_read_once() {
    let (ones, long) = (vec![1; 10_000_000], format!("{}_scale", "x".repeat(10_000_000)));
    let codes: Vec<String> = (0..20_000).map(|at| format!("w{at}")).collect();
    let scales = [
        Listed::new("scale", Dtype::F32, &[2]),
        Listed::new("w_scale", Dtype::F32, &ones),
        Listed::new(&long, Dtype::F32, &[2]),
    ];
    let listed = codes.iter().map(|name| Listed::new(name, Dtype::F8_E4M3, &[64, 64])).chain(scales);
    let found = NotWeights::of(listed, &Stated::default());
    assert!(codes.iter().all(|codes| found.what(codes).is_some()));
    assert!(found.what("w_scale").is_some_and(|what| what.len() < 1000));
    assert!(scales[1].described().len() < 500);
}
