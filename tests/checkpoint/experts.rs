//! Expert parallelism: whichever ranks have an expert, it trains alike, and files have one tensor for it by its name.
//!
//! Law: gradients are sums of small whole numbers, which no order of addition rounds. So a sum over the wrong ranks, a
//! divisor that counts them, an expert that is in the norm twice, or one that is taken for its neighbour shows in bits.

use std::collections::BTreeMap;

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::ComputeContext;
use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_plan::policy::{OptimizerShard, ReduceDtype};
use warpweft_session::checkpoint::{Checkpoint, CheckpointStore, FileStore, PartFiles};
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionBuilder, block_on};
use warpweft_testing::heard::warnings;
use warpweft_testing::trainer::{Trainer, initial, within_a_minute};

use super::parts::{notes, replicated, without_planes};

/// Ranks, replicas, ranks that share the experts, and ranks that one is sharded over.
type Axes = (u32, u32, u32, Option<u32>);

const MESHES: [Axes; 9] = [
    (1, 1, 1, None),
    (8, 2, 1, None),
    (8, 1, 1, Some(2)),
    (8, 1, 2, None),
    (8, 1, 4, Some(1)),
    (8, 2, 4, Some(2)),
    (4, 2, 4, Some(1)),
    (4, 2, 2, Some(2)),
    (8, 2, 2, Some(1)),
];

/// Two copies have a slice of each weight, and four as well; of eight, three blocks of rows are in no slices, which
/// would be padding more than twice.
#[test]
fn copies_of_an_expert_share_its_state_where_they_are_to_and_it_has_rows_enough() {
    for (axes, names) in [
        ((8, 1, 4, Some(1)), &["w1", "w2"][..]),
        ((8, 2, 2, Some(1)), &["w1", "w2"]),
        ((8, 1, 1, Some(1)), &[]),
    ] {
        let program = builder(axes, SHARDS[1], &model(FORMATS[1], axes));
        let session = block_on(program.initialize(initial).start_cpu(axes.0)).unwrap();
        let plan = session.plan("train").unwrap();
        let of_first = plan.weights.layouts[1].expert.unwrap();
        let in_slices = |layout: &&WeightLayout| layout.expert == Some(of_first) && layout.is_in_slices();
        let found: Vec<_> = plan.weights.layouts.iter().filter(in_slices).collect();
        assert!(found.iter().map(|layout| &layout.name[19..]).eq(names.iter().copied()), "{found:?}");
    }
}

const SHARDS: [OptimizerShard; 2] = [OptimizerShard::DpShard, OptimizerShard::Replicas];

/// Experts of the layer.
const EXPERTS: u32 = 4;

/// What gives gradients: as many ranks as any mesh has, of which a rank of a smaller one stands for several.
const SOURCES: u32 = 8;

/// Formats, with the side of their blocks.
const FORMATS: [(Format, usize); 4] =
    [(Format::Bf16, 8), (Format::NVFP4_2D, 16), (Format::Mxfp8, 32), (Format::FP8_BLOCK128_POW2, 128)];

fn config((_, replicas, ep, ep_shard): Axes, shard: OptimizerShard) -> Config {
    let mut config = Config { check: true, reduce_dtype: ReduceDtype::F32, ..replicated(replicas) };
    (config.mesh.ep, config.mesh.ep_shard) = (ep, ep_shard);
    config.optimizer.max_norm = 0.5;
    config.optimizer.shard = shard;
    config
}

/// Two weights of each expert of a rank, after one that all ranks have and before a copy.
fn model((format, block): (Format, usize), (_, _, ep, _): Axes) -> Model {
    let mut model = Model::builder();
    model.sharded("router", 2 * block + 3, block, format).unwrap();
    for expert in 0..EXPERTS / ep {
        for (name, rows) in [("w1", 3 * block), ("w2", block + 1)] {
            let name = format!("layers.7.experts.{expert}.{name}");
            let weight = model.sharded(&name, rows, block, format).unwrap();
            model.expert_parallel(weight).unwrap();
        }
    }
    model.replicated("gain", 1, 24).unwrap();
    model.build()
}

/// What a source gives to an element of the weight of this expert.
fn given(source: u32, expert: u32, at: usize) -> f32 {
    ((source * 5 + expert * 3) as usize + at) as f32 % 7.0 - 3.0
}

/// The gradient of an expert is of the tokens of all ranks that share the experts with this one. It goes by the signs
/// of what was gathered.
fn builder(axes: Axes, shard: OptimizerShard, model: &Model) -> SessionBuilder<CpuSurface> {
    let (ranks, _, ep, _) = axes;
    let weights: Vec<_> = model.entries().map(|(weight, spec)| (weight, spec.clone())).collect();
    let mut program = StepProgram::builder("train", model);
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut call = program.call("backward", Phase::Backward).writes(loss);
    for (weight, _) in &weights {
        call = call.uses(*weight, Orientation::Rowwise, Form::Dense).gradient(*weight);
    }
    call.add().unwrap();
    let closures = move |rank: RankId| {
        let weights = weights.clone();
        let (first, place) = (rank.number() / ep * ep, rank.number() % ep);
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
            for (weight, spec) in &weights {
                let local = spec.name.split('.').filter_map(|part| part.parse::<u32>().ok()).nth(1);
                let (expert, sources) = match local {
                    Some(local) => (place * (EXPERTS / ep) + local, first..first + ep),
                    None => (EXPERTS, rank.number()..rank.number() + 1),
                };
                let values = context.dense(*weight, Orientation::Rowwise)?;
                for (at, (gradient, value)) in
                    context.gradient(*weight)?.iter_mut().zip(values.iter()).enumerate()
                {
                    let of = |rank: u32| (rank..SOURCES).step_by(ranks as usize);
                    let sum: f32 = sources.clone().flat_map(of).map(|source| given(source, expert, at)).sum();
                    *gradient = sum * value.signum() * ranks as f32 / SOURCES as f32;
                }
            }
            context.write::<f32>(loss)?[0] = 0.0;
            Ok(())
        }
    };
    Session::builder(config(axes, shard), closures).program(program.build_training().unwrap())
}

fn start(axes: Axes, format: (Format, usize)) -> Session {
    start_with(axes, OptimizerShard::DpShard, format)
}

/// The same where copies of an expert share its optimizer state, or have all of it each.
fn start_with(axes: Axes, shard: OptimizerShard, format: (Format, usize)) -> Session {
    let builder = builder(axes, shard, &model(format, axes)).initialize(initial);
    block_on(builder.start_cpu(axes.0)).unwrap()
}

fn train(session: &mut Session) {
    for _ in 0..2 {
        block_on(session.step("train")).unwrap();
    }
}

fn exported(session: &mut Session) -> Checkpoint {
    block_on(session.export()).unwrap()
}

/// Fails with the name of the first weight that differs, and not with its values.
#[track_caller]
fn assert_alike(found: &Checkpoint, expected: &Checkpoint, what: &str) {
    let names = |checkpoint: &Checkpoint| -> Vec<String> {
        checkpoint.weights.iter().map(|state| state.name.clone()).collect()
    };
    assert_eq!(names(found), names(expected), "{what}");
    assert_eq!(found.optimizer_step, expected.optimizer_step, "{what}");
    for (found, expected) in found.weights.iter().zip(&expected.weights) {
        assert!(found.master == expected.master, "the master of {}: {what}", found.name);
        assert!(found == expected, "{}: {what}", found.name);
    }
}

#[test]
fn every_expert_begins_trains_and_is_exported_alike_on_every_mesh() {
    for format in FORMATS {
        let mut alone = start(MESHES[0], format);
        let begun = exported(&mut alone);
        train(&mut alone);
        let trained = exported(&mut alone);
        assert!(begun.weights[1].master != trained.weights[1].master);
        for (axes, shard) in MESHES.into_iter().flat_map(|axes| SHARDS.map(|shard| (axes, shard))) {
            let mut session = start_with(axes, shard, format);
            let what = |when: &str| format!("{when}, {} on {axes:?}, {shard:?}", format.0);
            assert_alike(&exported(&mut session), &begun, &what("begun"));
            train(&mut session);
            assert_alike(&exported(&mut session), &trained, &what("trained"));
            block_on(session.compare_replicas()).unwrap();
        }
    }
}

#[test]
fn what_one_mesh_exported_every_other_imports_as_the_same_file() {
    let format = FORMATS[1];
    let mut first = start(MESHES[5], format);
    train(&mut first);
    let whole = exported(&mut first);
    let folder = tempfile::tempdir().unwrap();
    let file = |number: usize| folder.path().join(format!("{number}.safetensors"));
    let mut bytes = Vec::new();
    for (number, axes) in MESHES.into_iter().enumerate() {
        let mut session = start(axes, format);
        block_on(session.step("train")).unwrap();
        block_on(session.import(&whole)).unwrap();
        let found = exported(&mut session);
        assert_alike(&found, &whole, &format!("{axes:?}"));
        block_on(FileStore::new(file(number)).save(&found)).unwrap();
        bytes.push(std::fs::read(file(number)).unwrap());
    }
    assert!(bytes.iter().all(|of_mesh| *of_mesh == bytes[0]));
}

/// CK-2.
#[test]
fn parts_that_one_mesh_saved_of_experts_every_other_imports() {
    let format = FORMATS[1];
    for (number, wrote) in MESHES.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        let mut first = start_with(wrote, SHARDS[number % 2], format);
        train(&mut first);
        block_on(first.save_parts(&parts, &notes(&[]))).unwrap();
        let whole = exported(&mut first);
        assert_alike(&parts.load().unwrap(), &without_planes(whole.clone()), &format!("{wrote:?}"));
        for (turn, reads) in MESHES.into_iter().enumerate() {
            let mut second = start_with(reads, SHARDS[(number + turn + 1) % 2], format);
            block_on(second.import_parts(&parts)).unwrap();
            assert_alike(&exported(&mut second), &whole, &format!("{wrote:?} to {reads:?}"));
        }
    }
}

/// A file in which two experts have changed places is another file: no rank may have taken one for the other.
#[test]
fn an_expert_that_is_its_neighbour_in_a_file_is_its_neighbour_on_every_mesh() {
    let mut first = start(MESHES[5], FORMATS[0]);
    train(&mut first);
    let mut swapped = exported(&mut first);
    let place = |name: &str| swapped.weights.iter().position(|state| state.name == name).unwrap();
    let (one, other) = (place("layers.7.experts.1.w1"), place("layers.7.experts.2.w1"));
    let (a, b) = (swapped.weights[one].name.clone(), swapped.weights[other].name.clone());
    (swapped.weights[one].name, swapped.weights[other].name) = (b, a);
    swapped.weights.swap(one, other);
    for axes in MESHES {
        let mut session = start(axes, FORMATS[0]);
        block_on(session.import(&swapped)).unwrap();
        assert_alike(&exported(&mut session), &swapped, &format!("{axes:?}"));
    }
}

#[test]
fn a_weight_of_an_expert_is_taken_by_its_name_in_files() {
    let mut first = start(MESHES[1], FORMATS[0]);
    train(&mut first);
    let whole = exported(&mut first);
    let mut session = start(MESHES[5], FORMATS[0]);
    let begun = exported(&mut session);
    block_on(session.import_weights(&whole, |name| name == "layers.7.experts.2.w2")).unwrap();
    let found = exported(&mut session);
    for ((found, begun), there) in found.weights.iter().zip(&begun.weights).zip(&whole.weights) {
        let taken = if found.name == "layers.7.experts.2.w2" { there } else { begun };
        assert!(found.master == taken.master, "{}", found.name);
    }
}

/// Of a frozen weight a file has a digest, which no rank can take of an expert that others have.
#[test]
fn an_expert_that_was_frozen_is_refused_where_ranks_have_others_in_its_place() {
    let rules = "[[weights]]\nmatch = 'layer1'\nfrozen = true";
    let freezing =
        Config { weights: Config::from_toml_str(rules, "rules").unwrap().weights, ..replicated(1) };
    let trainer = Trainer::refined(2, Format::NVFP4_2D, &freezing);
    let digest = within_a_minute(async move {
        let session = trainer.start(freezing, 1).await.unwrap().export().await.unwrap();
        session.weights.iter().find_map(|state| state.frozen).unwrap()
    });
    let mut whole = exported(&mut start(MESHES[0], FORMATS[1]));
    let expert = whole.weights.iter_mut().find(|state| state.name == "layers.7.experts.1.w1").unwrap();
    (expert.frozen, expert.master, expert.states) = (Some(digest), Vec::new(), Vec::new());
    let mut session = start(MESHES[5], FORMATS[1]);
    let begun = exported(&mut session);
    let error = block_on(session.import(&whole)).unwrap_err().to_string();
    assert!(error.contains("`layers.7.experts.1.w1` was frozen in the checkpoint"), "{error}");
    assert!(error.contains("import it without mesh.ep"), "{error}");
    assert!(exported(&mut session) == begun);
}

/// Resumed on other axes of experts, a run goes on with other bits, and says so; on its own it does not.
#[test]
fn an_import_warns_of_other_axes_of_experts_than_were_saved() {
    const BF16: (Format, usize) = FORMATS[0];
    for (saved, resumed, warns) in [
        ((8, 1, 4, Some(1)), (8, 1, 2, None), true),
        ((8, 1, 2, None), (8, 1, 1, None), true),
        ((8, 1, 1, None), (8, 1, 1, Some(2)), true),
        ((8, 1, 4, Some(2)), (8, 1, 4, None), false),
        ((8, 1, 4, Some(1)), (4, 2, 2, Some(2)), false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        block_on(start(saved, BF16).save_parts(&parts, &notes(&[]))).unwrap();
        let mut session = start(resumed, BF16);
        let warned = warnings(|| block_on(session.import_parts(&parts)).map(drop).unwrap());
        let about_experts = warned.iter().filter(|said| said.contains("set mesh.ep, mesh.ep_shard"));
        assert_eq!(about_experts.count(), usize::from(warns), "{saved:?} to {resumed:?}: {warned:?}");
        assert_eq!(warned.len(), usize::from(warns), "{saved:?} to {resumed:?}: {warned:?}");
    }
}

/// Weights of one expert share a scale in files as they do on ranks, wherever the expert is.
#[test]
fn a_scale_group_of_an_expert_is_its_own_on_every_mesh() {
    const NVFP4: (Format, usize) = FORMATS[1];
    let grouped = |axes: Axes| {
        let mut model = Model::builder();
        for expert in 0..EXPERTS / axes.2 {
            let weights = ["w1", "w2"].map(|part| {
                let name = format!("layers.7.experts.{expert}.{part}");
                let weight = model.sharded(&name, 32, 16, NVFP4.0).unwrap();
                model.expert_parallel(weight).unwrap();
                weight
            });
            model.scale_group(&format!("layers.7.experts.{expert}.both"), &weights).unwrap();
        }
        let model = model.build();
        block_on(builder(axes, OptimizerShard::DpShard, &model).initialize(initial).start_cpu(axes.0))
            .unwrap()
    };
    let of_each = (0..EXPERTS).map(|expert| {
        let parts = ["w1", "w2"].map(|part| format!("layers.7.experts.{expert}.{part}"));
        (format!("layers.7.experts.{expert}.both"), parts.to_vec())
    });
    let of_each: BTreeMap<_, _> = of_each.collect();
    for (saved, resumed) in [((4, 1, 4, Some(1)), (1, 1, 1, None)), ((1, 1, 1, None), (8, 1, 2, None))] {
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        block_on(grouped(saved).save_parts(&parts, &notes(&[]))).unwrap();
        assert_eq!(parts.saved().unwrap().scale_groups, of_each, "{saved:?}");
        let mut session = grouped(resumed);
        let warned = warnings(|| block_on(session.import_parts(&parts)).map(drop).unwrap());
        assert_eq!(warned, [""; 0], "{saved:?} to {resumed:?}");
    }
}
