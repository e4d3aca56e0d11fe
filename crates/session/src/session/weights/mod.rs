//! Weights, optimizer state and main grads, in and out of a session between steps.

pub(super) mod background_save;
mod compare_replicas;
mod export_and_import;
mod main_grads;
mod sharded_checkpoint;

pub use main_grads::MainGrad;
