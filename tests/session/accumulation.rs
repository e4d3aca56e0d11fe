//! Gradient accumulation.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use warpweft_base::id::RankId;
use warpweft_format::Format;
use warpweft_plan::policy::{Backward, ReduceDtype};
use warpweft_session::checkpoint::{Checkpoint, PartFiles};
use warpweft_session::config::{Capture, Config, OptimizerConfig, Prefetch};
use warpweft_session::session::{Outcome, Session, SessionError, StepReport};
use warpweft_testing::trainer::{self, Mischief, Shaped, Trainer, input, within_a_minute};

const RANKS: u32 = 2;

/// A session of `ranks` over a trainer of two layers; `accumulates` or not.
async fn start(
    config: Config,
    format: Format,
    ranks: u32,
    micro_batches: u32,
    mischief: &Mischief,
) -> Session {
    let shaped = Shaped { micro_batches, ..Shaped::default() };
    let mut trainer = Trainer::shaped(shaped, format, &config);
    trainer.train = trainer.train.accumulating().unwrap();
    let builder = trainer.builder(config, mischief).program(trainer.gradients_alone());
    builder.start_cpu(ranks).await.unwrap()
}

async fn usual() -> (Session, Mischief) {
    let mischief = Mischief::default();
    (start(Config::default(), Format::NVFP4_2D, RANKS, 1, &mischief).await, mischief)
}

fn feed(session: &mut Session, ranks: u32, step: u32, batch: u32) {
    for rank in 0..ranks {
        session.write_input("train", RankId::new(rank), "input", &input(step, rank, batch)).unwrap();
    }
}

/// `steps` optimizer steps over `batches` batches each.
async fn train(session: &mut Session, ranks: u32, steps: std::ops::Range<u32>, batches: u32) {
    for step in steps {
        for batch in 0..batches {
            feed(session, ranks, step, batch);
            if batch + 1 < batches {
                let report = session.accumulate("train").await.unwrap();
                let Outcome::Accumulated { steps, .. } = report.outcome else {
                    panic!("{:?}", report.outcome)
                };
                assert_eq!((steps, session.accumulated()), (batch + 1, batch + 1));
            } else {
                let report = session.step("train").await.unwrap();
                assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
                assert_eq!(session.accumulated(), 0);
            }
        }
    }
}

/// The same by micro-batches of one step.
async fn train_at_once(session: &mut Session, ranks: u32, steps: std::ops::Range<u32>, batches: u32) {
    for step in steps {
        for rank in 0..ranks {
            let values: Vec<f32> = (0..batches).flat_map(|batch| input(step, rank, batch)).collect();
            session.write_input("train", RankId::new(rank), "input", &values).unwrap();
        }
        let report = session.step("train").await.unwrap();
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
    }
}

/// Everything a checkpoint holds of the weights, as bits.
fn bits(checkpoint: &Checkpoint) -> Vec<u32> {
    let states = checkpoint.weights.iter();
    let lists = states.flat_map(|state| std::iter::once(&state.master).chain(&state.states));
    lists.flatten().map(|value| value.to_bits()).collect()
}

/// EX-1, PL-4.
#[test]
fn a_sum_over_steps_has_the_bits_of_one_step_with_as_many_micro_batches() {
    within_a_minute(async {
        let plain = || Config { check: true, ..Config::default() };
        let clipping = OptimizerConfig { max_norm: 0.5, ..OptimizerConfig::default() };
        let mut replicated = plain();
        replicated.mesh.dp_replicate = Some(2);
        let cases = [
            (plain(), Format::F32, 1, 2),
            (Config { capture: Capture::Step, ..plain() }, Format::NVFP4_2D, 2, 2),
            (Config { capture: Capture::Segments, ..plain() }, Format::FP8_BLOCK128_POW2, 3, 4),
            (Config { prefetch: Prefetch::depth(0), ..plain() }, Format::Bf16, 2, 4),
            (Config { prefetch: Prefetch::depth(3), communicators: Some(2), ..plain() }, Format::Mxfp8, 2, 2),
            (
                Config { reduce_dtype: ReduceDtype::Bf16, optimizer: clipping, ..plain() },
                Format::NVFP4_2D,
                2,
                4,
            ),
            (Config { reduce_dtype: ReduceDtype::Mxfp8, ..replicated.clone() }, Format::NVFP4_2D, 4, 2),
            (Config { backward: Backward::Keep, ..replicated }, Format::NVFP4_2D, 4, 2),
        ];
        for (number, (config, format, ranks, batches)) in cases.into_iter().enumerate() {
            let none = Mischief::default();
            let mut whole = start(config.clone(), format, ranks, batches, &none).await;
            let mut parts = start(config, format, ranks, 1, &none).await;
            train_at_once(&mut whole, ranks, 0..4, batches).await;
            train(&mut parts, ranks, 0..4, batches).await;
            let (whole, parts) = (whole.export().await.unwrap(), parts.export().await.unwrap());
            assert_eq!(whole.optimizer_step, 4);
            assert_eq!(parts.optimizer_step, 4, "one step of the optimizer for each sum");
            assert!(bits(&whole) == bits(&parts), "case {number}: {format}");
        }
    });
}

/// Steps captured and replayed: the first of each part is issued, the others are launched.
#[test]
fn every_part_of_an_accumulation_is_captured_by_itself() {
    within_a_minute(async {
        let config = Config { capture: Capture::Step, check: true, ..Config::default() };
        let mut session = start(config, Format::NVFP4_2D, RANKS, 1, &Mischief::default()).await;
        train(&mut session, RANKS, 0..2, 4).await;
        for batch in 0..4 {
            feed(&mut session, RANKS, 2, batch);
            let report =
                if batch < 3 { session.accumulate("train").await } else { session.step("train").await };
            assert_eq!(report.unwrap().segments, 1, "batch {batch}");
        }
    });
}

#[test]
fn main_grads_hold_the_sum_and_the_norm_is_of_its_mean() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        feed(&mut session, RANKS, 0, 0);
        session.accumulate("train").await.unwrap();
        let once = session.main_grads().await.unwrap();
        session.accumulate("train").await.unwrap();
        let twice = session.main_grads().await.unwrap();
        // Two calls add to the bias, so the sum of two steps is not twice that of one to the last bit.
        for (once, twice) in once.iter().zip(&twice).filter(|(once, _)| once.weight != "bias") {
            let doubled: Vec<f32> = once.values.iter().map(|value| value + value).collect();
            assert_eq!(twice.values, doubled, "{}", once.weight);
        }
        session.step("evaluate").await.unwrap_err(); // its input was never written
        assert_eq!(session.accumulated(), 2, "nothing ran");
        session.discard_gradients().await.unwrap();
        session.accumulate("train").await.unwrap();
        let Outcome::Updated { norm, .. } = session.step("train").await.unwrap().outcome else { panic!() };
        let (mut alone, _) = usual().await;
        feed(&mut alone, RANKS, 0, 0);
        let Outcome::Updated { norm: whole, .. } = alone.step("train").await.unwrap().outcome else {
            panic!()
        };
        let apart = (norm - whole).abs() / whole;
        assert!(apart < 1e-6, "{norm} and {whole}: the mean of two equal gradients is one of them");
    });
}

#[test]
fn steps_without_gradients_leave_the_sum() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        let (mut undisturbed, _) = usual().await;
        for step in 0..2 {
            for batch in 0..2 {
                feed(&mut session, RANKS, step, batch);
                session.accumulate("train").await.unwrap();
                trainer::feed(&mut session, "evaluate", RANKS, 9);
                assert_eq!(session.step("evaluate").await.unwrap().outcome, Outcome::Evaluated);
                session.export().await.unwrap();
            }
            feed(&mut session, RANKS, step, 2);
            session.step("train").await.unwrap();
        }
        train(&mut undisturbed, RANKS, 0..2, 3).await;
        let (found, expected) = (session.export().await.unwrap(), undisturbed.export().await.unwrap());
        assert!(bits(&found) == bits(&expected));
    });
}

#[test]
fn what_would_lose_a_sum_or_make_it_wrong_is_refused_and_changes_nothing() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        let (mut undisturbed, _) = usual().await;
        let error = session.accumulate("gradients").await.unwrap_err();
        assert!(
            matches!(&error, SessionError::NotAccumulating { program } if program == "gradients"),
            "{error}"
        );
        assert!(matches!(session.accumulate("tain").await, Err(SessionError::NoProgram { .. })));
        assert!(matches!(session.accumulate("train").await, Err(SessionError::InputNotWritten { .. })));
        feed(&mut session, RANKS, 0, 0);
        session.accumulate("train").await.unwrap();
        trainer::feed(&mut session, "gradients", RANKS, 5);
        let error = session.step("gradients").await.unwrap_err();
        assert!(matches!(error, SessionError::Accumulating { steps: 1, .. }), "{error}");
        assert!(error.to_string().contains("discard_gradients"), "{error}");
        session.set_loss_scale(2.0).unwrap();
        for refused in [session.accumulate("train").await, session.step("train").await] {
            assert!(matches!(refused, Err(SessionError::Accumulating { steps: 1, .. })), "{refused:?}");
        }
        session.set_loss_scale(1.0).unwrap();
        feed(&mut session, RANKS, 0, 1);
        session.step("train").await.unwrap();
        train(&mut undisturbed, RANKS, 0..1, 2).await;
        let (found, expected) = (session.export().await.unwrap(), undisturbed.export().await.unwrap());
        assert!(bits(&found) == bits(&expected));
    });
}

#[test]
fn a_sum_whose_scale_f32_cannot_undo_is_refused() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        feed(&mut session, RANKS, 0, 0);
        session.set_loss_scale(2f32.powi(126)).unwrap();
        let error = session.accumulate("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Accumulating { steps: 0, .. }), "{error}");
        // Two of these can be undone, and three cannot: what is begun can be ended.
        session.set_loss_scale(2f32.powi(125)).unwrap();
        session.accumulate("train").await.unwrap();
        let error = session.accumulate("train").await.unwrap_err();
        assert!(matches!(error, SessionError::Accumulating { steps: 1, .. }), "{error}");
        session.step("train").await.unwrap();
        assert_eq!(session.accumulated(), 0);
    });
}

/// After it the session is as one that never began the sum.
async fn is_as_new(session: &mut Session) {
    assert_eq!(session.accumulated(), 0);
    let (mut fresh, _) = usual().await;
    train(session, RANKS, 3..5, 2).await;
    train(&mut fresh, RANKS, 3..5, 2).await;
    let (found, expected) = (session.export().await.unwrap(), fresh.export().await.unwrap());
    assert!(bits(&found) == bits(&expected));
}

#[test]
fn a_sum_that_is_discarded_leaves_nothing() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        feed(&mut session, RANKS, 0, 0);
        session.accumulate("train").await.unwrap();
        session.discard_gradients().await.unwrap();
        is_as_new(&mut session).await;
    });
}

#[test]
fn an_import_drops_the_sum_and_one_that_is_refused_does_not() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        let checkpoint = session.export().await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let parts = PartFiles::new(folder.path());
        session.save_parts(&parts, &BTreeMap::new()).await.unwrap();
        feed(&mut session, RANKS, 0, 0);
        session.accumulate("train").await.unwrap();
        let mut other = checkpoint.clone();
        other.weights.pop();
        session.import(&other).await.unwrap_err();
        session.import_parts(&PartFiles::new(folder.path().join("none"))).await.unwrap_err();
        assert_eq!(session.accumulated(), 1);
        session.import(&checkpoint).await.unwrap();
        assert_eq!(session.accumulated(), 0);
        session.accumulate("train").await.unwrap();
        session.import_parts(&parts).await.unwrap();
        is_as_new(&mut session).await;
    });
}

/// EX-2: on every rank, although the closure of one failed.
#[test]
fn a_step_that_fails_drops_the_sum_whole() {
    within_a_minute(async {
        let (mut session, mischief) = usual().await;
        for failing in 0..3 {
            feed(&mut session, RANKS, 0, 0);
            for _ in 0..failing {
                session.accumulate("train").await.unwrap();
            }
            mischief.set(1);
            let error = session.accumulate("train").await;
            assert!(matches!(error, Err(SessionError::Closure { .. })), "{error:?}");
            mischief.set(0);
            assert_eq!(session.accumulated(), 0);
        }
        is_as_new(&mut session).await;
    });
}

#[test]
fn a_gradient_that_is_not_finite_skips_the_step_that_ends_its_sum() {
    within_a_minute(async {
        let (mut session, mischief) = usual().await;
        feed(&mut session, RANKS, 0, 0);
        mischief.set(3);
        session.accumulate("train").await.unwrap();
        mischief.set(0);
        session.accumulate("train").await.unwrap();
        let report = session.step("train").await.unwrap();
        assert!(matches!(report.outcome, Outcome::Skipped { .. }), "{:?}", report.outcome);
        is_as_new(&mut session).await;
    });
}

/// Begins a step and drops its future, which may have ended by then: has it?
fn poll_and_drop(step: impl Future<Output = Result<StepReport, SessionError>>) -> bool {
    pin!(step).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_dropped_accumulate_is_counted_when_it_has_ended() {
    within_a_minute(async {
        let (mut session, _) = usual().await;
        feed(&mut session, RANKS, 0, 0);
        let was_told = poll_and_drop(session.accumulate("train"));
        feed(&mut session, RANKS, 0, 1);
        let report = session.accumulate("train").await.unwrap();
        assert!(matches!(report.outcome, Outcome::Accumulated { steps: 2, .. }), "{:?}", report.outcome);
        match report.unobserved[..] {
            [] => assert!(was_told),
            [Outcome::Accumulated { steps: 1, .. }] => assert!(!was_told),
            _ => panic!("{:?}", report.unobserved),
        }
        poll_and_drop(session.accumulate("train"));
        session.discard_gradients().await.unwrap();
        is_as_new(&mut session).await;
    });
}

#[test]
fn a_session_that_tunes_itself_refuses_programs_that_accumulate() {
    within_a_minute(async {
        let mut config = Config::default();
        config.tune.steps = 6;
        let mut trainer = Trainer::new(2, Format::Bf16);
        trainer.train = trainer.train.accumulating().unwrap();
        let error = trainer.start(config, RANKS).await.unwrap_err();
        assert!(matches!(error, SessionError::Unsupported { key: "tune.steps", .. }), "{error}");
    });
}
