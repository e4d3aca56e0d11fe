//! The names that a user needs: `use warpweft::prelude::*;`.
//!
//! Law: a name is here if most programs that declare a model, plug in a closure, step and keep checkpoints write it.
//! Names for plans, traces, matrix products, optimizers of whole matrices and the details of formats are imported from
//! their own modules. No module is exported whole, so a name added elsewhere does not end up here by itself; there are
//! 35 at most. The library itself does not use this module.
//!
//! | for | names |
//! |---|---|
//! | declaring a model and its programs | [`Model`], [`StepProgram`], [`Call`], [`Phase`], [`Form`], [`DeclareError`] |
//! | what numbers are | [`Format`], [`Orientation`], [`ElementType`] |
//! | numbers of ranks, weights and buffers | [`RankId`], [`WeightId`], [`BufferId`] |
//! | a closure | [`Compute`], [`ComputeContext`], [`ComputeError`], and [`on_cpu`], [`CpuSurface`] or `on_cuda`, `CudaSurface` |
//! | what an optimizer goes by, and a custom one | [`Hyperparameters`], [`Optimizer`], [`UpdateContext`] |
//! | files of models and clusters | [`Declared`]: their `load` |
//! | running | [`Config`], [`Session`], [`initial`], [`StepReport`], [`Outcome`], [`SessionError`], and `DeviceOrdinal` for GPUs |
//! | keeping checkpoints | [`Checkpoint`], [`CheckpointStore`], [`FileStore`], [`PartFiles`], [`CheckpointError`] |

#[doc(inline)]
pub use crate::backend::cpu::{CpuSurface, on_cpu};
#[cfg(feature = "cuda")]
#[doc(inline)]
pub use crate::backend::cuda::{CudaSurface, DeviceOrdinal, on_cuda};
#[doc(inline)]
pub use crate::checkpoint::{Checkpoint, CheckpointError, CheckpointStore, FileStore, PartFiles};
#[doc(inline)]
pub use crate::compute::{Compute, ComputeContext, ComputeError, Optimizer, UpdateContext};
#[doc(inline)]
pub use crate::config::{Config, Declared};
#[doc(inline)]
pub use crate::format::{ElementType, Format, Orientation};
#[doc(inline)]
pub use crate::id::{BufferId, RankId, WeightId};
#[doc(inline)]
pub use crate::model::{Call, DeclareError, Form, Hyperparameters, Model, Phase, StepProgram};
#[doc(inline)]
pub use crate::session::{Outcome, Session, SessionError, StepReport, initial};
