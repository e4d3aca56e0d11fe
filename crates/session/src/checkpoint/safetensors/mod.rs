//! Safetensors files: one strict reader and one writer.
//!
//! Law: a header is read whole and checked before anything else of its file is (SF-1), and no memory is taken by a size
//! that a file claims before the file was seen to have it. Tensors are read and written in pieces. What is written, the
//! safetensors library reads; it serves files that fit in memory, and lets a name stand twice in a header, so the
//! header is read here.
//!
//! | file | idea |
//! |---|---|
//! | `parse` | the JSON of a header, as it stands |
//! | `entry` | one tensor, as a header describes it |
//! | `header` | a header that is valid: what is where |
//! | `floats` | values of float types as f32 |
//! | `invalid` | why one is not |
//! | `reader` | a file that is open |
//! | `layout` | where the tensors of a file that is to be written will lie |
//! | `tensor`, `writer` | what is written, and how |

pub(super) mod entry;
pub mod floats;
mod header;
mod invalid;
mod layout;
mod parse;
mod reader;
pub(super) mod tensor;
pub(super) mod writer;

pub use entry::TensorEntry;
pub use header::Header;
pub use invalid::{Invalid, TensorFileError};
pub use layout::{Layout, Outline, TensorId};
pub use reader::TensorFile;
pub use writer::Writer;
