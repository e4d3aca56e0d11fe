//! Trains a small Llama with candle, as its example `llama2-c` does: `llama_alone.rs` on one device, `llama_sharded.rs`
//! on two ranks that share the weights.
//!
//! `cargo run --release --manifest-path examples/candle/Cargo.toml --bin llama_alone`, or `--bin llama_sharded`

use candle_core::{DType, Device, Result, Tensor};
use candle_example::llama::{Cache, Config, Llama};
use candle_example::text;
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap, loss};

const STEPS: usize = 60;
const SAMPLES: usize = 8;

fn cross_entropy(logits: &Tensor, y: &Tensor) -> Result<Tensor> {
    loss::cross_entropy(&logits.flatten_to(1)?, &y.flatten_to(1)?)
}

fn main() -> Result<()> {
    let config = Config::SMALL;
    let rates = ParamsAdamW { lr: 3e-3, beta2: 0.99, ..ParamsAdamW::default() };
    let weights = VarMap::new();
    let vb = VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu);
    let cache = Cache::new(&config, vb.pp("rot"))?;
    let model = Llama::load(vb, &config)?;
    let mut optimizer = AdamW::new(weights.all_vars(), rates)?;
    for step in 0..STEPS {
        let (x, y) = text::windows(step, SAMPLES, config.length)?;
        let loss = cross_entropy(&model.forward(&x, &cache)?, &y)?;
        optimizer.backward_step(&loss)?;
        let loss: f32 = loss.to_scalar()?;
        println!("step {step:3}  loss {loss:.4}");
        if step % 20 == 19 {
            let (x, y) = text::held_out(SAMPLES, config.length)?;
            let loss = cross_entropy(&model.forward(&x, &cache)?, &y)?;
            let loss: f32 = loss.to_scalar()?;
            println!("held out  loss {loss:.4}");
        }
    }
    Ok(())
}
