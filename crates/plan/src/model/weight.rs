//! A weight, as it is declared.
//!
//! Law: a weight is a logical row-major matrix `[rows, cols]`. What is said of one here is checked where a model gets
//! it ([`ModelBuilder`](super::ModelBuilder)), and nowhere else.

use serde::Serialize;

use super::{ParameterGroup, Reuse, Segments, TensorParallel};
use warpweft_base::id::GroupId;
use warpweft_format::{Format, Shape};

/// Where a weight lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Placement {
    /// Rows are split over the ranks; each rank owns master, moments, main grad and quantized
    /// planes of its rows alone, or, of a frozen weight, the planes.
    Sharded,
    /// Every rank holds the whole weight in f32: norms, biases, small tensors.
    Replicated,
}

impl Placement {
    /// Whether a weight of this placement is its quantized planes alone, without a master: where it is sharded and
    /// frozen. (A frozen weight that is replicated is its f32 values.)
    #[must_use]
    pub const fn is_planes_alone(self, frozen: bool) -> bool {
        frozen && matches!(self, Self::Sharded)
    }
}

/// One declared weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WeightSpec {
    /// Unique name, dotted by convention: `blocks.3.mlp.up`.
    pub name: String,
    /// Logical shape `[rows, cols]`; a GEMM computes `x · Wᵀ`, so rows are output features.
    pub shape: Shape,
    /// How the weight travels and is stored in addition to its FP32 master.
    pub format: Format,
    /// Sharded or replicated.
    pub placement: Placement,
    /// Whether its uses find planes that earlier uses gathered; as the configuration says when not set.
    pub reuse: Option<Reuse>,
    /// The group it is gathered and reduced with, if any; see [`ModelBuilder::group`](super::ModelBuilder::group).
    pub group: Option<GroupId>,
    /// What the optimizer does differently for it.
    pub parameters: ParameterGroup,
    /// Whether it stays as it is. A frozen weight is gathered and used like any other, and has no gradient,
    /// main grad or moments. A sharded one has no master either: it is its quantized planes, made once.
    pub frozen: bool,
    /// What tensor parallelism does with it; meshes without do nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<TensorParallel>,
    /// The stacked matrices that are cut each by itself, of a column-parallel weight that is fused;
    /// see [`ModelBuilder::column_parallel_of`](super::ModelBuilder::column_parallel_of).
    #[serde(skip_serializing_if = "Segments::is_none")]
    pub segments: Segments,
    /// Whether it is of an expert, of which other ranks have others; see
    /// [`ModelBuilder::expert_parallel`](super::ModelBuilder::expert_parallel).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expert: bool,
    /// The weights that it is quantized with by one scale of the tensor, if any: see
    /// [`ModelBuilder::scale_group`](super::ModelBuilder::scale_group).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_group: Option<String>,
}

impl WeightSpec {
    /// A sharded weight `[rows, cols]` in `format`, which trains as the configuration says and is in no group.
    #[must_use]
    pub fn sharded(name: &str, rows: usize, cols: usize, format: Format) -> Self {
        Self {
            name: name.to_owned(),
            shape: Shape { rows, cols },
            format,
            placement: Placement::Sharded,
            reuse: None,
            group: None,
            parameters: ParameterGroup::default(),
            frozen: false,
            tensor: None,
            segments: Segments::NONE,
            expert: false,
            scale_group: None,
        }
    }

    /// A replicated weight `[rows, cols]`, which is in f32.
    #[must_use]
    pub fn replicated(name: &str, rows: usize, cols: usize) -> Self {
        Self { placement: Placement::Replicated, ..Self::sharded(name, rows, cols, Format::F32) }
    }
}
