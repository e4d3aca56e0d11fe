//! What a quantized checkpoint says about itself: one entry of its metadata, as JSON.
//!
//! ```json
//! {"version": 2, "written_by": "warpweft 0.1.0", "format": "nvfp4_2d", "via": "none",
//!  "tensors": {"blocks.0.up": {"dtype": "BF16", "shape": [1024, 256]},
//!              "blocks.0.experts": {"dtype": "BF16", "shape": [8, 256, 128]}}}
//! ```
//!
//! `version` counts changes of this text and of the parts of a tensor, their names and layouts ([`Part`]). Version 1
//! had no tensors of three dimensions, and is read.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use serde::{Deserialize, Serialize};
use warpweft::checkpoint::safetensors::Header;
use warpweft::format::{ElementType, Format, Orientation, Shape, Via};
use warpweft_base::errors::shown;

use super::ToolError;

/// The key in the metadata.
pub(super) const KEY: &str = warpweft::checkpoint::QUANTIZED;

const VERSION: u32 = *warpweft::checkpoint::QUANTIZED_VERSIONS.end();

/// What is quantized, and how.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    version: u32,
    written_by: String,
    pub(super) format: Format,
    pub(super) via: Via,
    /// The tensors as they were, by name.
    pub(super) tensors: BTreeMap<String, Original>,
}

/// A tensor as it was before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Original {
    pub(super) dtype: Dtype,
    pub(super) shape: Matrices,
}

/// The shape of what is quantized: a matrix, or a stack of matrices, each of which is quantized by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Matrices {
    /// `[rows, cols]`.
    One([usize; 2]),
    /// `[matrices, rows, cols]`.
    Stack([usize; 3]),
}

impl Matrices {
    /// Those of a tensor of two or three dimensions.
    pub(super) fn of(shape: &[usize]) -> Option<Self> {
        let one = shape.try_into().map(Self::One);
        one.or_else(|_| shape.try_into().map(Self::Stack)).ok()
    }

    /// How many there are.
    pub(super) const fn count(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Stack([matrices, ..]) => matrices,
        }
    }

    /// The shape of each.
    pub(super) const fn shape(self) -> Shape {
        match self {
            Self::One([rows, cols]) | Self::Stack([_, rows, cols]) => Shape::new(rows, cols),
        }
    }

    /// Its dimensions.
    pub(super) fn dimensions(self) -> Vec<usize> {
        match self {
            Self::One(dimensions) => dimensions.to_vec(),
            Self::Stack(dimensions) => dimensions.to_vec(),
        }
    }

    /// The dimensions of what there is one of for each matrix, of these dimensions.
    fn each(self, dimensions: Vec<usize>) -> Vec<usize> {
        match self {
            Self::One(_) => dimensions,
            Self::Stack([matrices, ..]) if dimensions == [1] => vec![matrices],
            Self::Stack([matrices, ..]) => [vec![matrices], dimensions].concat(),
        }
    }

    /// The name of one of them in messages.
    pub(super) fn name(self, tensor: &str, number: usize) -> String {
        match self {
            Self::One(_) => tensor.to_owned(),
            Self::Stack(_) => format!("{tensor}[{number}]"),
        }
    }
}

/// The one field that every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Manifest {
    /// A manifest without tensors.
    pub(super) fn new(format: Format, via: Via) -> Self {
        let written_by = concat!("warpweft ", env!("CARGO_PKG_VERSION")).to_owned();
        Self { version: VERSION, written_by, format, via, tensors: BTreeMap::new() }
    }

    /// The manifest in the header of the file `path`; `None` if it has none.
    pub(super) fn of(header: &Header, path: &Path) -> Result<Option<Self>, ToolError> {
        let Some(text) = header.metadata().get(KEY) else {
            return Ok(None);
        };
        let wrong = |problem| ToolError::Manifest { path: path.to_owned(), problem };
        let unreadable = |error: serde_json::Error| wrong(format!("is not understood: {}", shown(error)));
        let Version { version } = serde_json::from_str(text).map_err(unreadable)?;
        if !(1..=VERSION).contains(&version) {
            return Err(wrong(format!("has version {version}, and this program reads 1 to {VERSION}")));
        }
        let manifest: Self = serde_json::from_str(text).map_err(unreadable)?;
        if matches!(manifest.format, Format::F32 | Format::Bf16) {
            return Err(wrong(format!("names {}, which does not quantize", manifest.format)));
        }
        Ok(Some(manifest))
    }

    /// As a value of the metadata of the file `output`, which is not touched.
    pub(super) fn to_text(&self, output: &Path) -> Result<String, ToolError> {
        let text = serde_json::to_string(self);
        text.map_err(|error| ToolError::file("write the metadata of", output)(error.into()))
    }
}

/// One of the tensors that a quantized tensor is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Codes of one orientation.
    Data(Orientation),
    /// Decode scales of one orientation. A format with one scale for the tensor has it here.
    Scale(Orientation),
    /// Largest magnitude of the tensor.
    Amax,
}

impl Part {
    /// All parts, in the order they are written.
    pub(super) const ALL: [Self; 5] = [
        Self::Data(Orientation::Rowwise),
        Self::Scale(Orientation::Rowwise),
        Self::Data(Orientation::Columnwise),
        Self::Scale(Orientation::Columnwise),
        Self::Amax,
    ];

    /// The part's name in the file.
    pub(super) fn name(self, tensor: &str) -> String {
        match self {
            Self::Data(orientation) => format!("{tensor}.{orientation}_data"),
            Self::Scale(orientation) => format!("{tensor}.{orientation}_scale"),
            Self::Amax => format!("{tensor}.amax"),
        }
    }

    /// Dtype and stored shape, padding included. Of a stack the parts of its matrices lie one behind the other, along
    /// a first dimension of their own.
    pub(super) fn stored(self, format: Format, matrices: Matrices) -> (Dtype, Vec<usize>) {
        let (dtype, dimensions) = self.of_one(format, matrices.shape());
        (dtype, matrices.each(dimensions))
    }

    fn of_one(self, format: Format, shape: Shape) -> (Dtype, Vec<usize>) {
        let (orientation, plane) = match self {
            Self::Data(orientation) => (orientation, 0),
            Self::Scale(orientation) => (orientation, 1),
            Self::Amax => return (Dtype::F32, vec![1]),
        };
        match format.planes(orientation, shape).get(plane) {
            None => (Dtype::F32, vec![1]),
            Some(spec) => {
                let dtype = match spec.element {
                    ElementType::F32 => Dtype::F32,
                    ElementType::Bf16 => Dtype::BF16,
                    ElementType::U8 => Dtype::U8,
                    ElementType::U32 => Dtype::U32,
                };
                (dtype, vec![spec.rows, spec.cols])
            }
        }
    }
}
