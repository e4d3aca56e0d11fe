//! Benchmark of a step beside candle alone, on one rank of the CPU: with graphs kept, and with blocks recomputed, for
//! which candle alone recomputes each block too.
//!
//! `cargo run --release --manifest-path crates/candle/Cargo.toml --example step_time`
//!
//! Steps take turns, so that whatever else the machine does falls on all of them; medians are compared.

use std::error::Error;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Module, Result, Tensor, Var};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use candle_nn::{Linear, RmsNorm, VarBuilder, VarMap, linear_no_bias, ops, rms_norm};
use warpweft_candle::{Devices, Sharded};

const WIDTH: usize = 256;
const BLOCKS: usize = 4;
const SAMPLES: usize = 8;
const TOKENS: usize = 64;
const STEPS: usize = 11;

struct Layer {
    norms: [RmsNorm; 2],
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn load(number: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let vb = vb.pp(format!("layers.{number}"));
        Ok(Self {
            norms: [rms_norm(WIDTH, 1e-5, vb.pp("norm1"))?, rms_norm(WIDTH, 1e-5, vb.pp("norm2"))?],
            qkv: linear_no_bias(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            out: linear_no_bias(WIDTH, WIDTH, vb.pp("out"))?,
            up: linear_no_bias(WIDTH, 4 * WIDTH, vb.pp("up"))?,
            down: linear_no_bias(4 * WIDTH, WIDTH, vb.pp("down"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let qkv = self.qkv.forward(&self.norms[0].forward_diff(x)?)?;
        let part = |number: usize| qkv.narrow(D::Minus1, number * WIDTH, WIDTH)?.contiguous();
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? / (WIDTH as f64).sqrt())?;
        let x = (x + self.out.forward(&ops::softmax(&scores, D::Minus1)?.matmul(&v)?)?)?;
        let inner = self.up.forward(&self.norms[1].forward_diff(&x)?)?.silu()?;
        x + self.down.forward(&inner)?
    }
}

fn loss(y: &Tensor, target: &Tensor) -> Result<Tensor> {
    (y - target)?.sqr()?.mean_all()
}

fn sharded() -> Sharded {
    Sharded::new(ParamsAdamW::default())
        .blocks(BLOCKS, |number, vb| {
            let layer = Layer::load(number, vb)?;
            Ok(move |x: &Tensor| layer.forward(x))
        })
        .loss(loss)
}

/// Candle alone: all gradients of one graph.
fn whole(layers: &[Layer], x: &Tensor, y: &Tensor, optimizer: &mut AdamW) -> Result<()> {
    let mut value = x.clone();
    for layer in layers {
        value = layer.forward(&value)?;
    }
    optimizer.backward_step(&loss(&value, y)?)
}

/// Candle alone: each block but the last once more, from its input.
fn again(layers: &[Layer], x: &Tensor, y: &Tensor, optimizer: &mut AdamW) -> Result<()> {
    let (last, before) = layers.split_last().ok_or_else(|| candle_core::Error::msg("no layers"))?;
    let mut inputs = vec![x.clone()];
    for (layer, number) in before.iter().zip(0..) {
        inputs.push(layer.forward(&inputs[number])?.detach());
    }
    let input = Var::from_tensor(&inputs[before.len()])?;
    let mut gradients = loss(&last.forward(&input)?, y)?.backward()?;
    let mut upstream = gradients.remove(&input).ok_or_else(|| candle_core::Error::msg("no gradient"))?;
    for (layer, input) in before.iter().zip(&inputs).rev() {
        let input = Var::from_tensor(input)?;
        let mut of_block = (layer.forward(&input)? * &upstream)?.sum_all()?.backward()?;
        upstream = of_block.remove(&input).ok_or_else(|| candle_core::Error::msg("no gradient"))?;
        gradients.extend(of_block)?;
    }
    optimizer.step(&gradients)
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let shape = (SAMPLES, TOKENS, WIDTH);
    let x = Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu)?;
    let y = Tensor::randn(0.0_f32, 1.0, shape, &Device::Cpu)?;
    let mut kept = sharded().shard(Devices::cpu(1), (&x, &y)).await?;
    let mut recomputed = sharded().recompute("*").shard(Devices::cpu(1), (&x, &y)).await?;
    let map = VarMap::new();
    kept.export_into(&map).await?;
    let vb = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let layers = (0..BLOCKS).map(|number| Layer::load(number, vb.clone())).collect::<Result<Vec<_>>>()?;
    let mut optimizer = AdamW::new(map.all_vars(), ParamsAdamW::default())?;
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..STEPS {
        let begun = Instant::now();
        whole(&layers, &x, &y, &mut optimizer)?;
        times[0].push(begun.elapsed());
        let begun = Instant::now();
        kept.step((&x, &y)).await?;
        times[1].push(begun.elapsed());
        let begun = Instant::now();
        again(&layers, &x, &y, &mut optimizer)?;
        times[2].push(begun.elapsed());
        let begun = Instant::now();
        recomputed.step((&x, &y)).await?;
        times[3].push(begun.elapsed());
    }
    let [whole, kept, again, recomputed] = times.each_mut().map(|times| median(times));
    println!(
        "candle alone {:.1} ms, sharded with graphs kept {:.1} ms: {:.3}",
        1e3 * whole,
        1e3 * kept,
        kept / whole
    );
    println!(
        "candle alone, computing again {:.1} ms, sharded likewise {:.1} ms: {:.3}",
        1e3 * again,
        1e3 * recomputed,
        recomputed / again
    );
    Ok(())
}
