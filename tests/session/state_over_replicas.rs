//! Optimizer state that is sharded over the replicas: the same bits as where every replica keeps all of it.

use warpweft_base::id::WeightId;
use warpweft_format::{Format, Orientation, Shape, Via};
use warpweft_plan::layout::{Content, Slot, WeightLayout};
use warpweft_plan::model::{Form, Group, Levels, Model, Phase, StepProgram};
use warpweft_plan::op::{Op, SumGradient, SumTarget, WireType};
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Capture, Config, Masters, Moments, OptimizerShard, ReduceDtype, Scaling};
use warpweft_session::session::{Outcome, Session, plan_program};
use warpweft_testing::split::in_processes_with;
use warpweft_testing::trainer::{Mischief, Shaped, Trainer, feed, losses, within_a_minute};

fn config(replicas: u32, levels: &[u32], shard: OptimizerShard) -> Config {
    let mut config = Config { check: true, ..Config::default() };
    config.mesh.dp_replicate = Some(replicas);
    config.mesh.levels = Some(Levels::new(levels).unwrap());
    config.optimizer.shard = shard;
    config.optimizer.beta2 = 0.99;
    config
}

/// What training left: masters, moments and planes of all weights, and losses on the way, evaluation among them.
async fn trained(trainer: &Trainer, config: Config, ranks: u32) -> (Vec<u32>, Checkpoint) {
    let mut session = trainer.start(config, ranks).await.unwrap();
    let mut seen = losses(&mut session, ranks, 0..3).await;
    seen.push(evaluated(&mut session, ranks).await);
    seen.push(evaluated(&mut session, ranks).await);
    seen.extend(losses(&mut session, ranks, 3..5).await);
    (seen, session.export().await.unwrap())
}

async fn evaluated(session: &mut Session, ranks: u32) -> u32 {
    feed(session, "evaluate", ranks, 77);
    session.step("evaluate").await.unwrap().mean_output("loss").unwrap().to_bits()
}

/// PL-2, PL-4, PL-9: whatever the format, the mesh and its levels, what is replayed and how gradients travel.
#[test]
fn state_over_replicas_gives_the_bits_of_whole_state_in_each() {
    // Blocks of FP8 are larger than these matrices, and experts' weights have some in slices (`tests/checkpoint`).
    let formats = [Format::Bf16, Format::NVFP4_2D, Format::Mxfp8, Format::FP8_TENSOR_E4M3];
    let meshes = [(2, 2, &[][..]), (4, 2, &[]), (6, 3, &[]), (8, 4, &[2]), (8, 2, &[2])];
    for (number, format) in formats.into_iter().enumerate() {
        for (place, (ranks, replicas, levels)) in meshes.into_iter().enumerate() {
            let plan = plan_program(
                &Trainer::new(2, format).train,
                &config(replicas, levels, OptimizerShard::Replicas),
                ranks,
            );
            let in_slices = plan.unwrap().weights.layouts.iter().any(WeightLayout::is_in_slices);
            // A quarter of 96 rows is one tile of MXFP8.
            assert_eq!(in_slices, (format, ranks, replicas) != (Format::Mxfp8, 8, 2), "{format} on {ranks}");
            let capture = if (number + place) % 2 == 0 { Capture::Off } else { Capture::Step };
            within_a_minute(async move {
                let of = |shard| Config { capture, ..config(replicas, levels, shard) };
                let trainer = Trainer::new(2, format);
                let whole = trained(&trainer, of(OptimizerShard::DpShard), ranks).await;
                let cut = trained(&trainer, of(OptimizerShard::Replicas), ranks).await;
                assert_eq!(whole, cut, "{format} on {ranks} ranks, {replicas} replicas, levels {levels:?}");
            });
        }
    }
}

/// Halves of masters, bf16 moments, delayed scales, a scale that weights share, micro-batches and replayed layers.
#[test]
fn whatever_else_is_chosen_state_over_replicas_changes_no_bit() {
    let plain = || config(2, &[], OptimizerShard::DpShard);
    let mut halves = plain();
    (halves.optimizer.masters, halves.optimizer.moments) = (Masters::Bf16Remainder, Moments::Bf16);
    let mut delayed = plain();
    (delayed.quantize.scaling, delayed.quantize.amax_history) = (Scaling::Delayed, 2);
    let mut rounded = plain();
    rounded.quantize.via = Via::Bf16;
    let usual = Shaped::default();
    let cases = [
        (halves, Format::Bf16, usual),
        (delayed, Format::FP8_TENSOR_E4M3, usual),
        (rounded, Format::NVFP4_2D, Shaped { one_scale: true, ..usual }),
        (plain(), Format::NVFP4_2D, Shaped { layers: 4, micro_batches: 2, recomputes: true, ..usual }),
    ];
    for (config, format, shaped) in cases {
        within_a_minute(async move {
            let trainer = Trainer::shaped(shaped, format, &config);
            let mut cut = config.clone();
            cut.optimizer.shard = OptimizerShard::Replicas;
            assert_eq!(trained(&trainer, config, 4).await, trained(&trainer, cut, 4).await, "{format}");
        });
    }
}

/// PL-4: what several steps add up is summed over the replicas step by step, and the norm counts every slice once.
#[test]
fn sums_of_several_steps_and_their_norm_are_those_of_whole_state() {
    let run = |shard| {
        within_a_minute(async move {
            let mut trainer = Trainer::new(2, Format::NVFP4_2D);
            trainer.train = trainer.train.accumulating().unwrap();
            let mut session = trainer.start(config(3, &[], shard), 6).await.unwrap();
            let mut norms = Vec::new();
            for sum in 0..3 {
                feed(&mut session, "train", 6, 3 * sum);
                session.accumulate("train").await.unwrap();
                feed(&mut session, "train", 6, 3 * sum + 1);
                let report = session.step("train").await.unwrap();
                let Outcome::Updated { norm, .. } = report.outcome else { panic!("{:?}", report.outcome) };
                norms.push(norm);
            }
            (norms, session.export().await.unwrap())
        })
    };
    let (whole, cut) = (run(OptimizerShard::DpShard), run(OptimizerShard::Replicas));
    assert_eq!(whole.1, cut.1);
    for (whole, cut) in whole.0.into_iter().zip(cut.0) {
        assert!(whole > 0.0 && (whole - cut).abs() <= whole * 1e-6, "{whole} and {cut}");
    }
}

/// EX-1 and EX-2: slices of one shard may be with several processes, and one of them gets all for an export.
#[test]
fn slices_do_not_depend_on_how_ranks_are_split_over_processes() {
    let run = |ranks: &[u32]| {
        let mut config = warpweft_testing::split::config();
        config.mesh.dp_replicate = Some(2);
        config.optimizer.shard = OptimizerShard::Replicas;
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        in_processes_with(&config, &trainer, ranks, &Mischief::default(), |process, mut session| async move {
            let mut seen = Vec::new();
            for step in 0..3 {
                warpweft_testing::split::feed(&mut session, step);
                let report = session.step("train").await.unwrap();
                seen.push(report.mean_output("loss").unwrap().to_bits());
            }
            session.compare_replicas().await.unwrap();
            let exported = session.export_to_first().await.unwrap();
            assert_eq!(exported.is_some(), process == 0);
            session.close().await.unwrap();
            (seen, exported)
        })
    };
    let expected = run(&[4]).remove(0);
    for ranks in [&[2, 2][..], &[1, 3]] {
        let found = run(ranks);
        assert_eq!(found[0], expected, "{ranks:?}");
        assert!(found.iter().all(|(losses, _)| *losses == expected.0), "{ranks:?}");
    }
}

/// FW-1: what is frozen is shards in every replica, which nobody publishes.
#[test]
fn a_frozen_weight_is_in_no_slices() {
    let rules = "[[weights]]\nmatch = 'layer1'\nfrozen = true";
    let weights = Config::from_toml_str(rules, "rules").unwrap().weights;
    let of = |shard| Config { weights: weights.clone(), ..config(2, &[], shard) };
    let trainer = Trainer::refined(2, Format::NVFP4_2D, &of(OptimizerShard::Replicas));
    let plan = plan_program(&trainer.train, &of(OptimizerShard::Replicas), 4).unwrap();
    let published = plan.arena.slots.iter().filter_map(|slot| match slot.content {
        Content::Published(weight, _) => Some(plan.weights.layout(weight).name.as_str()),
        _ => None,
    });
    assert_eq!(published.collect::<Vec<_>>(), ["layer0"]);
    let run = |shard| {
        let (trainer, config) = (trainer.clone(), of(shard));
        within_a_minute(async move { trained(&trainer, config, 4).await })
    };
    assert_eq!(run(OptimizerShard::DpShard), run(OptimizerShard::Replicas));
}

/// FK-1, CK-1: a checkpoint does not know how state was sharded, and any mesh goes on with it.
#[test]
fn a_checkpoint_goes_from_state_over_replicas_to_any_mesh_and_back() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let (_, saved) = trained(&trainer, config(2, &[], OptimizerShard::Replicas), 6).await;
        for (replicas, shard, ranks) in [
            (1, OptimizerShard::DpShard, 3),
            (2, OptimizerShard::DpShard, 4),
            (4, OptimizerShard::Replicas, 4),
            (3, OptimizerShard::Replicas, 6),
        ] {
            let mut session = trainer.start(config(replicas, &[], shard), ranks).await.unwrap();
            session.import(&saved).await.unwrap();
            assert_eq!(session.export().await.unwrap(), saved, "{replicas} replicas of {ranks} ranks");
        }
    });
}

/// PL-1: sums of instances are added up, so bits are others than those of one instance; as everywhere else they
/// depend on nothing but the mesh, and a checkpoint goes from any mesh to any other.
#[test]
fn optimizer_instances_train_alike_issued_and_captured_and_their_checkpoint_is_any_meshs() {
    let in_instances = |replicas, instances, capture| {
        let mut config = Config { capture, ..config(replicas, &[], OptimizerShard::Replicas) };
        config.mesh.optimizer_instances = instances;
        config
    };
    for format in [Format::NVFP4_2D, Format::FP8_TENSOR_E4M3] {
        within_a_minute(async move {
            let trainer = Trainer::new(2, format);
            let issued = trained(&trainer, in_instances(4, 2, Capture::Off), 8).await;
            let replayed = trained(&trainer, in_instances(4, 2, Capture::Step), 8).await;
            assert_eq!(issued, replayed, "{format}");
            let (one, saved) = trained(&trainer, in_instances(4, 1, Capture::Off), 8).await;
            let near = |(one, several): (&u32, &u32)| {
                let [one, several] = [one, several].map(|loss| f32::from_bits(*loss));
                (one - several).abs() <= 1e-3 * one.abs()
            };
            assert!(one.iter().zip(&issued.0).all(near), "{format}: {one:?} and {:?}", issued.0);
            for (replicas, instances, ranks) in [(4, 2, 8), (4, 4, 4), (6, 3, 6)] {
                let config = in_instances(replicas, instances, Capture::Off);
                let mut session = trainer.start(config, ranks).await.unwrap();
                for saved in [&issued.1, &saved] {
                    session.import(saved).await.unwrap();
                    assert!(
                        session.export().await.unwrap() == *saved,
                        "{replicas} replicas of {ranks} ranks"
                    );
                    session.compare_replicas().await.unwrap();
                }
            }
        });
    }
}

/// What a rank keeps of it falls with the replicas, of one optimizer instance.
#[test]
fn masters_moments_and_main_grads_of_a_rank_are_a_share_of_its_part() {
    let trainer = Trainer::new(1, Format::NVFP4_2D);
    let state = |shard, instances| {
        let mut config = config(6, &[], shard);
        config.mesh.optimizer_instances = instances;
        let plan = plan_program(&trainer.train, &config, 12).unwrap();
        let kept = |slot: &&Slot| {
            let (Content::Master(weight) | Content::State(weight, _) | Content::MainGrad(weight)) =
                slot.content
            else {
                return false;
            };
            plan.weights.layout(weight).name == "layer0"
        };
        let slots = plan.arena.slots.iter().filter(kept);
        slots.map(|slot| slot.region.bytes).sum::<usize>()
    };
    assert_eq!(state(OptimizerShard::DpShard, 1), 96 / 2 * 96 * 16);
    assert_eq!(state(OptimizerShard::Replicas, 2), 96 / 6 * 96 * 16);
    assert_eq!(state(OptimizerShard::Replicas, 6), 96 / 2 * 96 * 16, "of one replica each");
}

/// A group of matrices, read forward and backward.
fn matrices(format: Format, shapes: &[(usize, usize)]) -> StepProgram {
    let mut model = Model::builder();
    let named = |(number, (rows, cols)): (usize, &(usize, usize))| {
        model.sharded(&format!("w{number}"), *rows, *cols, format).unwrap()
    };
    let weights: Vec<WeightId> = shapes.iter().enumerate().map(named).collect();
    model.group("all", &weights).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let mut forward = program.call("forward", Phase::Forward);
    for weight in &weights {
        forward = forward.uses(*weight, Orientation::Rowwise, Form::Planes);
    }
    forward.add().unwrap();
    let mut backward = program.call("backward", Phase::Backward);
    for weight in &weights {
        backward = backward.uses(*weight, Orientation::Columnwise, Form::Planes).gradient(*weight);
    }
    backward.add().unwrap();
    program.build_training().unwrap()
}

/// `tests/backend_bodies/slices.rs` runs such a sum.
#[test]
fn one_sum_leaves_mxfp8_of_a_weight_in_slices_and_rows_of_a_whole_one() {
    let program = matrices(Format::Mxfp8, &[(128, 64), (64, 64)]);
    let config = Config { reduce_dtype: ReduceDtype::Mxfp8, ..config(2, &[], OptimizerShard::Replicas) };
    let plan = plan_program(&program, &config, 4).unwrap();
    let in_slices = plan.weights.layouts.iter().map(WeightLayout::is_in_slices);
    assert_eq!(in_slices.collect::<Vec<_>>(), [true, false]);
    let sums = plan.tasks.iter().filter_map(|task| match &task.op {
        Op::SumGradient(SumGradient { parts, .. }) => Some(parts.iter().map(|part| part.target).collect()),
        _ => None,
    });
    let sums: Vec<Vec<SumTarget>> = sums.collect();
    assert_eq!(sums, [vec![SumTarget::Quantized, SumTarget::Rows], vec![SumTarget::First]]);
}

/// PL-6. Bytes an element of a rank's part, in all (R − 1)/R of them: those of the format, and of a gradient as it
/// travels. An all-reduce brings it twice, in f32.
#[test]
fn over_the_replicas_travel_published_slices_and_slices_of_gradients() {
    let formats = [
        (Format::NVFP4_2D, 0.504),
        (Format::FP8_BLOCK128_POW2, 1.0),
        (Format::Mxfp8, 2.0625),
        (Format::Bf16, 2.0),
    ];
    let dtypes = [
        (ReduceDtype::F32, WireType::F32),
        (ReduceDtype::Bf16, WireType::Bf16),
        (ReduceDtype::Mxfp8, WireType::Mxfp8),
    ];
    let all = formats.into_iter().flat_map(|format| dtypes.map(|dtype| (format, dtype)));
    for ((format, published), (reduce_dtype, wire)) in all {
        for replicas in [2, 4] {
            let program = matrices(format, &[(512, 512)]);
            let received = |shard| {
                let config = Config { reduce_dtype, ..config(replicas, &[], shard) };
                let plan = plan_program(&program, &config, replicas).unwrap();
                let tasks = plan.tasks.iter().filter(|task| task.op.group() == Some(Group::Replicate));
                tasks.map(|task| task.wire_bytes).sum::<usize>()
            };
            let each = (512 * 512 / replicas * (replicas - 1)) as f64;
            let slice = Shape::new(512 / replicas as usize, 512);
            let planes =
                format.stored_orientations().iter().flat_map(|side| format.compact_planes(*side, slice));
            let bytes: usize =
                planes.map(|plane| plane.bytes()).sum::<usize>() + wire.bytes(slice.elements());
            let cut = received(OptimizerShard::Replicas);
            assert_eq!(cut, bytes * (replicas - 1) as usize, "{format}");
            let wire = wire.bytes(32) as f64 / 32.0;
            assert!((cut as f64 / each - wire - published).abs() < 0.0005, "{format}: {}", cut as f64 / each);
            assert_eq!(received(OptimizerShard::DpShard) as f64 / each, 8.0, "{format}");
        }
    }
}
