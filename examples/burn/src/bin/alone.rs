//! Trains a small language model with burn: `alone.rs` on one device, `sharded.rs` on two ranks that share weights.
//!
//! `cargo run --release --manifest-path examples/burn/Cargo.toml --bin alone`, or `--bin sharded`

use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::Device;
use burn_example::model::{Model, WINDOW, cross_entropy};
use burn_example::text;

const STEPS: usize = 60;
const SAMPLES: usize = 128;
const RATE: f64 = 2e-3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex().autodiff();
    device.seed(17);
    let mut model = Model::new(&device);
    let mut adam = AdamWConfig::new().with_beta_2(0.99).with_weight_decay(0.01).init();
    for step in 0..STEPS {
        let (x, y) = text::next_bytes(step, SAMPLES, WINDOW, &device);
        let loss = cross_entropy(model.forward(x), y);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = adam.step(RATE, model, gradients);
        let loss = loss.into_scalar::<f32>();
        println!("step {step:3}  loss {loss:.4}");
    }
    Ok(())
}
