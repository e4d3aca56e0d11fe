//! Trains a small language model with burn: `alone.rs` on one device, `sharded.rs` on two ranks that share weights.
//!
//! `cargo run --release --manifest-path examples/burn/Cargo.toml --bin alone`, or `--bin sharded`

use burn::optim::AdamWConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_example::model::{BLOCKS, Model, WINDOW, cross_entropy};
use burn_example::text;
use warpweft_burn::{Devices, Sharded};

const STEPS: usize = 60;
const SAMPLES: usize = 128;
const RATE: f64 = 2e-3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(17);
    let adam = AdamWConfig::new().with_beta_2(0.99).with_weight_decay(0.01);
    let mut model = Sharded::new(adam, Model::new(&device))
        .learning_rate(RATE)
        .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x))
        .blocks(BLOCKS, |number, model, x: Tensor<2>| model.blocks[number].forward(x))
        .block("head", |model, x: Tensor<2>| model.head.forward(x))
        .loss(cross_entropy)
        .shard(Devices::cpu(2), text::next_bytes(0, SAMPLES, WINDOW, &device))
        .await?;
    for step in 0..STEPS {
        let batch = text::next_bytes(step, SAMPLES, WINDOW, &device);
        let loss = model.step(batch).await?.loss;
        println!("step {step:3}  loss {loss:.4}");
    }
    Ok(())
}
