//! Inspection of a model's folder for engines: its layers, and the scale groups that an engine would decode wrongly.
//!
//! Law: nothing but headers and scales of tensors is read. Two layers of a group mismatch where their scales of the
//! tensor differ in any bit, for an engine takes one of them for both.

use std::collections::BTreeMap;

use warpweft_format::Shape;

use super::dialect::Dialect;
use super::encoding::Encoding;
use super::report::ScaleGroup;
use super::scale_groups::ScaleGroups;
use crate::checkpoint::{CheckpointError, PretrainedFiles};

/// A quantized layer of a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredLayer {
    /// Its name: `model.layers.0.mlp.up_proj`.
    pub name: String,
    /// Its encoding, in words: `FP8, a scale for 128×128`.
    pub encoding: &'static str,
    /// The shape of its weight.
    pub shape: Shape,
    /// The scale of the whole tensor as it is stored, in NVFP4 and in FP8 by tensors: values are multiplied by it, or
    /// divided in compressed-tensors' NVFP4.
    pub tensor_scale: Option<f32>,
}

impl Encoding {
    const fn words(self) -> &'static str {
        match self {
            Self::Nvfp4 => "NVFP4",
            Self::Fp8Block => "FP8, a scale for 128×128",
            Self::Fp8Tensor => "FP8, a scale for the tensor",
            Self::Fp8Channel => "FP8, a scale for a row",
            Self::Mxfp8 => "MXFP8",
        }
    }
}

impl PretrainedFiles {
    /// The dialect that a model's folder is in; `None` for plain numbers.
    #[must_use]
    pub fn dialect(&self) -> Option<Dialect> {
        self.decodings().next().map(|(_, decoding)| decoding.dialect)
    }

    /// The quantized layers of a model's folder.
    ///
    /// # Errors
    /// [`CheckpointError::File`], and [`CheckpointError::Engine`] for a scale of a tensor that is none.
    pub fn stored_layers(&self) -> Result<Vec<StoredLayer>, CheckpointError> {
        let layers = self.decodings().map(|(name, decoding)| {
            let tensor_scale = self.tensor_scale(name)?;
            let name = name.strip_suffix(".weight").unwrap_or(name).to_owned();
            Ok(StoredLayer { name, encoding: decoding.encoding.words(), shape: decoding.shape, tensor_scale })
        });
        layers.collect()
    }

    /// The groups among these layers that an engine fuses and that have scales of the tensor, with the largest of
    /// these over the smallest; 1 is no mismatch.
    #[must_use]
    pub fn scale_groups(layers: &[StoredLayer]) -> Vec<ScaleGroup> {
        let scales: BTreeMap<&str, f32> =
            layers.iter().filter_map(|layer| Some((layer.name.as_str(), layer.tensor_scale?))).collect();
        let groups = ScaleGroups::new(&[]).among(scales.keys().copied());
        let groups = groups.into_values().map(|names| {
            let scales = || names.iter().filter_map(|name| scales.get(name).copied());
            let (smallest, largest) = (scales().fold(f32::INFINITY, f32::min), scales().fold(0.0, f32::max));
            // Neighbours mismatch as well.
            let ratio = if smallest == largest { 1.0 } else { (largest / smallest).max(1.0 + f32::EPSILON) };
            ScaleGroup { layers: names.into_iter().map(str::to_owned).collect(), ratio }
        });
        groups.collect()
    }
}
