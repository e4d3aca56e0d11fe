//! Matrix products by cuBLASLt and what goes between them, for [`crate::linear`].
//!
//! Laws:
//! - **GE-1** The algorithm of a product is chosen once, when the product is made, with its workspace. So its
//!   bits are the same in every run, and enqueuing asks no heuristics and allocates nothing.
//! - **GE-2** Every operand is lent with its length, and is refused if the product would touch more. What
//!   users reach is safe to call: what a session captures keeps alive what it may use (RH-1). A capture
//!   of a queue keeps nothing, so queues stand behind the feature `internals`.
//! - A product works on the stream of the handles it is given, whose device must be its own.
//!
//! Matrices are cuBLAS's, column by column. `linear` says what they mean to a layer.

mod activation;
mod blas;
mod buffer;
mod elementwise;
mod factor;
mod kept;
mod lent;
mod newton_schulz;
mod product;
#[cfg(any(test, feature = "internals"))]
mod queue;
mod scalars;
mod swizzled;
#[cfg(test)]
mod tests;

pub(crate) use activation::{Activation, Source};
pub(crate) use blas::Blas;
pub use buffer::DeviceBuffer;
pub(crate) use elementwise::Elementwise;
pub(crate) use factor::{Element, Factor, ProductSpec, Scale};
pub(crate) use kept::Kept;
pub(crate) use lent::{Lent, LentMut};
pub(crate) use newton_schulz::NewtonSchulz;
pub(crate) use product::{Product, Scaled};
#[cfg(all(test, not(feature = "internals")))]
pub(crate) use queue::Queue;
#[cfg(feature = "internals")]
pub use queue::{CapturedGraph, Queue};
pub(crate) use swizzled::Swizzled;
