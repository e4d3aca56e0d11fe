//! Trains a small Llama with candle, as its example `llama2-c` does: `llama_alone.rs` on one device, `llama_sharded.rs`
//! on two ranks that share the weights.
//!
//! `cargo run --release --manifest-path examples/candle/Cargo.toml --bin llama_alone`, or `--bin llama_sharded`

use candle_core::{Module, Result, Tensor};
use candle_example::llama::{Block, Cache, Config, Embed, Head};
use candle_example::text;
use candle_nn::{ParamsAdamW, loss};
use warpweft_candle::{Devices, Sharded};

const STEPS: usize = 60;
const SAMPLES: usize = 8;

fn cross_entropy(logits: &Tensor, y: &Tensor) -> Result<Tensor> {
    loss::cross_entropy(&logits.flatten_to(1)?, &y.flatten_to(1)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let config = Config::SMALL;
    let rates = ParamsAdamW { lr: 3e-3, beta2: 0.99, ..ParamsAdamW::default() };
    let (x, y) = text::windows(0, SAMPLES, config.length)?;
    let mut model = Sharded::new(rates)
        .block("embed", move |vb| Embed::load(vb, &config).map(|embed| move |x: &Tensor| embed.forward(x)))
        .blocks(config.layers, move |layer, vb| {
            let cache = Cache::new(&config, vb.pp("rot"))?;
            let block = Block::load(vb.pp(format!("model.layers.{layer}")), &config)?;
            Ok(move |x: &Tensor| block.forward(x, &cache))
        })
        .block("head", move |vb| Head::load(vb, &config).map(|head| move |x: &Tensor| head.forward(x)))
        .loss(cross_entropy)
        .shard(Devices::cpu(2), (&x, &y))
        .await?;
    for step in 0..STEPS {
        let (x, y) = text::windows(step, SAMPLES, config.length)?;
        let loss = model.step((&x, &y)).await?.loss;
        println!("step {step:3}  loss {loss:.4}");
        if step % 20 == 19 {
            let (x, y) = text::held_out(SAMPLES, config.length)?;
            let loss = model.evaluate((&x, &y)).await?;
            println!("held out  loss {loss:.4}");
        }
    }
    Ok(())
}
