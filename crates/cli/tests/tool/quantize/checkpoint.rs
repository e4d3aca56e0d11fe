//! Checkpoints for tests, written and read with the safetensors library: a second opinion on every file.

#![allow(unreachable_pub, reason = "the modules of a test see each other alone")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use warpweft_cli::{QuantizeOptions, Report, ToolError, dequantize_checkpoint, quantize_checkpoint};

/// A folder with an input, and names for what is made of it.
pub struct Folder {
    folder: TempDir,
}

impl Folder {
    /// A folder whose `in.safetensors` has these bytes.
    pub fn with(input: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("in.safetensors"), input).unwrap();
        Self { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn input(&self) -> PathBuf {
        self.path("in.safetensors")
    }

    pub fn output(&self) -> PathBuf {
        self.path("out.safetensors")
    }

    /// `in` to `out`.
    pub fn quantize(&self, options: &QuantizeOptions) -> Result<Report, ToolError> {
        quantize_checkpoint(&self.input(), &self.output(), options, &mut ())
    }

    /// `out` to `back`.
    pub fn dequantize(&self) -> Result<Report, ToolError> {
        dequantize_checkpoint(&self.output(), &self.path("back.safetensors"), false, &mut ())
    }

    /// The names of all files, sorted.
    pub fn files(&self) -> Vec<String> {
        let entries = self.folder.path().read_dir().unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn read(&self, name: &str) -> Contents {
        Contents::read(&self.path(name))
    }
}

/// A tensor as bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub fn new(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    pub fn f32s(shape: &[usize], values: &[f32]) -> Self {
        Self::new(Dtype::F32, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// A whole checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contents {
    pub tensors: HashMap<String, Tensor>,
    pub metadata: HashMap<String, String>,
}

impl Contents {
    pub fn with(mut self, name: &str, tensor: Tensor) -> Self {
        self.tensors.insert(name.to_owned(), tensor);
        self
    }

    pub fn with_metadata(mut self, key: &str, text: &str) -> Self {
        self.metadata.insert(key.to_owned(), text.to_owned());
        self
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let view = |tensor: &'_ Tensor| (tensor.dtype, tensor.shape.clone());
        let views = self.tensors.iter().map(|(name, tensor)| {
            let (dtype, shape) = view(tensor);
            (name, TensorView::new(dtype, shape, &tensor.bytes).unwrap())
        });
        let metadata = (!self.metadata.is_empty()).then(|| self.metadata.clone());
        safetensors::serialize(views, metadata).unwrap()
    }

    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |(name, view): (&str, TensorView<'_>)| {
            (name.to_owned(), Tensor::new(view.dtype(), view.shape(), view.data().to_vec()))
        };
        Self {
            tensors: tensors.iter().map(tensor).collect(),
            metadata: header.metadata().clone().unwrap_or_default(),
        }
    }

    pub fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}
