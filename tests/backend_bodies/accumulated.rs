//! EX-1 of whole sessions: gradients accumulated over several steps are those of one step with as many micro-batches.

use half::bf16;
use warpweft_base::id::RankId;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_session::checkpoint::Checkpoint;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, StepReport};

use super::experts::{Declared, ELEMENTS, EXPERTS, declare_with, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::most_captured_ranks;
use crate::products::{Layers, Surface, settled, start};

const STEPS: u32 = 4;
/// In a step of the optimizer. The library divides by it, so as a power of two it changes no bit.
const BATCHES: u32 = 4;

/// A session whose steps have `micro_batches`.
async fn session(capture: Capture, micro_batches: u32) -> Session {
    let config = settled(Config { capture, ..Config::default() });
    let Declared { program, products } = declare_with(&[], micro_batches);
    let factory = move |rank: RankId| {
        let (products, mut layers) = (products.clone(), Layers::new(rank, &formats()));
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            products.iter().try_for_each(|product| layers.run(*block, context, *product).map(drop))
        }
    };
    let program = program.accumulating().unwrap();
    start(Session::builder(config, factory).program(program).initialize(initial), most_captured_ranks()).await
}

/// Every rank's and expert's tokens of these batches of a step.
fn feed(session: &mut Session, step: u32, batches: std::ops::Range<u32>) {
    for rank in 0..most_captured_ranks() {
        for expert in 0..EXPERTS as u32 {
            let seed = |batch| ((step * BATCHES + batch) * 16 + rank) * EXPERTS as u32 + expert;
            let values = batches.clone().flat_map(|batch| noise(ELEMENTS, seed(batch)));
            let tokens: Vec<bf16> = values.map(bf16::from_f32).collect();
            session.write_input("train", RankId::new(rank), &format!("input {expert}"), &tokens).unwrap();
        }
    }
}

/// Of rank 0's first expert.
fn output(report: &StepReport) -> Vec<u16> {
    let values = report.output::<bf16>(RankId::new(0), "output 0").unwrap();
    values.into_iter().map(bf16::to_bits).collect()
}

/// What steps of all batches at once leave, and what they gave.
async fn at_once() -> (Checkpoint, Vec<u16>) {
    let mut session = session(Capture::Off, BATCHES).await;
    let mut outputs = Vec::new();
    for step in 0..STEPS {
        feed(&mut session, step, 0..BATCHES);
        outputs.extend(output(&session.step("train").await.unwrap()));
    }
    let checkpoint = session.export().await.unwrap();
    session.close().await.unwrap();
    (checkpoint, outputs)
}

/// The same, batch by batch.
async fn in_parts(capture: Capture) -> (Checkpoint, Vec<u16>) {
    let mut session = session(capture, 1).await;
    let mut outputs = Vec::new();
    for step in 0..STEPS {
        for batch in 0..BATCHES {
            feed(&mut session, step, batch..batch + 1);
            let report = if batch + 1 < BATCHES {
                session.accumulate("train").await.unwrap()
            } else {
                session.step("train").await.unwrap()
            };
            assert_eq!(report.not_captured, [], "{capture:?}, step {step}, batch {batch}");
            let is_replayed = capture != Capture::Off && (step > 0 || batch == 2);
            assert_eq!(report.segments, usize::from(is_replayed), "{capture:?}, step {step}, batch {batch}");
            let updates = matches!(report.outcome, Outcome::Updated { .. });
            assert_eq!(updates, batch + 1 == BATCHES, "{:?}", report.outcome);
            outputs.extend(output(&report));
        }
    }
    let checkpoint = session.export().await.unwrap();
    session.close().await.unwrap();
    (checkpoint, outputs)
}

/// PL-4 and EX-1, of every format, issued and captured.
fn gradients_added_up_over_steps_are_those_of_one_step_with_as_many_micro_batches() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (expected, outputs) = runtime.block_on(at_once());
        assert_eq!(expected.optimizer_step, STEPS);
        for capture in [Capture::Off, Capture::Step] {
            let (found, given) = runtime.block_on(in_parts(capture));
            assert!(given == outputs, "{capture:?}: outputs");
            for (found, expected) in found.weights.iter().zip(&expected.weights) {
                assert!(found == expected, "{capture:?}: planes, masters and moments of {}", found.name);
            }
            assert!(found == expected, "{capture:?}");
        }
    });
}

bodies! {
    gradients_added_up_over_steps_are_those_of_one_step_with_as_many_micro_batches,
}
