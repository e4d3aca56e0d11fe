//! A model that predicts the next byte from the [`WINDOW`] bytes before it: an embedding, blocks with residuals, a map
//! to logits.

use candle_core::{Module, Result, Tensor};
use candle_nn::{Embedding, Linear, RmsNorm, VarBuilder, embedding, linear_no_bias, rms_norm};

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
const EPSILON: f64 = 1e-5;

/// The whole model.
pub struct Model {
    embed: Embed,
    blocks: Vec<Block>,
    head: Head,
}

impl Model {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>) -> Result<Self> {
        let blocks = (0..BLOCKS).map(|block| Block::load(vb.pp(format!("blocks.{block}"))));
        let blocks = blocks.collect::<Result<_>>()?;
        Ok(Self { embed: Embed::load(vb.pp("embed"))?, blocks, head: Head::load(vb.pp("head"))? })
    }
}

impl Module for Model {
    /// Windows of bytes, `[samples, WINDOW]`, to logits, `[samples, BYTES]`.
    fn forward(&self, windows: &Tensor) -> Result<Tensor> {
        let first = self.embed.forward(windows);
        self.head.forward(&self.blocks.iter().try_fold(first?, |x, block| block.forward(&x))?)
    }
}

/// The embeddings of a window, side by side, mixed to a first vector.
pub struct Embed {
    table: Embedding,
    mix: Linear,
}

impl Embed {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>) -> Result<Self> {
        let table = embedding(BYTES, EMBEDDING, vb.pp("table"))?;
        Ok(Self { table, mix: linear_no_bias(WINDOW * EMBEDDING, WIDTH, vb.pp("mix"))? })
    }
}

impl Module for Embed {
    fn forward(&self, windows: &Tensor) -> Result<Tensor> {
        self.mix.forward(&self.table.forward(windows)?.flatten_from(1)?)
    }
}

/// x + down · silu(up · norm(x)).
pub struct Block {
    norm: RmsNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>) -> Result<Self> {
        let up = linear_no_bias(WIDTH, INNER, vb.pp("up"))?;
        let down = linear_no_bias(INNER, WIDTH, vb.pp("down"))?;
        Ok(Self { norm: rms_norm(WIDTH, EPSILON, vb.pp("norm"))?, up, down })
    }
}

impl Module for Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // Not `forward`, which has no gradient.
        let inner = self.up.forward(&self.norm.forward_diff(x)?)?.silu()?;
        x + self.down.forward(&inner)?
    }
}

/// To logits.
pub struct Head {
    norm: RmsNorm,
    map: Linear,
}

impl Head {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>) -> Result<Self> {
        let map = linear_no_bias(WIDTH, BYTES, vb.pp("map"))?;
        Ok(Self { norm: rms_norm(WIDTH, EPSILON, vb.pp("norm"))?, map })
    }
}

impl Module for Head {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.map.forward(&self.norm.forward_diff(x)?)
    }
}
