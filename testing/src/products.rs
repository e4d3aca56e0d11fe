//! Products of plain slices, each with its order of additions.
//!
//! What closures and references of tests multiply with, so that both give the same bits. Here, because tests
//! themselves are built without optimization, and this crate is not.

use half::bf16;
use ndarray::Array2;

/// The sum of the products, from the first to the last.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A matrix times a vector, where every row has as many elements as `x`; each row as [`dot`] adds it.
pub fn times(matrix: &[f32], x: &[f32]) -> Vec<f32> {
    matrix.chunks_exact(x.len()).map(|row| dot(row, x)).collect()
}

/// A row for each of `above`, which is its multiple of `x`: the gradient of a matrix.
pub fn outer(above: &[f32], x: &[f32]) -> Vec<f32> {
    let mut rows = Vec::with_capacity(above.len() * x.len());
    for above in above {
        rows.extend(x.iter().map(|x| above * x));
    }
    rows
}

/// `into[T, lines] = tokens[T, width] · lines[lines, width]ᵀ`, summed in f32. The order is that of `ndarray` on
/// this machine, so bits are compared within one run alone.
pub fn times_bf16(lines: &[bf16], tokens: &[bf16], width: usize, into: &mut [bf16]) {
    let products = matrix(tokens, width).dot(&matrix(lines, width).t());
    into.iter_mut().zip(&products).for_each(|(into, product)| *into = bf16::from_f32(*product));
}

/// `into[width, width] = dy[T, width]ᵀ · x[T, width]`, as [`times_bf16`] sums.
pub fn gradient_bf16(dy: &[bf16], x: &[bf16], width: usize, into: &mut [f32]) {
    let products = matrix(dy, width).t().dot(&matrix(x, width));
    into.iter_mut().zip(&products).for_each(|(into, product)| *into = *product);
}

fn matrix(values: &[bf16], width: usize) -> Array2<f32> {
    let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
    Array2::from_shape_vec((values.len() / width, width), values).unwrap()
}
