//! Bad input for engines: a clear error, and nothing half-written.

use std::ops::ControlFlow;
use std::path::Path;

use warpweft_format::Format;
use warpweft_plan::model::Model;
use warpweft_session::checkpoint::engines::{Dialect, EngineModel, EngineOptions, NameMap};
use warpweft_session::checkpoint::{CheckpointError, PretrainedFiles};

use super::{Bf16, convert, llama, tensor, values, write};

fn nvfp4() -> EngineOptions {
    EngineOptions::new(Dialect::CompressedTensors, Format::NVFP4_2D)
}

fn names(folder: &Path) -> Vec<String> {
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// EN-4.
#[test]
fn what_fails_or_is_stopped_leaves_no_folder_behind() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    let mut model = llama();
    write(&source, &model, "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();

    // The output on the input, and on what is there.
    let error = convert(&files, nvfp4(), &source).unwrap_err();
    assert!(matches!(error, CheckpointError::Taken { .. }), "{error}");
    // Stopped at any piece.
    let target = folder.path().join("out");
    for pieces in [0, 3, 9] {
        let mut seen = 0;
        let stopped = EngineModel::plan(&files, nvfp4()).unwrap().write(&target, &mut |_, _| {
            seen += 1;
            if seen > pieces { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(matches!(stopped, Err(CheckpointError::Stopped)));
        assert_eq!(names(folder.path()), ["model"]);
    }
    // A value that does not come back, in the last layer.
    let last = model.iter_mut().find(|tensor| tensor.name.contains("w3")).unwrap();
    last.values[3 * 256 + 7] = warpweft::bf16::NAN;
    write(&source, &model, "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    let error = convert(&files, nvfp4(), &target).unwrap_err().to_string();
    assert!(error.contains("experts.0.w3") && error.contains("row 3, column 7"), "{error}");
    assert_eq!(names(folder.path()), ["model"]);
}

#[test]
fn what_cannot_be_asked_for_is_refused_before_a_value_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    write(&source, &llama(), "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    let refused = |options: EngineOptions| {
        let error = EngineModel::plan(&files, options).err().expect("it is refused").to_string();
        println!("{error}");
        error
    };
    let said = refused(EngineOptions::new(Dialect::ModelOpt, Format::FP8_BLOCK128_POW2));
    assert!(said.contains("nvfp4_2d") && said.contains("modelopt"), "{said}");
    let mut two = EngineOptions::new(Dialect::CompressedTensors, Format::Mxfp8);
    two.rules.push(("*k_proj*".to_owned(), Some(Format::NVFP4_2D)));
    assert!(refused(two).contains("one format"));
    let mut none = nvfp4();
    none.rules.push(("*".to_owned(), None));
    assert!(refused(none).contains("nothing would be quantized"));
    // What is quantized already.
    let target = folder.path().join("out");
    convert(&files, nvfp4(), &target).unwrap();
    let again = PretrainedFiles::open_model(&target).unwrap();
    let error = EngineModel::plan(&again, nvfp4()).err().expect("it is refused");
    assert!(error.to_string().contains("quantized already"), "{error}");
}

/// EN-2.
#[test]
fn parts_of_which_one_cannot_be_quantized_all_stay() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    let layer = |name: &str, rows| tensor(&format!("layers.0.{name}.weight"), &[rows, 256], 1.0);
    let model: Vec<Bf16> =
        vec![layer("q_proj", 256), layer("k_proj", 64), layer("v_proj", 64), layer("o_proj", 200)];
    write(&source, &model, "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    let options = EngineOptions::new(Dialect::DeepSeekFp8, Format::FP8_BLOCK128_POW2);
    let report = convert(&files, options, &folder.path().join("out")).unwrap();
    assert_eq!(report.layers.len(), 1);
    assert!(
        report.left.iter().all(|(_, why)| why.to_string().contains("no multiple of 128")),
        "{:?}",
        report.left
    );
}

/// EN-2: the last part of a product may end within a block, as DeepSeek's does.
#[test]
fn the_last_part_of_a_product_may_end_within_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let layer = |name: &str, rows| tensor(&format!("layers.0.self_attn.{name}.weight"), &[rows, 256], 1.0);
    let model = [layer("q_a_proj", 256), layer("kv_a_proj_with_mqa", 192)];
    write(folder.path(), &model, "{}");
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    let options = EngineOptions::new(Dialect::DeepSeekFp8, Format::FP8_BLOCK128_POW2);
    let report = convert(&files, options, &folder.path().join("out")).unwrap();
    assert_eq!(report.layers.len(), 2, "{:?}", report.left);
}

/// EN-2.
#[test]
fn experts_of_a_layer_are_quantized_alike_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let expert = |name: &str| tensor(&format!("layers.0.mlp.experts.{name}.weight"), &[64, 64], 1.0);
    let mut model = vec![expert("0.w1"), expert("0.w3"), expert("1.w1"), expert("1.w3"), expert("0.w2")];
    model.push(tensor("layers.0.o_proj.weight", &[64, 64], 1.0));
    model.push(tensor("layers.0.mlp.experts.0.w1.bias", &[64], 1.0));
    write(folder.path(), &model, "{}");
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    let mut options = nvfp4();
    options.rules = vec![("*.experts.1.*".to_owned(), Some(Format::Mxfp8))];
    let error = EngineModel::plan(&files, options.clone()).err().expect("it is refused").to_string();
    assert!(error.contains("one format"), "{error}");
    options.rules = vec![("*.w2".to_owned(), None)];
    let report = convert(&files, options, &folder.path().join("kept")).unwrap();
    assert_eq!(report.layers.len(), 1, "o_proj alone");
    let report = convert(&files, nvfp4(), &folder.path().join("all")).unwrap();
    assert_eq!(report.layers.len(), 6);
    // A stack of gate and up in one stays, and the experts with it.
    model.push(tensor("layers.0.mlp.experts.gate_up_proj", &[2, 64, 64], 1.0));
    write(folder.path(), &model, "{}");
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    let report = convert(&files, nvfp4(), &folder.path().join("stacked")).unwrap();
    assert_eq!(report.layers.len(), 1);
}

#[test]
fn what_is_said_for_nothing_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    write(&source, &llama(), "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    let refused = |change: fn(&mut EngineOptions), expected: &str| {
        let mut options = nvfp4();
        change(&mut options);
        let error = EngineModel::plan(&files, options).err().expect("it is refused").to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(|options| options.rules.push(("lm_haed".to_owned(), None)), "`lm_haed` matches no tensor");
    refused(|options| options.scale_groups.push(vec!["wq".to_owned(), "wk".to_owned()]), "`wq,wk`");
    refused(|options| options.input_amaxes = Some([("typo".to_owned(), 1.0)].into()), "`typo`");
    refused(|options| options.input_amaxes = Some([].into()), "no largest magnitude of the inputs");
    let error = |text: &str| {
        let mut options = nvfp4();
        options.names = NameMap::read(text).unwrap();
        EngineModel::plan(&files, options).err().expect("it is refused").to_string()
    };
    let said = error("[[tensor]]\nfrom='lm_head.weight'\ntied='gone'\n[[tensor]]\nfrom='*'\nto='*'");
    assert!(said.contains("`gone`, which is not written"), "{said}");
    let said = error("[[tensor]]\nfrom='*norm*'\nto='*norm*'\ntranspose=true\n[[tensor]]\nfrom='*'\nto='*'");
    assert!(said.contains("only a matrix"), "{said}");
    #[cfg(unix)]
    {
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).unwrap();
        let error = convert(&files, nvfp4(), &link).unwrap_err().to_string();
        assert!(error.contains("it is a link"), "{error}");
    }
}

#[test]
fn what_the_folder_said_before_is_not_said_again() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    write(&source, &llama(), r#"{"torch_dtype": "float32", "quantization_config": null}"#);
    let files = PretrainedFiles::open_model(&source).unwrap();
    std::fs::write(source.join("hf_quant_config.json"), "{}").unwrap();
    std::fs::create_dir(source.join("original")).unwrap();
    let target = folder.path().join("out");
    let mut options = nvfp4();
    options.rules.push(("lm_head".to_owned(), Some(Format::NVFP4_2D)));
    options.model_folder = Some(source);
    let report = convert(&files, options, &target).unwrap();
    assert_eq!(report.copied, ["tokenizer.json"]);
    assert_eq!(report.not_copied, ["model.safetensors", "original"]);
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(target.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["torch_dtype"], "bfloat16");
    let ignored = config["quantization_config"]["ignore"].as_array().unwrap();
    assert!(!ignored.contains(&"lm_head".into()), "a rule quantized it: {config}");
    PretrainedFiles::open_model(&target).unwrap();
}

/// Inputs of layers that are fused are the same, so their scale is.
#[test]
fn inputs_of_a_group_have_one_scale() {
    let folder = tempfile::tempdir().unwrap();
    let layer = |name: &str| tensor(&format!("{name}.weight"), &[64, 64], 1.0);
    write(folder.path(), &[layer("gate_proj"), layer("up_proj")], "{}");
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    let mut options = nvfp4();
    options.input_amaxes = Some([("gate_proj".to_owned(), 1.0), ("up_proj".to_owned(), 7.0)].into());
    let target = folder.path().join("out");
    convert(&files, options, &target).unwrap();
    let bytes = std::fs::read(target.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for layer in ["gate_proj", "up_proj"] {
        let scale = tensors.tensor(&format!("{layer}.input_global_scale")).unwrap();
        assert_eq!(scale.data(), 384.0_f32.to_le_bytes());
    }
}

#[test]
fn a_map_that_cuts_other_rows_than_a_weight_has_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &[tensor("a", &[4, 32], 1.0), tensor("b", &[2, 32], 1.0)], "{}");
    let files = PretrainedFiles::open_model(folder.path()).unwrap();
    let mut model = Model::builder();
    model.sharded("w", 8, 32, Format::Bf16).unwrap();
    let names = NameMap::read("[[tensor]]\nfrom='w'\nto=['a','b']\nrows=[4,2]").unwrap();
    let error = files.initializer_by(&model.build(), &names).err().expect("it is refused").to_string();
    assert!(error.contains("8 rows into 6"), "{error}");
}

/// Changes bytes of a file.
fn edit(path: &Path, change: impl FnOnce(String) -> String) {
    let bytes = std::fs::read(path).unwrap();
    // Every byte as a character of its own.
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let bytes: Vec<u8> = change(text).chars().map(|character| character as u8).collect();
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn folders_that_lie_are_refused_with_what_is_wrong() {
    type Change = fn(&Path);
    let tensors = |folder: &Path| folder.join("model.safetensors");
    let cases: [(&str, Change, &str); 7] = [
        (
            "another method",
            |folder| {
                edit(&folder.join("config.json"), |text| text.replace("compressed-tensors", "gptq"));
            },
            "`gptq`",
        ),
        (
            "another encoding",
            |folder| {
                edit(&folder.join("config.json"), |text| text.replace("tensor_group", "group"));
            },
            "not read",
        ),
        (
            "two dialects",
            |folder| {
                std::fs::write(
                    folder.join("hf_quant_config.json"),
                    r#"{"quantization": {"quant_algo": "NVFP4"}}"#,
                )
                .unwrap();
            },
            "another dialect",
        ),
        (
            "no scale",
            |folder| {
                edit(&folder.join("model.safetensors"), |text| {
                    text.replace("o_proj.weight_global_scale", "o_proj.weight_global_scalf")
                });
            },
            "has no `weight_global_scale`",
        ),
        (
            "tensors of another dialect",
            |folder| {
                edit(&folder.join("model.safetensors"), |text| {
                    text.replace("embed_tokens.weight\"", "abcdef.weight_scale\"")
                });
            },
            "belongs to no layer",
        ),
        (
            "a scale of another shape",
            |folder| {
                edit(&folder.join("model.safetensors"), |text| {
                    text.replacen("\"shape\":[256,16]", "\"shape\":[16,256]", 1)
                });
            },
            "is needed for",
        ),
        (
            "no quantization in the configuration",
            |folder| {
                std::fs::write(folder.join("config.json"), "{}").unwrap();
            },
            "",
        ),
    ];
    let parent = tempfile::tempdir().unwrap();
    let source = parent.path().join("model");
    write(&source, &llama(), "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    for (what, change, expected) in cases {
        let folder = parent.path().join(what);
        convert(&files, nvfp4(), &folder).unwrap();
        PretrainedFiles::open_model(&folder).unwrap();
        change(&folder);
        match PretrainedFiles::open_model(&folder) {
            Err(error) => {
                assert!(error.to_string().contains(expected) && !expected.is_empty(), "{what}: {error}")
            }
            Ok(opened) => {
                assert!(expected.is_empty(), "{what} is taken");
                let weight = "model.layers.0.self_attn.o_proj.weight_packed";
                let mut row = vec![0.0; 128];
                assert!(opened.rows(weight, 0, 128, &mut row).is_err());
            }
        }
        // A file that is cut off.
        let bytes = std::fs::read(tensors(&folder)).unwrap();
        std::fs::write(tensors(&folder), &bytes[..bytes.len() - 1]).unwrap();
        assert!(PretrainedFiles::open_model(&folder).is_err());
    }
}

#[test]
fn a_scale_that_is_no_number_is_an_error_of_its_layer() {
    let parent = tempfile::tempdir().unwrap();
    let source = parent.path().join("model");
    write(&source, &llama(), "{}");
    let files = PretrainedFiles::open_model(&source).unwrap();
    let target = parent.path().join("out");
    convert(&files, EngineOptions::new(Dialect::DeepSeekFp8, Format::FP8_BLOCK128_POW2), &target).unwrap();
    let file = target.join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let weight = "model.layers.0.self_attn.o_proj.weight";
    let begin =
        header[format!("{weight}_scale_inv")]["data_offsets"][0].as_u64().unwrap() as usize + 8 + length;
    bytes[begin..begin + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&file, bytes).unwrap();
    let opened = PretrainedFiles::open_model(&target).unwrap();
    let mut row = vec![0.0; 256];
    let error = opened.rows(weight, 0, 256, &mut row).unwrap_err().to_string();
    assert!(error.contains("o_proj") && error.contains("NaN"), "{error}");
    // The rows below have scales of their own.
    opened.rows(weight, 128, 256, &mut row).unwrap();
    assert_eq!(values(&opened, "lm_head.weight"), values(&files, "lm_head.weight"));
}
