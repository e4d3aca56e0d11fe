//! Sessions with several replicas: the replicas stay one model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use warpweft_backend::cpu::{CpuOptions, CpuSurface, CpuWorld};
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, DeclareError, Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::policy::ReduceDtype;
use warpweft_session::config::{Capture, Config, OptimizerShard};
use warpweft_session::exec::ExecError;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Outcome, Session, SessionBuilder, SessionError, StepReport};
use warpweft_testing::trainer::{self, Mischief, Trainer, initial, losses, within_a_minute};

const SHAPE: (usize, usize) = (80, 32);

fn config(replicate: u32) -> Config {
    let mut config = Config { check: true, ..Config::default() };
    config.mesh.dp_replicate = Some(replicate);
    config
}

/// One weight that every rank shows as it found it, and whose gradient follows from the rank's input.
fn showing(config: Config, format: Format) -> SessionBuilder<CpuSurface> {
    let mut model = Model::builder();
    let weight = model.sharded("w", SHAPE.0, SHAPE.1, format).unwrap();
    let bias = model.replicated("bias", 1, SHAPE.1).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let input = program.input("input", 1, ElementType::F32).unwrap();
    let seen = program.output("seen", (SHAPE.0 + 1) * SHAPE.1, ElementType::F32).unwrap();
    let call = program.call("all", Phase::Backward).uses(weight, Orientation::Rowwise, Form::Dense);
    let call = call.uses(bias, Orientation::Rowwise, Form::Dense).reads(input).writes(seen);
    call.gradient(weight).gradient(bias).add().unwrap();
    let closures = move |_: RankId| {
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
            let [input] = context.read::<f32>(input)?[..] else {
                return Err(ComputeError::closure("one value was declared"));
            };
            if input < 0.0 {
                return Err(ComputeError::closure("no input below zero"));
            }
            let mut seen = context.write::<f32>(seen)?;
            let (of_weight, of_bias) = seen.split_at_mut(SHAPE.0 * SHAPE.1);
            of_weight.copy_from_slice(&context.dense(weight, Orientation::Rowwise)?);
            of_bias.copy_from_slice(&context.dense(bias, Orientation::Rowwise)?);
            for weight in [weight, bias] {
                for (at, gradient) in context.gradient(weight)?.iter_mut().enumerate() {
                    *gradient = (input * (at + 1) as f32).sin() * (1.0 + input);
                }
            }
            Ok(())
        }
    };
    Session::builder(config, closures).program(program.build_training().unwrap()).initialize(initial)
}

async fn step(session: &mut Session, inputs: &[f32]) -> Result<StepReport, SessionError> {
    for (rank, input) in inputs.iter().enumerate() {
        session.write_input("train", RankId::at(rank), "input", &[*input]).unwrap();
    }
    session.step("train").await
}

/// What every rank found, which must be the same bits.
fn found(report: &StepReport, ranks: usize) -> Vec<u32> {
    let of = |rank: usize| -> Vec<u32> {
        let seen = report.output::<f32>(RankId::at(rank), "seen").unwrap();
        seen.into_iter().map(f32::to_bits).collect()
    };
    for rank in 1..ranks {
        assert_eq!(of(rank), of(0), "rank {rank} sees another model than rank 0");
    }
    of(0)
}

/// PL-4, EX-1. Issued and replayed, in all kinds of formats, with gradients in f32, bf16 and MXFP8.
#[test]
fn all_replicas_hold_the_same_bits_at_every_step() {
    within_a_minute(async {
        for format in [Format::F32, Format::NVFP4_2D, Format::FP8_TENSOR_E4M3] {
            for (ranks, replicate) in [(2, 2), (4, 2), (6, 3)] {
                for (capture, reduce_dtype) in [
                    (Capture::Off, ReduceDtype::Bf16),
                    (Capture::Off, ReduceDtype::Mxfp8),
                    (Capture::Step, ReduceDtype::F32),
                ] {
                    let config = Config { capture, reduce_dtype, ..config(replicate) };
                    let mut session = showing(config, format).start_cpu(ranks).await.unwrap();
                    let mut seen = Vec::new();
                    for number in 0..6u32 {
                        let inputs: Vec<f32> = (0..ranks).map(|rank| (number * 7 + rank) as f32).collect();
                        let report = step(&mut session, &inputs).await.unwrap();
                        assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
                        seen.push(found(&report, ranks as usize));
                    }
                    assert!(seen.windows(2).all(|pair| pair[0] != pair[1]), "{format}: it learns");
                }
            }
        }
    });
}

/// EX-2. Whichever replica it came up in.
#[test]
fn a_gradient_that_is_not_finite_on_one_rank_of_one_replica_skips_the_step_everywhere() {
    within_a_minute(async {
        let (ranks, replicate) = (6, 3);
        let mut session = showing(config(replicate), Format::NVFP4_2D).start_cpu(ranks).await.unwrap();
        let valid: Vec<f32> = (0..ranks).map(|rank| rank as f32).collect();
        step(&mut session, &valid).await.unwrap();
        let before = found(&step(&mut session, &valid).await.unwrap(), 6);
        for broken in 0..ranks as usize {
            let known = found(&step(&mut session, &valid).await.unwrap(), 6);
            assert_ne!(known, before);
            let mut inputs = valid.clone();
            inputs[broken] = f32::NAN;
            let skipped = step(&mut session, &inputs).await.unwrap();
            assert!(matches!(skipped.outcome, Outcome::Skipped { .. }), "rank {broken}");
            let after_skip = found(&skipped, 6);
            let again = step(&mut session, &inputs).await.unwrap();
            assert_eq!(found(&again, 6), after_skip, "rank {broken}: a skipped step changed the weights");
        }
    });
}

/// EX-2.
#[test]
fn a_closure_that_fails_in_one_replica_fails_the_step_in_all_and_they_go_on_alike() {
    within_a_minute(async {
        let mut session = showing(config(2), Format::F32).start_cpu(4).await.unwrap();
        let before = found(&step(&mut session, &[1.0; 4]).await.unwrap(), 4);
        let error = step(&mut session, &[1.0, 1.0, 1.0, -1.0]).await.unwrap_err();
        assert!(matches!(error, SessionError::Closure { rank, .. } if rank == RankId::new(3)), "{error}");
        let learned = found(&step(&mut session, &[1.0; 4]).await.unwrap(), 4);
        assert_ne!(learned, before);
        let next = found(&step(&mut session, &[1.0; 4]).await.unwrap(), 4);
        assert_ne!(next, learned);
    });
}

/// The norm counts every shard once, however often it is copied: equal inputs on all ranks give the norm of
/// one rank alone.
#[test]
fn the_norm_counts_each_shard_once() {
    within_a_minute(async {
        let mut norms = Vec::new();
        for (ranks, replicate) in [(1, 1), (4, 1), (4, 2), (4, 4)] {
            let mut session = showing(config(replicate), Format::F32).start_cpu(ranks).await.unwrap();
            let report = step(&mut session, &vec![0.75; ranks as usize]).await.unwrap();
            let Outcome::Updated { norm, .. } = report.outcome else { panic!("{:?}", report.outcome) };
            norms.push(norm);
        }
        assert!(norms[0] > 1.0 && norms.iter().all(|norm| (norm / norms[0] - 1.0).abs() < 1e-6), "{norms:?}");
    });
}

/// A checkpoint is of no mesh: 2 × 2 to 4 × 1 and back, bit for bit.
#[test]
fn a_checkpoint_goes_from_two_replicas_to_one_and_back() {
    within_a_minute(async {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mut unbroken = trainer.start(config(2), 4).await.unwrap();
        let expected = losses(&mut unbroken, 4, 0..6).await;
        let mut first = trainer.start(config(2), 4).await.unwrap();
        let mut found = losses(&mut first, 4, 0..3).await;
        let written = first.export().await.unwrap();
        let mut sharded = trainer.start(config(1), 4).await.unwrap();
        sharded.import(&written).await.unwrap();
        let passed_on = sharded.export().await.unwrap();
        assert_eq!(passed_on, written);
        let mut back = trainer.start(config(2), 4).await.unwrap();
        losses(&mut back, 4, 9..11).await;
        back.import(&passed_on).await.unwrap();
        found.extend(losses(&mut back, 4, 3..6).await);
        assert_eq!(found, expected);
        assert_eq!(back.export().await.unwrap(), unbroken.export().await.unwrap());
    });
}

#[test]
fn replicas_that_do_not_divide_the_ranks_are_refused_with_both_numbers() {
    within_a_minute(async {
        let error = showing(config(3), Format::F32).start_cpu(4).await.unwrap_err();
        let is_named =
            matches!(error, SessionError::Declare(DeclareError::Replicas { ranks: 4, replicas: 3 }));
        assert!(is_named, "{error}");
        let said = error.to_string();
        assert!(
            said.contains("4 ranks cannot hold 3 replicas") && said.contains("mesh.dp_replicate"),
            "{said}"
        );
    });
}

#[test]
fn backends_of_another_mesh_than_the_configuration_s_are_refused() {
    within_a_minute(async {
        for (made_for, configured) in [(1, 2), (2, 1)] {
            let world = CpuWorld::new(Mesh::hybrid(4, made_for).unwrap(), CpuOptions::default()).unwrap();
            let backends = (0..4).map(|rank| world.backend(RankId::new(rank)).unwrap()).collect();
            let error = showing(config(configured), Format::F32).start(backends).await.unwrap_err();
            let is_named = matches!(
                error,
                SessionError::Mesh { configured: requested, of_backends, .. }
                    if (requested.replicas(), of_backends.replicas()) == (configured, made_for)
            );
            assert!(is_named, "{error}");
        }
    });
}

/// Nothing would ever bring replicas together again that began apart.
#[test]
fn an_initializer_that_gives_replicas_different_values_is_found_out() {
    within_a_minute(async {
        let requested = Arc::new(AtomicU32::new(0));
        let drifting = move |_: MasterRows<'_>, values: &mut [f32]| {
            values.fill(requested.fetch_add(1, Ordering::SeqCst) as f32);
        };
        let builder = showing(config(2), Format::F32).initialize(drifting);
        let error = builder.start_cpu(4).await.unwrap_err();
        assert!(matches!(error, SessionError::Exec(ExecError::ReplicasDiffer { .. })), "{error}");
        assert!(error.to_string().contains("hold the same rows in two replicas"), "{error}");
    });
}

/// Slices are compared over the optimizer instances, as nobody else has them.
#[test]
fn an_initializer_that_gives_optimizer_instances_different_values_is_found_out() {
    let started = |drift: f32| {
        let mut config = config(4);
        (config.mesh.optimizer_instances, config.optimizer.shard) = (2, OptimizerShard::Replicas);
        let requested = Arc::new(AtomicU32::new(0));
        let drifting = move |rows: MasterRows<'_>, values: &mut [f32]| {
            trainer::initial(rows, values);
            if rows.weight != "bias" {
                let more = drift * requested.fetch_add(1, Ordering::SeqCst) as f32;
                values.iter_mut().for_each(|value| *value += more);
            }
        };
        within_a_minute(async move {
            showing(config, Format::F32).initialize(drifting).start_cpu(8).await.map(drop)
        })
    };
    assert!(started(0.0).is_ok());
    let error = started(0.5).unwrap_err();
    assert!(matches!(error, SessionError::Exec(ExecError::ReplicasDiffer { .. })), "{error}");
}

/// Every rank has the whole of a replicated weight, in one replica as in several.
#[test]
fn an_initializer_that_gives_ranks_different_values_of_a_replicated_weight_is_found_out() {
    within_a_minute(async {
        for replicas in [1, 2] {
            let requested = Arc::new(AtomicU32::new(0));
            let drifting = move |rows: MasterRows<'_>, values: &mut [f32]| {
                trainer::initial(rows, values);
                if rows.weight == "bias" {
                    values.fill(requested.fetch_add(1, Ordering::SeqCst) as f32);
                }
            };
            let builder = showing(config(replicas), Format::F32).initialize(drifting);
            let error = builder.start_cpu(4).await.unwrap_err();
            let of_bias = |error: &SessionError| matches!(error, SessionError::Exec(ExecError::ReplicatedDiffers { weight, .. }) if weight == "bias");
            assert!(of_bias(&error), "{error}");
            assert!(error.to_string().contains("hold the whole of the replicated weight `bias`"), "{error}");
        }
    });
}

/// The closures' own mischief meets replicas like anything else.
#[test]
fn a_session_of_replicas_ends_when_a_closure_panics_in_one_of_them() {
    within_a_minute(async {
        let mischief = Mischief::default();
        let trainer = Trainer::new(2, Format::F32);
        let mut session = trainer.builder(config(2), &mischief).start_cpu(4).await.unwrap();
        losses(&mut session, 4, 0..1).await;
        mischief.set(2);
        trainer::feed(&mut session, "train", 4, 1);
        let error = session.step("train").await.unwrap_err().to_string();
        assert!(error.contains("rank 1") && error.contains("panicked"), "{error}");
        assert!(matches!(session.step("train").await, Err(SessionError::Poisoned { .. })));
    });
}

/// EX-1. Plans tried in a session's first steps are of the same mesh, and change no bit.
#[test]
fn a_session_of_replicas_tunes_itself_without_changing_a_bit() {
    within_a_minute(async {
        let trainer = Trainer::new(3, Format::NVFP4_2D);
        let mut tuned = config(2);
        tuned.tune.steps = 6;
        let expected = losses(&mut trainer.start(config(2), 4).await.unwrap(), 4, 0..8).await;
        let mut session = trainer.start(tuned, 4).await.unwrap();
        assert_eq!(losses(&mut session, 4, 0..8).await, expected);
        let tuning = session.tuning().unwrap();
        assert!(tuning.is_frozen() && tuning.log().len() > 1, "{tuning}");
    });
}

/// GPUs take replicas and chunks; what they do not take is said before any is looked for.
#[test]
fn replicas_that_do_not_divide_the_gpus_are_refused_before_any_is_opened() {
    use warpweft_cuda::{CudaSurface, DeviceOrdinal};
    use warpweft_plan::policy::ByteSize;
    within_a_minute(async {
        let model = Model::builder().build();
        let mut program = StepProgram::builder("train", &model);
        let loss = program.output("loss", 1, ElementType::F32).unwrap();
        program.call("loss", Phase::Forward).writes(loss).add().unwrap();
        let closures = |_: RankId| |_: &Call, _: &ComputeContext<'_, CudaSurface>| Ok(());
        let program = program.build_evaluation().unwrap();
        let nowhere = vec![DeviceOrdinal::new(900), DeviceOrdinal::new(901)];
        let mut uneven = config(3);
        uneven.prefetch.chunk = Some(ByteSize::new(4096));
        let even = Config { mesh: config(2).mesh, ..uneven.clone() };
        let builder = Session::builder(uneven, closures).program(program.clone());
        let error = builder.start_cuda(nowhere.clone()).await.unwrap_err();
        assert!(error.to_string().contains("2 ranks cannot hold 3 replicas"), "{error}");
        let builder = Session::builder(even.clone(), closures).program(program.clone());
        let error = builder.start_cuda(Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("start at least one") && error.contains("on GPUs one device"), "{error}");
        // And now for the GPUs, which are not there.
        let error = Session::builder(even, closures).program(program).start_cuda(nowhere).await.unwrap_err();
        assert!(matches!(error, SessionError::Cuda(_)) && !error.to_string().contains("replicas"), "{error}");
    });
}
