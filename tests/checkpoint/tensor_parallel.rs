//! Tensor parallelism: a checkpoint has one tensor a weight, whatever held it, and any mesh goes on from it.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::ComputeContext;
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram, TensorParallel};
use warpweft_plan::policy::ReduceDtype;
use warpweft_session::checkpoint::{Checkpoint, PartFiles, WeightState};
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Session, SessionBuilder, SessionError, block_on};
use warpweft_testing::trainer::initial;

use super::parts::by_hand::edit_index;
use super::parts::{notes, replicated, without_planes};

/// Ranks, replicas, and ranks of a tensor-parallel group.
type Axes = (u32, u32, u32);

const MESHES: [Axes; 7] = [(1, 1, 1), (4, 1, 1), (4, 2, 1), (2, 1, 2), (4, 1, 4), (4, 1, 2), (4, 2, 2)];

/// A weight that stacks query, key and value.
const FUSED: &str = "qkv";

/// A weight of each kind: rows, columns, how, and whether it is sharded.
fn weights(block: usize) -> [(&'static str, [usize; 2], TensorParallel, bool); 6] {
    [
        ("up", [8 * block, block], TensorParallel::ColumnParallel, true),
        ("down", [block + 5, 4 * block], TensorParallel::RowParallel, true),
        ("embedding", [3 * block + 1, block], TensorParallel::SplitTokens, true),
        ("head", [2 * block, block], TensorParallel::AlikeTokens, true),
        ("gain", [1, 24], TensorParallel::AlikeTokens, false),
        (FUSED, [16 * block, block], TensorParallel::ColumnParallel, true),
    ]
}

/// Formats, with the side of their blocks.
const FORMATS: [(Format, usize); 4] =
    [(Format::F32, 8), (Format::NVFP4_2D, 16), (Format::Mxfp8, 32), (Format::FP8_BLOCK128_POW2, 128)];

/// Ranks of a context are shards like others.
fn config((ranks, replicas, tensor): Axes) -> Config {
    let mut config = Config { check: true, reduce_dtype: ReduceDtype::F32, ..replicated(replicas) };
    config.mesh.tp = tensor;
    config.mesh.cp = if (ranks / replicas / tensor).is_multiple_of(2) { 2 } else { 1 };
    config
}

fn model((format, block): (Format, usize), frozen: &[&str]) -> Model {
    let mut model = Model::builder();
    for (name, [rows, cols], how, sharded) in weights(block) {
        let weight = match sharded {
            true => model.sharded(name, rows, cols, format).unwrap(),
            false => model.replicated(name, rows, cols).unwrap(),
        };
        match name {
            FUSED => model.column_parallel_of(weight, &[8 * block, 4 * block, 4 * block]).unwrap(),
            _ => model.tensor_parallel(weight, how).unwrap(),
        }
        if frozen.contains(&name) {
            model.freeze(weight).unwrap();
        }
    }
    model.build()
}

/// Every rank's gradient is what it has of the weight; of split tokens a part of that, as if each rank had some.
fn builder(config: Config, model: &Model) -> SessionBuilder<CpuSurface> {
    let tensor = config.mesh.tp as f32;
    let weights: Vec<_> = model.entries().map(|(weight, spec)| (weight, spec.clone())).collect();
    let mut program = StepProgram::builder("train", model);
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut call = program.call("shrink", Phase::Backward).writes(loss);
    for (weight, spec) in &weights {
        call = call.uses(*weight, Orientation::Rowwise, Form::Dense);
        call = if spec.frozen { call } else { call.gradient(*weight) };
    }
    call.add().unwrap();
    let closures = move |_: RankId| {
        let weights = weights.clone();
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
            for (weight, spec) in weights.iter().filter(|(_, spec)| !spec.frozen) {
                let share = if spec.tensor == Some(TensorParallel::SplitTokens) { tensor } else { 1.0 };
                let values = context.dense(*weight, Orientation::Rowwise)?;
                for (gradient, value) in context.gradient(*weight)?.iter_mut().zip(values.iter()) {
                    *gradient = value / share;
                }
            }
            context.write::<f32>(loss)?[0] = 0.0;
            Ok(())
        }
    };
    Session::builder(config, closures).program(program.build_training().unwrap())
}

fn start_with(axes: Axes, model: &Model) -> Session {
    block_on(builder(config(axes), model).initialize(initial).start_cpu(axes.0)).unwrap()
}

fn start(axes: Axes, format: (Format, usize)) -> Session {
    start_with(axes, &model(format, &[]))
}

fn exported(session: &mut Session) -> Checkpoint {
    block_on(session.export()).unwrap()
}

/// Fails with the name of the first weight that differs, and not with its values.
#[track_caller]
fn assert_alike(found: &Checkpoint, expected: &Checkpoint, what: &str) {
    assert_eq!((found.optimizer_step, &found.carried), (expected.optimizer_step, &expected.carried));
    for (found, expected) in found.weights.iter().zip(&expected.weights) {
        let WeightState { name, shape, .. } = expected;
        assert_eq!((&found.name, &found.shape), (name, shape), "{what}");
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert!(bits(&found.master) == bits(&expected.master), "the master of {name}: {what}");
        assert!(found == expected, "{name}: {what}");
    }
    assert_eq!(found.weights.len(), expected.weights.len());
}

/// Gradients are powers of two times the same values on every mesh, so even what they train to is the same.
#[test]
fn every_mesh_begins_trains_and_exports_the_same_weights() {
    for format in FORMATS {
        let mut alone = start(MESHES[0], format);
        let begun = exported(&mut alone);
        for _ in 0..2 {
            block_on(alone.step("train")).unwrap();
        }
        let trained = exported(&mut alone);
        assert!(begun.weights[0].master != trained.weights[0].master);
        assert_eq!(trained.weights[1].shape.cols, 4 * format.1);
        for axes in MESHES {
            let mut session = start(axes, format);
            let what = |when: &str| format!("{when}, {} on {axes:?}", format.0);
            assert_alike(&exported(&mut session), &begun, &what("begun"));
            for _ in 0..2 {
                block_on(session.step("train")).unwrap();
            }
            assert_alike(&exported(&mut session), &trained, &what("trained"));
            block_on(session.compare_replicas()).unwrap();
        }
    }
}

#[test]
fn what_one_mesh_exported_every_other_imports_and_exports_again() {
    for format in FORMATS {
        let mut first = start((4, 1, 2), format);
        block_on(first.step("train")).unwrap();
        let expected = exported(&mut first);
        for axes in MESHES {
            let mut session = start(axes, format);
            block_on(session.step("train")).unwrap();
            block_on(session.step("train")).unwrap();
            block_on(session.import(&expected)).unwrap();
            assert_alike(&exported(&mut session), &expected, &format!("{} on {axes:?}", format.0));
        }
    }
}

/// CK-2.
#[test]
fn parts_that_one_mesh_saved_every_other_imports() {
    for format in [FORMATS[0], FORMATS[1]] {
        for wrote in MESHES {
            let folder = tempfile::tempdir().unwrap();
            let parts = PartFiles::new(folder.path());
            let mut first = start(wrote, format);
            for _ in 0..2 {
                block_on(first.step("train")).unwrap();
            }
            block_on(first.save_parts(&parts, &notes(&[]))).unwrap();
            let whole = exported(&mut first);
            let without_planes = without_planes(whole.clone());
            assert_alike(&parts.load().unwrap(), &without_planes, &format!("{wrote:?}"));
            let saved = parts.saved().unwrap();
            assert_eq!((saved.ranks, saved.replicas, saved.tensor), (wrote.0, Some(wrote.1), wrote.2));
            for reads in MESHES {
                let mut second = start(reads, format);
                block_on(second.import_parts(&parts)).unwrap();
                let what = format!("{}, {wrote:?} to {reads:?}", format.0);
                assert_alike(&exported(&mut second), &whole, &what);
            }
        }
    }
}

/// CK-4: what was written before there was tensor parallelism still is, byte for byte but for names of saves.
#[test]
fn parts_say_that_a_weight_is_cut_and_are_of_the_version_before_where_none_is() {
    let index = |axes: Axes, model: &Model| -> serde_json::Value {
        let folder = tempfile::tempdir().unwrap();
        let mut session = start_with(axes, model);
        block_on(session.save_parts(&PartFiles::new(folder.path()), &notes(&[]))).unwrap();
        serde_json::from_slice(&std::fs::read(folder.path().join("checkpoint.json")).unwrap()).unwrap()
    };
    let of = |index: &serde_json::Value, weight: usize| index["weights"][weight].clone();
    let cut = index((4, 1, 2), &model(FORMATS[1], &[]));
    assert_eq!((&cut["warpweft_parts"], &cut["tensor"]), (&5.into(), &2.into()));
    assert_eq!(of(&cut, 0)["cut"], serde_json::json!({ "of": "rows", "ranks": 2 }));
    assert_eq!(of(&cut, 1)["cut"], serde_json::json!({ "of": "columns", "ranks": 2 }));
    assert_eq!((&of(&cut, 1)["parts"], &of(&cut, 2)["parts"]), (&2.into(), &4.into()));
    assert!((2..5).all(|weight| of(&cut, weight).get("cut").is_none()));
    let segments = serde_json::json!({ "of": "rows", "ranks": 2, "segments": [128, 64, 64] });
    assert_eq!(of(&cut, 5)["cut"], segments);
    let mut without = Model::builder();
    for spec in &model(FORMATS[1], &[]).weights()[..5] {
        without.add(spec.clone()).unwrap();
    }
    assert_eq!(index((4, 1, 2), &without.build())["warpweft_parts"], 4);
    let whole = index((4, 1, 1), &model(FORMATS[1], &[]));
    assert_eq!(whole["warpweft_parts"], 3);
    assert!(whole.get("tensor").is_none() && (0..6).all(|weight| of(&whole, weight).get("cut").is_none()));
}

/// CK-4.
#[test]
fn an_index_whose_cuts_are_none_is_refused_by_weight() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mut session = start((4, 1, 2), FORMATS[1]);
    block_on(session.save_parts(&parts, &notes(&[]))).unwrap();
    let index = folder.path().join("checkpoint.json");
    let saved = std::fs::read(&index).unwrap();
    let rows = |ranks: &str| format!("\"of\": \"rows\",\n        \"ranks\": {ranks}");
    let columns = rows("2").replace("rows", "columns");
    for to in [rows("0"), rows("1"), rows("3"), rows("4294967295"), columns] {
        edit_index(folder.path(), &rows("2"), &to);
        let error = block_on(session.import_parts(&parts)).map(drop).unwrap_err().to_string();
        assert!(error.contains("are not `up`, which is 128×16; load"), "{to}: {error}");
        std::fs::write(&index, &saved).unwrap();
    }
    // Segments that are not the rows of the weight, and some that two ranks do not share.
    for rows in [0, 64, 129, usize::MAX] {
        edit_index(folder.path(), "[\n          128,", &format!("[\n          {rows},"));
        let error = block_on(session.import_parts(&parts)).map(drop).unwrap_err().to_string();
        let says = if rows == 0 { "segments" } else { "are not `qkv`, which is 256×16; load" };
        assert!(error.contains(says), "{rows}: {error}");
        std::fs::write(&index, &saved).unwrap();
    }
    block_on(session.import_parts(&parts)).unwrap();
}

/// What is filled, read and digested a piece at a time, where ranks have some columns of it.
#[test]
fn weights_of_many_pieces_are_cut_alike() {
    let mut model = Model::builder();
    for name in ["trained", "frozen"] {
        let weight = model.sharded(name, 150, 16_384, Format::F32).unwrap();
        model.tensor_parallel(weight, TensorParallel::RowParallel).unwrap();
        if name == "frozen" {
            model.freeze(weight).unwrap();
        }
    }
    let (model, folder) = (model.build(), tempfile::tempdir().unwrap());
    let meshes = [(1, 1, 1), (4, 1, 2)];
    let expected = exported(&mut start_with(meshes[0], &model));
    for wrote in meshes {
        let parts = PartFiles::new(folder.path().join(wrote.0.to_string()));
        let mut first = start_with(wrote, &model);
        assert_alike(&exported(&mut first), &expected, &format!("{wrote:?}"));
        block_on(first.save_parts(&parts, &notes(&[]))).unwrap();
        for reads in meshes {
            let mut second = start_with(reads, &model);
            block_on(second.step("train")).unwrap();
            block_on(second.import_parts(&parts)).unwrap();
            assert_alike(&exported(&mut second), &expected, &format!("{wrote:?} to {reads:?}"));
        }
    }
}

/// FW-1, FW-2: planes and digests alike, and parts, which have digests alone.
#[test]
fn frozen_weights_have_the_same_planes_and_digests_on_every_mesh() {
    for format in FORMATS {
        let model = model(format, &["up", "down", "embedding", "gain", FUSED]);
        let expected = exported(&mut start_with(MESHES[0], &model));
        assert!(expected.weights[1].frozen.is_some() && expected.weights[1].master.is_empty());
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut first = start_with((4, 1, 2), &model);
        block_on(first.save_parts(&parts, &notes(&[]))).unwrap();
        for axes in MESHES {
            let mut session = start_with(axes, &model);
            let what = format!("{} on {axes:?}", format.0);
            assert_alike(&exported(&mut session), &expected, &what);
            block_on(session.import(&expected)).unwrap();
            block_on(session.import_parts(&parts)).unwrap();
            assert_alike(&exported(&mut session), &expected, &what);
            block_on(session.compare_replicas()).unwrap();
        }
        let mut other = start_with((4, 1, 2), &model);
        let mut changed = expected.clone();
        changed.weights[1].planes[0].planes[0][3] ^= 1;
        block_on(other.import(&changed)).unwrap();
        assert!(exported(&mut other).weights[1].frozen != expected.weights[1].frozen, "{}", format.0);
    }
}

#[test]
fn main_grads_say_which_block_of_the_declared_weight_they_are_of() {
    for axes in MESHES {
        let mut session = start(axes, FORMATS[1]);
        let begun = exported(&mut session);
        block_on(session.step("train")).unwrap();
        let grads = block_on(session.main_grads()).unwrap();
        for weight in &begun.weights {
            let expected = weight.planes.first().map_or_else(
                || weight.master.clone(),
                |_| WeightState { master: Vec::new(), ..weight.clone() }.values().unwrap().into_owned(),
            );
            let mut seen = vec![0; expected.len()];
            for grad in grads.iter().filter(|grad| grad.weight == weight.name) {
                for (row, values) in grad.values.chunks(grad.columns.len()).enumerate() {
                    let begin = (grad.rows.begin + row) * weight.shape.cols + grad.columns.start;
                    assert_eq!(values, &expected[begin..begin + values.len()], "{} {axes:?}", weight.name);
                    seen[begin..begin + values.len()].iter_mut().for_each(|seen| *seen += 1);
                }
            }
            let copies = if weight.planes.is_empty() { axes.0 } else { axes.1 };
            assert!(seen.iter().all(|seen| *seen == copies), "{} {axes:?}", weight.name);
        }
    }
}

/// The error of a session that does not start.
fn refused(axes: Axes, model: &Model, initial: fn(MasterRows<'_>, &mut [f32])) -> SessionError {
    block_on(builder(config(axes), model).initialize(initial).start_cpu(axes.0)).unwrap_err()
}

#[test]
fn a_master_that_is_not_finite_is_named_by_its_place_in_the_declared_weight() {
    let infinite = |rows: MasterRows<'_>, values: &mut [f32]| {
        values.fill(0.0);
        let at = (6 * rows.columns + 50).checked_sub(rows.first_element());
        if let Some(value) = at.and_then(|at| values.get_mut(at)).filter(|_| rows.weight == "down") {
            *value = f32::INFINITY;
        }
    };
    // In the rows of the key that the second half of the ranks of a group have.
    let infinite_key = |rows: MasterRows<'_>, values: &mut [f32]| {
        values.fill(0.0);
        let at = (181 * rows.columns + 5).checked_sub(rows.first_element());
        if let Some(value) = at.and_then(|at| values.get_mut(at)).filter(|_| rows.weight == FUSED) {
            *value = f32::INFINITY;
        }
    };
    for axes in MESHES {
        let model = model(FORMATS[1], &[]);
        let error = refused(axes, &model, infinite).to_string();
        assert!(
            error.contains("row 6") && error.contains("column 50") && error.contains("`down`"),
            "{error}"
        );
        let error = refused(axes, &model, infinite_key).to_string();
        assert!(
            error.contains("row 181") && error.contains("column 5") && error.contains("`qkv`"),
            "{error}"
        );
    }
}

#[test]
fn a_checkpoint_of_another_shape_is_refused_with_the_declared_one() {
    let folder = tempfile::tempdir().unwrap();
    let parts = PartFiles::new(folder.path());
    let mut model_of_parts = Model::builder();
    for (name, [rows, cols], how, sharded) in weights(16) {
        let weight = match sharded {
            // As large as a rank's part.
            true if name == "up" => model_of_parts.sharded(name, rows / 2, cols, Format::NVFP4_2D).unwrap(),
            true => model_of_parts.sharded(name, rows, cols, Format::NVFP4_2D).unwrap(),
            false => model_of_parts.replicated(name, rows, cols).unwrap(),
        };
        model_of_parts.tensor_parallel(weight, how).unwrap();
    }
    let mut other = start_with((2, 1, 1), &model_of_parts.build());
    block_on(other.save_parts(&parts, &notes(&[]))).unwrap();
    let checkpoint = exported(&mut other);
    let mut session = start((4, 1, 2), FORMATS[1]);
    let before = exported(&mut session);
    let words = "`up` is 64×16 in the checkpoint and 128×16 here";
    for error in [
        block_on(session.import(&checkpoint)).unwrap_err(),
        block_on(session.import_parts(&parts)).map(drop).unwrap_err(),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
    assert_alike(&exported(&mut session), &before, "refused");
}

#[test]
fn a_cut_through_a_block_and_a_weight_without_a_word_of_it_are_refused_by_name() {
    let model = |rows: usize, how: Option<TensorParallel>| {
        let mut model = Model::builder();
        let weight = model.sharded("odd", rows, 32, Format::NVFP4_2D).unwrap();
        how.into_iter().for_each(|how| model.tensor_parallel(weight, how).unwrap());
        model.build()
    };
    let through = refused((4, 1, 4), &model(48, Some(TensorParallel::ColumnParallel)), initial).to_string();
    assert!(
        through.contains("with mesh.tp = 4, `odd` has 48 rows") && through.contains("are 64"),
        "{through}"
    );
    let undeclared = refused((2, 1, 2), &model(64, None), initial).to_string();
    assert!(undeclared.contains("`odd`") && undeclared.contains("[[weights]]"), "{undeclared}");
    drop(start_with((1, 1, 1), &model(48, None)));
    // What a rule says is as good as what the program says.
    let rule = "[[weights]]\nmatch = \"odd\"\ntensor_parallel = \"row\"";
    let mut config = Config::from_toml_str(rule, "rules.toml").unwrap();
    config.mesh.tp = 2;
    let ruled = config.apply_weight_rules(&model(64, None)).unwrap();
    drop(block_on(builder(config, &ruled).initialize(initial).start_cpu(2)).unwrap());
}

/// CK-2.
#[test]
fn parts_saved_in_the_background_are_those_of_a_stopped_save_on_every_mesh() {
    for format in [FORMATS[0], FORMATS[1]] {
        for axes in MESHES {
            let folder = tempfile::tempdir().unwrap();
            let parts = |name: &str| PartFiles::new(folder.path().join(name));
            let mut session = start(axes, format);
            block_on(session.step("train")).unwrap();
            block_on(session.save_parts(&parts("stopped"), &notes(&[]))).unwrap();
            block_on(session.save_parts_in_background(&parts("beside"), &notes(&[]))).unwrap();
            block_on(session.step("train")).unwrap();
            block_on(session.finish_save()).unwrap();
            let [found, expected] = ["beside", "stopped"].map(|name| parts(name).load().unwrap());
            assert_alike(&found, &expected, &format!("{} on {axes:?}", format.0));
        }
    }
}
