//! A rule of the trainer's own in place of Adam, in whole sessions. A device brings one that computes AdamW
//! (`crate::products::Rule`), so the library's own is what it is held to.

use half::bf16;
use warpweft::compute::{ComputeContext, ComputeError, UpdateContext, updating};
use warpweft::config::{Capture, Config};
use warpweft::id::RankId;
use warpweft::model::Call;
use warpweft::session::{Checkpoint, Outcome, Session, SessionError, UpdatedBy};

use super::experts::{Declared, ELEMENTS, EXPERTS, declare_with, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::most_recorded_ranks;
use crate::products::{Layers, Rule, Surface, settled, start};

const STEPS: u32 = 5;
/// The step whose input is infinite.
const SKIPPED: u32 = 3;

/// A session whose weights Adam updates, or the device's rule.
async fn session(capture: Capture, own_states: Option<u8>, weight_decay: f64) -> Session {
    let mut config = settled(Config { capture, ..Config::default() });
    config.optimizer.own_states = own_states;
    (config.optimizer.weight_decay, config.optimizer.max_norm) = (weight_decay, 1.0);
    let Declared { program, products } = declare_with(&[], 1);
    let closure = move |rank: RankId| {
        let (products, mut layers) = (products.clone(), Layers::new(rank, &formats()));
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            products.iter().try_for_each(|product| layers.run(*block, context, *product).map(drop))
        }
    };
    let builder = match own_states {
        None => Session::builder(config, closure),
        Some(_) => Session::builder(config, move |rank| {
            let mut rule = Rule::new();
            updating(closure(rank), move |context: &UpdateContext<'_, Surface>| rule.adamw(context))
        }),
    };
    start(builder.program(program).initialize(initial), most_recorded_ranks()).await
}

fn feed(session: &mut Session, step: u32) {
    for rank in 0..most_recorded_ranks() {
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

async fn left(capture: Capture, own_states: Option<u8>) -> Checkpoint {
    let mut session = session(capture, own_states, 0.01).await;
    for step in 0..STEPS {
        feed(&mut session, step);
        let report = session.step("train").await.unwrap();
        assert_eq!(report.not_recorded, [], "{capture:?}, step {step}");
        let is_replayed = capture != Capture::Off && step > 0;
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

/// EX-1, of every format, issued and recorded, over a step that is skipped.
fn a_rule_that_computes_adamw_leaves_the_bits_of_adam() {
    within_limit(|| {
        let expected = block_on(left(Capture::Off, None));
        assert_eq!(expected.optimizer_step, STEPS - 1);
        for capture in [Capture::Off, Capture::Step] {
            let found = block_on(left(capture, Some(2)));
            for (found, expected) in found.weights.iter().zip(&expected.weights) {
                assert!(found == expected, "{capture:?}: planes, masters and states of {}", found.name);
            }
            let Checkpoint { updated_by: Some(UpdatedBy::OwnRule), .. } = found else {
                panic!("{capture:?}")
            };
            assert!(Checkpoint { updated_by: expected.updated_by, ..found } == expected, "{capture:?}");
        }
    });
}

/// EX-5, for what a rule leaves: what it does not look at itself the library does.
fn a_rule_that_leaves_values_that_are_not_finite_ends_the_step_by_weight_row_and_column() {
    within_limit(|| {
        for capture in [Capture::Off, Capture::Step] {
            block_on(async {
                // Masters of a hundredth and more, times decay and rate, are beyond what f32 holds.
                let mut session = session(capture, Some(2), 100.0).await;
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
    a_rule_that_computes_adamw_leaves_the_bits_of_adam,
    a_rule_that_leaves_values_that_are_not_finite_ends_the_step_by_weight_row_and_column,
}
