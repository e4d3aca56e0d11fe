//! The report of a conversion, as data.

use std::time::Duration;

use warpweft_format::{Format, Shape};

use super::linears::LeftAlone;
use super::weights::PlainTensor;

/// The report of a conversion.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EngineReport {
    /// The layers that were quantized.
    pub layers: Vec<ConvertedLayer>,
    /// The tensors that were left as they are, and why.
    pub left: Vec<(PlainTensor, LeftAlone)>,
    /// The scale groups whose layers have one scale of the tensor.
    pub groups: Vec<ScaleGroup>,
    /// The layers whose scale of the tensor is not the one that they were trained with, so that their codes
    /// are others: those of scale groups that training did not know
    /// ([`ModelBuilder::scale_group`](warpweft_plan::model::ModelBuilder::scale_group)), or rounded otherwise
    /// before. Not known of every source: [`Session::export`](crate::session::Session::export) and its files
    /// have these scales, sharded checkpoints and files of others do not.
    pub rescaled: Vec<String>,
    /// Bytes of tensors that were written.
    pub bytes: u64,
    /// Files of tensors.
    pub files: usize,
    /// Files that were copied beside them.
    pub copied: Vec<String>,
    /// What else was in the model's folder: folders, and weights in other files.
    pub not_copied: Vec<String>,
    /// How long it took.
    pub elapsed: Duration,
}

/// A layer that was quantized.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvertedLayer {
    /// Its name: `model.layers.0.mlp.up_proj`.
    pub name: String,
    /// The shape of its weight.
    pub shape: Shape,
    /// Its format.
    pub format: Format,
    /// Bytes of its tensors.
    pub bytes_after: u64,
    /// ‖W − dequantize(quantize(W))‖ / ‖W‖ in Frobenius norms. Of a weight of more than a million elements it is that
    /// of some of its rows: the first 128 of each four million elements.
    pub relative_error: f64,
}

/// Layers that an engine fuses.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaleGroup {
    /// Their names.
    pub layers: Vec<String>,
    /// The largest of their own largest magnitudes over the smallest: by how much an engine would be wrong about one of
    /// them if each had a scale of its own.
    pub ratio: f32,
}

/// Squares of norms; those of several pieces add up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deviation {
    difference: f64,
    norm: f64,
}

impl Deviation {
    pub(super) fn add(&mut self, exact: &[f32], approximate: &[f32]) {
        for (&exact, &approximate) in exact.iter().zip(approximate) {
            let difference = f64::from(exact) - f64::from(approximate);
            self.difference += difference * difference;
            self.norm += f64::from(exact) * f64::from(exact);
        }
    }

    /// ‖exact − approximate‖ / ‖exact‖; 0 when they are equal.
    pub(super) fn relative(self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.norm).sqrt() }
    }
}
