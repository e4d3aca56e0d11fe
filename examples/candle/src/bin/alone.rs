//! Trains a small language model with candle: `alone.rs` on one device, `sharded.rs` on two ranks that share weights.
//!
//! `cargo run --release --manifest-path examples/candle/Cargo.toml --bin alone`, or `--bin sharded`

use candle_core::{DType, Device, Module, Result};
use candle_example::model::{Model, WINDOW};
use candle_example::text;
use candle_nn::loss::cross_entropy;
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap};

const STEPS: usize = 60;
const SAMPLES: usize = 128;

fn main() -> Result<()> {
    let rates = ParamsAdamW { lr: 2e-3, beta2: 0.99, ..ParamsAdamW::default() };
    let weights = VarMap::new();
    let model = Model::load(VarBuilder::from_varmap(&weights, DType::F32, &Device::Cpu))?;
    let mut optimizer = AdamW::new(weights.all_vars(), rates)?;
    for step in 0..STEPS {
        let (x, y) = text::next_bytes(step, SAMPLES, WINDOW)?;
        let loss = cross_entropy(&model.forward(&x)?, &y)?;
        optimizer.backward_step(&loss)?;
        let loss: f32 = loss.to_scalar()?;
        println!("step {step:3}  loss {loss:.4}");
    }
    Ok(())
}
