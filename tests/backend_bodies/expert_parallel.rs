//! Expert parallelism in whole sessions: blocks of which each rank has other experts, beside blocks that all ranks
//! share, of every format.
//!
//! Law: steps have the same bits at every prefetch depth, captured as issued, and whether each replica keeps all
//! state or a slice of it, if sums over replicas travel in f32; in MXFP8 too at every depth and captured. Main
//! grads have the norm that the step reports, so no expert is counted twice or left out.

use warpweft_session::config::{Capture, Config, OptimizerShard, Prefetch, ReduceDtype, Scaling};

use super::captured::{STEPS, Trained, assert_same_bits, loss, trained_on};
use super::experts::declare_parallel;
use super::harness::within_limit;
use crate::device::most_captured_ranks;

/// Ranks, replicas, ranks that share experts, those that one is sharded over, and those of a tensor-parallel group.
type Axes = [u32; 5];

/// Who keeps optimizer state, and in what gradients travel.
type Reduced = (OptimizerShard, ReduceDtype);

/// As each replica keeps all of it, and gradients travel in f32.
const WHOLE: Reduced = (OptimizerShard::DpShard, ReduceDtype::F32);

/// In slices.
const CUT: Reduced = (OptimizerShard::Replicas, ReduceDtype::F32);

/// In slices, and in MXFP8.
const CUT_IN_MXFP8: Reduced = (OptimizerShard::Replicas, ReduceDtype::Mxfp8);

async fn trained(axes: Axes, (shard, dtype): Reduced, depth: u32, capture: Capture) -> Trained {
    let [ranks, replicas, ep, ep_shard, tensor] = axes;
    let mut config = Config { capture, prefetch: Prefetch::depth(depth), ..Config::default() };
    (config.mesh.dp_replicate, config.mesh.tp) = (Some(replicas), tensor);
    (config.mesh.ep, config.mesh.ep_shard) = (ep, Some(ep_shard));
    (config.optimizer.shard, config.reduce_dtype) = (shard, dtype);
    trained_on(ranks, Scaling::Current, config, declare_parallel(tensor), 0).await
}

fn experts_of_every_format_train_to_the_same_bits_at_every_depth() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for (axes, reduced) in [
            ([4, 1, 2, 2, 1], WHOLE),
            ([4, 1, 4, 1, 1], WHOLE),
            ([8, 2, 2, 2, 1], WHOLE),
            ([4, 2, 2, 1, 1], CUT_IN_MXFP8),
            ([8, 2, 2, 2, 1], CUT_IN_MXFP8),
        ] {
            let trained = |depth| trained(axes, reduced, depth, Capture::Off);
            let issued = runtime.block_on(trained(0));
            let of_a_step = issued.outputs.len() / STEPS as usize;
            let last = issued.outputs.len() - of_a_step;
            let (first, last) = (loss(&issued.outputs[..of_a_step]), loss(&issued.outputs[last..]));
            assert!(
                last.is_finite() && last < 0.8 * first,
                "it learns: {first}, {last}, {axes:?}, {reduced:?}"
            );
            assert_same_bits(
                &runtime.block_on(trained(2)),
                &issued,
                &format!("two calls ahead, {axes:?}, {reduced:?}"),
            );
        }
    });
}

/// PL-2, PL-4, PL-9. With parts of layers too.
fn slices_of_the_state_of_experts_give_the_bits_of_whole_state() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for axes in [[4, 2, 2, 1, 1], [8, 2, 2, 2, 2]] {
            let trained = |reduced| trained(axes, reduced, 1, Capture::Off);
            let (whole, cut) = (runtime.block_on(trained(WHOLE)), runtime.block_on(trained(CUT)));
            assert!(whole.outputs == cut.outputs, "outputs, {axes:?}");
            assert!(whole.checkpoint() == cut.checkpoint(), "what is saved, {axes:?}");
        }
    });
}

/// EX-1
fn captured_steps_of_experts_on_other_ranks_give_the_bits_of_issued_ones() {
    within_limit(|| {
        let ranks = most_captured_ranks();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // An expert has copies in the last, which share its state.
        for (axes, reduced) in [
            ([2, 1, 2, 1, 1], WHOLE),
            ([4, 1, 2, 2, 1], WHOLE),
            ([4, 2, 2, 1, 1], CUT),
            ([4, 2, 2, 1, 1], CUT_IN_MXFP8),
        ] {
            if axes[0] > ranks {
                return;
            }
            let issued = runtime.block_on(trained(axes, reduced, 2, Capture::Off));
            let captured = runtime.block_on(trained(axes, reduced, 2, Capture::Step));
            assert_same_bits(&captured, &issued, &format!("captured, {axes:?}, {reduced:?}"));
        }
    });
}

bodies! {
    experts_of_every_format_train_to_the_same_bits_at_every_depth,
    slices_of_the_state_of_experts_give_the_bits_of_whole_state,
    captured_steps_of_experts_on_other_ranks_give_the_bits_of_issued_ones,
}
