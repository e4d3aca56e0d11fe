//! EX-3 and EX-4 of whole sessions: an operand that a closure forgets is reported by name, and the plan it failed in is
//! not captured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use half::bf16;
use warpweft_base::id::RankId;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{MadeBy, Outcome, Session, SessionError, StepReport};

use super::experts::{Declared, ELEMENTS, EXPERTS, MICRO_BATCHES, Product, declare, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::{HOST_SEES_MEMORY, most_captured_ranks};
use crate::products::{Layers, Surface, settled, start};

/// How the last rank carries out the backward of the first block.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(u8)]
enum Work {
    Whole,
    /// It never asks where its gradients go.
    Forgotten,
    /// It asks, and writes nothing there.
    Unwritten,
}

#[derive(Clone, Default)]
struct Orders(Arc<AtomicU8>);

impl Orders {
    fn give(&self, work: Work) {
        self.0.store(work as u8, Ordering::SeqCst);
    }

    fn of(&self, call: &Call, rank: RankId) -> Work {
        let told = [Work::Whole, Work::Forgotten, Work::Unwritten];
        let last = rank.number() + 1 == most_captured_ranks();
        if last && call.name == "b0" { told[usize::from(self.0.load(Ordering::SeqCst))] } else { Work::Whole }
    }
}

/// Under the checking layer, whose memory holds no numbers until it is written.
async fn session(capture: Capture, orders: &Orders) -> Session {
    let ranks = most_captured_ranks();
    let config = settled(Config { capture, check: true, ..Config::default() });
    let Declared { program, products } = declare(&[]);
    let (orders, products) = (orders.clone(), Arc::new(products));
    let factory = move |rank: RankId| {
        let (orders, products) = (orders.clone(), Arc::clone(&products));
        let mut layers = Layers::new(rank, &formats());
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            for product in products {
                match (orders.of(call, rank), *product) {
                    (Work::Unwritten, Product::Backward { weight, dx, .. }) => {
                        context.gradient(weight)?;
                        context.write::<bf16>(dx)?;
                    }
                    (Work::Forgotten, Product::Backward { dx, .. }) => {
                        context.write::<bf16>(dx)?;
                    }
                    (_, product) => {
                        layers.run(*block, context, product)?;
                    }
                }
            }
            Ok(())
        }
    };
    let builder = Session::builder(config, factory).program(program).initialize(initial);
    let mut session = start(builder, ranks).await;
    for rank in (0..ranks).map(RankId::new) {
        for expert in 0..EXPERTS {
            let tokens = noise(MICRO_BATCHES * ELEMENTS, rank.number() * EXPERTS as u32 + expert as u32);
            let tokens: Vec<bf16> = tokens.into_iter().map(bf16::from_f32).collect();
            session.write_input("train", rank, &format!("input {expert}"), &tokens).unwrap();
        }
    }
    session
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

/// Whether the step fails by the name of what was not written where the host can look for it, and else is skipped
/// because that is no number.
fn shows_what_is_unwritten(step: &Result<StepReport, SessionError>) -> bool {
    match step {
        Err(SessionError::Closure { message, .. }) => HOST_SEES_MEMORY && message.contains("as they were"),
        Ok(report) if !HOST_SEES_MEMORY => {
            matches!(report.outcome, Outcome::Skipped { norm, .. } if !norm.is_finite())
        }
        _ => false,
    }
}

/// EX-4
fn a_gradient_that_is_forgotten_ends_the_step_by_name_and_an_unwritten_one_shows() {
    within_limit(|| {
        runtime().block_on(async {
            let orders = Orders::default();
            let mut session = session(Capture::Off, &orders).await;
            let before = session.export().await.unwrap();
            orders.give(Work::Forgotten);
            let error = session.step("train").await.unwrap_err();
            let SessionError::Closure { rank, call, message, .. } = &error else { panic!("{error}") };
            assert_eq!((rank.number() + 1, call.as_str()), (most_captured_ranks(), "b0"));
            assert!(message.contains("declares to write the gradient of `"), "{message}");
            orders.give(Work::Unwritten);
            let step = session.step("train").await;
            assert!(shows_what_is_unwritten(&step), "{step:?}");
            assert!(session.export().await.unwrap() == before, "no weight has changed");
            orders.give(Work::Whole);
            let outcome = session.step("train").await.unwrap().outcome;
            assert!(matches!(outcome, Outcome::Updated { .. }), "{outcome:?}");
        });
    });
}

/// What came of two steps that failed first thing and of some that did not; the segments of each of those.
async fn after_a_failure(capture: Capture) -> (Checkpoint, Vec<usize>) {
    let orders = Orders::default();
    let mut session = session(capture, &orders).await;
    orders.give(Work::Forgotten);
    for _ in 0..2 {
        session.step("train").await.unwrap_err();
    }
    orders.give(Work::Whole);
    let mut segments = Vec::new();
    for _ in 0..4 {
        let report = session.step("train").await.unwrap();
        assert_eq!(report.not_captured, []);
        segments.push(report.segments);
    }
    (session.export().await.unwrap(), segments)
}

/// EX-3
fn a_plan_that_failed_first_is_issued_until_a_step_is_through_and_captured_then() {
    within_limit(|| {
        let runtime = runtime();
        let (issued, none) = runtime.block_on(after_a_failure(Capture::Off));
        let (captured, segments) = runtime.block_on(after_a_failure(Capture::Step));
        assert_eq!((none, segments), (vec![0; 4], vec![0, 1, 1, 1]));
        assert!(issued == captured, "masters, moments, planes and scales");
    });
}

/// What fills memory under the checking layer is captured with the step. After a step that was skipped gradients are
/// inspected, and the call is known.
fn a_gradient_that_is_not_written_shows_in_a_captured_step_too() {
    within_limit(|| {
        runtime().block_on(async {
            let orders = Orders::default();
            let mut session = session(Capture::Step, &orders).await;
            assert_eq!(session.step("train").await.unwrap().segments, 0);
            // A replay calls closures on the CPU alone; elsewhere it is the capture that leaves it out.
            if HOST_SEES_MEMORY {
                assert_eq!(session.step("train").await.unwrap().segments, 1);
            }
            orders.give(Work::Unwritten);
            for number in 0..2 {
                let step = session.step("train").await;
                assert!(shows_what_is_unwritten(&step), "{step:?}");
                let Ok(report) = step else { continue };
                let made_by = report.non_finite.unwrap().made_by;
                if number == 0 {
                    assert!(matches!(made_by, MadeBy::Unknown { .. }), "no capture inspects: {made_by:?}");
                    assert_eq!(report.segments, 1);
                } else {
                    let MadeBy::Call { rank, call, .. } = made_by else { panic!("{made_by:?}") };
                    assert_eq!((rank.number() + 1, call.as_str()), (most_captured_ranks(), "b0"));
                    assert_eq!(report.segments, 0, "it was issued, to be inspected");
                }
            }
        });
    });
}

bodies! {
    a_gradient_that_is_forgotten_ends_the_step_by_name_and_an_unwritten_one_shows,
    a_plan_that_failed_first_is_issued_until_a_step_is_through_and_captured_then,
    a_gradient_that_is_not_written_shows_in_a_captured_step_too,
}
