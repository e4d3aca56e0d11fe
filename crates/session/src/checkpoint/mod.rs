//! Checkpoints: weights and the state of an optimizer, in memory and in files.
//!
//! Law: nothing here knows a session or a rank's memory. What ranks own comes and goes as values (`ranks`); files are
//! replaced whole or not at all; what a file claims is judged before memory is taken for it, and what it holds before
//! anything is changed. There is one reader and one writer of safetensors files (`safetensors`).
//!
//! | file | idea |
//! |---|---|
//! | `state`, `optimizer_identity`, `frozen_digest`, `state_part` | what a checkpoint is |
//! | `ranks`, `gather_and_scatter`, `block_copies` | what ranks own of one, put together and cut |
//! | `fits_session`, `state_validation`, `identity` | does it fit, can training go on from it, which one is it |
//! | `error`, `advice` | what goes wrong with all of them, and what to do |
//! | `digits` | numbers that files keep as digits |
//! | `store` | where checkpoints are kept: a user's choice |
//! | `one_file` | a checkpoint in one file, with its digests |
//! | `sharded` | a sharded checkpoint: a file for each rank, and an index |
//! | `published` | the weights alone, for other tools |
//! | `engines` | checkpoints that inference engines load, written and read |
//! | `pretrained`, `manifest` | weights from elsewhere; what a quantized file says about itself |
//! | `kind` | what a file is that should hold weights |
//! | `safetensors` | one reader, one writer |

mod advice;
pub(crate) mod block_copies;
pub mod engines;
mod error;
mod fits_session;
mod frozen_digest;
mod gather_and_scatter;
mod hexadecimal;
mod identity;
#[doc(hidden)]
pub mod kind;
mod listed;
#[doc(hidden)]
pub mod manifest;
#[doc(hidden)]
pub mod one_file;
mod optimizer_identity;
mod pretrained;
mod published;
#[doc(hidden)]
pub mod ranks;
#[doc(hidden)]
pub mod safetensors;
pub(crate) mod sharded;
mod state;
mod state_part;
mod state_validation;
mod store;
mod tensors;

pub use advice::FileTask;
pub use error::CheckpointError;
pub use frozen_digest::FrozenDigest;
pub(crate) use gather_and_scatter::Taken;
pub use one_file::FileStore;
pub use optimizer_identity::OptimizerIdentity;
pub use pretrained::{FrozenBase, PretrainedFiles};
pub use sharded::{PartFiles, SavedExperts, SavedParts};
pub use state::{Carried, CarriedBuffer, Checkpoint, PlanesState, WeightState};
pub use state_part::StatePart;
pub use store::CheckpointStore;
