//! Sharded checkpoints of whole sessions, out of the memory of their devices and back.

use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use warpweft_base::id::RankId;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_plan::policy::Moments;
use warpweft_session::checkpoint::PartFiles;
use warpweft_session::config::{Capture, Config, Scaling};
use warpweft_session::session::Session;

use super::experts::{Declared, ELEMENTS, EXPERTS, MICRO_BATCHES, declare, formats, initial};
use super::harness::{noise, within_limit};
use crate::device::most_captured_ranks;
use crate::products::{Layers, Surface, settled, start};

fn config(scaling: Scaling, moments: Moments) -> Config {
    let mut config = settled(Config { capture: Capture::Step, ..Config::default() });
    config.prefetch.depth = Some(1);
    config.quantize.scaling = scaling;
    config.quantize.amax_history = 3;
    (config.optimizer.moments, config.optimizer.beta2) = (moments, 0.99);
    config
}

async fn session(config: Config, ranks: u32) -> Session {
    let Declared { program, products } = declare(&[]);
    let products = Arc::new(products);
    let factory = move |rank: RankId| {
        let (products, mut layers) = (Arc::clone(&products), Layers::new(rank, &formats()));
        move |call: &Call, context: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            let (block, products) = &products[&call.name];
            products.iter().try_for_each(|product| layers.run(*block, context, *product).map(drop))
        }
    };
    start(Session::builder(config, factory).program(program).initialize(initial), ranks).await
}

/// The bits of every output of some steps.
async fn outputs(session: &mut Session, steps: Range<u32>) -> Vec<Vec<u16>> {
    let mut found = Vec::new();
    for step in steps {
        let of_rank = |rank| (0..EXPERTS).map(move |expert| (rank, expert));
        let all: Vec<(RankId, usize)> = session.own_ranks().flat_map(of_rank).collect();
        for (rank, expert) in &all {
            let seed = (step * session.ranks() + rank.number()) * EXPERTS as u32 + *expert as u32;
            let tokens = noise(MICRO_BATCHES * ELEMENTS, seed).into_iter().map(bf16::from_f32);
            let tokens: Vec<bf16> = tokens.collect();
            session.write_input("train", *rank, &format!("input {expert}"), &tokens).unwrap();
        }
        let report = session.step("train").await.unwrap();
        for (rank, expert) in all {
            let output = report.output::<bf16>(rank, &format!("output {expert}")).unwrap();
            found.push(output.into_iter().map(bf16::to_bits).collect());
        }
    }
    found
}

/// CK-2, of every format: steps that go on from parts are those that would have followed, and one rank gets what
/// all of them had.
fn steps_go_on_from_parts_bit_for_bit_and_one_rank_reads_what_all_saved() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let ranks = most_captured_ranks();
            for (scaling, moments) in [(Scaling::Current, Moments::Bf16), (Scaling::Delayed, Moments::F32)] {
                let folder = tempfile::tempdir().unwrap();
                let files = PartFiles::new(folder.path());
                let mut first = session(config(scaling, moments), ranks).await;
                outputs(&mut first, 0..3).await;
                first.save_parts(&files, &[("step".to_owned(), "3".to_owned())].into()).await.unwrap();
                let exported = first.export().await.unwrap();
                let expected = outputs(&mut first, 3..5).await;
                first.close().await.unwrap();
                for ranks in [ranks, 1] {
                    let mut second = session(config(scaling, moments), ranks).await;
                    outputs(&mut second, 9..10).await;
                    let saved = second.import_parts(&files).await.unwrap();
                    assert_eq!((saved.optimizer_step, saved.notes["step"].as_str()), (3, "3"));
                    assert!(second.export().await.unwrap() == exported, "{scaling:?}, {ranks} ranks");
                    if ranks == saved.ranks {
                        assert!(outputs(&mut second, 3..5).await == expected, "{scaling:?}");
                    }
                    second.close().await.unwrap();
                }
            }
        });
    });
}

bodies! {
    steps_go_on_from_parts_bit_for_bit_and_one_rank_reads_what_all_saved,
}
