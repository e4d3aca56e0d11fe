//! The names that a trainer needs: `use warpweft::prelude::*;`.
//!
//! Law: a name is here if a program that declares a model, plugs in a closure, steps and keeps checkpoints
//! cannot do without it. Names for plans, traces, matrix products and the details of formats are imported
//! from their own modules. No module is exported whole, so a name added elsewhere does not end up here by itself.
//! The library itself does not use this module.
//!
//! | for | names |
//! |---|---|
//! | declaring a model and its programs | [`Model`], [`StepProgram`], [`ProgramBuilder`], [`Call`], [`Phase`], [`Form`], [`DeclareError`] |
//! | what numbers are | [`Format`], [`Orientation`], [`ElementType`] |
//! | numbers of ranks, weights and buffers | [`RankId`], [`WeightId`], [`BufferId`] |
//! | a closure | [`Compute`], [`ComputeContext`], [`ComputeError`], [`Seat`], and [`on_cpu`], [`CpuSurface`] or `on_cuda`, `CudaSurface` |
//! | what an optimizer goes by, and a custom one | [`Hyperparameters`], [`Optimizer`], [`UpdateContext`], and [`PrepareContext`], [`TransformContext`] for whole matrices |
//! | files of models and clusters | [`Declared`]: their `load` |
//! | running | [`Config`], [`Session`], [`initial`], [`StepReport`], [`Outcome`], [`SessionError`], [`block_on`], and `DeviceOrdinal` for GPUs |
//! | keeping checkpoints | [`Checkpoint`], [`CheckpointStore`], [`FileStore`], [`PartFiles`], [`CheckpointError`] |

pub use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, FileStore, PartFiles};
pub use crate::config::{Config, Declared};
pub use crate::session::{Outcome, Session, SessionError, StepReport, block_on, initial};
pub use warpweft_backend::cpu::{CpuSurface, on_cpu};
pub use warpweft_base::id::{BufferId, RankId, WeightId};
#[cfg(feature = "cuda")]
pub use warpweft_cuda::{CudaSurface, DeviceOrdinal, on_cuda};
pub use warpweft_format::{ElementType, Format, Orientation};
pub use warpweft_plan::compute::{
    Compute, ComputeContext, ComputeError, Optimizer, PrepareContext, Seat, TransformContext, UpdateContext,
};
pub use warpweft_plan::model::{
    Call, DeclareError, Form, Hyperparameters, Model, Phase, ProgramBuilder, StepProgram,
};
