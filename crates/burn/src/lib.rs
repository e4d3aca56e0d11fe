//! Shards a module of burn: it stays as it is, and so do its layers.
//!
//! A block is a closure over the module and a tensor, which computes a part of the model with the fields that it needs.
//! warpweft gathers the weights of one block after the other, quantized if you like, runs forward and backward by
//! burn's autodiff, and updates each rank's own rows:
//!
//! ```
//! use burn::module::Module;
//! use burn::nn::loss::CrossEntropyLossConfig;
//! use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
//! use burn::optim::AdamWConfig;
//! use burn::tensor::{Device, Int, Tensor, activation::silu};
//! use warpweft_burn::{Devices, Sharded};
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     embed: Embedding,
//!     layers: Vec<Linear>,
//!     head: Linear,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex().autodiff();
//! let linear = |width| LinearConfig::new(16, width).init(&device);
//! let embed = EmbeddingConfig::new(8, 16).init(&device);
//! let model = Model { embed, layers: vec![linear(16), linear(16)], head: linear(8) };
//!
//! let x = Tensor::<2, Int>::from_data([[1], [5], [2], [7]], &device);
//! let y = Tensor::<1, Int>::from_data([5, 2, 7, 1], &device);
//! let mut model = Sharded::new(AdamWConfig::new(), model)
//!     .learning_rate(1e-2)
//!     .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x).flatten::<2>(1, 2))
//!     .blocks(2, |i, model, x: Tensor<2>| x.clone() + silu(model.layers[i].forward(x)))
//!     .block("head", |model, x: Tensor<2>| model.head.forward(x))
//!     .loss(|logits: Tensor<2>, y: Tensor<1, Int>| {
//!         CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, y)
//!     })
//!     .shard(Devices::cpu(2), (x.clone(), y.clone()))
//!     .await?;
//! let first = model.step((x.clone(), y.clone())).await?.loss;
//! let mut last = first;
//! for _ in 0..50 {
//!     last = model.step((x.clone(), y.clone())).await?.loss;
//! }
//! assert!(last < 0.2 * first, "{first} {last}");
//! # Ok(())
//! # }
//! ```
//!
//! Law: nothing here plans, gathers or updates; that is warpweft's. Nothing here differentiates; that is burn's. What a
//! step relies on is tried on a sample before anything starts, and refused with the block's name and the tensor's.

mod batch;
mod blocks;
mod cut;
mod entry;
mod error;
mod lend;
mod model;
mod module;
mod probe;
mod rank;
mod settings;
mod sharded;
mod shared;
mod start;
mod tensors;
mod values;

pub use batch::Batch;
pub use blocks::Loss;
pub use entry::{Entry, Kind};
pub use error::Error;
pub use model::{Report, ShardedModel};
pub use probe::BlockInfo;
pub use settings::Settings;
pub use sharded::{Devices, Sharded};
pub use tensors::{Inputs, Output, Value};

/// The program that trains.
pub(crate) const TRAIN: &str = "train";
/// The program that computes the loss alone.
pub(crate) const EVALUATE: &str = "evaluate";
/// The program that computes the last block's output.
pub(crate) const PREDICT: &str = "predict";
