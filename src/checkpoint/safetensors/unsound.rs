//! What can be wrong with the header of a safetensors file, read or to be written.
//!
//! Law: whatever stands in a hostile header may end up in a message, so names are escaped and cut (`errors::shown`).
//! Which file it is, and what to do about it, says whoever asked.

use safetensors::Dtype;
use warpweft_base::debug_in_words;
use warpweft_base::errors::shown;

/// Why a file is no sound safetensors file.
///
/// Places in the header count from the first byte of the file, those of tensors from the end of the header,
/// as in the header itself.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unsound {
    /// Too short for the eight bytes that give the header's length.
    #[error("it has {bytes} bytes, and the length of the header alone takes 8; it is empty or cut off")]
    NoLength {
        /// Bytes of the file.
        bytes: u64,
    },

    /// The header is longer than any writer makes it.
    #[error(
        "byte 0: the header has {bytes} bytes, more than the {limit} a header may have; the file is damaged or not safetensors"
    )]
    HeaderTooLarge {
        /// Bytes of the header as the file says.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },

    /// The file ends within the header.
    #[error(
        "byte 0: the header has {bytes} bytes, but only {available} follow; the file is cut off or not safetensors"
    )]
    HeaderCutOff {
        /// Bytes of the header as the file says.
        bytes: u64,
        /// Bytes behind the length.
        available: u64,
    },

    /// The header is not the JSON object it must be.
    #[error("byte {offset}: {}{message}", .tensor.as_ref().map(|name| format!("tensor `{}`: ", shown(name))).unwrap_or_default())]
    Header {
        /// Where in the file.
        offset: u64,
        /// The tensor described there, if one was begun.
        tensor: Option<String>,
        /// What the parser says.
        message: String,
    },

    /// Two tensors have one name.
    #[error("the header describes tensor `{}` twice", shown(tensor))]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },

    /// The bits of a tensor do not fit in 64 bits, or not in whole bytes.
    #[error(
        "tensor `{}`: {dtype} of shape {shape:?} has no size in whole bytes, or one too large",
        shown(tensor)
    )]
    NoSize {
        /// Its name.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },

    /// A tensor ends before it begins.
    #[error("tensor `{}`: its bytes end at {end}, before they begin at {begin}", shown(tensor))]
    Reversed {
        /// Its name.
        tensor: String,
        /// Its first byte.
        begin: u64,
        /// Behind its last byte.
        end: u64,
    },

    /// The bytes of a tensor are not as many as its dtype and shape say.
    #[error(
        "tensor `{}`: {dtype} of shape {shape:?} takes {expected} bytes, but the header gives it {actual}, from {begin} on",
        shown(tensor)
    )]
    WrongSize {
        /// Its name.
        tensor: String,
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// What these take.
        expected: u64,
        /// What the offsets span.
        actual: u64,
        /// Its first byte.
        begin: u64,
    },

    /// Two tensors share bytes.
    #[error("tensor `{}` begins at byte {begin}, but `{}` reaches to {end}", shown(tensor), shown(other))]
    Overlap {
        /// The tensor that begins later.
        tensor: String,
        /// The tensor before it.
        other: String,
        /// Where the later one begins.
        begin: u64,
        /// Where the earlier one ends.
        end: u64,
    },

    /// Bytes in front of a tensor belong to none.
    #[error("the bytes {from}..{to} in front of tensor `{}` belong to no tensor", shown(tensor))]
    Hole {
        /// The tensor behind the hole.
        tensor: String,
        /// First byte of no tensor.
        from: u64,
        /// First byte of the tensor.
        to: u64,
    },

    /// The file ends before a tensor does.
    #[error(
        "tensor `{}` reaches to byte {end}, but only {available} follow the header; the file is cut off",
        shown(tensor)
    )]
    CutOff {
        /// The first tensor that is not whole.
        tensor: String,
        /// Where it should end.
        end: u64,
        /// Bytes behind the header.
        available: u64,
    },

    /// The file goes on behind the last tensor.
    #[error(
        "the last tensor ends at byte {end}, but {bytes} more follow; the header does not belong to this file"
    )]
    Trailing {
        /// Where the last tensor ends.
        end: u64,
        /// Bytes behind it.
        bytes: u64,
    },
}

debug_in_words!(Unsound);

impl Unsound {
    /// Does the file end early, as a copy that was interrupted does?
    #[must_use]
    pub const fn is_cut_off(&self) -> bool {
        matches!(self, Self::NoLength { .. } | Self::HeaderCutOff { .. } | Self::CutOff { .. })
    }
}
