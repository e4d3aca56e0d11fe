//! One tensor of a module: its path, shape and dtype, and whether it trains.

use burn::tensor::DType;

/// The kind of a tensor: trained, frozen, or a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// It is sharded or replicated, gets gradients, and the optimizer rewrites it.
    Trained,
    /// It is gathered like a weight that trains, if a block reads it, and stays as it is.
    Frozen,
    /// Every rank has all of it, and no session knows of it: integers, booleans, running statistics.
    Buffer,
}

/// A tensor of the module.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Its path in the module, as burn's records have it.
    pub name: String,
    /// Its shape. As a weight of the session it is `[first dimension, all others]`, and a vector is one row.
    pub shape: Vec<usize>,
    /// The dtype in which blocks see it. Masters are f32.
    pub dtype: DType,
    /// Whether it trains.
    pub kind: Kind,
    /// The blocks that use it; several of them are tied by it. Of a buffer, none.
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

    pub(crate) fn trains(&self) -> bool {
        self.kind == Kind::Trained
    }
}
