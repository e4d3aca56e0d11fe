//! The model: layers as ordinary candle functions, which know nothing of sessions, shards and formats.
//!
//! It predicts the next byte from the `WINDOW` bytes before it: an embedding, residual blocks, a map to logits.
//! Both trainers call these functions, the one with warpweft and the one without.

use candle_core::{Result, Tensor, bail};

use crate::program::Weight;
use crate::sizes::{BLOCKS, BYTES, EMBEDDING, INNER, WIDTH, WINDOW};

/// A layer's name and weights.
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) weights: Vec<Weight>,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Window of bytes to embeddings, side by side, to a first vector.
    Embed,
    /// x + down · silu(up · norm(x)).
    Block,
    /// To logits.
    Head,
}

/// All layers, first to last.
pub(crate) fn layers() -> Vec<Layer> {
    let mut layers =
        vec![layer("embed", Kind::Embed, &[("table", BYTES, EMBEDDING), ("mix", WIDTH, WINDOW * EMBEDDING)])];
    layers.extend((0..BLOCKS).map(|block| {
        let weights = [("gain", 1, WIDTH), ("up", INNER, WIDTH), ("down", WIDTH, INNER)];
        layer(&format!("blocks.{block}"), Kind::Block, &weights)
    }));
    layers.push(layer("head", Kind::Head, &[("gain", 1, WIDTH), ("map", BYTES, WIDTH)]));
    layers
}

fn layer(name: &str, kind: Kind, weights: &[(&str, usize, usize)]) -> Layer {
    let weights = weights.iter().map(|(weight, rows, columns)| Weight {
        name: format!("{name}.{weight}"),
        rows: *rows,
        columns: *columns,
        replicated: *weight == "gain",
    });
    Layer { name: name.to_owned(), weights: weights.collect(), kind }
}

impl Layer {
    /// The layer's output, `[samples, …]`; of the first layer's `[samples, WINDOW]` bytes, and else of the output
    /// before.
    pub(crate) fn apply(&self, weights: &[Tensor], input: &Tensor) -> Result<Tensor> {
        match (self.kind, weights) {
            (Kind::Embed, [table, mix]) => {
                let (samples, window) = input.dims2()?;
                let found = table.index_select(&input.flatten_all()?, 0)?;
                found.reshape((samples, window * EMBEDDING))?.matmul(&mix.t()?)
            }
            (Kind::Block, [gain, up, down]) => {
                let inner = norm(input, gain)?.matmul(&up.t()?)?.silu()?;
                input + inner.matmul(&down.t()?)?
            }
            (Kind::Head, [gain, map]) => norm(input, gain)?.matmul(&map.t()?),
            (_, weights) => bail!("{} weights are not those of layer {}", weights.len(), self.name),
        }
    }
}

/// Root mean square norm.
fn norm(input: &Tensor, gain: &Tensor) -> Result<Tensor> {
    let size = (input.sqr()?.mean_keepdim(1)? + 1e-5)?.sqrt()?;
    input.broadcast_div(&size)?.broadcast_mul(gain)
}
