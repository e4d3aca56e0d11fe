//! Trains a transformer that continues texts with burn, as its example `text-generation` does: `text_alone.rs` on one
//! device, `text_sharded.rs` on four ranks that share the weights.
//!
//! `cargo run --release --manifest-path examples/burn/Cargo.toml --bin text_alone`, or `--bin text_sharded`

use burn::optim::AdamConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::tensor::{Bool, Device, Int, Tensor};
use burn_example::generation::{ByteTokenizer, TextGenerationBatcher, TextGenerationModelConfig, Tokenizer};
use burn_example::generation::{TextGenerationModel, count, cross_entropy};
use burn_example::text;
use warpweft_burn::{Devices, Sharded};

const STEPS: usize = 40;
const SAMPLES: usize = 16;
const RATE: f64 = 3e-3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(17);
    let config = TextGenerationModelConfig::small(ByteTokenizer.vocab_size());
    let batcher = TextGenerationBatcher::new(ByteTokenizer, config.max_seq_length);
    let batch = |step| batcher.batch(&text::lines(step, SAMPLES), &device).into_pair();
    let adam = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1e-6)));
    let mut model = Sharded::new(adam, config.init(&device))
        .learning_rate(RATE)
        .block("embed", |model: &TextGenerationModel, x: Tensor<2, Int>| model.embed(x))
        .blocks(config.transformer.n_layers, |number, model, (x, pad): (Tensor<3>, Tensor<2, Bool>)| {
            model.layer(number, x, pad)
        })
        .block("output", |model, x: Tensor<3>| model.output.forward(x))
        .loss(|x, y: Tensor<2, Int>| (cross_entropy(x, y.clone()) * count(y.clone()), count(y)))
        .shard(Devices::cpu(4), batch(0))
        .await?;
    for step in 0..STEPS {
        let loss = model.step(batch(step)).await?.loss;
        println!("step {step:3}  loss {loss:.4}");
    }
    Ok(())
}
