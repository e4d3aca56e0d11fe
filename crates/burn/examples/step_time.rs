//! Benchmark of a step beside burn alone, on one rank of the CPU, with burn's own transformer: with graphs kept, and
//! with blocks recomputed, for which burn alone recomputes each block too.
//!
//! `cargo run --release --manifest-path crates/burn/Cargo.toml --example step_time`
//!
//! Steps take turns, so that whatever else the machine does falls on all of them; medians are compared.

use std::error::Error;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};
use warpweft_burn::{Devices, Sharded};

const WIDTH: usize = 256;
const BLOCKS: usize = 4;
const SAMPLES: usize = 8;
const TOKENS: usize = 64;
const STEPS: usize = 11;
const RATE: f64 = 1e-4;

fn loss(y: Tensor<3>, target: Tensor<3>) -> Tensor<1> {
    (y - target).square().mean()
}

fn sharded(model: TransformerEncoder) -> Sharded<TransformerEncoder> {
    Sharded::new(AdamWConfig::new(), model)
        .learning_rate(RATE)
        .blocks(BLOCKS, |number, model: &TransformerEncoder, x: Tensor<3>| {
            model.layers[number].forward(x, None, None)
        })
        .loss(loss)
}

/// Burn alone.
struct Alone {
    model: TransformerEncoder,
    optimizer: ModuleOptimizer,
}

impl Alone {
    fn update(&mut self, gradients: GradientsParams) {
        self.model = self.optimizer.step(RATE, self.model.clone(), gradients);
    }

    /// All gradients of one graph.
    fn whole(&mut self, x: Tensor<3>, y: Tensor<3>) {
        let value = self.model.forward(TransformerEncoderInput::new(x));
        let gradients = loss(value, y).backward();
        self.update(GradientsParams::from_grads(gradients, &self.model));
    }

    /// Each block but the last once more, from its input.
    fn again(&mut self, x: Tensor<3>, y: Tensor<3>) -> Result<(), &'static str> {
        let layers = &self.model.layers;
        let (last, before) = layers.split_last().ok_or("no layers")?;
        let mut inputs = vec![x];
        for layer in before {
            let input = inputs.last().cloned().ok_or("no input")?;
            inputs.push(layer.forward(input, None, None).detach());
        }
        let input = inputs.pop().ok_or("no input")?.require_grad();
        let mut of_block = loss(last.forward(input.clone(), None, None), y).backward();
        let mut upstream = input.grad_remove(&mut of_block).ok_or("no gradient")?;
        let mut all = vec![GradientsParams::from_module(&mut of_block, last)];
        for (layer, input) in before.iter().zip(inputs).rev() {
            let input = input.require_grad();
            let output = layer.forward(input.clone(), None, None);
            let upstream_here = Tensor::from_inner(upstream);
            let mut of_block = (output * upstream_here).sum().backward();
            upstream = input.grad_remove(&mut of_block).ok_or("no gradient")?;
            all.push(GradientsParams::from_module(&mut of_block, layer));
        }
        for gradients in all {
            self.update(gradients);
        }
        Ok(())
    }
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let device = Device::flex().autodiff();
    let random = || Tensor::<3>::random([SAMPLES, TOKENS, WIDTH], Distribution::Normal(0.0, 1.0), &device);
    let (x, y) = (random(), random());
    let config = TransformerEncoderConfig::new(WIDTH, 4 * WIDTH, 4, BLOCKS).with_dropout(0.0);
    let model = config.init(&device);
    drop(model.clone().map(&mut Made)); // before it is copied
    let alone = || Alone { model: model.clone(), optimizer: AdamWConfig::new().init() };
    let (mut whole, mut again) = (alone(), alone());
    let mut kept = sharded(model.clone()).shard(Devices::cpu(1), (x.clone(), y.clone())).await?;
    let recomputed = sharded(model.clone()).recompute("*");
    let mut recomputed = recomputed.shard(Devices::cpu(1), (x.clone(), y.clone())).await?;
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..STEPS {
        let begun = Instant::now();
        whole.whole(x.clone(), y.clone());
        times[0].push(begun.elapsed());
        let begun = Instant::now();
        kept.step((x.clone(), y.clone())).await?;
        times[1].push(begun.elapsed());
        let begun = Instant::now();
        again.again(x.clone(), y.clone())?;
        times[2].push(begun.elapsed());
        let begun = Instant::now();
        recomputed.step((x.clone(), y.clone())).await?;
        times[3].push(begun.elapsed());
    }
    let [whole, kept, again, recomputed] = times.each_mut().map(|times| median(times));
    println!(
        "burn alone {:.1} ms, sharded with graphs kept {:.1} ms: {:.3}",
        1e3 * whole,
        1e3 * kept,
        kept / whole
    );
    println!(
        "burn alone, computing again {:.1} ms, sharded likewise {:.1} ms: {:.3}",
        1e3 * again,
        1e3 * recomputed,
        recomputed / again
    );
    Ok(())
}

/// Has burn draw all parameters.
struct Made;

impl burn::module::ModuleMapper for Made {
    fn map_float<const D: usize>(
        &mut self,
        parameter: burn::module::Param<Tensor<D>>,
    ) -> burn::module::Param<Tensor<D>> {
        drop(parameter.val());
        parameter
    }
}
