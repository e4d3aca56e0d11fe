//! `quantize --to`: folders that inference engines load, from what sessions saved.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};

use warpweft::bf16;
use warpweft_cli::{inspect_checkpoint, quantize_for_engines};
use warpweft_format::{Format, Via};
use warpweft_session::checkpoint::engines::{Dialect, EngineModel, EngineOptions, NameMap};
use warpweft_session::checkpoint::{
    Checkpoint, CheckpointStore, FileStore, PartFiles, PretrainedFiles, WeightState,
};
use warpweft_session::config::{Config, Scaling, WeightRule};
use warpweft_session::session::block_on;
use warpweft_session::session::initial::MasterRows;
use warpweft_testing::trainer::{SIZE, Shaped, Trainer, feed};

/// One layer is cut into two that engines fuse, the others are renamed, and the bias keeps to itself.
const CUT: &str = r#"
    [[tensor]]
    from = "layer0"
    to = ["model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"]
    rows = [32, 64]
    [[tensor]]
    from = "layer*"
    to = "model.layers.*.mlp.down_proj.weight"
    transpose = true
    [[tensor]]
    from = "bias"
    to = "model.norm.weight"
"#;

const RENAMED: &str = r#"
    [[tensor]]
    from = "layer*"
    to = "model.layers.*.mlp.down_proj.weight"
    [[tensor]]
    from = "bias"
    to = "model.norm.weight"
"#;

/// Every file of a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect()
}

/// A session of so many ranks after four steps: what it exports, and its checkpoints in one file and in parts.
fn trained(format: Format, ranks: u32, scaling: Scaling, folder: &Path) -> Checkpoint {
    let mut config = Config::default();
    config.quantize.scaling = scaling;
    trained_by(&Trainer::new(2, format), ranks, config, folder)
}

fn trained_by(trainer: &Trainer, ranks: u32, config: Config, folder: &Path) -> Checkpoint {
    block_on(async {
        let mut session = trainer.start(config, ranks).await.unwrap();
        for step in 0..4 {
            feed(&mut session, "train", ranks, step);
            session.step("train").await.unwrap();
        }
        let checkpoint = session.export().await.unwrap();
        FileStore::new(folder.join("one.safetensors")).save(&checkpoint).await.unwrap();
        session.save_parts(&PartFiles::new(folder.join("parts")), &BTreeMap::new()).await.unwrap();
        checkpoint
    })
}

#[test]
fn a_session_exports_what_the_tool_makes_of_its_checkpoints_and_what_it_trained_with() {
    for dialect in Dialect::ALL {
        for (format, ranks) in dialect.formats().flat_map(|format| [1, 2, 4].map(|ranks| (format, ranks))) {
            let map = if matches!(format, Format::Fp8Block(_)) { RENAMED } else { CUT };
            compare(dialect, format, ranks, Scaling::Current, map);
        }
    }
    assert_eq!(SIZE, 96, "the map cuts 96 rows");
}

#[test]
fn codes_of_delayed_scaling_are_exported_as_they_are() {
    for ranks in [1, 2, 4] {
        compare(Dialect::CompressedTensors, Format::FP8_TENSOR_E4M3, ranks, Scaling::Delayed, CUT);
    }
}

/// EN-1. What engines fuse is served as it was trained, where training knew of it; otherwise it is quantized anew.
#[test]
fn a_session_with_scale_groups_exports_the_codes_that_it_trained_with() {
    const FUSED: &str = r#"
        [[tensor]]
        from = "layer0"
        to = "model.layers.0.self_attn.q_proj.weight"
        [[tensor]]
        from = "layer1"
        to = "model.layers.0.self_attn.k_proj.weight"
        [[tensor]]
        from = "layer2"
        to = "model.layers.0.self_attn.v_proj.weight"
        [[tensor]]
        from = "bias"
        to = "model.norm.weight"
    "#;
    for (format, scaling, codes) in [
        (Format::NVFP4_2D, Scaling::Current, "weight_packed"),
        (Format::FP8_TENSOR_E4M3, Scaling::Current, "weight"),
        (Format::FP8_TENSOR_E4M3, Scaling::Delayed, "weight"),
    ] {
        for (ranks, one_scale) in [(1, true), (2, true), (4, true), (2, false)] {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            let shaped = Shaped { layers: 3, weights: 3, one_scale, ..Shaped::default() };
            let trainer = Trainer::shaped(shaped, format, &Config::default());
            let mut config = Config::default();
            config.quantize.scaling = scaling;
            // Far enough that largest magnitudes differ.
            config.optimizer.lr = 0.03;
            let checkpoint = trained_by(&trainer, ranks, config, folder);
            let options = || {
                let mut options = EngineOptions::new(Dialect::CompressedTensors, format);
                (options.via, options.names) = (Via::Bf16, NameMap::read(FUSED).unwrap());
                options
            };
            let whole = folder.join("whole");
            let model = EngineModel::plan(&checkpoint, options()).unwrap();
            let report = model.write(&whole, &mut |_, _| ControlFlow::Continue(())).unwrap();
            assert_eq!(report.groups.len(), 1);
            let file = std::fs::read(whole.join("model.safetensors")).unwrap();
            let file = safetensors::SafeTensors::deserialize(&file).unwrap();
            let names = ["q_proj", "k_proj", "v_proj"].map(|part| format!("model.layers.0.self_attn.{part}"));
            let others: Vec<&String> = (names.iter().zip(&checkpoint.weights))
                .filter(|(name, weight)| {
                    let served = file.tensor(&format!("{name}.{codes}")).unwrap();
                    served.data() != weight.planes[0].planes[0]
                })
                .map(|(name, _)| name)
                .collect();
            assert_eq!(others, report.rescaled.iter().collect::<Vec<_>>(), "{format} {scaling:?} {ranks}");
            assert_eq!(others.is_empty(), one_scale, "{format} {scaling:?} {ranks}: {others:?}");
            for (saved, knows) in [("one.safetensors", matches!(format, Format::Nvfp4(_))), ("parts", false)]
            {
                let target = folder.join(format!("of {saved}"));
                let report = quantize_for_engines(&folder.join(saved), &target, options(), &mut ()).unwrap();
                assert_eq!(files(&whole), files(&target), "{format} {scaling:?} {ranks} {saved}");
                assert_eq!(report.rescaled.len(), if knows { others.len() } else { 0 }, "{saved}");
            }
        }
    }
}

fn compare(dialect: Dialect, format: Format, ranks: u32, scaling: Scaling, map: &str) {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let checkpoint = trained(format, ranks, scaling, folder);
    let options = || {
        let mut options = EngineOptions::new(dialect, format);
        (options.via, options.names) = (Via::Bf16, NameMap::read(map).unwrap());
        options
    };
    let whole = folder.join("whole");
    let model = EngineModel::plan(&checkpoint, options()).unwrap();
    let report = model.write(&whole, &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.layers.len(), if map == CUT { 3 } else { 2 });
    for saved in ["one.safetensors", "parts"] {
        let target = folder.join(format!("of {saved}"));
        quantize_for_engines(&folder.join(saved), &target, options(), &mut ()).unwrap();
        assert_eq!(files(&whole), files(&target), "{dialect} {format} {ranks} {saved}");
    }

    // The values that the session trained with, by the same map back.
    let read = PretrainedFiles::open_model(&whole).unwrap();
    let initializer = read.initializer_by(&Trainer::new(2, format).model, &options().names).unwrap();
    for weight in &checkpoint.weights {
        let cols = weight.shape.cols;
        let mut values = vec![0.0; weight.shape.elements()];
        // In two pieces, as ranks request them.
        let (first, second) = values.split_at_mut(weight.shape.rows / 3 * cols);
        for (first_row, values) in [(0, first), (weight.shape.rows / 3, second)] {
            let rows = MasterRows { first_row, ..MasterRows::from_the_first(&weight.name, cols) };
            initializer(rows, values).unwrap();
        }
        let is_turned = map == CUT && weight.name == "layer1";
        let trained = match weight.name.as_str() {
            "bias" => weight.master.clone(),
            // Its blocks are those of the transposed weight here, and of the weight in training.
            _ if is_turned && !matches!(format, Format::Nvfp4(_) | Format::Fp8Tensor(_)) => continue,
            _ => {
                let planes = WeightState { master: Vec::new(), ..weight.clone() };
                planes.values().unwrap().into_owned()
            }
        };
        assert_eq!(values.len(), trained.len());
        for (value, trained) in values.iter().zip(&trained) {
            let [value, trained] = [value, trained].map(|value| bf16::from_f32(*value));
            assert_eq!(value, trained, "{dialect} {format} {ranks} {}", weight.name);
        }
    }
}

#[test]
fn a_checkpoint_without_its_frozen_weights_is_refused_and_an_export_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut config = Config::default();
    let rule = WeightRule { pattern: "layer0".to_owned(), frozen: Some(true), ..WeightRule::default() };
    config.weights.push(rule);
    let trainer = Trainer::refined(2, Format::NVFP4_2D, &config);
    let checkpoint = block_on(async {
        let mut session = trainer.start(config, 2).await.unwrap();
        let checkpoint = session.export().await.unwrap();
        FileStore::new(folder.join("one.safetensors")).save(&checkpoint).await.unwrap();
        session.save_parts(&PartFiles::new(folder.join("parts")), &BTreeMap::new()).await.unwrap();
        checkpoint
    });
    let options = || {
        let mut options = EngineOptions::new(Dialect::CompressedTensors, Format::NVFP4_2D);
        (options.via, options.names) = (Via::Bf16, NameMap::read(RENAMED).unwrap());
        options
    };
    for saved in ["one.safetensors", "parts"] {
        let refused = quantize_for_engines(&folder.join(saved), &folder.join("out"), options(), &mut ());
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("`layer0`"), "{error}");
        // What it is can be said all the same.
        let found = inspect_checkpoint(&folder.join(saved), true, &mut ()).unwrap();
        assert_eq!(found.about["frozen weights, by digest alone"], "1");
        assert_eq!(found.compared, Some(2));
    }
    let model = EngineModel::plan(&checkpoint, options()).unwrap();
    let report = model.write(folder.join("out"), &mut |_, _| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.layers.len(), 2);
}

/// A folder with one matrix, called as Llama calls it.
fn model(folder: &Path) -> PathBuf {
    let bytes: Vec<u8> =
        (0..64 * 64).flat_map(|at: i32| bf16::from_f32((at % 97) as f32 - 40.0).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::BF16, vec![64, 64], &bytes).unwrap();
    let input = folder.join("in");
    std::fs::create_dir(&input).unwrap();
    let name = "model.layers.0.mlp.up_proj.weight";
    safetensors::serialize_to_file([(name, view)], None, &input.join("model.safetensors")).unwrap();
    std::fs::write(input.join("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    input
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// What the program says, and whether it succeeds.
fn program(arguments: &[&OsStr]) -> (bool, String) {
    let done = std::process::Command::new(env!("CARGO_BIN_EXE_warpweft")).args(arguments).output().unwrap();
    let said = [done.stdout, done.stderr].map(|said| String::from_utf8(said).unwrap()).concat();
    (done.status.success(), said)
}

#[test]
fn scales_of_inputs_make_layers_whose_inputs_are_quantized_too() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (input, scales) = (model(folder), folder.join("scales.json"));
    std::fs::write(&scales, r#"{"model.layers.0.mlp.up_proj": 21.0}"#).unwrap();
    for (dialect, tensor, expected) in
        [("compressed-tensors", "input_global_scale", 128.0), ("modelopt", "input_scale", 0.0078125)]
    {
        let target = folder.join(dialect);
        let mut arguments: Vec<&OsStr> =
            ["quantize", "--format", "nvfp4_2d", "--to", dialect].map(OsStr::new).to_vec();
        arguments.extend([
            OsStr::new("--input-scales"),
            scales.as_os_str(),
            input.as_os_str(),
            target.as_os_str(),
        ]);
        let (succeeded, said) = program(&arguments);
        assert!(succeeded && !said.contains("W4A16"), "{said}");
        let file = std::fs::read(target.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let scale = tensors.tensor(&format!("model.layers.0.mlp.up_proj.{tensor}")).unwrap();
        assert_eq!(scale.data(), f32::to_le_bytes(expected));
        let config = &json(&target.join("config.json"))["quantization_config"];
        assert!(config["config_groups"]["group_0"]["input_activations"].is_object(), "{config}");
        assert!(PretrainedFiles::open_model(&target).is_ok());
    }
    // A layer that the file lacks.
    std::fs::write(&scales, "{}").unwrap();
    let mut arguments: Vec<&OsStr> =
        ["quantize", "--format", "nvfp4_2d", "--to", "modelopt", "--input-scales"].map(OsStr::new).to_vec();
    let target = folder.join("out");
    arguments.extend([scales.as_os_str(), input.as_os_str(), target.as_os_str()]);
    let (succeeded, said) = program(&arguments);
    assert!(!succeeded && said.contains("no largest magnitude of the inputs") && !target.exists(), "{said}");
}

#[test]
fn the_program_says_what_it_did_and_inspect_what_came_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (input, target) = (model(folder), folder.join("out"));
    let quantize: Vec<&OsStr> =
        ["quantize", "--format", "nvfp4_2d", "--to", "modelopt"].map(OsStr::new).to_vec();
    let (succeeded, said) = program(&[&quantize[..], &[input.as_os_str(), target.as_os_str()]].concat());
    assert!(succeeded && said.contains("model.layers.*.mlp.up_proj") && said.contains("W4A16"), "{said}");
    // A folder that is there, and one that cannot be.
    for (target, expected) in
        [(target.as_path(), "not empty"), (Path::new("/proc/warpweft"), "cannot make the folder")]
    {
        let (succeeded, said) = program(&[&quantize[..], &[input.as_os_str(), target.as_os_str()]].concat());
        assert!(!succeeded && said.contains(expected), "{said}");
    }
    let (succeeded, said) = program(&[OsStr::new("inspect"), OsStr::new("--json"), target.as_os_str()]);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert!(succeeded && found["what"].as_str().unwrap().contains("`modelopt`"), "{said}");
    assert_eq!(found["stored"], serde_json::json!([{ "stored_as": "NVFP4", "count": 1, "elements": 4096 }]));

    // Checkpoints of a session, in one file and in parts.
    trained(Format::NVFP4_2D, 2, Scaling::Current, folder);
    let one = folder.join("one.safetensors");
    let (succeeded, said) = program(&[OsStr::new("inspect"), OsStr::new("--digests"), one.as_os_str()]);
    assert!(succeeded && said.contains("all 3 masters are as they were saved"), "{said}");
    let parts = folder.join("parts");
    let (succeeded, said) = program(&[OsStr::new("inspect"), parts.as_os_str()]);
    assert!(succeeded && said.contains("a sharded checkpoint of 2 ranks"), "{said}");
}

/// EN-2.
#[test]
fn inspect_names_the_layers_that_engines_would_decode_wrongly() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = |largest: f32| -> Vec<u8> {
        (0..32 * 32)
            .flat_map(|at: i32| bf16::from_f32((at % 32) as f32 / 31.0 * largest).to_le_bytes())
            .collect()
    };
    let (gate, up) = (matrix(1.0), matrix(4.0));
    let view = |bytes| TensorView::new(Dtype::BF16, vec![32, 32], bytes).unwrap();
    // Under names that nobody fuses, each has a scale of its own.
    let tensors = [("model.xate_proj.weight", view(&gate)), ("model.xp_proj.weight", view(&up))];
    let input = folder.path().join("in.safetensors");
    safetensors::serialize_to_file(tensors, None, &input).unwrap();
    let target = folder.path().join("out");
    let options = EngineOptions::new(Dialect::CompressedTensors, Format::NVFP4_2D);
    quantize_for_engines(&input, &target, options, &mut ()).unwrap();
    let file = target.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let text = text.replace("xate_proj", "gate_proj").replace("model.xp_proj", "model.up_proj");
    std::fs::write(&file, text.chars().map(|character| character as u8).collect::<Vec<u8>>()).unwrap();
    let found = inspect_checkpoint(&target, false, &mut ()).unwrap();
    assert_eq!((found.scale_groups, found.mismatches.len()), (1, 1));
    assert_eq!(found.mismatches[0].ratio, 4.0);
    assert!(found.to_string().contains("by 4.00×: model.gate_proj, model.up_proj"), "{found}");
}
