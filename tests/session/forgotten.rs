//! Forgotten and excessive operands of closures and trainers: reported by name, before they are trained on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_session::checkpoint::StatePart;
use warpweft_session::config::Config;
use warpweft_session::exec::ExecError;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Outcome, Session, SessionBuilder, SessionError, block_on, initial};
use warpweft_testing::polled::polled_once;

const RANKS: u32 = 2;
const SIZE: usize = 32;

/// How the closure of rank 1 does its work.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
enum Work {
    Whole,
    NoGradient,
    NoBuffer,
    NoOutput,
    HalfTheGradient,
    AddsToTheGradient,
    UnwrittenOutput,
}

impl Work {
    const ALL: [Self; 7] = [
        Self::Whole,
        Self::NoGradient,
        Self::NoBuffer,
        Self::NoOutput,
        Self::HalfTheGradient,
        Self::AddsToTheGradient,
        Self::UnwrittenOutput,
    ];
}

/// The orders of rank 1.
#[derive(Clone, Default)]
struct Orders(Arc<AtomicU8>);

impl Orders {
    fn give(&self, work: Work) {
        self.0.store(work as u8, Ordering::SeqCst);
    }

    fn of(&self, rank: RankId) -> Work {
        let order = self.0.load(Ordering::SeqCst);
        if rank == RankId::new(1) { Work::ALL[usize::from(order)] } else { Work::Whole }
    }
}

/// One call that passes its input on, and never touches a buffer that it may update.
fn program() -> (WeightId, StepProgram) {
    let mut model = Model::builder();
    let map = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let x = program.input("x", SIZE, ElementType::F32).unwrap();
    let y = program.activation("y", SIZE).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let kept = program.carried("kept", 4, ElementType::F32).unwrap();
    let call = program.call("fit", Phase::Backward).uses(map, Orientation::Rowwise, Form::Dense);
    call.gradient(map).reads(x).writes(y).writes(loss).updates(kept).add().unwrap();
    (map, program.build_training().unwrap())
}

fn fit(map: WeightId, work: Work, context: &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError> {
    let buffer = |name| context.buffer_named(name);
    let x = context.read::<f32>(buffer("x")?)?;
    assert_eq!(context.weight_named("map")?, map);
    if work != Work::NoBuffer {
        context.write::<f32>(buffer("y")?)?.copy_from_slice(&x);
    }
    if work != Work::NoOutput {
        let mut loss = context.write::<f32>(buffer("loss")?)?;
        loss.iter_mut().filter(|_| work != Work::UnwrittenOutput).for_each(|loss| *loss = 1.0);
    }
    if work == Work::NoGradient {
        return Ok(());
    }
    let mut gradient = context.gradient(map)?;
    let end = if work == Work::HalfTheGradient { gradient.len() / 2 } else { gradient.len() };
    for (at, value) in gradient[..end].iter_mut().enumerate() {
        let own = x[at % SIZE];
        *value = if work == Work::AddsToTheGradient { *value + own } else { own };
    }
    Ok(())
}

fn builder(config: Config, orders: &Orders) -> SessionBuilder<CpuSurface> {
    let (orders, (map, program)) = (orders.clone(), program());
    let closures = move |_: RankId| {
        let orders = orders.clone();
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| fit(map, orders.of(context.rank()), context)
    };
    Session::builder(config, closures).program(program).initialize(initial::zeros())
}

async fn start(config: Config, orders: &Orders) -> Session {
    let mut session = builder(config, orders).start_cpu(RANKS).await.unwrap();
    for rank in session.own_ranks() {
        session.write_input("train", rank, "x", &[0.5_f32; SIZE]).unwrap();
    }
    session
}

/// EX-4
#[test]
fn what_a_call_declares_to_write_and_its_closure_never_asks_for_skips_the_step_by_name() {
    block_on(async {
        let orders = Orders::default();
        let mut session = start(Config::default(), &orders).await;
        session.step("train").await.unwrap();
        let before = session.export().await.unwrap();
        for (work, what) in [
            (Work::NoGradient, "the gradient of `map`"),
            (Work::NoBuffer, "buffer `y`"),
            (Work::NoOutput, "buffer `loss`"),
        ] {
            orders.give(work);
            let error = session.step("train").await.unwrap_err();
            let SessionError::Closure { rank, call, message, panicked, .. } = &error else {
                panic!("{error}")
            };
            assert_eq!((*rank, call.as_str(), *panicked), (RankId::new(1), "fit", None));
            assert!(message.contains(&format!("call `fit` declares to write {what}")), "{message}");
            assert_eq!(session.export().await.unwrap(), before);
        }
        orders.give(Work::Whole);
        assert!(matches!(session.step("train").await.unwrap().outcome, Outcome::Updated { .. }));
    });
}

#[test]
fn a_gradient_that_is_lent_twice_at_once_is_refused_by_name() {
    block_on(async {
        let (map, program) = program();
        let closures = move |_: RankId| {
            move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
                let _held = context.gradient(map)?;
                context.gradient(map).map(drop)
            }
        };
        let builder =
            Session::builder(Config::default(), closures).program(program).initialize(initial::zeros());
        let mut session = builder.start_cpu(1).await.unwrap();
        session.write_input("train", RankId::new(0), "x", &[0.5_f32; SIZE]).unwrap();
        let said = session.step("train").await.unwrap_err().to_string();
        let twice = "requested the gradient of `map` while it holds the gradient of `map`";
        assert!(said.contains(twice) && said.contains("drop what it holds first"), "{said}");
    });
}

/// EX-4: what is left as it was filled is reported by name, on all ranks, and is no skipped step, which would look like
/// a gradient that overflowed.
#[test]
fn under_the_checking_layer_what_is_half_written_or_added_to_fails_the_step_by_name_and_place() {
    block_on(async {
        let orders = Orders::default();
        let mut session = start(Config { check: true, ..Config::default() }, &orders).await;
        session.step("train").await.unwrap();
        let before = session.export().await.unwrap();
        let elements = SIZE * SIZE;
        for (work, what, missing, of, first) in [
            (Work::HalfTheGradient, "the gradient of `map`", elements / 2, elements, elements / 2),
            (Work::AddsToTheGradient, "the gradient of `map`", elements, elements, 0),
            (Work::UnwrittenOutput, "buffer `loss`", 1, 1, 0),
        ] {
            orders.give(work);
            let error = session.step("train").await.unwrap_err();
            let SessionError::Closure { rank, call, message, panicked, .. } = &error else {
                panic!("{work:?}: {error}")
            };
            assert_eq!((*rank, call.as_str(), *panicked), (RankId::new(1), "fit", None));
            let said = format!(
                "call `fit` writes {what}, and its closure left {missing} of its {of} elements as they were, the first at \
                 {first}"
            );
            assert!(message.contains(&said), "{message}");
            assert_eq!(session.export().await.unwrap(), before);
        }
        orders.give(Work::Whole);
        assert!(matches!(session.step("train").await.unwrap().outcome, Outcome::Updated { .. }));
    });
}

/// A gradient that overflows is one that the trainer's loss scale answers for, under the checking layer too.
#[test]
fn under_the_checking_layer_a_gradient_that_is_no_number_by_itself_skips_the_step() {
    block_on(async {
        let orders = Orders::default();
        let mut session = start(Config { check: true, ..Config::default() }, &orders).await;
        for value in [f32::NAN, -f32::NAN, f32::INFINITY] {
            session.write_input("train", RankId::new(1), "x", &[value; SIZE]).unwrap();
            let outcome = session.step("train").await.unwrap().outcome;
            assert!(matches!(outcome, Outcome::Skipped { .. }), "{value}: {outcome:?}");
        }
    });
}

#[test]
fn a_step_whose_input_nobody_wrote_is_refused_with_its_name_and_rank() {
    block_on(async {
        let mut session = builder(Config::default(), &Orders::default()).start_cpu(RANKS).await.unwrap();
        session.write_input("train", RankId::new(0), "x", &[0.5_f32; SIZE]).unwrap();
        let error = session.step("train").await.unwrap_err();
        let SessionError::InputNotWritten { program, rank, buffer } = &error else { panic!("{error}") };
        assert_eq!((program.as_str(), *rank, buffer.as_str()), ("train", RankId::new(1), "x"));
        session.write_input("train", RankId::new(1), "x", &[0.5_f32; SIZE]).unwrap();
        assert_eq!(session.step("train").await.unwrap().step, 0, "the refused one did not count");
    });
}

#[test]
fn an_input_an_output_and_a_rank_that_are_not_there_are_told_with_those_that_are() {
    block_on(async {
        let mut session = start(Config::default(), &Orders::default()).await;
        let report = session.step("train").await.unwrap();
        let mut write = |rank, buffer, values: &[f32]| {
            session.write_input("train", RankId::new(rank), buffer, values).unwrap_err().to_string()
        };
        let told = [
            (write(0, "loss", &[1.0]), "its inputs are `x`"),
            (write(7, "x", &[1.0; SIZE]), "there is no rank 7; the session has 2 ranks"),
            (write(1, "x", &[1.0; 3]), "was given 12 bytes for rank 1 and holds 128: 32 elements of f32"),
            (report.mean_output("x").unwrap_err().to_string(), "its outputs are `loss`"),
            (
                report.output::<f32>(RankId::new(2), "loss").unwrap_err().to_string(),
                "there is no rank 2; the session has 2 ranks",
            ),
        ];
        for (said, expected) in told {
            assert!(said.contains(expected), "{said}");
            assert!(!said.contains("micro-batches"), "the program has one: {said}");
        }
    });
}

#[test]
fn masters_that_are_not_finite_are_refused_with_their_place_at_the_start_and_at_an_import() {
    block_on(async {
        // The last is finite until it is rounded to bf16 for the cast.
        for bad in [f32::NAN, f32::NEG_INFINITY, f32::MAX] {
            let masters = move |rows: MasterRows<'_>, values: &mut [f32]| {
                if rows.first_row == SIZE / 2 {
                    values[SIZE + 3] = bad;
                }
            };
            let builder = builder(Config::default(), &Orders::default()).initialize(masters);
            let error = builder.start_cpu(RANKS).await.map(drop).unwrap_err();
            let SessionError::Exec(ExecError::Master { rank, weight, row, column, value }) = &error else {
                panic!("{error}")
            };
            assert_eq!((*rank, weight.as_str(), *row, *column), (RankId::new(1), "map", SIZE / 2 + 1, 3));
            assert_eq!(value.to_bits(), bad.to_bits());
        }

        let mut session = start(Config::default(), &Orders::default()).await;
        let good = session.export().await.unwrap();
        let mut checkpoint = good.clone();
        checkpoint.weights[0].master[2 * SIZE + 5] = f32::INFINITY;
        let said = session.import(&checkpoint).await.unwrap_err().to_string();
        assert!(said.contains("`map` holds inf in row 2, column 5"), "{said}");
        assert_eq!(session.export().await.unwrap(), good);
    });
}

/// EX-5. The gradient is the same whatever the masters are, so nothing skips the step in which they overflow.
#[test]
fn masters_that_have_grown_out_of_range_are_named_with_their_place_and_what_to_do() {
    block_on(async {
        let mut session = start(Config::default(), &Orders::default()).await;
        session.set_learning_rate(3e38).unwrap();
        let mut told = None;
        for _ in 0..4 {
            if let Err(error) = session.step("train").await {
                told = Some(error);
                break;
            }
        }
        let error = told.unwrap();
        let SessionError::Diverged { rank, value: Some(value), .. } = &error else { panic!("{error}") };
        assert_eq!((*rank, value.weight.as_str(), value.part), (RankId::new(0), "map", StatePart::Master));
        let said = error.to_string();
        assert!(said.contains("of `map` in row 0, column 0"), "{said}");
        for advice in ["lower the learning rate", "optimizer.max_norm", "Session::import", "checkpoint"] {
            assert!(said.contains(advice), "{said}");
        }
    });
}

/// EX-5, where there is no session any more that could import.
#[test]
fn a_closed_session_tells_what_its_dropped_step_left_and_asks_for_no_import() {
    block_on(async {
        let mut config = Config::default();
        // The first update is then three times the learning rate.
        config.optimizer.bias_correction = false;
        let mut session = start(config, &Orders::default()).await;
        session.set_learning_rate(3e38).unwrap();
        if let Some(told) = polled_once(session.step("train")).await {
            // The ranks were quicker.
            let error = told.unwrap_err();
            assert!(matches!(error, SessionError::Diverged { step: 0, .. }), "{error}");
            return session.close().await.unwrap();
        }
        let error = session.close().await.unwrap_err();
        let SessionError::LastStep(cause) = &error else { panic!("{error}") };
        assert!(matches!(**cause, SessionError::Diverged { step: 0, .. }), "{error}");
        let said = error.to_string();
        assert!(said.contains("step 0 left rank 0 the master") && !said.contains("import"), "{said}");
    });
}

#[test]
fn moments_from_which_no_training_goes_on_are_refused_with_their_place() {
    block_on(async {
        let mut session = start(Config::default(), &Orders::default()).await;
        session.step("train").await.unwrap();
        let good = session.export().await.unwrap();
        for (value, said) in [(-1e-6, "is -1e-6 in row 1, column 2"), (f32::NAN, "is NaN in row 1, column 2")]
        {
            let mut checkpoint = good.clone();
            checkpoint.weights[0].states[1][SIZE + 2] = value;
            let error = session.import(&checkpoint).await.unwrap_err().to_string();
            assert!(error.contains(&format!("the second moment of `map` {said}")), "{error}");
            assert!(error.contains("restart_optimizer"), "{error}");
        }
        let mut checkpoint = good.clone();
        checkpoint.weights[0].states[0][3] = f32::INFINITY;
        let error = session.import(&checkpoint).await.unwrap_err().to_string();
        assert!(error.contains("the first moment of `map` is inf in row 0, column 3"), "{error}");
        assert_eq!(session.export().await.unwrap(), good);
        // First moments have any sign.
        checkpoint.weights[0].states[0][3] = -1.0;
        session.import(&checkpoint).await.unwrap();
    });
}

#[test]
fn a_checkpoint_that_counts_more_steps_than_leave_room_for_training_is_refused() {
    block_on(async {
        let mut session = start(Config::default(), &Orders::default()).await;
        let mut checkpoint = session.export().await.unwrap();
        for damaged in [u32::MAX, u32::MAX - 1, u32::MAX / 2 + 1] {
            checkpoint.optimizer_step = damaged;
            let error = session.import(&checkpoint).await.unwrap_err();
            assert!(matches!(error, SessionError::Import { .. }), "{error}");
            assert!(error.to_string().contains("restart_optimizer"), "{error}");
        }
        checkpoint.optimizer_step = u32::MAX / 2;
        session.import(&checkpoint).await.unwrap();
        session.step("train").await.unwrap();
        session.import(&checkpoint.restart_optimizer()).await.unwrap();
    });
}
