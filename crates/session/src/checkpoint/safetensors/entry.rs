//! One tensor of a safetensors file, as a header describes it, and the numbers that all headers have in common.

use safetensors::Dtype;

use super::invalid::Invalid;
use warpweft_base::errors::shown;

/// Bytes of the header's length.
pub(super) const LENGTH_BYTES: u64 = 8;

/// The longest header that is read or written, as in the safetensors library.
pub(super) const LONGEST_HEADER: u64 = 100_000_000;

/// The key under which a header keeps its metadata, between the tensors; so the one name that no tensor can have.
pub(in crate::checkpoint) const METADATA: &str = "__metadata__";

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
    /// After its last byte.
    pub end: u64,
}

impl TensorEntry {
    /// Bytes of the tensor.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.end.saturating_sub(self.begin)
    }

    /// The `number`-th of `count` equal parts of its bytes, which lie one after the other; a part of a whole number
    /// of elements, in one dimension, under the tensor's name.
    #[must_use]
    pub fn part(&self, number: usize, count: usize) -> Self {
        let each = self.bytes() / count.max(1) as u64;
        let elements = self.shape.iter().product::<usize>() / count.max(1);
        let begin = self.begin + each * number as u64;
        Self { name: self.name.clone(), dtype: self.dtype, shape: vec![elements], begin, end: begin + each }
    }

    /// Has it the bytes of its dtype and shape?
    pub(super) fn check_size(&self) -> Result<(), Invalid> {
        let Self { name, dtype, shape, begin, end } = self;
        let invalid = |what: String| Err(Invalid::Header(format!("tensor `{}`: {what}", shown(name))));
        match (size(*dtype, shape), end.checked_sub(*begin)) {
            (Some(expected), Some(actual)) if actual == expected => Ok(()),
            (None, _) => {
                invalid(format!("{dtype} of shape {shape:?} has no size in whole bytes, or one too large"))
            }
            (_, None) => invalid(format!("its bytes end at {end}, before they begin at {begin}")),
            (Some(expected), Some(actual)) => invalid(format!(
                "{dtype} of shape {shape:?} takes {expected} bytes, but the header gives it {actual}, from {begin} on"
            )),
        }
    }
}

/// Bytes of a tensor; `None` when they are no whole number, or its bits do not fit in 64 bits.
pub(super) fn size(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let product = |bits: u64, dimension: &usize| bits.checked_mul(u64::try_from(*dimension).ok()?);
    let bits = shape.iter().try_fold(dtype.bitsize() as u64, product)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}
