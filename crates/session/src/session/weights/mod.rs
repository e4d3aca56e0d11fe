//! What goes out of a session and into it at a step boundary: weights, states of the optimizer, main grads.

mod compare_replicas;
mod export_and_import;
mod main_grads;
mod sharded_checkpoint;

pub use main_grads::MainGrad;
