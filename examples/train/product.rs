//! Matrix products on plain slices.
//!
//! Law: a product is single-threaded (the rank threads already share the cores) and is a function of
//! its operands' values alone: where they lie in memory changes no bit. Every operand is checked
//! against its slice when its view is made.
#![allow(clippy::expect_used, reason = "views were checked when they were made")]

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, ShapeBuilder};

/// A read-only matrix: `rows × cols` elements of `data` at the given strides (in elements).
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> View<'a> {
    /// A row-major matrix whose rows start `row_stride ≥ cols` elements apart.
    pub(crate) fn strided(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        View { data: &data[..extent(rows, cols, row_stride)], rows, cols, row_stride, col_stride: 1 }
    }

    /// A contiguous row-major matrix; `data` holds exactly its elements.
    pub(crate) fn dense(data: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows}x{cols} matrix");
        View::strided(data, rows, cols, cols)
    }

    fn array(self) -> ArrayView2<'a, f32> {
        let shape = (self.rows, self.cols).strides((self.row_stride, self.col_stride));
        ArrayView2::from_shape(shape, self.data).expect("the constructors cut slices to size")
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        View {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// The row-major destination of a product.
pub(crate) struct ViewMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> ViewMut<'a> {
    /// As [`View::strided`].
    pub(crate) fn strided(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        let extent = extent(rows, cols, row_stride);
        ViewMut { data: &mut data[..extent], rows, cols, row_stride }
    }

    /// As [`View::dense`].
    pub(crate) fn dense(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(data.len(), rows * cols, "a {rows}x{cols} matrix");
        ViewMut::strided(data, rows, cols, cols)
    }

    /// `self = scale · lhs · rhs`; the old content is not read.
    pub(crate) fn write(self, scale: f32, lhs: View<'_>, rhs: View<'_>) {
        multiply(self, false, scale, lhs, rhs);
    }

    /// `self += lhs · rhs`.
    pub(crate) fn add(self, lhs: View<'_>, rhs: View<'_>) {
        multiply(self, true, 1.0, lhs, rhs);
    }
}

/// Elements from the first to one past the last of a row-major matrix.
fn extent(rows: usize, cols: usize, row_stride: usize) -> usize {
    assert!(row_stride >= cols, "rows of {cols} elements overlap at a stride of {row_stride}");
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_stride + cols }
}

fn multiply(target: ViewMut<'_>, add: bool, scale: f32, lhs: View<'_>, rhs: View<'_>) {
    assert_eq!((target.rows, target.cols, lhs.cols), (lhs.rows, rhs.cols, rhs.rows), "product shapes");
    let shape = (target.rows, target.cols).strides((target.row_stride, 1));
    let mut target =
        ArrayViewMut2::from_shape(shape, target.data).expect("the constructors cut slices to size");
    general_mat_mul(scale, &lhs.array(), &rhs.array(), if add { 1.0 } else { 0.0 }, &mut target);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::init::Stream;

    fn random(len: usize, seed: u64) -> Vec<f32> {
        let mut stream = Stream::keyed(seed, []);
        (0..len).map(|_| stream.symmetric()).collect()
    }

    fn naive(lhs: View<'_>, rhs: View<'_>, row: usize, col: usize) -> f32 {
        let at = |m: View<'_>, r, c| f64::from(m.data[r * m.row_stride + c * m.col_stride]);
        (0..lhs.cols).map(|k| at(lhs, row, k) * at(rhs, k, col)).sum::<f64>() as f32
    }

    #[test]
    fn every_layout_of_the_operands_gives_the_product_of_the_definition() {
        let (rows, inner, cols) = (19, 33, 21);
        for layout in 0..4 {
            let (left, right) = (random(rows * inner, 1), random(inner * cols, 2));
            let lhs = match layout & 1 {
                0 => View::dense(&left, rows, inner),
                _ => View::dense(&left, inner, rows).transposed(),
            };
            let rhs = match layout & 2 {
                0 => View::dense(&right, inner, cols),
                _ => View::dense(&right, cols, inner).transposed(),
            };
            let stride = cols + 3;
            let mut target = vec![7.0; rows * stride];
            ViewMut::strided(&mut target, rows, cols, stride).write(0.5, lhs, rhs);
            ViewMut::strided(&mut target, rows, cols, stride).add(lhs, rhs);
            for (index, &value) in target.iter().enumerate() {
                match (index / stride, index % stride) {
                    (row, col) if col < cols => {
                        assert!((value - 1.5 * naive(lhs, rhs, row, col)).abs() < 1e-4)
                    }
                    _ => assert_eq!(value, 7.0, "the gap between rows is left alone"),
                }
            }
        }
    }

    #[test]
    fn where_operands_lie_in_memory_changes_no_bit() {
        let (rows, inner, cols) = (48, 96, 80);
        let (left, right) = (random(rows * inner, 3), random(inner * cols, 4));
        let product = |shift: usize| {
            let place = |values: &[f32]| [&vec![0.0; shift], values].concat();
            let (left, right) = (place(&left), place(&right));
            let mut target = vec![0.0; shift + rows * cols];
            ViewMut::dense(&mut target[shift..], rows, cols).write(
                1.0,
                View::dense(&left[shift..], rows, inner),
                View::dense(&right[shift..], inner, cols),
            );
            target.split_off(shift).into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let expected = product(0);
        for shift in 1..16 {
            assert_eq!(product(shift), expected, "shifted by {shift} elements");
        }
    }
}
