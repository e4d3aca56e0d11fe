//! Reference products in f64, and the tolerance for a GPU's.

use half::bf16;
use warpweft_cuda::linear::Recipe;
use warpweft_format::{ElementType, Shape};

/// Lines of numbers, row-major.
#[derive(Clone, Debug)]
pub(crate) struct Matrix {
    pub(crate) shape: Shape,
    pub(crate) values: Vec<f32>,
}

impl Matrix {
    pub(crate) fn new(shape: Shape, values: Vec<f32>) -> Self {
        assert_eq!(shape.elements(), values.len());
        Self { shape, values }
    }

    pub(crate) fn transposed(&self) -> Self {
        let column = |column: usize| (0..self.shape.rows).map(move |row| (row, column));
        let at = |(row, column): (usize, usize)| self.values[row * self.shape.cols + column];
        Self::new(self.shape.transposed(), (0..self.shape.cols).flat_map(column).map(at).collect())
    }

    /// The same with zeros to the right and below, up to multiples.
    pub(crate) fn filled(&self, multiple: usize) -> Self {
        let Shape { rows, cols } = self.shape;
        let shape = Shape::new(rows.next_multiple_of(multiple), cols.next_multiple_of(multiple));
        let mut values = vec![0.0; shape.elements()];
        for (line, own) in values.chunks_mut(shape.cols).zip(self.values.chunks(cols)) {
            line[..cols].copy_from_slice(own);
        }
        Self::new(shape, values)
    }

    /// The first rows and columns.
    pub(crate) fn cut(&self, shape: Shape) -> Self {
        let lines = self.values.chunks(self.shape.cols).take(shape.rows);
        Self::new(shape, lines.flat_map(|line| line[..shape.cols].to_vec()).collect())
    }

    fn line(&self, row: usize) -> &[f32] {
        &self.values[row * self.shape.cols..][..self.shape.cols]
    }
}

/// Numbers about normal, σ 1, the same on every machine.
pub(crate) fn noise(shape: Shape, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u64 << 24) as f32 - 0.5
    };
    (0..shape.elements()).map(|_| (0..6).map(|_| unit()).sum::<f32>() * 1.4).collect()
}

/// Relative error that one term of a sum may bring in.
fn unit_of(recipe: Recipe, inner: usize) -> f64 {
    match recipe {
        // bf16 products are exact in f32, whose sums round `inner` times at most.
        Recipe::Bf16 => inner as f64 * 2f64.powi(-24),
        // Hopper's FP8 units align the terms of a group to its largest and keep about 13 bits after it
        // before groups are added in f32. Small terms lose more than their share, hence four times that;
        // 2^-12 was seen to be too little by 3 % in one of 100,000 sums.
        _ => 2f64.powi(-11) + inner as f64 * 2f64.powi(-24),
    }
}

/// Panics unless `found` is lhs · rhsᵀ of bf16 values, summed in f32 and rounded to bf16 once. Parts of a sum that are
/// rounded to bf16 before they are added leave errors of their own sizes, far above this where they cancel.
pub(crate) fn assert_rounded_once(what: &str, lhs: &Matrix, rhs: &Matrix, found: &[f32]) {
    let largest = beyond_one_rounding(lhs, rhs, found);
    println!("{what}: largest error {largest:.3} of what one rounding allows");
    assert!(largest <= 1.0, "{what}: an error of {largest} times what one rounding allows");
}

/// The largest error of lhs · rhsᵀ, in what a sum in f32 and one rounding to bf16 allow.
fn beyond_one_rounding(lhs: &Matrix, rhs: &Matrix, found: &[f32]) -> f64 {
    let inner = lhs.shape.cols as f64;
    let mut largest = 0.0_f64;
    for row in 0..lhs.shape.rows {
        for column in 0..rhs.shape.rows {
            let (mut sum, mut squares) = (0.0, 0.0);
            for (a, b) in lhs.line(row).iter().zip(rhs.line(column)) {
                let term = f64::from(*a) * f64::from(*b);
                sum += term;
                squares += term * term;
            }
            let found = f64::from(found[row * rhs.shape.rows + column]);
            // Half a unit of 8 bits, and what a random walk of so many steps gathers in f32, several times: units
            // of products cut sums off instead of rounding them.
            let in_f32 = 8.0 * inner * 2f64.powi(-24) * (squares / inner).sqrt();
            let allowed = 2f64.powi(-8) * (sum.abs() + in_f32) + in_f32;
            largest = largest.max((found - sum).abs() / allowed);
        }
    }
    largest
}

#[test]
fn a_sum_whose_parts_were_rounded_to_bf16_is_told_from_one_that_was_rounded_once() {
    let shape = Shape::new(8, 65536);
    let matrix = |seed| {
        let rounded: Vec<f32> =
            noise(shape, seed).iter().map(|value| bf16::from_f32(*value).to_f32()).collect();
        Matrix::new(shape, rounded)
    };
    let (lhs, rhs) = (matrix(1), matrix(2));
    let product = |parts: usize| {
        let mut all = Vec::new();
        for row in 0..8 {
            for column in 0..8 {
                let terms: Vec<f32> =
                    lhs.line(row).iter().zip(rhs.line(column)).map(|(a, b)| a * b).collect();
                let of_parts = terms.chunks(shape.cols / parts).map(|part| part.iter().sum::<f32>());
                let rounded = of_parts.map(|part| bf16::from_f32(part).to_f32());
                all.push(bf16::from_f32(rounded.sum()).to_f32());
            }
        }
        all
    };
    assert!(beyond_one_rounding(&lhs, &rhs, &product(1)) < 1.0);
    for parts in [2, 4, 16] {
        assert!(beyond_one_rounding(&lhs, &rhs, &product(parts)) > 1.2, "{parts} parts");
    }
}

/// Panics unless `found` is lhs · rhsᵀ, of two matrices with lines along the contraction, to within rounding.
pub(crate) fn assert_product(
    what: &str,
    recipe: Recipe,
    lhs: &Matrix,
    rhs: &Matrix,
    found: &[f32],
    element: ElementType,
) {
    let inner = lhs.shape.cols;
    assert_eq!(inner, rhs.shape.cols, "{what}");
    assert_eq!(found.len(), lhs.shape.rows * rhs.shape.rows, "{what}");
    let unit = unit_of(recipe, inner);
    // A result in bf16 is rounded once: half a unit of 8 bits.
    let rounding = if element == ElementType::Bf16 { 2f64.powi(-8) } else { 2f64.powi(-23) };
    let mut largest = 0.0_f64;
    for row in 0..lhs.shape.rows {
        for column in 0..rhs.shape.rows {
            let (mut sum, mut magnitude) = (0.0, 0.0);
            for (a, b) in lhs.line(row).iter().zip(rhs.line(column)) {
                let term = f64::from(*a) * f64::from(*b);
                sum += term;
                magnitude += term.abs();
            }
            let found = f64::from(found[row * rhs.shape.rows + column]);
            let allowed = unit * magnitude + rounding * sum.abs() + 1e-30;
            let error = (found - sum).abs();
            largest = largest.max(error / allowed);
            assert!(
                error <= allowed,
                "{what}: ({row}, {column}) is {found}, and {sum} in f64; {allowed:e} would be rounding"
            );
        }
    }
    println!("{what}: largest error {:.3} of what rounding allows", largest);
}
