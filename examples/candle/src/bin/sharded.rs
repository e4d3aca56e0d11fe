//! Trains a small language model with candle: `alone.rs` on one device, `sharded.rs` on two ranks that share weights.
//!
//! `cargo run --release --manifest-path examples/candle/Cargo.toml --bin alone`, or `--bin sharded`

use candle_core::{Module, Tensor};
use candle_example::model::{BLOCKS, Block, Embed, Head, WINDOW};
use candle_example::text;
use candle_nn::ParamsAdamW;
use candle_nn::loss::cross_entropy;
use warpweft_candle::{Devices, Sharded};

const STEPS: usize = 60;
const SAMPLES: usize = 128;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rates = ParamsAdamW { lr: 2e-3, beta2: 0.99, ..ParamsAdamW::default() };
    let (x, y) = text::next_bytes(0, SAMPLES, WINDOW)?;
    let mut model = Sharded::new(rates)
        .block("embed", |vb| Embed::load(vb.pp("embed")).map(|embed| move |x: &Tensor| embed.forward(x)))
        .blocks(BLOCKS, |number, vb| {
            let block = Block::load(vb.pp(format!("blocks.{number}")))?;
            Ok(move |x: &Tensor| block.forward(x))
        })
        .block("head", |vb| Head::load(vb.pp("head")).map(|head| move |x: &Tensor| head.forward(x)))
        .loss(cross_entropy)
        .shard(Devices::cpu(2), (&x, &y))
        .await?;
    for step in 0..STEPS {
        let (x, y) = text::next_bytes(step, SAMPLES, WINDOW)?;
        let loss = model.step((&x, &y)).await?.loss;
        println!("step {step:3}  loss {loss:.4}");
    }
    Ok(())
}
