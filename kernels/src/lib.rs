//! The CUDA kernels of `warpweft`, as source texts.
//!
//! This crate carries the files: a [`Family`] is a translation unit, [`HEADERS`] are what its text includes. It
//! is not a library of kernels to call. It compiles nothing, has no build script and no dependencies, and needs
//! neither a CUDA toolkit nor a GPU: `warpweft` gives the texts to NVRTC, for the device that it runs on. No
//! stability is promised of kernels, names or texts; use `warpweft`.
//!
//! ```
//! use warpweft_kernels::{Family, HEADERS};
//!
//! let source = Family::Cast.source();
//! assert_eq!(source.name, c"cast.cu");
//! assert!(source.text.contains("#include \"common.cuh\""));
//! assert!(HEADERS.iter().any(|header| header.name == c"common.cuh"));
//! ```
//!
//! Laws:
//! - Texts are all that a compiler needs: what one includes is among the headers, and no file of the system.
//! - They are compiled without contraction, without flushing of subnormals, and with IEEE division and square
//!   root, so that kernels round as the CPU does. The heads of the files state what else holds on the device.

#![no_std]

use core::ffi::CStr;

/// One file: its name, as a compiler takes it, and its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// File name, for includes and messages.
    pub name: &'static CStr,
    /// Its text.
    pub text: &'static str,
}

/// A file of this folder.
macro_rules! source {
    ($name:literal) => {
        Source {
            name: match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a file's name has no zero"),
            },
            text: include_str!(concat!("../", $name)),
        }
    };
}

/// What sources include.
pub const HEADERS: [Source; 13] = [
    source!("activation.cuh"),
    source!("adam.cuh"),
    source!("amax.cuh"),
    source!("block_sum.cuh"),
    source!("common.cuh"),
    source!("crossing.cuh"),
    source!("elements.cuh"),
    source!("fragment.cuh"),
    source!("gelu.cuh"),
    source!("meeting.cuh"),
    source!("range.cuh"),
    source!("slice.cuh"),
    source!("squares.cuh"),
];

/// Kernels that are compiled together: one translation unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Partial amax.
    Amax,
    /// Fused scale.
    Scale,
    /// Delayed scaling.
    Delayed,
    /// Partial cast.
    Cast,
    /// Planes into values.
    Dequantize,
    /// Columnwise planes from rowwise ones.
    Transpose,
    /// Expanding and swizzling of scale planes.
    ScalePlane,
    /// Accumulation, and sums and maxima over ranks.
    Sum,
    /// Norm record and vote.
    Norm,
    /// Adam and AdamW.
    Adam,
    /// The same, with what is cast to FP8 in blocks.
    AdamBlockCast,
    /// The same, with amaxes.
    AdamAmax,
    /// Looking for values that are too large or no numbers.
    FiniteCheck,
    /// Copies and zeroes.
    Memory,
    /// Bytes to peers, with meetings.
    Exchange,
    /// Rows to peers up to counts, and the check of these.
    Dispatch,
    /// Activations into operands of products.
    Activation,
    /// Activations into operands of products whose hardware scales blocks.
    BlockScaled,
    /// bf16 values one by one, and their sums.
    Elementwise,
    /// What surrounds the products that orthogonalize a matrix.
    Orthogonalize,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Amax,
        Self::Scale,
        Self::Delayed,
        Self::Cast,
        Self::Dequantize,
        Self::Transpose,
        Self::ScalePlane,
        Self::Sum,
        Self::Norm,
        Self::Adam,
        Self::AdamBlockCast,
        Self::AdamAmax,
        Self::FiniteCheck,
        Self::Memory,
        Self::Exchange,
        Self::Dispatch,
        Self::Activation,
        Self::BlockScaled,
        Self::Elementwise,
        Self::Orthogonalize,
    ];

    /// The text that is compiled.
    #[must_use]
    pub const fn source(self) -> Source {
        match self {
            Self::Amax => source!("amax.cu"),
            Self::Scale => source!("scale.cu"),
            Self::Delayed => source!("delayed.cu"),
            Self::Cast => source!("cast.cu"),
            Self::Dequantize => source!("dequantize.cu"),
            Self::Transpose => source!("transpose.cu"),
            Self::ScalePlane => source!("scale_plane.cu"),
            Self::Sum => source!("sum.cu"),
            Self::Norm => source!("norm.cu"),
            Self::Adam => source!("adam.cu"),
            Self::AdamBlockCast => source!("adam_block_cast.cu"),
            Self::AdamAmax => source!("adam_amax.cu"),
            Self::FiniteCheck => source!("finite_check.cu"),
            Self::Memory => source!("memory.cu"),
            Self::Exchange => source!("exchange.cu"),
            Self::Dispatch => source!("dispatch.cu"),
            Self::Activation => source!("activation.cu"),
            Self::BlockScaled => source!("block_scaled.cu"),
            Self::Elementwise => source!("elementwise.cu"),
            Self::Orthogonalize => source!("orthogonalize.cu"),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;
    use std::string::String;
    use std::vec::Vec;

    fn sources() -> impl Iterator<Item = Source> {
        Family::ALL.into_iter().map(Family::source)
    }

    fn names(files: impl IntoIterator<Item = Source>) -> Vec<String> {
        files.into_iter().map(|file| file.name.to_str().unwrap().into()).collect()
    }

    #[test]
    fn every_file_of_the_folder_is_carried_once() {
        let folder = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
        let found = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let is_kernel =
            |name: &String| Path::new(name).extension().is_some_and(|end| end == "cu" || end == "cuh");
        let found: BTreeSet<String> = found.filter(is_kernel).collect();
        let carried = names(sources().chain(HEADERS));
        assert_eq!(carried.len(), found.len());
        assert_eq!(carried.into_iter().collect::<BTreeSet<_>>(), found);
    }

    #[test]
    fn a_text_includes_headers_alone() {
        let headers = names(HEADERS);
        for file in sources().chain(HEADERS) {
            let included = file.text.lines().filter_map(|line| line.trim_start().strip_prefix("#include"));
            for name in included.map(|name| name.trim().trim_matches('"')) {
                assert!(headers.iter().any(|header| header == name), "{:?} includes {name}", file.name);
            }
        }
    }
}
