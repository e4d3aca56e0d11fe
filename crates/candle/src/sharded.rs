//! The builder of a sharded model: blocks, the loss, first values, and declarations about weights.
//!
//! Law: nothing runs before [`Sharded::shard`], which stands in `start`. Patterns are those of the configuration: `*`
//! stands for any characters, dots too, and `?` for one. One that matches nothing is refused.

use std::path::Path;
use std::sync::{Arc, PoisonError};

use candle_core::{DType, Tensor};
use candle_nn::{VarBuilder, VarMap};
use warpweft::config::{Config, WeightRule};
use warpweft::format::Format;

use crate::blocks::{Block, Loss, LossOf};
use crate::settings::Settings;
use crate::source::Start;

/// The devices of the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Devices {
    /// On this machine's CPU.
    #[non_exhaustive]
    Cpu {
        /// How many ranks.
        ranks: u32,
    },
    /// On this machine's GPUs.
    #[cfg(feature = "cuda")]
    #[non_exhaustive]
    Gpus {
        /// How many ranks.
        ranks: u32,
    },
}

impl Devices {
    /// `ranks` on this machine's CPU.
    #[must_use]
    pub const fn cpu(ranks: u32) -> Self {
        Self::Cpu { ranks }
    }

    /// A rank on each of the first `ranks` GPUs that this process sees.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub const fn gpus(ranks: u32) -> Self {
        Self::Gpus { ranks }
    }

    pub(crate) const fn ranks(self) -> u32 {
        match self {
            Self::Cpu { ranks } => ranks,
            #[cfg(feature = "cuda")]
            Self::Gpus { ranks } => ranks,
        }
    }
}

/// The builder of a sharded model, block by block.
#[must_use = "a model is sharded by `shard`"]
pub struct Sharded {
    pub(crate) config: Config,
    pub(crate) blocks: Vec<Block>,
    pub(crate) numbered: usize,
    pub(crate) loss: Option<LossOf>,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
    pub(crate) from: Start,
    pub(crate) buffers: Vec<String>,
    pub(crate) drawn: Vec<String>,
    pub(crate) unused: Vec<String>,
    pub(crate) recompute: Vec<String>,
    pub(crate) micro_batches: u32,
    pub(crate) accumulates: bool,
    pub(crate) evaluation: Option<(Tensor, Tensor)>,
    pub(crate) prediction: Option<Tensor>,
}

impl std::fmt::Debug for Sharded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks: Vec<&str> = self.blocks.iter().map(|block| block.name.as_str()).collect();
        formatter.debug_struct("Sharded").field("blocks", &blocks).finish_non_exhaustive()
    }
}

impl Sharded {
    /// A model without blocks, trained as a [`Config`] or candle's `ParamsAdamW` says.
    pub fn new(settings: impl Into<Settings>) -> Self {
        Self {
            config: settings.into().config,
            blocks: Vec::new(),
            numbered: 0,
            loss: None,
            dtype: DType::F32,
            seed: 0,
            from: Start::Draws,
            buffers: Vec::new(),
            drawn: Vec::new(),
            unused: Vec::new(),
            recompute: Vec::new(),
            micro_batches: 1,
            accumulates: false,
            evaluation: None,
            prediction: None,
        }
    }

    /// Adds a block: `constructor` takes weights from the builder, by their whole names, and returns the closure that
    /// computes. It is called on every rank, and must request the same tensors each time. A block is at most one layer
    /// of the model, because all its weights are gathered together.
    pub fn block<C, F>(mut self, name: &str, constructor: C) -> Self
    where
        C: Fn(VarBuilder<'static>) -> candle_core::Result<F> + Send + Sync + 'static,
        F: Fn(&Tensor) -> candle_core::Result<Tensor> + 'static,
    {
        self.blocks.push(Block::new(name.to_owned(), constructor));
        self
    }

    /// Adds `count` blocks called `blocks.0`, `blocks.1` and so on, whose constructor gets the number of the one it
    /// makes, from 0 on. A second call goes on counting names where the first ended.
    pub fn blocks<C, F>(mut self, count: usize, constructor: C) -> Self
    where
        C: Fn(usize, VarBuilder<'static>) -> candle_core::Result<F> + Send + Sync + 'static,
        F: Fn(&Tensor) -> candle_core::Result<Tensor> + 'static,
    {
        let constructor = Arc::new(constructor);
        for number in 0..count {
            let constructor = Arc::clone(&constructor);
            let name = format!("blocks.{}", self.numbered);
            self.blocks.push(Block::new(name, move |vb: VarBuilder<'static>| constructor(number, vb)));
            self.numbered += 1;
        }
        self
    }

    /// The loss of the last block's output against the targets: a scalar mean, or a scalar sum and its weight.
    pub fn loss<L, R>(mut self, loss: L) -> Self
    where
        L: Fn(&Tensor, &Tensor) -> candle_core::Result<R> + Send + Sync + 'static,
        R: Into<Loss>,
    {
        self.loss = Some(Arc::new(move |logits, targets| loss(logits, targets).map(Into::into)));
        self
    }

    /// The dtype of the builder that constructors get, F32 unless said.
    pub const fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The seed of draws and dropouts, 0 unless said.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Weights begin as those of a `VarMap`; what it does not have begins as its `Init` says.
    pub fn from_var_map(mut self, map: &VarMap) -> Self {
        let vars = map.data().lock().unwrap_or_else(PoisonError::into_inner);
        let tensors = vars.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor()));
        self.from = Start::Tensors(tensors.collect());
        drop(vars);
        self
    }

    /// Weights begin as those of a model's folder, as the Hugging Face hub lays it out, by the same names. One that is
    /// not there is an error, unless it is to be [drawn](Sharded::drawn).
    pub fn from_folder(mut self, folder: impl AsRef<Path>) -> Self {
        self.from = Start::Folder(folder.as_ref().to_owned());
        self
    }

    /// Weights that the folder need not have begin as their `Init` says: adapters, a new head.
    pub fn drawn(mut self, pattern: &str) -> Self {
        self.drawn.push(pattern.to_owned());
        self
    }

    /// Matrices of these names are gathered in `format`, F32 unless said. A later call refines an earlier one.
    pub fn format(self, pattern: &str, format: Format) -> Self {
        self.rule(WeightRule { pattern: pattern.to_owned(), format: Some(format), ..WeightRule::default() })
    }

    /// Weights of these names stay as they are.
    pub fn freeze(self, pattern: &str) -> Self {
        self.rule(WeightRule { pattern: pattern.to_owned(), frozen: Some(true), ..WeightRule::default() })
    }

    fn rule(mut self, rule: WeightRule) -> Self {
        self.config.weights.push(rule);
        self
    }

    /// Tensors of these names are no weights: every rank has all of them, and they stay as they are. Integers are
    /// buffers by themselves.
    pub fn buffer(mut self, pattern: &str) -> Self {
        self.buffers.push(pattern.to_owned());
        self
    }

    /// Weights of these names, or inputs of blocks of these names, need not get a gradient in every step.
    pub fn may_be_unused(mut self, pattern: &str) -> Self {
        self.unused.push(pattern.to_owned());
        self
    }

    /// Blocks of these names do not keep their graph; backward computes them again from their input.
    pub fn recompute(mut self, pattern: &str) -> Self {
        self.recompute.push(pattern.to_owned());
        self
    }

    /// Micro-batches: each rank computes its part of a batch in `count` parts, one after the other.
    pub const fn micro_batches(mut self, count: u32) -> Self {
        self.micro_batches = count;
        self
    }

    /// Allows [`ShardedModel::step_over`] several batches.
    pub const fn accumulating(mut self) -> Self {
        self.accumulates = true;
        self
    }

    /// The form of batches that are evaluated, if it is not that of those that train.
    pub fn evaluation(mut self, (x, y): (&Tensor, &Tensor)) -> Self {
        self.evaluation = Some((x.clone(), y.clone()));
        self
    }

    /// Allows [`ShardedModel::predict`] of inputs of this form.
    pub fn prediction(mut self, x: &Tensor) -> Self {
        self.prediction = Some(x.clone());
        self
    }
}
