//! The model: ordinary modules of burn, which know nothing of sessions, shards and formats.
//!
//! It predicts the next byte from the `WINDOW` bytes before it: an embedding, residual blocks, a map to logits.
//! Both trainers call these modules, the one with warpweft and the one without.

use std::error::Error;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::activation::silu;
use burn::tensor::{Device, Int, Tensor};

use crate::program::Weight;
use crate::sizes::{BLOCKS, BYTES, EMBEDDING, INNER, WIDTH, WINDOW};

/// Window of bytes to embeddings, side by side, to a first vector.
#[derive(Module, Debug)]
pub(crate) struct Embed {
    table: Embedding,
    mix: Linear,
}

/// x + down · silu(up · norm(x)).
#[derive(Module, Debug)]
pub(crate) struct Block {
    norm: RmsNorm,
    up: Linear,
    down: Linear,
}

/// To logits.
#[derive(Module, Debug)]
pub(crate) struct Head {
    norm: RmsNorm,
    map: Linear,
}

/// The modules of all layers in one type.
#[derive(Module, Debug)]
pub(crate) enum Part {
    Embed(Embed),
    Block(Block),
    Head(Head),
}

/// What a layer gets.
pub(crate) enum Input {
    /// `[samples, WINDOW]`, the first layer's.
    Bytes(Tensor<2, Int>),
    /// `[samples, WIDTH]`, the output of the layer before.
    Values(Tensor<2>),
}

impl Part {
    /// The layer's output, `[samples, WIDTH]` or logits.
    pub(crate) fn forward(&self, input: Input) -> Result<Tensor<2>, Box<dyn Error>> {
        Ok(match (self, input) {
            (Self::Embed(Embed { table, mix }), Input::Bytes(bytes)) => {
                mix.forward(table.forward(bytes).flatten(1, 2))
            }
            (Self::Block(Block { norm, up, down }), Input::Values(x)) => {
                down.forward(silu(up.forward(norm.forward(x.clone())))) + x
            }
            (Self::Head(Head { norm, map }), Input::Values(x)) => map.forward(norm.forward(x)),
            _ => return Err("bytes are the input of the first layer, and of no other".into()),
        })
    }
}

/// A layer, and what a program declares of it.
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) part: Part,
    /// In the order in which burn visits the parameters.
    pub(crate) weights: Vec<Weight>,
}

/// All layers, first to last. Parameters have no values before they are requested.
pub(crate) fn layers(device: &Device) -> Vec<Layer> {
    let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
    let norm = || RmsNormConfig::new(WIDTH).init(device);
    let table = EmbeddingConfig::new(BYTES, EMBEDDING).init(device);
    let embed = Embed { table, mix: linear(WINDOW * EMBEDDING, WIDTH) };
    let mut layers = vec![layer("embed", Part::Embed(embed))];
    layers.extend((0..BLOCKS).map(|number| {
        let block = Block { norm: norm(), up: linear(WIDTH, INNER), down: linear(INNER, WIDTH) };
        layer(&format!("blocks.{number}"), Part::Block(block))
    }));
    layers.push(layer("head", Part::Head(Head { norm: norm(), map: linear(WIDTH, BYTES) })));
    layers
}

fn layer(name: &str, part: Part) -> Layer {
    let mut found = Weights { path: vec![name.to_owned()], weights: Vec::new() };
    part.visit(&mut found);
    Layer { name: name.to_owned(), part, weights: found.weights }
}

/// How containers begin whose modules are variants, which are no part of a name here.
const ENUM: &str = "Enum:";

/// Lists the parameters of a module, named by the fields that lead to them.
struct Weights {
    path: Vec<String>,
    weights: Vec<Weight>,
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, container: &str) {
        if !container.starts_with(ENUM) {
            self.path.push(name.to_owned());
        }
    }

    fn exit_module(&mut self, _: &str, container: &str) {
        if !container.starts_with(ENUM) {
            self.path.pop();
        }
    }

    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        let shape = parameter.lazy_shape();
        let columns = shape.iter().last().copied().unwrap_or(1);
        let weight = Weight {
            name: self.path.join("."),
            rows: shape.num_elements() / columns,
            columns,
            replicated: D == 1,
        };
        self.weights.push(weight);
    }
}
