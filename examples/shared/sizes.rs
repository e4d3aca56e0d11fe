//! The sizes of a model, the same in whichever library its layers are written.

/// Bytes that a prediction sees.
pub(crate) const WINDOW: usize = 16;
/// Values of each byte's embedding.
pub(crate) const EMBEDDING: usize = 16;
/// Values between layers.
pub(crate) const WIDTH: usize = 256;
/// Values inside of a block.
pub(crate) const INNER: usize = 512;
/// A byte's values.
pub(crate) const BYTES: usize = 256;
/// Blocks between embedding and logits.
pub(crate) const BLOCKS: usize = 3;
