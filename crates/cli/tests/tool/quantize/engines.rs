//! `quantize --to`: folders that inference engines load, from what sessions saved.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use warpweft::bf16;
use warpweft::checkpoint::engines::{Dialect, EngineModel, EngineOptions, NameMap};
use warpweft::checkpoint::{Checkpoint, CheckpointStore, FileStore, PartFiles, PretrainedFiles, WeightState};
use warpweft::config::Config;
use warpweft::format::{Format, Via};
use warpweft::session::block_on;
use warpweft::session::initial::MasterRows;
use warpweft_cli::quantize_for_engines;
use warpweft_testing::trainer::{SIZE, Trainer, feed};

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

/// A session of so many ranks after two steps: what it exports, and its checkpoints in one file and in parts.
fn trained(format: Format, ranks: u32, folder: &Path) -> Checkpoint {
    let trainer = Trainer::new(2, format);
    block_on(async {
        let mut session = trainer.start(Config::default(), ranks).await.unwrap();
        for step in 0..2 {
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
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            let checkpoint = trained(format, ranks, folder);
            let map = if matches!(format, Format::Fp8Block(_)) { RENAMED } else { CUT };
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
                // In two pieces, as ranks ask for them.
                let (first, second) = values.split_at_mut(weight.shape.rows / 3 * cols);
                for (first_row, values) in [(0, first), (weight.shape.rows / 3, second)] {
                    let rows = MasterRows { first_row, ..MasterRows::from_the_first(&weight.name, cols) };
                    initializer(rows, values).unwrap();
                }
                let is_turned = map == CUT && weight.name == "layer1";
                let trained = match weight.name.as_str() {
                    "bias" => weight.master.clone(),
                    // Its tiles are those of the transposed weight in training, and of the weight here.
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
    }
    assert_eq!(SIZE, 96, "the map cuts 96 rows");
}
