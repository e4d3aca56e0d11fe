//! One tensor of a safetensors file, as its header names it.

use safetensors::Dtype;

/// Bytes of the header's length.
pub(super) const LENGTH_BYTES: u64 = 8;

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Type of an element.
    pub dtype: Dtype,
    /// Its dimensions; none for a scalar.
    pub shape: Vec<usize>,
    /// Its first byte, from the end of the header.
    pub begin: u64,
    /// Behind its last byte.
    pub end: u64,
}

impl TensorEntry {
    /// Bytes of the tensor.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }
}
