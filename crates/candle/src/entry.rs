//! One tensor of a model: its name, shape, dtype and first value, and whether it trains.

use candle_core::DType;
use candle_nn::Init;

/// The kind of a tensor: trained, frozen, or a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// It is sharded or replicated, gets gradients, and the optimizer rewrites it.
    Trained,
    /// It is gathered like a weight that trains, and stays as it is.
    Frozen,
    /// Every rank has all of it, and no session knows of it: masks, tables, integers.
    Buffer,
}

/// A tensor that blocks request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its name, with all prefixes.
    pub name: String,
    /// Its shape. As a weight of the session it is `[first dimension, all others]`, and a vector is one row.
    pub shape: Vec<usize>,
    /// The dtype in which blocks see it. Masters are f32.
    pub dtype: DType,
    /// How it begins where nothing else was given.
    pub init: Init,
    /// Whether it trains.
    pub kind: Kind,
    /// The blocks that use it; several of them are tied by it.
    pub blocks: Vec<String>,
}

impl Entry {
    pub(crate) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Rows and columns of the weight.
    pub(crate) fn matrix(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            [] => (1, 1),
            [columns] => (1, *columns),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        }
    }

    pub(crate) fn is_buffer(&self) -> bool {
        self.kind == Kind::Buffer
    }

    /// Vectors are replicated, and lent in f32.
    pub(crate) fn is_bf16_matrix(&self) -> bool {
        self.dtype == DType::BF16 || self.shape.len() < 2
    }

    pub(crate) fn trains(&self) -> bool {
        self.kind == Kind::Trained
    }
}
