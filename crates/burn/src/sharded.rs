//! The builder of a sharded model: the module, its blocks, the loss, and declarations about weights.
//!
//! Law: nothing runs before [`Sharded::shard`], which stands in `start`. Patterns are those of the configuration: `*`
//! stands for any characters, dots too, and `?` for one. One that matches nothing is refused.

use std::sync::Arc;

use burn::module::Module;
use warpweft::config::WeightRule;
use warpweft::format::Format;

use crate::batch::Batch;
use crate::blocks::{Block, Loss, LossOf, loss_of};
use crate::settings::Settings;
use crate::tensors::{Inputs, Output, Value};

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
}

impl Devices {
    /// `ranks` on this machine's CPU.
    #[must_use]
    pub const fn cpu(ranks: u32) -> Self {
        Self::Cpu { ranks }
    }
}

/// The builder of a sharded model, block by block.
#[must_use = "a model is sharded by `shard`"]
pub struct Sharded<M> {
    pub(crate) settings: Settings,
    pub(crate) module: M,
    pub(crate) blocks: Vec<Block<M>>,
    pub(crate) numbered: usize,
    pub(crate) loss: Option<LossOf>,
    pub(crate) buffers: Vec<String>,
    pub(crate) unused: Vec<String>,
    pub(crate) recompute: Vec<String>,
    pub(crate) micro_batches: u32,
    pub(crate) accumulates: bool,
    pub(crate) evaluation: Option<Batch>,
    pub(crate) prediction: Option<Batch>,
}

impl<M> std::fmt::Debug for Sharded<M> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let blocks: Vec<&str> = self.blocks.iter().map(|block| block.name.as_str()).collect();
        formatter.debug_struct("Sharded").field("blocks", &blocks).finish_non_exhaustive()
    }
}

impl<M: Module + 'static> Sharded<M> {
    /// A module that begins with the values that it has, trained as a [`Config`](warpweft::config::Config) or burn's
    /// `AdamWConfig` or `AdamConfig` says.
    pub fn new(settings: impl Into<Settings>, module: M) -> Self {
        Self {
            settings: settings.into(),
            module,
            blocks: Vec::new(),
            numbered: 0,
            loss: None,
            buffers: Vec::new(),
            unused: Vec::new(),
            recompute: Vec::new(),
            micro_batches: 1,
            accumulates: false,
            evaluation: None,
            prediction: None,
        }
    }

    /// The learning rate, which burn's optimizers get in each step.
    pub fn learning_rate(mut self, rate: f64) -> Self {
        (self.settings.config.optimizer.lr, self.settings.has_rate) = (rate, true);
        self
    }

    /// Adds a block: `forward` computes a part of the model, with the fields of the module that it needs. It gets what
    /// the block before gave, or the batch's input, and, if it takes more, what every block gets. It must read the same
    /// weights in every call. A block is at most one layer of the model, because all its weights are gathered together.
    pub fn block<X: Inputs, Y: Output>(
        mut self,
        name: &str,
        forward: impl Fn(&M, X) -> Y + Send + Sync + 'static,
    ) -> Self {
        self.blocks.push(Block::new(name.to_owned(), forward));
        self
    }

    /// Adds `count` blocks called `blocks.0`, `blocks.1` and so on, whose closure gets the number of the one it
    /// computes, from 0 on. A second call goes on counting names where the first ended.
    pub fn blocks<X: Inputs, Y: Output>(
        mut self,
        count: usize,
        forward: impl Fn(usize, &M, X) -> Y + Send + Sync + 'static,
    ) -> Self {
        let forward = Arc::new(forward);
        for number in 0..count {
            let forward = Arc::clone(&forward);
            let name = format!("blocks.{}", self.numbered);
            self.blocks.push(Block::new(name, move |module: &M, x: X| forward(number, module, x)));
            self.numbered += 1;
        }
        self
    }

    /// The loss of the last block's output against the targets: a mean, or a sum and its weight.
    pub fn loss<Y: Value + Output + Clone, T: Value, R: Into<Loss>>(
        mut self,
        loss: impl Fn(Y, T) -> R + Send + Sync + 'static,
    ) -> Self {
        self.loss = Some(loss_of(loss));
        self
    }

    /// Matrices of these paths are gathered in `format`, F32 unless said. A later call refines an earlier one.
    pub fn format(self, pattern: &str, format: Format) -> Self {
        self.rule(WeightRule { pattern: pattern.to_owned(), format: Some(format), ..WeightRule::default() })
    }

    /// Weights of these paths stay as they are. Those that the module has frozen do by themselves.
    pub fn freeze(self, pattern: &str) -> Self {
        self.rule(WeightRule { pattern: pattern.to_owned(), frozen: Some(true), ..WeightRule::default() })
    }

    fn rule(mut self, rule: WeightRule) -> Self {
        self.settings.config.weights.push(rule);
        self
    }

    /// Tensors of these paths are no weights: every rank has all of them, and they stay as they are. Integers,
    /// booleans and running statistics are buffers by themselves.
    pub fn buffer(mut self, pattern: &str) -> Self {
        self.buffers.push(pattern.to_owned());
        self
    }

    /// Weights of these paths, or inputs of blocks of these names, need not get a gradient in every step. A weight that
    /// no block reads stays as it is.
    pub fn may_be_unused(mut self, pattern: &str) -> Self {
        self.unused.push(pattern.to_owned());
        self
    }

    /// Blocks of these names do not keep their graph, and the weights with it; backward computes them again from their
    /// input.
    pub fn recompute(mut self, pattern: &str) -> Self {
        self.recompute.push(pattern.to_owned());
        self
    }

    /// Micro-batches: each rank computes its part of a batch in `count` parts, one after the other.
    pub fn micro_batches(mut self, count: u32) -> Self {
        self.micro_batches = count;
        self
    }

    /// Allows [`ShardedModel::step_over`](crate::ShardedModel::step_over) several batches.
    pub fn accumulating(mut self) -> Self {
        self.accumulates = true;
        self
    }

    /// The form of batches that are evaluated, if it is not that of those that train.
    pub fn evaluation(mut self, batch: impl Into<Batch>) -> Self {
        self.evaluation = Some(batch.into());
        self
    }

    /// Allows [`ShardedModel::predict`](crate::ShardedModel::predict) of inputs of this form.
    pub fn prediction(mut self, x: impl Inputs) -> Self {
        self.prediction = Some(Batch::inputs(x));
        self
    }
}
