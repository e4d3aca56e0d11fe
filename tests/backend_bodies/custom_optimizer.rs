//! A custom optimizer in place of Adam, in whole sessions. A device brings one that computes AdamW
//! (`crate::products::CustomOptimizer`), so the library's own is what it is held to.

use half::bf16;
use warpweft_base::id::RankId;
use warpweft_plan::compute::{ComputeContext, ComputeError, UpdateContext};
use warpweft_plan::model::Call;
use warpweft_session::checkpoint::{Checkpoint, OptimizerIdentity};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::custom_optimizer::{ByMatrices, by_rows};

use super::experts::{Declared, ELEMENTS, EXPERTS, declare_by_matrices, declare_with, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::{HOST_SEES_MEMORY, most_captured_ranks};
use crate::products::{CustomOptimizer, Layers, Surface, settled, start};

const STEPS: u32 = 5;
/// The step whose input is infinite.
const SKIPPED: u32 = 3;

/// Who updates the weights of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Adam,
    /// The device's rule, from its rows of the gradients.
    Rows,
    /// The same, from gradients that were whole matrices on some rank.
    Matrices,
}

async fn session(capture: Capture, by: By, weight_decay: f64) -> Session {
    let mut config = settled(Config { capture, ..Config::default() });
    config.optimizer.custom_states = (by != By::Adam).then_some(2);
    (config.optimizer.weight_decay, config.optimizer.max_norm) = (weight_decay, 1.0);
    let Declared { program, products } = match by {
        By::Matrices => declare_by_matrices(),
        By::Adam | By::Rows => declare_with(&[], 1),
    };
    let closure = move |rank: RankId| {
        let (products, mut layers) = (products.clone(), Layers::new(rank, &formats()));
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            products.iter().try_for_each(|product| layers.run(*block, context, *product).map(drop))
        }
    };
    let builder = Session::builder(config, closure);
    let builder = match by {
        By::Adam => builder,
        By::Rows => builder.try_optimizer(2, |_| Ok(by_rows(2, ruled()))),
        By::Matrices => builder.try_optimizer(2, |_| {
            Ok(ByMatrices(2, CustomOptimizer::prepare, CustomOptimizer::transform, ruled()))
        }),
    };
    start(builder.program(program).initialize(initial), most_captured_ranks()).await
}

/// The device's rule, made on the rank that runs it.
fn ruled() -> impl FnMut(&UpdateContext<'_, Surface>) -> Result<(), ComputeError> {
    let mut rule = CustomOptimizer::new();
    move |context| rule.adamw(context)
}

fn feed(session: &mut Session, step: u32) {
    for rank in 0..most_captured_ranks() {
        for expert in 0..EXPERTS as u32 {
            let mut tokens: Vec<bf16> = noise(ELEMENTS, (step * 16 + rank) * EXPERTS as u32 + expert)
                .into_iter()
                .map(bf16::from_f32)
                .collect();
            if step == SKIPPED {
                tokens[7] = bf16::INFINITY;
            }
            session.write_input("train", RankId::new(rank), &format!("input {expert}"), &tokens).unwrap();
        }
    }
}

async fn left(capture: Capture, by: By) -> Checkpoint {
    let mut session = session(capture, by, 0.01).await;
    for step in 0..STEPS {
        feed(&mut session, step);
        let report = session.step("train").await.unwrap();
        assert_eq!(report.not_captured, [], "{capture:?}, step {step}");
        // After a step that was skipped gradients are inspected, which no capture has on a GPU.
        let is_inspected = step == SKIPPED + 1 && !HOST_SEES_MEMORY;
        let is_replayed = capture != Capture::Off && step > 0 && !is_inspected;
        assert_eq!(report.segments, usize::from(is_replayed), "{capture:?}, step {step}");
        let is_skipped = matches!(report.outcome, Outcome::Skipped { .. });
        assert_eq!(is_skipped, step == SKIPPED, "{:?}", report.outcome);
    }
    let checkpoint = session.export().await.unwrap();
    session.close().await.unwrap();
    checkpoint
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// EX-1, of every format, issued and captured, over a step that is skipped, from rows and from whole matrices.
fn a_custom_optimizer_that_computes_adamw_leaves_the_bits_of_adam() {
    within_limit(|| {
        let expected = block_on(left(Capture::Off, By::Adam));
        assert_eq!(expected.optimizer_step, STEPS - 1);
        for by in [By::Rows, By::Matrices] {
            for capture in [Capture::Off, Capture::Step] {
                let found = block_on(left(capture, by));
                for (found, expected) in found.weights.iter().zip(&expected.weights) {
                    let name = &found.name;
                    assert!(found == expected, "{by:?}, {capture:?}: planes, masters and states of {name}");
                }
                let Checkpoint { optimizer_identity: Some(OptimizerIdentity::Custom { .. }), .. } = found
                else {
                    panic!("{by:?}, {capture:?}")
                };
                let as_adam = Checkpoint { optimizer_identity: expected.optimizer_identity.clone(), ..found };
                assert!(as_adam == expected, "{by:?}, {capture:?}");
            }
        }
    });
}

/// EX-5, for what a rule leaves: what it does not look at itself the library does.
fn a_custom_optimizer_that_leaves_values_that_are_not_finite_ends_the_step_by_weight_row_and_column() {
    within_limit(|| {
        for capture in [Capture::Off, Capture::Step] {
            block_on(async {
                // Masters of a hundredth and more, times decay and rate, are beyond what f32 holds.
                let mut session = session(capture, By::Rows, 100.0).await;
                for step in 0..2 {
                    feed(&mut session, step);
                    session.step("train").await.unwrap();
                }
                session.set_learning_rate(3e38).unwrap();
                feed(&mut session, 2);
                let error = session.step("train").await.unwrap_err();
                assert!(matches!(error, SessionError::Diverged { .. }), "{capture:?}: {error}");
                let said = error.to_string();
                assert!(
                    said.contains("step 2 left rank 0 the master ") && said.contains(" in row "),
                    "{said}"
                );
            });
        }
    });
}

bodies! {
    a_custom_optimizer_that_computes_adamw_leaves_the_bits_of_adam,
    a_custom_optimizer_that_leaves_values_that_are_not_finite_ends_the_step_by_weight_row_and_column,
}
