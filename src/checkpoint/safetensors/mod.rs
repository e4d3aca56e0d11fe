//! Safetensors files: one reader of headers, one writer.

pub(super) mod header;
pub(super) mod tensor;
pub(super) mod writer;
