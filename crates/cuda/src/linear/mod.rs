//! A linear layer for closures on GPUs: y = x Wᵀ, and its gradients dx = dy W and dW = dyᵀ x.
//!
//! Laws:
//! - **LI-1** whatever a layer needs is made when the layer is: algorithms, workspace, scratch. A product
//!   enqueues on the stream of its call, allocates nothing and waits for nothing; so a step can be captured.
//! - **LI-2** the algorithm of a shape is chosen once: the same operands give the same bits in every step.
//! - **LI-3** sums are taken in f32, whatever the operands and the result are.
//! - **LI-4** nothing falls back silently. A GPU without products of a format is a
//!   [`CudaFailure`](crate::CudaFailure) that says what to declare instead; an operand of another shape or format
//!   is one before anything is enqueued.
//! - **LI-5** codes are those of the bf16 values they stand for, whether GELU was taken on the way to them,
//!   and whether they were kept from forward or made anew.
//!
//! A [`Recipe`] says in what numbers the products are computed and in which form a call must declare the
//! weight. A [`Device`] is one GPU for one lane, opened in the closure's factory. A [`Linear`] holds the
//! products of one shape, for all weights of that shape. A [`Weight`] is what the call's context shows of
//! one.
//!
//! Activations are bf16 `[tokens, features]`, row-major; x may be the first columns of a wider matrix.
//! Weights are `[outputs, inputs]`. In FP8 forward may keep, in the user's memory, what the weight's
//! gradient reads of x ([`Linear::forward_keeping`]). What comes between products is [`Elementwise`], or is
//! computed on the way to codes ([`Activations`]); a residual is added by the product itself
//! ([`Output::Sum`]). [`DeviceBuffer`]s hold what closures keep. A [`LinearSpec`] says what a call that uses
//! a layer costs. [`NewtonSchulz`] makes matrices nearly orthogonal, for optimizers that update by such. Biases and
//! products of several weights at a time are deliberately absent.

mod activations;
mod cost;
mod device;
mod elementwise;
mod layer;
mod newton_schulz;
mod recipe;
mod shapes;
mod spec;
mod weight;

pub use crate::gemm::DeviceBuffer;
#[cfg(feature = "internals")]
#[doc(hidden)]
pub use crate::gemm::{CapturedGraph, Queue};
pub use activations::{Activations, Input};
pub use device::Device;
pub use elementwise::Elementwise;
pub use layer::{BackwardOperands, Linear, Output};
pub use newton_schulz::NewtonSchulz;
pub use recipe::Recipe;
pub use spec::LinearSpec;
pub use weight::Weight;
