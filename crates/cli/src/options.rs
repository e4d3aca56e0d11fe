//! Options of quantizing a checkpoint.

use std::num::NonZeroUsize;

use warpweft_format::{Directions, Format, FormatError, Quantized, Shape, Via, quantize};

use super::{ToolError, shards};

/// Options of quantizing a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizeOptions {
    /// The format; F32 and BF16 are refused.
    pub format: Format,
    /// Rounding before anything else.
    pub via: Via,
    /// Only tensors whose whole name one of these patterns matches, as those of
    /// [`WeightRule::pattern`](warpweft_session::config::WeightRule::pattern); all tensors if there are none.
    pub only: Vec<String>,
    /// Whether a selected tensor that is not quantized is an error, and not copied: for its dtype, its dimensions, or
    /// the shape of its matrices. A tensor of fewer than two dimensions is copied, unless a pattern selects nothing
    /// that is quantized. So is a selected frozen weight, which a checkpoint of a session lacks.
    pub strict: bool,
    /// Quantize as so many ranks do that own flat shards of every matrix. The bytes are the same.
    pub shards: Option<NonZeroUsize>,
    /// Whether the output may replace a file.
    pub replace: bool,
}

impl QuantizeOptions {
    /// Into `format`: every matrix, values as they are, whole, no file replaced.
    #[must_use]
    pub const fn new(format: Format) -> Self {
        Self { format, via: Via::None, only: Vec::new(), strict: false, shards: None, replace: false }
    }

    /// What can be refused without a file.
    pub(super) fn check(&self) -> Result<(), ToolError> {
        let format = self.format;
        if matches!(format, Format::F32 | Format::Bf16) {
            return Err(ToolError::NotQuantizing { format });
        }
        match self.shards {
            None => Ok(()),
            Some(_) => format.check_weight().map_err(|source| ToolError::Sharding { source }),
        }
    }

    pub(super) fn quantize(&self, shape: Shape, values: &[f32]) -> Result<Quantized, FormatError> {
        match self.shards {
            None => quantize(self.format, Directions::Both, self.via, shape, values),
            Some(ranks) => shards::quantize(self.format, self.via, shape, values, ranks.get()),
        }
    }
}
