//! The configuration of a random program, but for its mesh.

use warpweft_format::{AmaxChoice, Format};
use warpweft_plan::model::{Model, Placement, WeightSpec};
use warpweft_plan::policy::{
    AcrossMicroBatches, Backward, ByteSize, Columnwise, Masters, Moments, ReduceDtype, ReduceEvery,
};
use warpweft_session::config::{Config, Prefetch, Scaling};

use super::Draw;

pub(super) fn config(draw: &mut Draw, model: &Model) -> Config {
    let mut config = Config { check: true, ..Config::default() };
    config.prefetch = match draw.below(8) {
        0 => Prefetch::auto(),
        1 => Prefetch::bytes(ByteSize::new(draw.among(&[20_000, 60_000, 1 << 20]))),
        _ => Prefetch::depth(draw.below(6) as u32),
    };
    config.communicators = Some(1 + draw.below(3) as u32);
    config.backward = draw.among(&[Backward::Regather, Backward::Keep]);
    config.across_micro_batches =
        draw.among(&[AcrossMicroBatches::Regather, AcrossMicroBatches::Keep, AcrossMicroBatches::Fit]);
    config.reduce_dtype = match draw.below(4) {
        0 => ReduceDtype::Bf16,
        1 => ReduceDtype::Mxfp8,
        _ => ReduceDtype::F32,
    };
    config.columnwise = draw.among(&[Columnwise::OnDemand, Columnwise::Keep]);
    config.reduce_every = draw.among(&[ReduceEvery::Call, ReduceEvery::MicroBatch, ReduceEvery::Step]);
    config.optimizer.moments = if draw.one_in(6) { Moments::Bf16 } else { Moments::F32 };
    if config.optimizer.moments == Moments::Bf16 {
        config.optimizer.beta2 = 0.99;
    }
    let sharded = || model.weights().iter().filter(|weight| weight.placement == Placement::Sharded);
    let is_bf16 = sharded().all(|weight| weight.format == Format::Bf16);
    if is_bf16 && sharded().next().is_some() && draw.one_in(2) {
        config.optimizer.masters = Masters::Bf16Remainder;
    }
    let has_history = |weight: &WeightSpec| weight.format == Format::FP8_TENSOR_E4M3 && !weight.frozen;
    if sharded().any(has_history) && draw.one_in(2) {
        config.quantize.scaling = Scaling::Delayed;
        (config.quantize.amax_history, config.quantize.amax_choice) = (3, AmaxChoice::Latest);
    }
    config.reduce_delay = draw.among(&[1, 2, 2, 2, 3, 7, 16]);
    config.derive_ahead = draw.among(&[false, false, true]);
    config
}
