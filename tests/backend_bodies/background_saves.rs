//! CK-6 of whole sessions: what a save in the background has is what a stopped one would have, and steps have the bits
//! of a run without.

use half::bf16;
use warpweft_base::id::RankId;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_session::checkpoint::{CheckpointStore, FileStore, PartFiles};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::Session;

use super::experts::{Declared, ELEMENTS, EXPERTS, declare_with, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::most_captured_ranks;
use crate::products::{Layers, Surface, settled, start};

const STEPS: u32 = 8;

async fn session(capture: Capture) -> Session {
    let config = settled(Config { capture, ..Config::default() });
    let Declared { program, products } = declare_with(&[], 1);
    let factory = move |rank: RankId| {
        let (products, mut layers) = (products.clone(), Layers::new(rank, &formats()));
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            products.iter().try_for_each(|product| layers.run(*block, context, *product).map(drop))
        }
    };
    start(Session::builder(config, factory).program(program).initialize(initial), most_captured_ranks()).await
}

async fn step(session: &mut Session, step: u32) -> (bool, usize) {
    for rank in 0..most_captured_ranks() {
        for expert in 0..EXPERTS as u32 {
            let values = noise(ELEMENTS, (step * 16 + rank) * EXPERTS as u32 + expert);
            let tokens: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            session.write_input("train", RankId::new(rank), &format!("input {expert}"), &tokens).unwrap();
        }
    }
    let report = session.step("train").await.unwrap();
    (report.plan().takes_snapshot, report.segments)
}

/// Of every format, issued and captured, in parts and whole.
fn a_save_beside_steps_is_a_stopped_one_and_changes_no_bit_of_them() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for capture in [Capture::Off, Capture::Step] {
                let folder = tempfile::tempdir().unwrap();
                let parts = |name: &str| PartFiles::new(folder.path().join(name));
                let path = |name: &str| folder.path().join(format!("{name}.safetensors"));
                let file = |name: &str| FileStore::new(path(name));
                let (mut with, mut without) = (session(capture).await, session(capture).await);
                for number in 0..STEPS {
                    step(&mut without, number).await;
                    match number {
                        3 => {
                            with.save_parts(&parts("stopped"), &Default::default()).await.unwrap();
                            let beside = parts("beside");
                            with.save_parts_in_background(&beside, &Default::default()).await.unwrap();
                        }
                        5 => {
                            file("stopped").save(&with.export().await.unwrap()).await.unwrap();
                            with.save_in_background(file("beside"), Default::default()).await.unwrap();
                        }
                        _ => {}
                    }
                    let (takes, segments) = step(&mut with, number).await;
                    assert_eq!(takes, [3, 5].contains(&number), "{capture:?}, step {number}");
                    assert!(!takes || segments == 0, "a step that copies is issued");
                }
                with.finish_save().await.unwrap();
                assert!(parts("beside").load().unwrap() == parts("stopped").load().unwrap(), "{capture:?}");
                let [beside, stopped] = ["beside", "stopped"].map(|name| std::fs::read(path(name)).unwrap());
                assert!(beside == stopped, "{capture:?}: files of whole checkpoints");
                let [found, expected] = [with.export().await.unwrap(), without.export().await.unwrap()];
                for (found, expected) in found.weights.iter().zip(&expected.weights) {
                    assert!(found == expected, "{capture:?}: {}", found.name);
                }
                with.close().await.unwrap();
                without.close().await.unwrap();
            }
        });
    });
}

bodies! {
    a_save_beside_steps_is_a_stopped_one_and_changes_no_bit_of_them,
}
