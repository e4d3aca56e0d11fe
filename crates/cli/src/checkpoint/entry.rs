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

    /// The `number`-th of `count` equal parts of its bytes, which lie one behind the other; a part of a whole number
    /// of elements, in one dimension, under the tensor's name.
    pub(crate) fn part(&self, number: usize, count: usize) -> Self {
        let each = self.bytes() / count.max(1) as u64;
        let elements = self.shape.iter().product::<usize>() / count.max(1);
        let begin = self.begin + each * number as u64;
        Self { name: self.name.clone(), dtype: self.dtype, shape: vec![elements], begin, end: begin + each }
    }
}
