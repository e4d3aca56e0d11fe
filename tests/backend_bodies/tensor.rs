//! Tensor parallelism in whole sessions: layers cut by rows and by columns, of every format.
//!
//! Law: a part is as large as the weights of the other sessions, so the products are theirs. Steps have the same bits
//! at every prefetch depth, and captured as issued where each rank has a device of its own; and main grads have the
//! norm that the step reports, so no part is counted twice or left out.

use warpweft_plan::model::Levels;
use warpweft_session::config::{Capture, Config, Prefetch, Scaling};

use super::captured::{STEPS, Trained, assert_same_bits, loss, trained_on};
use super::experts::declare_cut;
use super::harness::within_limit;
use crate::device::most_captured_ranks;

const TENSOR: u32 = 2;

async fn trained(ranks: u32, replicas: u32, depth: u32, capture: Capture) -> Trained {
    trained_in(&[], ranks, replicas, depth, capture).await
}

/// The same, whose ranks sum in blocks.
async fn trained_in(blocks: &[u32], ranks: u32, replicas: u32, depth: u32, capture: Capture) -> Trained {
    let mut config = Config { capture, prefetch: Prefetch::depth(depth), ..Config::default() };
    (config.mesh.tp, config.mesh.dp_replicate) = (TENSOR, Some(replicas));
    config.mesh.levels = Some(Levels::new(blocks).unwrap());
    trained_on(ranks, Scaling::Current, config, declare_cut(TENSOR), 0).await
}

fn parts_of_layers_of_every_format_train_to_the_same_bits_at_every_depth() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let issued = runtime.block_on(trained(2 * TENSOR, 1, 0, Capture::Off));
        let of_a_step = issued.outputs.len() / STEPS as usize;
        let (first, last) =
            (loss(&issued.outputs[..of_a_step]), loss(&issued.outputs[issued.outputs.len() - of_a_step..]));
        assert!(last.is_finite() && last < 0.8 * first, "it learns: {first}, {last}");
        let ahead = runtime.block_on(trained(2 * TENSOR, 1, 2, Capture::Off));
        assert_same_bits(&ahead, &issued, "two calls ahead");
    });
}

/// Blocks of two ranks of each part, and replicas.
fn eight_ranks_of_parts_train_to_the_same_bits_at_every_depth() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut apart = Vec::new();
        for (blocks, replicas) in [(&[][..], 1), (&[4], 1), (&[], 2)] {
            let trained = |depth| trained_in(blocks, 4 * TENSOR, replicas, depth, Capture::Off);
            let issued = runtime.block_on(trained(0));
            let ahead = runtime.block_on(trained(1));
            assert_same_bits(&ahead, &issued, &format!("{replicas} replicas, blocks of {blocks:?}"));
            apart.push(issued.masters());
        }
        assert!(apart[0] != apart[1] && apart[0] != apart[2], "each sums in its order");
    });
}

fn captured_steps_of_parts_of_layers_give_the_bits_of_issued_ones() {
    within_limit(|| {
        let ranks = most_captured_ranks() / TENSOR * TENSOR;
        if ranks == 0 {
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for replicas in [1, ranks / TENSOR] {
            let issued = runtime.block_on(trained(ranks, replicas, 1, Capture::Off));
            let captured = runtime.block_on(trained(ranks, replicas, 1, Capture::Step));
            assert_same_bits(&captured, &issued, &format!("captured on {ranks} ranks, {replicas} replicas"));
        }
    });
}

bodies! {
    parts_of_layers_of_every_format_train_to_the_same_bits_at_every_depth,
    eight_ranks_of_parts_train_to_the_same_bits_at_every_depth,
    captured_steps_of_parts_of_layers_give_the_bits_of_issued_ones,
}
