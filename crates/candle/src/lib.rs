//! Shards a model that is written in candle: its blocks stay as they are.
//!
//! A block is a constructor over candle's `VarBuilder` that returns a closure over tensors. What it makes beside, such
//! as masks and tables, lives in the closure. warpweft gathers the weights of one block after the other, quantized if
//! you like, runs forward and backward by candle, and updates each rank's own rows:
//!
//! ```
//! use candle_core::{Device, Module, Tensor};
//! use candle_nn::{ParamsAdamW, embedding, linear_no_bias, loss::cross_entropy};
//! use warpweft_candle::{Devices, Sharded};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (x, y) = (Tensor::new(&[1u32, 5, 2, 7], &Device::Cpu)?, Tensor::new(&[5u32, 2, 7, 1], &Device::Cpu)?);
//! let mut model = Sharded::new(ParamsAdamW { lr: 1e-2, ..Default::default() })
//!     .block("embed", |vb| { let e = embedding(8, 16, vb.pp("embed"))?; Ok(move |x: &Tensor| e.forward(x)) })
//!     .blocks(2, |i, vb| {
//!         let l = linear_no_bias(16, 16, vb.pp(format!("layers.{i}")))?;
//!         Ok(move |x: &Tensor| x + l.forward(x)?.silu()?)
//!     })
//!     .block("head", |vb| { let h = linear_no_bias(16, 8, vb.pp("head"))?; Ok(move |x: &Tensor| h.forward(x)) })
//!     .loss(|logits, y| cross_entropy(logits, y))
//!     .shard(Devices::cpu(2), (&x, &y)).await?;
//! let first = model.step((&x, &y)).await?.loss;
//! let mut last = first;
//! for _ in 0..50 {
//!     last = model.step((&x, &y)).await?.loss;
//! }
//! assert!(last < 0.2 * first, "{first} {last}");
//! # Ok(())
//! # }
//! ```
//!
//! Law: nothing here plans, gathers or updates; that is warpweft's. Nothing here differentiates; that is candle's. What
//! a step relies on is tried on a sample before anything starts, and refused with the block's name and the tensor's.

mod batch;
mod blocks;
mod bridge;
mod cut;
mod dropout;
mod entry;
mod error;
#[cfg(feature = "cuda")]
mod exchange;
mod model;
mod on_cpu;
#[cfg(feature = "cuda")]
mod on_cuda;
mod place;
mod probe;
mod rank;
mod record;
mod settings;
mod sharded;
mod shared;
mod slot;
mod source;
mod start;
mod values;

pub use blocks::Loss;
pub use dropout::Dropout;
pub use entry::{Entry, Kind};
pub use error::Error;
pub use model::{Report, ShardedModel};
pub use probe::BlockInfo;
pub use settings::Settings;
pub use sharded::{Devices, Sharded};

/// The program that trains.
pub(crate) const TRAIN: &str = "train";
/// The program that computes the loss alone.
pub(crate) const EVALUATE: &str = "evaluate";
/// The program that computes the last block's output.
pub(crate) const PREDICT: &str = "predict";
