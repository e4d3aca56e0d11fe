//! Safetensors files, read and written tensor by tensor.
//!
//! Laws:
//! - **TL-1** the tensors of a header tile the data exactly, so whoever reads one need check nothing.
//! - **TL-2** a file under the output's name is whole. It is written under another name, which it changes when
//!   every byte of every tensor is on the disk, and removed on every other path.
//! - **TL-3** memory is the header and one buffer. A tensor is read in pieces, and nothing is allocated by a
//!   size that a file claims before the file was seen to have it.
//!
//! The safetensors library serves files that fit in memory, and lets a name stand twice in a header. So the
//! header is read here, and whatever is written here is what that library reads.

mod entry;
mod error;
mod header;
mod input;
mod layout;
mod output;
mod parse;

pub use entry::TensorEntry;
pub use error::CheckpointError;
pub use header::Header;

pub(super) use input::{Input, float_bytes, reserve};
pub(super) use layout::{Outline, TensorId};
pub(super) use output::Output;
pub(super) use warpweft_base::errors::shown;
