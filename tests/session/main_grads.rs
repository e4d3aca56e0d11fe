//! Main grads read by a trainer: complete sums, of one step that ended well.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{MainGrad, Outcome, Session, SessionError, block_on, initial};

const RANKS: u32 = 2;
const BATCHES: u32 = 2;
/// Two tiles of rows for the first rank and one for the other.
const ROWS: usize = 48;
const COLS: usize = 16;

/// Small whole numbers, so that sums and means of four are exact.
fn gradient(weight: usize, input: f32, at: usize) -> f32 {
    (input * (weight + 1) as f32) * (at % 7) as f32
}

/// What the ranks are fed: of every micro-batch another number.
fn input(rank: RankId) -> Vec<f32> {
    (0..BATCHES).map(|batch| (6 * rank.number() + 12 * batch) as f32).collect()
}

/// The mean over ranks and micro-batches.
fn mean(weight: usize, at: usize) -> f32 {
    let inputs = (0..RANKS).flat_map(|rank| input(RankId::new(rank)));
    inputs.map(|input| gradient(weight, input, at)).sum::<f32>() / (RANKS * BATCHES) as f32
}

/// A sharded weight, a frozen one and a replicated one, and programs that end with an optimizer step, with
/// gradients twice as large, and without any. Calls fail while `fails` says so.
async fn start(fails: Arc<AtomicBool>) -> Session {
    start_with(Capture::Off, fails).await
}

async fn start_with(capture: Capture, fails: Arc<AtomicBool>) -> Session {
    let mut model = Model::builder();
    let sharded = model.sharded("sharded", ROWS, COLS, Format::NVFP4_2D).unwrap();
    let still = model.sharded("still", ROWS, COLS, Format::NVFP4_2D).unwrap();
    model.freeze(still).unwrap();
    let replicated = model.replicated("replicated", 1, COLS).unwrap();
    let model = model.build();
    let program = |name: &str, trained: &[_]| {
        let mut program = StepProgram::builder(name, &model);
        let batches = if name == "evaluate" { 1 } else { BATCHES };
        program.micro_batches(batches).unwrap();
        let input = program.input("input", 1, ElementType::F32).unwrap();
        let mut call = program.call("call", Phase::Backward);
        for weight in [sharded, still, replicated] {
            call = call.uses(weight, Orientation::Rowwise, Form::Dense);
        }
        call = call.reads(input);
        for weight in trained {
            call = call.gradient(*weight);
        }
        call.add().unwrap();
        match name {
            "train" => program.build_training().unwrap(),
            "reduce" => program.build_gradients().unwrap(),
            _ => program.build_evaluation().unwrap(),
        }
    };
    let trained = [sharded, replicated];
    let programs = [program("train", &trained), program("reduce", &trained), program("evaluate", &[])];
    let closures = move |_: RankId| {
        let fails = Arc::clone(&fails);
        move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
            if fails.load(Ordering::SeqCst) {
                return Err(ComputeError::closure("told to"));
            }
            let input = context.read::<f32>(context.buffer_named("input")?)?[0];
            for (number, weight) in [(0, sharded), (2, replicated)] {
                if call.gradient(weight).is_some() {
                    for (at, value) in context.gradient(weight)?.iter_mut().enumerate() {
                        *value = gradient(number, input, at);
                    }
                }
            }
            Ok(())
        }
    };
    let builder = Session::builder(Config { check: true, capture, ..Config::default() }, closures);
    let builder = builder.initialize(initial::zeros());
    let builder = programs.into_iter().fold(builder, |builder, program| builder.program(program));
    let mut session = builder.start_cpu(RANKS).await.unwrap();
    for rank in (0..RANKS).map(RankId::new) {
        let twice: Vec<f32> = input(rank).iter().map(|input| 2.0 * input).collect();
        session.write_input("train", rank, "input", &input(rank)).unwrap();
        session.write_input("reduce", rank, "input", &twice).unwrap();
        session.write_input("evaluate", rank, "input", &[0.0_f32]).unwrap();
    }
    session
}

/// Of every rank its rows, and nothing of any other; together they are the weight.
#[track_caller]
fn check(found: &[MainGrad], times: f32) {
    let weights = [("sharded", 0), ("replicated", 2)];
    assert_eq!(found.len(), weights.len() * RANKS as usize);
    for (number, part) in found.iter().enumerate() {
        let (name, weight) = weights[number % weights.len()];
        assert_eq!((part.rank, part.weight.as_str()), (RankId::at(number / weights.len()), name));
        assert_eq!(part.values.len(), part.rows.rows * COLS);
        let first = part.rows.begin * COLS;
        let expected = (first..first + part.values.len()).map(|at| times * mean(weight, at));
        assert_eq!(part.values, expected.collect::<Vec<_>>(), "{name} of {}", part.rank);
    }
    let rows = |name| found.iter().filter(move |part| part.weight == name).map(|part| part.rows.rows);
    assert_eq!(rows("sharded").sum::<usize>(), ROWS);
    assert!(rows("replicated").all(|rows| rows == 1));
}

/// PL-4, as the user sees it.
#[test]
fn main_grads_are_the_means_that_the_last_step_with_gradients_left() {
    block_on(async {
        let mut session = start(Arc::default()).await;
        let outcome = session.step("train").await.unwrap().outcome;
        assert!(matches!(outcome, Outcome::Updated { .. }));
        check(&session.main_grads().await.unwrap(), 1.0);
        // What writes none, or takes weights out and in, leaves them.
        session.step("evaluate").await.unwrap();
        let checkpoint = session.export().await.unwrap();
        session.import(&checkpoint).await.unwrap();
        check(&session.main_grads().await.unwrap(), 1.0);
        session.step("reduce").await.unwrap();
        check(&session.main_grads().await.unwrap(), 2.0);
        // What calls wrote, whatever they were to multiply it with.
        session.set_loss_scale(4.0).unwrap();
        session.step("train").await.unwrap();
        check(&session.main_grads().await.unwrap(), 1.0);
        session.close().await.unwrap();
    });
}

#[test]
fn without_a_step_that_left_gradients_there_are_none_to_read() {
    block_on(async {
        let fails = Arc::new(AtomicBool::new(false));
        let mut session = start(Arc::clone(&fails)).await;
        session.step("evaluate").await.unwrap();
        let refused = session.main_grads().await.unwrap_err();
        assert!(matches!(refused, SessionError::NoGradients), "{refused}");
        session.step("train").await.unwrap();
        check(&session.main_grads().await.unwrap(), 1.0);
        fails.store(true, Ordering::SeqCst);
        session.step("reduce").await.unwrap_err();
        assert!(matches!(session.main_grads().await, Err(SessionError::NoGradients)));
        fails.store(false, Ordering::SeqCst);
        session.step("reduce").await.unwrap();
        check(&session.main_grads().await.unwrap(), 2.0);
        session.close().await.unwrap();
    });
}

/// Norms of single weights, of all ranks together, are what the report says of all weights together.
#[test]
fn the_norm_of_all_main_grads_is_the_report_s() {
    block_on(async {
        let mut session = start(Arc::default()).await;
        let Outcome::Updated { norm, .. } = session.step("train").await.unwrap().outcome else {
            unreachable!()
        };
        let parts = session.main_grads().await.unwrap();
        // Every rank has the replicated weight.
        let counts = |part: &&MainGrad| part.weight != "replicated" || part.rank == RankId::new(0);
        let squares = parts.iter().filter(counts).flat_map(|part| &part.values).map(|value| value * value);
        assert!((squares.sum::<f32>().sqrt() / norm - 1.0).abs() < 1e-5);
        session.close().await.unwrap();
    });
}

#[test]
fn an_update_rule_of_the_trainer_s_own_goes_by_way_of_the_host() {
    block_on(async {
        let mut session = start(Arc::default()).await;
        for _ in 0..3 {
            session.step("reduce").await.unwrap();
            let parts = session.main_grads().await.unwrap();
            let mut checkpoint = session.export().await.unwrap();
            for weight in &mut checkpoint.weights {
                let mut own: Vec<_> = parts.iter().filter(|part| part.weight == weight.name).collect();
                // Of the replicated weight both ranks have all rows.
                own.dedup_by_key(|part| part.rows.begin);
                for part in own {
                    let masters = weight.master[part.rows.begin * COLS..].iter_mut();
                    masters.zip(&part.values).for_each(|(master, gradient)| *master -= 0.5 * gradient);
                }
            }
            session.import(&checkpoint).await.unwrap();
        }
        session.step("evaluate").await.unwrap();
        let left = session.export().await.unwrap();
        for (number, weight) in left.weights.iter().enumerate() {
            // Masters began as zeros, and the gradient of every step is twice the mean.
            let trains = weight.name != "still";
            let expected =
                (0..weight.shape.elements()).map(|at| if trains { -3.0 * mean(number, at) } else { 0.0 });
            assert_eq!(*weight.values().unwrap(), *expected.collect::<Vec<_>>(), "{}", weight.name);
        }
        session.close().await.unwrap();
    });
}

/// A future that is dropped before the ranks replied: what follows waits for them, and finds everything in place.
#[test]
fn main_grads_that_nobody_waits_for_disturb_nothing() {
    block_on(async {
        let mut session = start(Arc::default()).await;
        session.step("train").await.unwrap();
        for _ in 0..20 {
            let mut requested = Box::pin(session.main_grads());
            let waker = std::task::Waker::noop();
            let _ = requested.as_mut().poll(&mut std::task::Context::from_waker(waker));
            drop(requested);
            session.step("reduce").await.unwrap();
            check(&session.main_grads().await.unwrap(), 2.0);
        }
        session.close().await.unwrap();
    });
}

/// A captured step leaves what an issued one does, and a skipped one shows what was not finite.
#[test]
fn captured_and_skipped_steps_leave_main_grads() {
    block_on(async {
        let mut session = start_with(Capture::Step, Arc::default()).await;
        for _ in 0..4 {
            session.step("train").await.unwrap();
            check(&session.main_grads().await.unwrap(), 1.0);
        }
        session.write_input("train", RankId::new(1), "input", &[f32::INFINITY, 0.0]).unwrap();
        assert!(matches!(session.step("train").await.unwrap().outcome, Outcome::Skipped { .. }));
        let parts = session.main_grads().await.unwrap();
        assert!(parts.iter().all(|part| part.values.iter().any(|value| !value.is_finite())));
        session.close().await.unwrap();
    });
}
