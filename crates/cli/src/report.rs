//! The report of a conversion, as data. `table.rs` prints it.

use std::time::Duration;

use safetensors::Dtype;
use warpweft_base::debug_in_words;
use warpweft_format::{FormatError, Shape};

/// The report of a conversion.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The tensors that were converted, in the order of the input.
    pub tensors: Vec<Converted>,
    /// Of every tensor with such values, the first finite one that comes back, rowwise, as infinite or as no number.
    /// The program ends by another code than 0 then.
    pub lost: Vec<Lost>,
    /// All other tensors, which were copied as they are, in the order of the input.
    pub copied: Vec<Copied>,
    /// If a session saved the input: how many tensors beside its masters were left out, and their bytes.
    pub left_out: Option<(usize, u64)>,
    /// If a session saved the input: the frozen weights, which are in no file that a session saves, sorted.
    pub absent: Vec<String>,
    /// Bytes of the file that was read.
    pub input_bytes: u64,
    /// Bytes of the file that was written.
    pub output_bytes: u64,
    /// From opening the input to the output having its name.
    pub elapsed: Duration,
}

/// A tensor that was converted.
#[derive(Clone, Debug, PartialEq)]
pub struct Converted {
    /// Its name.
    pub name: String,
    /// Matrices in it: one, or those of a tensor of three dimensions.
    pub matrices: usize,
    /// The shape of each.
    pub shape: Shape,
    /// Bytes it had in the input.
    pub bytes_before: u64,
    /// Bytes it has in the output, all its parts together.
    pub bytes_after: u64,
    /// ‖W − dequantize(quantize(W))‖ / ‖W‖ in Frobenius norms, from the rowwise planes; 0 for a tensor of zeros.
    /// `None` when the original is not known.
    pub relative_error: Option<f64>,
    /// Reading, converting and writing; without measuring the error.
    pub time: Duration,
}

/// A tensor that was copied as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Copied {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Why.
    pub reason: CopyReason,
}

/// The reason why a tensor was copied as it is.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyReason {
    /// No pattern of `only` selects it.
    #[error("--only does not select it")]
    NotSelected,
    /// A vector or a number, such as a norm or a bias.
    #[error("{dtype} of shape {shape:?} is no matrix")]
    NoMatrix {
        /// Its dtype.
        dtype: Dtype,
        /// Its shape, of at most one dimension.
        shape: Vec<usize>,
    },
    /// Neither a matrix nor a stack of matrices.
    #[error("{dtype} of shape {shape:?} has {} dimensions, and 2 or 3 are quantized", shape.len())]
    Dimensions {
        /// Its dtype.
        dtype: Dtype,
        /// Its shape, of more than three dimensions.
        shape: Vec<usize>,
    },
    /// Elements that are not quantized.
    #[error("{dtype} of shape {shape:?}, and F32, BF16 and F16 are quantized; {}", way_out(*dtype))]
    Dtype {
        /// Its dtype.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The format refuses the shape of the matrix.
    #[error(transparent)]
    Shape(#[from] FormatError),
    /// On the way back: it is no part of a quantized tensor.
    #[error("it was not quantized")]
    NotQuantized,
}

debug_in_words!(CopyReason);

/// What to do with a tensor of a dtype that is not quantized.
const fn way_out(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::BOOL
        | Dtype::U8
        | Dtype::I8
        | Dtype::U16
        | Dtype::I16
        | Dtype::U32
        | Dtype::I32
        | Dtype::U64
        | Dtype::I64 => "leave it out with --only",
        _ => "convert it to one of these",
    }
}

/// A value that does not come back: it, or one of its block, is near the largest of f32, or a scale of a quantized
/// file is damaged.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// The tensor; of a stack, the matrix: `experts.up[3]`.
    pub name: String,
    /// The row, from 0.
    pub row: usize,
    /// The column, from 0.
    pub column: usize,
    /// What stands there, where that is known.
    pub value: Option<f32>,
    /// What comes back: infinite, or no number.
    pub back: f32,
}

impl Lost {
    /// The first value of a matrix of `columns` columns that does not come `back`.
    pub(super) fn first(name: &str, columns: usize, values: Option<&[f32]>, back: &[f32]) -> Option<Self> {
        let at = back.iter().position(|value| !value.is_finite())?;
        let value = values.and_then(|values| values.get(at)).copied();
        Some(Self { name: name.to_owned(), row: at / columns, column: at % columns, value, back: back[at] })
    }
}

impl Report {
    pub(super) fn new(input_bytes: u64, output_bytes: u64) -> Self {
        Self {
            tensors: Vec::new(),
            lost: Vec::new(),
            copied: Vec::new(),
            left_out: None,
            absent: Vec::new(),
            input_bytes,
            output_bytes,
            elapsed: Duration::ZERO,
        }
    }
}

/// Squares of norms, of values and of what came back as others; those of several matrices add up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Deviation {
    difference: f64,
    norm: f64,
}

impl Deviation {
    pub(super) fn add(&mut self, exact: &[f32], approximate: &[f32]) {
        let square = |value: f64| value * value;
        for (&exact, &approximate) in exact.iter().zip(approximate) {
            self.difference += square(f64::from(exact) - f64::from(approximate));
            self.norm += square(f64::from(exact));
        }
    }

    /// ‖exact − approximate‖ / ‖exact‖; 0 when they are equal.
    pub(super) fn relative(self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.norm).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relative_error_is_that_of_frobenius_norms() {
        let relative_error = |exact: &[f32], approximate: &[f32]| {
            let mut deviation = Deviation::default();
            // In pieces, as those of several matrices.
            exact.chunks(1).zip(approximate.chunks(1)).for_each(|(one, other)| deviation.add(one, other));
            deviation.relative()
        };
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_error(&[3.0, 4.0], &[0.0, 0.0]), 1.0);
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 3.0]), 0.2);
        assert_eq!(relative_error(&[0.0; 4], &[0.0; 4]), 0.0);
        // Values whose squares no f32 holds.
        assert_eq!(relative_error(&[f32::MAX; 2], &[0.0; 2]), 1.0);
        assert!(relative_error(&[f32::MAX], &[f32::INFINITY]).is_infinite());
    }
}
