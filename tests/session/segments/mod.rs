//! Steps in segments: dynamic calls issued anew between captures.

mod bits;
mod failures;
mod many;
mod orders;
mod pieces;

use warpweft_format::Format;
use warpweft_session::config::{Capture, Config};
use warpweft_testing::trainer::{Shaped, Trainer};

fn config(depth: u32, capture: Capture) -> Config {
    let mut config = Config { capture, check: true, ..Config::default() };
    config.prefetch.depth = Some(depth);
    config.optimizer.lr = 3e-3;
    config.optimizer.max_norm = 1.0;
    config
}

/// Three layers; these calls are dynamic.
fn trainer(dynamic: &[&str], micro_batches: u32, format: Format) -> Trainer {
    trainer_of(3, dynamic, micro_batches, format)
}

fn trainer_of(layers: usize, dynamic: &[&str], micro_batches: u32, format: Format) -> Trainer {
    let shaped = Shaped { layers, weights: layers, recomputes: false, micro_batches, ..Shaped::default() };
    Trainer::with_dynamic(dynamic, shaped, format, &Config::default())
}
