//! A frozen base from a quantized file, and adapters that are saved, resumed and merged beside it.

use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use warpweft::prelude::*;
use warpweft_cli::{QuantizeOptions, quantize_checkpoint};
use warpweft_plan::layout::{Content, Residency};
use warpweft_session::checkpoint::{CheckpointError, FrozenBase, PretrainedFiles, SavedParts};
use warpweft_session::session::initial::{MasterRows, normal};
use warpweft_session::session::plan_program;
use warpweft_testing::trainer::within_a_minute;

/// They end within a block of every format.
const ROWS: usize = 83;
const COLS: usize = 96;

/// The values of a base, other ones for another seed.
fn values(seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; ROWS * COLS];
    normal(seed, 0.5)(MasterRows::from_the_first("base", COLS), &mut values);
    values
}

/// `map.weight` as `warpweft quantize` writes it.
fn quantized(folder: &Path, format: Format, seed: u64) -> PathBuf {
    let (model, output) =
        (folder.join("model.safetensors"), folder.join(format!("{format}-{seed}.safetensors")));
    let values = values(seed);
    let view = TensorView::new(Dtype::F32, vec![ROWS, COLS], bytemuck_bytes(&values)).unwrap();
    safetensors::serialize_to_file([("map.weight", view)], None, &model).unwrap();
    quantize_checkpoint(&model, &output, &QuantizeOptions::new(format), &mut ()).unwrap();
    output
}

fn bytemuck_bytes(values: &[f32]) -> &[u8] {
    warpweft::bytemuck::cast_slice(values)
}

/// A frozen base in `format`, an adapter that trains, and as many heads.
fn declared(format: Format, heads: usize) -> (Model, StepProgram) {
    let mut model = Model::builder();
    let base = model.sharded("base", ROWS, COLS, format).unwrap();
    model.freeze(base).unwrap();
    let mut trained = vec![model.replicated("adapter", 1, COLS).unwrap()];
    trained
        .extend((0..heads).map(|head| model.sharded(&format!("head{head}"), 8, COLS, Format::Bf16).unwrap()));
    let model = model.build();
    let program = program_over(&model);
    (model, program)
}

/// One call that uses all weights and trains those that are not frozen; the first one is the base.
fn program_over(model: &Model) -> StepProgram {
    let mut weights = model.weights().iter().map(|spec| model.find(&spec.name).unwrap());
    let (base, trained) = (weights.next().unwrap(), weights.collect::<Vec<_>>());
    let mut program = StepProgram::builder("train", model);
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let call =
        program.call("fit", Phase::Backward).uses(base, Orientation::Rowwise, Form::Dense).writes(loss);
    let call =
        trained.iter().fold(call, |call, weight| call.uses(*weight, Orientation::Rowwise, Form::Dense));
    let base = Some(base).filter(|base| !model.weight(*base).unwrap().frozen);
    base.iter().chain(&trained).fold(call, |call, weight| call.gradient(*weight)).add().unwrap();
    program.build_training().unwrap()
}

/// Draws every weight that trains to the mean of the base's rows.
fn fit(call: &Call, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let base = context.dense(call.uses[0].weight, Orientation::Rowwise)?;
    let mut wanted = vec![0.0; COLS];
    for row in base.chunks(COLS) {
        wanted.iter_mut().zip(row).for_each(|(mean, value)| *mean += value / ROWS as f32);
    }
    let mut loss = 0.0;
    for usage in &call.uses[1..] {
        let values = context.dense(usage.weight, Orientation::Rowwise)?;
        let mut gradient = context.gradient(usage.weight)?;
        for (at, value) in values.iter().enumerate() {
            let error = value - wanted[at % COLS];
            gradient[at] = 2.0 * error;
            loss += error * error;
        }
    }
    context.write::<f32>(call.buffers[0].buffer)?[0] = loss;
    Ok(())
}

fn config() -> Config {
    let mut config = Config { check: true, ..Config::default() };
    config.optimizer.lr = 0.01;
    config
}

fn base_of(file: &Path, model: &Model) -> Result<FrozenBase, CheckpointError> {
    PretrainedFiles::open([file])?.frozen_base(model, |_| Some("map.weight".to_owned()))
}

async fn start(file: &Path, format: Format, heads: usize, ranks: u32) -> Session {
    start_with(config(), file, format, heads, ranks).await
}

async fn start_with(config: Config, file: &Path, format: Format, heads: usize, ranks: u32) -> Session {
    let (model, program) = declared(format, heads);
    let builder = Session::builder(config, |_: RankId| fit).program(program);
    let builder = builder.frozen_base(base_of(file, &model).unwrap()).initialize(normal(5, 0.1));
    builder.start_cpu(ranks).await.unwrap()
}

async fn steps(session: &mut Session, count: usize) -> Vec<u32> {
    let mut losses = Vec::new();
    for _ in 0..count {
        losses.push(session.step("train").await.unwrap().mean_output("loss").unwrap().to_bits());
    }
    losses
}

/// FW-1: the codes and scales of the file, bit for bit, which are also what its values would have been quantized to.
#[test]
fn a_frozen_base_has_the_planes_of_a_quantized_file_on_any_number_of_ranks() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        for format in [
            Format::NVFP4_2D,
            Format::Mxfp8,
            Format::FP8_BLOCK128_POW2,
            Format::FP8_TENSOR_E4M3,
            Format::FP8_TENSOR_E5M2_POW2,
        ] {
            let file = quantized(folder.path(), format, 3);
            let mut seen = None;
            for (ranks, replicate) in [(1, 1), (2, 1), (4, 1), (7, 1), (4, 2)] {
                let mut config = config();
                config.mesh.dp_replicate = Some(replicate);
                let mut session = start_with(config.clone(), &file, format, 0, ranks).await;
                steps(&mut session, 2).await;
                session.compare_replicas().await.unwrap();
                let found = session.export().await.unwrap().weights.swap_remove(0);
                let (first, digest) = seen.get_or_insert((found.planes.clone(), found.frozen));
                assert!(found.planes == *first && found.frozen == *digest, "{format}, {ranks} ranks");
                session.close().await.unwrap();

                let (_, program) = declared(format, 0);
                let builder = Session::builder(Config { quantize: exact(), ..config }, |_: RankId| fit);
                let whole = values(3);
                let fill = move |rows: MasterRows<'_>, masters: &mut [f32]| match rows.weight {
                    "base" => masters.copy_from_slice(&whole[rows.first_element()..][..masters.len()]),
                    _ => masters.fill(0.0),
                };
                let mut session = builder.program(program).initialize(fill).start_cpu(ranks).await.unwrap();
                let found = session.export().await.unwrap().weights.swap_remove(0);
                assert!(
                    found.planes == *first && found.frozen == *digest,
                    "{format}, {ranks} ranks, from values"
                );
            }
        }
    });
}

fn exact() -> warpweft_session::config::Quantize {
    let mut quantize = Config::default().quantize;
    quantize.via = warpweft_format::Via::None;
    quantize
}

/// FW-1: 0.5 bytes of codes, a scale for each tile, and nothing else.
#[test]
fn a_plan_gives_a_frozen_weight_in_nvfp4_at_most_six_tenths_of_a_byte_an_element() {
    let mut model = Model::builder();
    let base = model.sharded("base", 512, 512, Format::NVFP4_2D).unwrap();
    model.freeze(base).unwrap();
    let adapter = model.replicated("adapter", 1, 512).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let call = program.call("fit", Phase::Backward).uses(base, Orientation::Rowwise, Form::Dense);
    call.gradient(adapter).add().unwrap();
    let program = program.build_training().unwrap();
    for ranks in [1, 2, 4] {
        let plan = plan_program(&program, &Config::default(), ranks).unwrap();
        let resident = plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident);
        let of_base = resident.filter(|slot| match slot.content {
            Content::Master(weight)
            | Content::MasterRemainder(weight)
            | Content::State(weight, _)
            | Content::MainGrad(weight)
            | Content::Shard(weight, _) => weight == base,
            Content::TensorScale(_) => true,
            _ => false,
        });
        let bytes: usize = of_base.map(|slot| slot.region.bytes).sum();
        let share = (bytes * ranks as usize) as f64 / (512.0 * 512.0);
        assert!(share <= 0.6, "{share} bytes an element on {ranks} ranks");
    }
}

/// FW-2. Files have the adapters and a digest of the base, and are resumed on any number of ranks.
#[test]
fn adapters_are_saved_without_their_base_and_go_on_beside_the_same_one_alone() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let file = quantized(folder.path(), Format::NVFP4_2D, 3);
        let mut session = start(&file, Format::NVFP4_2D, 0, 1).await;
        steps(&mut session, 3).await;
        let saved = session.export().await.unwrap();
        let store = FileStore::new(folder.path().join("adapters.safetensors"));
        store.save(&saved).await.unwrap();
        let parts = PartFiles::new(folder.path().join("parts"));
        session.save_parts(&parts, &Default::default()).await.unwrap();
        let size = std::fs::metadata(folder.path().join("adapters.safetensors")).unwrap().len() as usize;
        assert!(size < 3 * 4 * COLS + 2048, "{size} bytes for three lists of {COLS} values");
        for entry in std::fs::read_dir(parts.folder()).unwrap() {
            assert!(entry.unwrap().metadata().unwrap().len() < 3 * 4 * COLS as u64 + 2048);
        }
        let expected = steps(&mut session, 3).await;
        let left = session.export().await.unwrap();
        for ranks in [1, 2, 4] {
            let mut again = start(&file, Format::NVFP4_2D, 0, ranks).await;
            again.import(&store.load().await.unwrap()).await.unwrap();
            assert_eq!(steps(&mut again, 3).await, expected, "{ranks} ranks");
            assert!(again.export().await.unwrap() == left, "{ranks} ranks");
            let SavedParts { optimizer_step, .. } = again.import_parts(&parts).await.unwrap();
            assert_eq!((optimizer_step, steps(&mut again, 3).await), (3, expected.clone()), "{ranks} ranks");
        }
        let other = quantized(folder.path(), Format::NVFP4_2D, 4);
        let mut beside_another = start(&other, Format::NVFP4_2D, 0, 2).await;
        let before = beside_another.export().await.unwrap();
        let said = beside_another.import(&store.load().await.unwrap()).await.unwrap_err().to_string();
        assert!(said.contains("the weight `base` has other values here"), "{said}");
        let said = beside_another.import_parts(&parts).await.unwrap_err().to_string();
        assert!(said.contains("the weight `base` has other values here"), "{said}");
        assert!(beside_another.export().await.unwrap() == before);
        // An export has the planes, and brings them along.
        beside_another.import(&left).await.unwrap();
        assert!(beside_another.export().await.unwrap() == left);
    });
}

/// Never silently: what is not named stays, and what is named must be there.
#[test]
fn a_part_of_the_weights_is_imported_by_an_explicit_choice() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let file = quantized(folder.path(), Format::NVFP4_2D, 3);
        let mut first = start(&file, Format::NVFP4_2D, 1, 2).await;
        steps(&mut first, 3).await;
        let saved = first.export().await.unwrap();
        let store = FileStore::new(folder.path().join("one.safetensors"));
        store.save(&saved).await.unwrap();
        let loaded = store.load().await.unwrap();
        let parts = PartFiles::new(folder.path().join("parts"));
        first.save_parts(&parts, &Default::default()).await.unwrap();

        // Onto another base, with one head more.
        let other = quantized(folder.path(), Format::NVFP4_2D, 4);
        let mut deeper = start(&other, Format::NVFP4_2D, 2, 3).await;
        steps(&mut deeper, 1).await;
        let before = deeper.export().await.unwrap();
        let said = deeper.import(&loaded).await.unwrap_err().to_string();
        assert!(said.contains("`head1` is not in the checkpoint"), "{said}");
        for (takes, says) in [
            ("head1", "`head1` is to be taken and is not in the checkpoint"),
            ("nothing", "no weight of the session is taken"),
            ("base", "the weight `base` has other values here"),
        ] {
            let said = deeper.import_weights(&loaded, |name| name == takes).await.unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
            let said =
                deeper.import_weights_of_parts(&parts, |name| name == takes).await.unwrap_err().to_string();
            assert!(said.contains(says), "{said}");
        }
        assert!(deeper.export().await.unwrap() == before);
        let is_shared = |name: &str| name == "adapter" || name == "head0";
        deeper.import_weights(&loaded, is_shared).await.unwrap();
        let found = deeper.export().await.unwrap();
        assert_eq!(found.optimizer_step, 0);
        for weight in &found.weights {
            let of = if is_shared(&weight.name) { &saved } else { &before };
            let of = of.weight(&weight.name).unwrap();
            assert!(weight.master == of.master && weight.planes == of.planes, "{}", weight.name);
            assert!(weight.states.iter().flatten().all(|moment| *moment == 0.0));
        }
        let expected = steps(&mut deeper, 2).await;
        let mut of_parts = start(&other, Format::NVFP4_2D, 2, 3).await;
        steps(&mut of_parts, 1).await;
        of_parts.import_weights_of_parts(&parts, is_shared).await.unwrap();
        assert!(of_parts.export().await.unwrap() == found);
        assert_eq!(steps(&mut of_parts, 2).await, expected);
    });
}

#[test]
fn a_base_in_another_format_or_of_plain_values_is_refused_before_a_session_starts() {
    let folder = tempfile::tempdir().unwrap();
    let file = quantized(folder.path(), Format::NVFP4_2D, 3);
    let (model, _) = declared(Format::Mxfp8, 0);
    let said = base_of(&file, &model).unwrap_err().to_string();
    assert!(
        said.contains("base") && said.contains("it is [83, 96] in nvfp4_2d, and the weight 83×96 in mxfp8"),
        "{said}"
    );
    let plain = folder.path().join("model.safetensors");
    let error = base_of(&plain, &declared(Format::NVFP4_2D, 0).0).unwrap_err();
    assert!(error.to_string().contains("map.weight.rowwise_data"), "{error}");
}

/// Planes are cut by the layout of the session's weights, so those must be what the base was checked against.
#[test]
fn a_session_whose_frozen_weights_are_not_those_of_its_base_does_not_start() {
    within_a_minute(async {
        let base_in = |format: Format| {
            let folder = tempfile::tempdir().unwrap();
            base_of(&quantized(folder.path(), format, 3), &declared(format, 0).0).map(|base| (base, folder))
        };
        let (in_nvfp4, _files) = base_in(Format::NVFP4_2D).unwrap();
        let (in_e4m3, _more_files) = base_in(Format::FP8_TENSOR_E4M3).unwrap();
        let ruled = |base: &FrozenBase, format: Format, rule: &str| {
            let (model, _) = declared(format, 0);
            let text = format!("check = true\n[[weights]]\nmatch = \"base\"\n{rule}\n");
            let config = Config::from_toml_str(&text, "rules").unwrap();
            let program = program_over(&config.apply_weight_rules(&model).unwrap());
            Session::builder(config, |_: RankId| fit).program(program).frozen_base(base.clone())
        };
        for (base, format, there) in [
            (&in_e4m3, Format::FP8_TENSOR_E4M3, Format::FP8_TENSOR_E5M2_POW2),
            (&in_nvfp4, Format::NVFP4_2D, Format::FP8_BLOCK128_POW2),
        ] {
            let builder = ruled(base, format, &format!("format = \"{there}\"")).initialize(normal(5, 0.1));
            let error = builder.start_cpu(2).await.unwrap_err();
            let said = format!("it is [83, 96] in {format}, and the weight 83×96 in {there}");
            assert!(error.to_string().contains(&said) && is_of_base(&error), "{error}");
        }

        // A weight that a rule unfreezes begins as all that train.
        let builder = ruled(&in_nvfp4, Format::NVFP4_2D, "frozen = false");
        let error = builder.start_cpu(2).await.unwrap_err();
        assert!(matches!(&error, SessionError::NotInitialized { weight } if weight == "base"), "{error}");
        let builder = ruled(&in_nvfp4, Format::NVFP4_2D, "frozen = false");
        let fill = |_: MasterRows<'_>, masters: &mut [f32]| masters.fill(0.5);
        let mut session = builder.initialize(fill).start_cpu(2).await.unwrap();
        let found = session.export().await.unwrap();
        assert!(found.weight("base").unwrap().master.iter().all(|value| *value == 0.5));

        // A model of the same names.
        let mut other = Model::builder();
        let weight = other.sharded("base", 2 * ROWS, COLS, Format::NVFP4_2D).unwrap();
        other.freeze(weight).unwrap();
        let _ = other.replicated("adapter", 1, COLS).unwrap();
        let builder = Session::builder(config(), |_: RankId| fit).program(program_over(&other.build()));
        let builder = builder.frozen_base(in_nvfp4).initialize(normal(5, 0.1));
        let error = builder.start_cpu(2).await.unwrap_err();
        assert!(
            error.to_string().contains("and the weight 166×96 in nvfp4_2d") && is_of_base(&error),
            "{error}"
        );
    });
}

fn is_of_base(error: &SessionError) -> bool {
    let SessionError::Checkpoint(CheckpointError::Weight { weight, source }) = error else { return false };
    weight == "base" && matches!(**source, CheckpointError::Quantized { .. })
}

/// What a merge needs: values of the base, and a file of them.
#[test]
fn an_export_has_the_values_of_a_frozen_base_and_a_saved_checkpoint_says_that_it_has_not() {
    within_a_minute(async {
        let folder = tempfile::tempdir().unwrap();
        let file = quantized(folder.path(), Format::NVFP4_2D, 3);
        let mut session = start(&file, Format::NVFP4_2D, 0, 2).await;
        let checkpoint = session.export().await.unwrap();
        let dequantized = folder.path().join("dequantized.safetensors");
        warpweft_cli::dequantize_checkpoint(&file, &dequantized, false, &mut ()).unwrap();
        let mut expected = vec![0.0; ROWS * COLS];
        PretrainedFiles::open([&dequantized]).unwrap().rows("map.weight", 0, COLS, &mut expected).unwrap();
        assert_eq!(*checkpoint.weights[0].values().unwrap(), *expected);
        let weights = folder.path().join("weights.safetensors");
        checkpoint.save_weights(&weights, ElementType::F32, |weight| Some(weight.to_owned())).unwrap();
        let mut written = vec![0.0; ROWS * COLS];
        PretrainedFiles::open([&weights]).unwrap().rows("base", 0, COLS, &mut written).unwrap();
        assert_eq!(written, expected);

        let store = FileStore::new(folder.path().join("saved.safetensors"));
        store.save(&checkpoint).await.unwrap();
        let loaded = store.load().await.unwrap();
        let said =
            loaded.save_weights(&weights, ElementType::F32, |weight| Some(weight.to_owned())).unwrap_err();
        assert!(said.to_string().contains("`base` was frozen"), "{said}");
        loaded
            .save_weights(&weights, ElementType::F32, |name| (name == "adapter").then(|| name.into()))
            .unwrap();
    });
}
