//! What a conversion did, as data. `table.rs` prints it.

use std::time::Duration;

use crate::format::{FormatError, Shape};

/// What a conversion did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Report {
    /// The tensors that were converted, in the order of the input.
    pub tensors: Vec<Converted>,
    /// Matrices that were selected, but have a shape the format refuses; they were copied.
    pub refused: Vec<Refused>,
    /// What `only` selected by patterns that select no matrix of floats; it was copied.
    pub passed_over: Vec<PassedOver>,
    /// Of every tensor with such values, the first finite one that comes back, rowwise, as infinite or as no number.
    pub lost: Vec<Lost>,
    /// If a session saved the input: how many tensors beside its masters were left out, and their bytes.
    pub left_out: Option<(usize, u64)>,
    /// Number of all tensors that were copied, the refused ones included.
    pub copied: usize,
    /// Their bytes.
    pub copied_bytes: u64,
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
    /// Its shape.
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

/// A matrix that was copied because the format refuses its shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Its name.
    pub name: String,
    /// Why, and which shape would do.
    pub reason: FormatError,
}

/// A tensor that was selected by name, and that no format quantizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedOver {
    /// Its name.
    pub name: String,
    /// What it is instead of a matrix of floats: `F32 of shape [4096]`.
    pub what: String,
}

/// A value that does not come back: it, or one of its block, is near the largest of f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Lost {
    /// The tensor.
    pub name: String,
    /// The row, from 0.
    pub row: usize,
    /// The column, from 0.
    pub column: usize,
    /// What stands there.
    pub value: f32,
    /// What comes back: infinite, or no number.
    pub back: f32,
}

impl Report {
    pub(super) fn new(input_bytes: u64, output_bytes: u64) -> Self {
        Self {
            tensors: Vec::new(),
            refused: Vec::new(),
            passed_over: Vec::new(),
            lost: Vec::new(),
            left_out: None,
            copied: 0,
            copied_bytes: 0,
            input_bytes,
            output_bytes,
            elapsed: Duration::ZERO,
        }
    }

    pub(super) fn count_copy(&mut self, bytes: u64) {
        self.copied += 1;
        self.copied_bytes += bytes;
    }
}

/// ‖exact − approximate‖ / ‖exact‖; 0 when they are equal.
pub(super) fn relative_error(exact: &[f32], approximate: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&exact, &approximate) in exact.iter().zip(approximate) {
        difference += square(f64::from(exact) - f64::from(approximate));
        norm += square(f64::from(exact));
    }
    if difference == 0.0 { 0.0 } else { (difference / norm).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_relative_error_is_that_of_frobenius_norms() {
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_error(&[3.0, 4.0], &[0.0, 0.0]), 1.0);
        assert_eq!(relative_error(&[3.0, 4.0], &[3.0, 3.0]), 0.2);
        assert_eq!(relative_error(&[0.0; 4], &[0.0; 4]), 0.0);
        // Values whose squares no f32 holds.
        assert_eq!(relative_error(&[f32::MAX; 2], &[0.0; 2]), 1.0);
        assert!(relative_error(&[f32::MAX], &[f32::INFINITY]).is_infinite());
    }
}
