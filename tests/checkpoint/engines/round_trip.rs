//! Round trips through engine folders: written values are read again, and equal those that training computes with.

use std::collections::BTreeSet;

use warpweft::bf16;
use warpweft_format::{Directions, Format, Orientation, Shape, Via, quantize};
use warpweft_session::checkpoint::PretrainedFiles;
use warpweft_session::checkpoint::engines::{Dialect, EngineOptions, LeftAlone};

use super::{Bf16, convert, llama, values, write};

/// The layers of [`llama`] that are quantized, with the rows of the tensor that each is.
fn layers(model: &[Bf16]) -> Vec<(String, Shape, Vec<f32>)> {
    let mut layers = Vec::new();
    for Bf16 { name, shape, values } in model {
        let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
        match shape[..] {
            [rows, cols] if name.contains("_proj") => {
                layers.push((name.clone(), Shape { rows, cols }, values))
            }
            [_, rows, cols] => {
                layers.extend(values.chunks(rows * cols).enumerate().map(|(expert, values)| {
                    let name = name.replace("experts.", &format!("experts.{expert}."));
                    (format!("{name}.weight"), Shape { rows, cols }, values.to_vec())
                }))
            }
            _ => {}
        }
    }
    layers
}

/// Layers that engines fuse, by their name.
fn group(name: &str) -> &str {
    let before = ["q_proj", "k_proj", "v_proj", "w1", "w3"].iter().find_map(|part| name.split_once(part));
    before.map_or(name, |(before, _)| before)
}

/// EN-1, EN-2: with the largest magnitude of the group, the codes and scales are those of training; and so are the
/// values, but for the order of operations in NVFP4.
#[test]
fn every_dialect_and_format_comes_back_as_training_computes() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    let model = llama();
    write(&source, &model, r#"{"model_type": "llama"}"#);
    let files = PretrainedFiles::open_model(&source).unwrap();
    let mut formats = BTreeSet::new();
    for dialect in Dialect::ALL {
        for format in dialect.formats() {
            formats.insert(format);
            let target = folder.path().join(format!("{dialect}-{format}"));
            let mut options = EngineOptions::new(dialect, format);
            options.model_folder = Some(source.clone());
            options.bytes_of_file = 100_000;
            let report = convert(&files, options, &target).unwrap();
            assert!(report.files > 1);
            assert_eq!(report.copied, ["tokenizer.json"]);
            let back = PretrainedFiles::open_model(&target).unwrap();
            let layers = layers(&model);
            assert_eq!(report.layers.len(), layers.len());
            let (mut all, mut different) = (0, 0);
            for (name, shape, master) in &layers {
                let fused = layers
                    .iter()
                    .filter(|(other, ..)| format.needs_tensor_amax() && group(other) == group(name));
                let largest = fused
                    .flat_map(|(.., values)| values)
                    .fold(0.0_f32, |largest, value| largest.max(value.abs()));
                // The largest magnitude of the group in a row of its own, so that it is that of the tensor.
                let mut tall = master.clone();
                tall.extend(std::iter::repeat_n(
                    if format.needs_tensor_amax() { largest } else { 0.0 },
                    128 * shape.cols,
                ));
                let tall_shape = Shape::new(shape.rows + 128, shape.cols);
                let quantized = quantize(format, Directions::Rowwise, Via::None, tall_shape, &tall).unwrap();
                let trained = quantized.dequantize(Orientation::Rowwise).unwrap();
                for (trained, read) in trained.iter().zip(values(&back, name)) {
                    all += 1;
                    let (trained, read) = (bf16::from_f32(*trained).to_f32(), bf16::from_f32(read).to_f32());
                    if trained != read {
                        different += 1;
                        let ulp = f32::from_bits(trained.to_bits() ^ 0x1_0000) - trained;
                        assert!(
                            (trained - read).abs() <= ulp.abs() * 1.01,
                            "{format} {name}: {trained} {read}"
                        );
                    }
                }
            }
            match format {
                Format::Nvfp4(_) => {
                    println!("{dialect} {format}: {different} of {all} values differ in bf16")
                }
                _ => assert_eq!(different, 0, "{dialect} {format}"),
            }
            // What is left alone is there to the bit.
            assert_eq!(values(&back, "lm_head.weight"), values(&files, "lm_head.weight"));
            let routers =
                report.left.iter().filter(|(_, why)| matches!(why, LeftAlone::Kept { what: "a router" }));
            assert_eq!(routers.count(), 1);
            let differing = report.groups.iter().filter(|group| group.ratio > 1.0).count();
            assert_eq!(differing, if format.needs_tensor_amax() { 3 } else { 0 });
        }
    }
    assert!(formats.len() >= 5);
}

#[test]
fn several_formats_in_one_model_are_groups_of_its_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("model"), folder.path().join("mixed"));
    write(&source, &llama(), "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    for (dialect, other) in
        [(Dialect::CompressedTensors, Format::FP8_BLOCK128_POW2), (Dialect::ModelOpt, Format::Mxfp8)]
    {
        let mut options = EngineOptions::new(dialect, Format::NVFP4_2D);
        options.rules = vec![("*self_attn.*".to_owned(), Some(other)), ("*down_proj*".to_owned(), None)];
        let report = convert(&files, options, &target).unwrap();
        let formats: BTreeSet<Format> = report.layers.iter().map(|layer| layer.format).collect();
        assert_eq!(formats, BTreeSet::from([Format::NVFP4_2D, other]));
        let back = PretrainedFiles::open_model(&target).unwrap();
        assert_eq!(back.tensor_names().len(), 8 + 3 + 2);
        for layer in &report.layers {
            assert_eq!(values(&back, &format!("{}.weight", layer.name)).len(), layer.shape.elements());
        }
        let kept = "model.layers.0.mlp.down_proj.weight";
        assert_eq!(values(&back, kept), values(&files, kept));
        std::fs::remove_dir_all(&target).unwrap();
    }
}
