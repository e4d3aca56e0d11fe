//! The user's declarations: weights, their placement, buffers, and the step program.
//!
//! Law: everything here is plain data that was checked when it was built. A value of these types is valid; no
//! lower layer validates it again. What a user fills in by hand ([`WeightSpec`], [`BufferSpec`],
//! [`Layer`], [`Decoder`]) is checked by what it is handed to, or is asked to declare. Nothing here knows of
//! devices, lanes or time, and nothing is observed at run time: the program *is* the declaration.

mod buffer;
mod collective;
mod counts;
mod decoder;
mod error;
mod group;
mod hyperparameters;
mod layers;
mod levels;
mod mesh;
mod names;
mod parameter_group;
mod program;
mod repeat;
mod segments;
mod shard;
mod tensor_parallel;
mod weight;
mod weights;

pub use buffer::{Access, BufferAccess, BufferSpec, Lifetime, Role};
pub use collective::{Collective, CollectiveKind};
pub use counts::Counts;
pub use decoder::Decoder;
pub use error::DeclareError;
pub use group::{Group, Strides};
pub use hyperparameters::Hyperparameters;
pub use layers::{Layer, LayerStack};
pub use levels::Levels;
pub use mesh::Mesh;
pub use parameter_group::{NonNegative, ParameterGroup};
pub use program::{
    Accumulation, Call, CallBuilder, CostHint, Form, Gradient, Math, Phase, ProgramBuilder, Reuse,
    StepProgram, Use,
};
pub use segments::Segments;
pub use shard::{Block, ShardLayout, ShardRows};
pub use tensor_parallel::{TensorCut, TensorParallel};
pub use weight::{Placement, WeightSpec};
pub use weights::{Model, ModelBuilder};
