//! Trains a transformer that continues texts with burn, as its example `text-generation` does: `text_alone.rs` on one
//! device, `text_sharded.rs` on four ranks that share the weights.
//!
//! `cargo run --release --manifest-path examples/burn/Cargo.toml --bin text_alone`, or `--bin text_sharded`

use burn::optim::decay::WeightDecayConfig;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Device;
use burn_example::generation::cross_entropy;
use burn_example::generation::{ByteTokenizer, TextGenerationBatcher, TextGenerationModelConfig, Tokenizer};
use burn_example::text;

const STEPS: usize = 40;
const SAMPLES: usize = 16;
const RATE: f64 = 3e-3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(17);
    let config = TextGenerationModelConfig::small(ByteTokenizer.vocab_size());
    let batcher = TextGenerationBatcher::new(ByteTokenizer, config.max_seq_length);
    let batch = |step| batcher.batch(&text::lines(step, SAMPLES), &device).into_pair();
    let mut model = config.init(&device);
    let mut adam = AdamConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1e-6))).init();
    for step in 0..STEPS {
        let ((tokens, mask_pad), targets) = batch(step);
        let loss = cross_entropy(model.forward(tokens, &mask_pad), targets);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = adam.step(RATE, model, gradients);
        let loss = loss.into_scalar::<f32>();
        println!("step {step:3}  loss {loss:.4}");
    }
    Ok(())
}
