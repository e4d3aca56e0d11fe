//! Weights and the model that holds them.
//!
//! Law: a weight is a logical row-major matrix `[rows, cols]`, addressed by [`WeightId`]; a model
//! is an ordered list of weights shared by all programs of a session. Formats and placements are
//! checked here, once.

use serde::Serialize;

use super::DeclareError;
use crate::format::{Format, Shape};
use crate::id::WeightId;

/// Where a weight lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Placement {
    /// Rows are split over the ranks; each rank owns master, moments, main grad and quantized
    /// planes of its rows alone.
    Sharded,
    /// Every rank holds the whole weight in f32: norms, biases, small tensors.
    Replicated,
}

/// One declared weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WeightSpec {
    /// Unique name, dotted by convention: `blocks.3.mlp.up`.
    pub name: String,
    /// Logical shape `[rows, cols]`; a GEMM computes `x · Wᵀ`, so rows are output features.
    pub shape: Shape,
    /// How the weight travels and is stored beside its FP32 master.
    pub format: Format,
    /// Sharded or replicated.
    pub placement: Placement,
}

/// The weights of one model, in declaration order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Model {
    weights: Vec<WeightSpec>,
}

impl Model {
    /// Starts an empty declaration.
    #[must_use]
    pub fn builder() -> ModelBuilder {
        ModelBuilder::default()
    }

    /// All weights, in the order of their ids.
    #[must_use]
    pub fn weights(&self) -> &[WeightSpec] {
        &self.weights
    }

    /// Every weight with its id.
    pub fn entries(&self) -> impl Iterator<Item = (WeightId, &WeightSpec)> {
        self.weights.iter().enumerate().map(|(position, spec)| (WeightId::at(position), spec))
    }

    /// The weight behind an id of this model.
    ///
    /// # Panics
    /// When the id belongs to another model.
    #[must_use]
    pub fn weight(&self, weight: WeightId) -> &WeightSpec {
        &self.weights[weight.index()]
    }

    /// The id of the weight called `name`.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] lists the names that exist.
    pub fn find(&self, name: &str) -> Result<WeightId, DeclareError> {
        self.weights.iter().position(|spec| spec.name == name).map(WeightId::at).ok_or_else(|| {
            DeclareError::Unknown {
                kind: "weight",
                name: name.to_owned(),
                declared: names(self.weights.iter().map(|spec| spec.name.as_str())),
            }
        })
    }
}

/// Collects weights; every call checks what it is given.
#[derive(Clone, Debug, Default)]
pub struct ModelBuilder {
    model: Model,
}

impl ModelBuilder {
    /// Declares a sharded weight `[rows, cols]` in `format`.
    ///
    /// # Errors
    /// A repeated name, an empty shape, or a shape the format cannot split into whole tiles or that
    /// has more elements than can be addressed.
    pub fn sharded(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        format: Format,
    ) -> Result<WeightId, DeclareError> {
        self.add(WeightSpec {
            name: name.to_owned(),
            shape: Shape { rows, cols },
            format,
            placement: Placement::Sharded,
        })
    }

    /// Declares a replicated f32 weight of any shape.
    ///
    /// # Errors
    /// A repeated name, an empty shape, or one of more elements than can be addressed.
    pub fn replicated(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, DeclareError> {
        self.add(WeightSpec {
            name: name.to_owned(),
            shape: Shape { rows, cols },
            format: Format::F32,
            placement: Placement::Replicated,
        })
    }

    /// Declares a weight from its parts.
    ///
    /// # Errors
    /// As [`ModelBuilder::sharded`], and [`DeclareError::ReplicatedFormat`] for a replicated
    /// weight that is not f32.
    pub fn add(&mut self, spec: WeightSpec) -> Result<WeightId, DeclareError> {
        if self.model.weights.iter().any(|other| other.name == spec.name) {
            return Err(DeclareError::Duplicate { kind: "weight", name: spec.name });
        }
        if spec.shape.rows == 0 || spec.shape.cols == 0 {
            return Err(DeclareError::Empty { kind: "weight", name: spec.name });
        }
        if spec.placement == Placement::Replicated && spec.format != Format::F32 {
            return Err(DeclareError::ReplicatedFormat {
                weight: spec.name,
                format: spec.format.to_string(),
            });
        }
        let fits = match spec.placement {
            Placement::Replicated => Ok(()),
            Placement::Sharded => spec.format.check_weight(),
        };
        if let Err(source) = fits.and_then(|()| spec.format.check_shape(spec.shape)) {
            return Err(DeclareError::Format { weight: spec.name, source });
        }
        self.model.weights.push(spec);
        Ok(WeightId::at(self.model.weights.len() - 1))
    }

    /// The finished model.
    #[must_use]
    pub fn build(self) -> Model {
        self.model
    }
}

/// Names in one line, for messages.
pub(super) fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    let list: Vec<&str> = all.collect();
    if list.is_empty() { "none".to_owned() } else { list.join(", ") }
}
