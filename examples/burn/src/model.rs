//! A model that predicts the next byte from the [`WINDOW`] bytes before it: an embedding, blocks with residuals, a map
//! to logits.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Int, Tensor};

use crate::text::BYTES;

/// Bytes that a prediction sees.
pub const WINDOW: usize = 16;
/// Blocks between embedding and logits.
pub const BLOCKS: usize = 3;
/// Values of each byte's embedding.
const EMBEDDING: usize = 16;
/// Values between layers.
const WIDTH: usize = 256;
/// Values inside of a block.
const INNER: usize = 512;

/// The whole model.
#[derive(Module, Debug)]
pub struct Model {
    /// The embeddings of a window, side by side, mixed to a first vector.
    pub embed: Embed,
    /// The blocks between.
    pub blocks: Vec<Block>,
    /// The map to logits.
    pub head: Head,
}

impl Model {
    /// With values that burn draws.
    #[must_use]
    pub fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        let norm = || RmsNormConfig::new(WIDTH).init(device);
        let table = EmbeddingConfig::new(BYTES, EMBEDDING).init(device);
        let block = |_| Block { norm: norm(), up: linear(WIDTH, INNER), down: linear(INNER, WIDTH) };
        Self {
            embed: Embed { table, mix: linear(WINDOW * EMBEDDING, WIDTH) },
            blocks: (0..BLOCKS).map(block).collect(),
            head: Head { norm: norm(), map: linear(WIDTH, BYTES) },
        }
    }

    /// Windows of bytes, `[samples, WINDOW]`, to logits, `[samples, BYTES]`.
    #[must_use]
    pub fn forward(&self, windows: Tensor<2, Int>) -> Tensor<2> {
        let first = self.embed.forward(windows);
        self.head.forward(self.blocks.iter().fold(first, |x, block| block.forward(x)))
    }
}

/// A window of bytes to a first vector.
#[derive(Module, Debug)]
pub struct Embed {
    table: Embedding,
    mix: Linear,
}

impl Embed {
    /// `[samples, WINDOW]` to `[samples, WIDTH]`.
    #[must_use]
    pub fn forward(&self, windows: Tensor<2, Int>) -> Tensor<2> {
        self.mix.forward(self.table.forward(windows).flatten(1, 2))
    }
}

/// x + down · silu(up · norm(x)).
#[derive(Module, Debug)]
pub struct Block {
    norm: RmsNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    /// `[samples, WIDTH]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        x.clone() + self.down.forward(silu(self.up.forward(self.norm.forward(x))))
    }
}

/// To logits.
#[derive(Module, Debug)]
pub struct Head {
    norm: RmsNorm,
    map: Linear,
}

impl Head {
    /// `[samples, WIDTH]` to `[samples, BYTES]`.
    #[must_use]
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.map.forward(self.norm.forward(x))
    }
}

/// The mean over all samples.
#[must_use]
pub fn cross_entropy(logits: Tensor<2>, y: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, y)
}
