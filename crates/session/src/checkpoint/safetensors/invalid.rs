//! Errors of a safetensors file, read or to be written.
//!
//! Law: whatever stands in a hostile header may end up in a message, so names are escaped and cut (`errors::shown`).
//! Which file it is, and what to do about it, says whoever asked.

use std::io;

use warpweft_base::debug_in_words;
use warpweft_base::errors::shown;

/// The reason why a file is not a valid safetensors file.
///
/// Places in the header count from the first byte of the file, those of tensors from the end of the header,
/// as in the header itself.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The file ends early, as a copy does that was interrupted.
    #[error("{0}")]
    CutOff(String),
    /// The header is longer than any writer makes it.
    #[error(
        "byte 0: the header has {bytes} bytes, more than the {limit} a header may have; the file is damaged or not safetensors"
    )]
    HeaderTooLarge {
        /// Bytes of the header as the file says.
        bytes: u64,
        /// The most that is read or written.
        limit: u64,
    },
    /// Two tensors have one name.
    #[error("the header describes tensor `{}` twice", shown(tensor))]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// The header is not JSON of tensors that tile the data.
    #[error("{0}")]
    Header(String),
}

/// An error of reading or writing a file of tensors.
#[derive(thiserror::Error)]
pub enum TensorFileError {
    /// The file system refused; by [`io::ErrorKind::InvalidInput`] what is no regular file.
    #[error(transparent)]
    File(#[from] io::Error),
    /// It is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

debug_in_words!(Invalid);
debug_in_words!(TensorFileError);
