//! The manifest of a file that `warpweft quantize` wrote, one entry of its metadata as JSON, and the names of the
//! tensors that a quantized one is stored as.
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

use safetensors::Dtype;
use serde::{Deserialize, Serialize};

use super::safetensors::tensor::dtype;
use warpweft_base::errors::shown;
use warpweft_format::{Format, Orientation, PlaneKind, Shape, Via};

/// The key in the metadata.
pub const KEY: &str = "warpweft_quantized";

/// The newest version, which is written.
pub const VERSION: u32 = 2;

/// A manifest: the quantized tensors of a file, and their formats.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    written_by: String,
    pub format: Format,
    pub via: Via,
    /// The tensors as they were, by name.
    pub tensors: BTreeMap<String, Original>,
}

/// A tensor as it was before.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Original {
    pub dtype: Dtype,
    pub shape: Matrices,
}

/// The shape of what is quantized: a matrix, or a stack of matrices, each of which is quantized by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Matrices {
    /// `[rows, cols]`.
    One([usize; 2]),
    /// `[matrices, rows, cols]`.
    Stack([usize; 3]),
}

impl Matrices {
    /// Those of a tensor of two or three dimensions.
    #[must_use]
    pub fn of(shape: &[usize]) -> Option<Self> {
        let one = shape.try_into().map(Self::One);
        one.or_else(|_| shape.try_into().map(Self::Stack)).ok()
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Stack([matrices, ..]) => matrices,
        }
    }

    /// The shape of each.
    #[must_use]
    pub const fn shape(self) -> Shape {
        match self {
            Self::One([rows, cols]) | Self::Stack([_, rows, cols]) => Shape::new(rows, cols),
        }
    }

    /// Its dimensions.
    #[must_use]
    pub fn dimensions(self) -> Vec<usize> {
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
    #[must_use]
    pub fn name(self, tensor: &str, number: usize) -> String {
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
    #[must_use]
    pub fn new(format: Format, via: Via) -> Self {
        let written_by = concat!("warpweft ", env!("CARGO_PKG_VERSION")).to_owned();
        Self { version: VERSION, written_by, format, via, tensors: BTreeMap::new() }
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(text: &str) -> Result<Self, ManifestError> {
        let unreadable = |error: serde_json::Error| ManifestError::NotUnderstood(shown(error));
        let Version { version } = serde_json::from_str(text).map_err(unreadable)?;
        if !(1..=VERSION).contains(&version) {
            return Err(ManifestError::Version(version));
        }
        serde_json::from_str(text).map_err(unreadable)
    }
}

/// A problem with a manifest. The caller adds the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestError {
    /// What the parser says of it.
    NotUnderstood(String),
    /// It is of this version, which is not known.
    Version(u32),
}

/// One of the tensors that a quantized tensor is stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Codes of one orientation.
    Data(Orientation),
    /// Decode scales of one orientation. A format with one scale for the tensor has it here.
    Scale(Orientation),
    /// Largest magnitude of the tensor.
    Amax,
}

impl Part {
    /// The part that a plane of one orientation is.
    #[must_use]
    pub const fn of(orientation: Orientation, kind: PlaneKind) -> Self {
        match kind {
            PlaneKind::Data => Self::Data(orientation),
            PlaneKind::Scale => Self::Scale(orientation),
        }
    }

    /// The part that is what dequantizing the rowwise planes needs besides them, where a format needs something.
    #[must_use]
    pub const fn tensor_scale(format: Format) -> Option<Self> {
        match format {
            Format::Nvfp4(_) => Some(Self::Amax),
            Format::Fp8Tensor(_) => Some(Self::Scale(Orientation::Rowwise)),
            Format::F32 | Format::Bf16 | Format::Fp8Block(_) | Format::Mxfp8 => None,
        }
    }

    /// All parts, in the order they are written.
    pub const ALL: [Self; 5] = [
        Self::Data(Orientation::Rowwise),
        Self::Scale(Orientation::Rowwise),
        Self::Data(Orientation::Columnwise),
        Self::Scale(Orientation::Columnwise),
        Self::Amax,
    ];

    /// The part's name in the file.
    #[must_use]
    pub fn name(self, tensor: &str) -> String {
        match self {
            Self::Data(orientation) => format!("{tensor}.{orientation}_data"),
            Self::Scale(orientation) => format!("{tensor}.{orientation}_scale"),
            Self::Amax => format!("{tensor}.amax"),
        }
    }

    /// Dtype and stored shape, padding included. Of a stack the parts of its matrices lie one after the other, along
    /// a first dimension of their own.
    #[must_use]
    pub fn stored(self, format: Format, matrices: Matrices) -> (Dtype, Vec<usize>) {
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
            Some(spec) => (dtype(spec.element), vec![spec.rows, spec.cols]),
        }
    }
}
