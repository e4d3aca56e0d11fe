//! Newton-Schulz orthogonalization, against the same polynomials in f64.

use cudarc::driver::result;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{Device, NewtonSchulz};
use warpweft_format::{ElementType, Shape};

use super::reference::noise;
use super::rig::{GPU, handles, lend, lend_mut};
use crate::gpu::{Buffer, Gpu};

/// What the GPU makes of `matrix`.
pub(crate) fn run(gpu: &Gpu, shape: Shape, coefficients: &[[f32; 3]], matrix: &[f32]) -> Vec<f32> {
    let mut products = NewtonSchulz::new(&Device::open(GPU).unwrap(), shape, coefficients).unwrap();
    run_by(gpu, &mut products, matrix)
}

fn run_by(gpu: &Gpu, products: &mut NewtonSchulz, matrix: &[f32]) -> Vec<f32> {
    let held = gpu.buffer(matrix);
    let found: Buffer<f32> = gpu.buffer(&vec![f32::NAN; matrix.len()]);
    let (from, to) = (lend(&held, matrix.len()), lend_mut(&found, matrix.len()));
    products.enqueue(&handles(gpu), from, to).unwrap();
    result::ctx::synchronize().unwrap();
    assert_eq!(bits(&held.read()), bits(matrix), "the matrix is only read");
    found.read()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Row-major, `[rows, cols]` by `[cols, others]`.
fn times(a: &[f64], b: &[f64], (cols, others): (usize, usize)) -> Vec<f64> {
    let mut product = vec![0.0; a.len() / cols * others];
    for (to, row) in product.chunks_exact_mut(others).zip(a.chunks_exact(cols)) {
        for (factor, line) in row.iter().zip(b.chunks_exact(others)) {
            to.iter_mut().zip(line).for_each(|(to, value)| *to += factor * value);
        }
    }
    product
}

fn transposed(a: &[f64], cols: usize) -> Vec<f64> {
    (0..cols).flat_map(|col| a.iter().skip(col).step_by(cols).copied()).collect()
}

fn expected(shape: Shape, coefficients: &[[f32; 3]], matrix: &[f32]) -> Vec<f64> {
    let Shape { rows, cols } = shape;
    let norm = matrix.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    let mut x: Vec<f64> = matrix.iter().map(|value| f64::from(*value) / norm).collect();
    for coefficients in coefficients {
        let [a, b, c] = coefficients.map(f64::from);
        // Always XXᵀX, whichever product the GPU takes.
        let gram = times(&x, &transposed(&x, cols), (cols, rows));
        let squared = times(&gram, &gram, (rows, rows));
        let sum: Vec<f64> = gram.iter().zip(&squared).map(|(gram, square)| b * gram + c * square).collect();
        let next = times(&sum, &x, (rows, cols));
        x = x.iter().zip(&next).map(|(x, next)| a * x + next).collect();
    }
    x
}

/// The norm of the difference, relative to what is expected.
fn error(found: &[f32], expected: &[f64]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = &mut found.iter().zip(expected).map(|(found, expected)| f64::from(*found) - expected);
    norm(difference) / norm(&mut expected.iter().copied())
}

#[test]
fn wide_tall_square_and_odd_matrices_become_nearly_orthogonal() {
    let Some(gpu) = Gpu::open("nearly orthogonal matrices") else { return };
    for (rows, cols) in
        [(64, 192), (192, 64), (256, 1024), (1024, 256), (33, 50), (51, 34), (1, 40), (40, 1), (7, 3)]
    {
        let shape = Shape::new(rows, cols);
        let matrix = noise(shape, 11);
        let found = run(&gpu, shape, &NewtonSchulz::QUINTIC, &matrix);
        let error = error(&found, &expected(shape, &NewtonSchulz::QUINTIC, &matrix));
        assert!(error <= 0.03, "{shape}: {error}");
    }
}

/// Each coefficient by itself, after odd and even numbers of steps.
#[test]
fn every_step_applies_its_own_polynomial() {
    let Some(gpu) = Gpu::open("polynomials of singular values") else { return };
    let (one, other, third) = ([2.0, 0.0, 0.0], [0.0, -30.0, 0.0], [0.0, 0.0, 800.0]);
    for shape in [Shape::new(48, 80), Shape::new(80, 48)] {
        let matrix = noise(shape, 12);
        let normalized = run(&gpu, shape, &[], &matrix);
        assert!(error(&normalized, &expected(shape, &[], &matrix)) <= 0.003, "{shape}: normalized");
        for coefficients in
            [vec![one], vec![other], vec![third], vec![one, other], vec![other, one], vec![one, third, one]]
        {
            let found = run(&gpu, shape, &coefficients, &matrix);
            let error = error(&found, &expected(shape, &coefficients, &matrix));
            assert!(error <= 0.01, "{shape}, {coefficients:?}: {error}");
        }
    }
}

/// LI-2, and the norm neither overflows nor vanishes.
#[test]
fn the_same_matrix_gives_the_same_bits_whatever_its_scale() {
    let Some(gpu) = Gpu::open("scales of matrices") else { return };
    let shape = Shape::new(96, 160);
    let matrix = noise(shape, 13);
    let mut products = NewtonSchulz::new(&Device::open(GPU).unwrap(), shape, &NewtonSchulz::QUINTIC).unwrap();
    let first = bits(&run_by(&gpu, &mut products, &matrix));
    for power in [0, 120, -60] {
        let scaled: Vec<f32> = matrix.iter().map(|value| value * 2.0_f32.powi(power)).collect();
        assert!(bits(&run_by(&gpu, &mut products, &scaled)) == first, "by 2^{power}, the same products");
        assert!(bits(&run(&gpu, shape, &NewtonSchulz::QUINTIC, &scaled)) == first, "by 2^{power}, new ones");
    }
    let zeros = vec![0.0; shape.elements()];
    assert_eq!(run_by(&gpu, &mut products, &zeros), zeros);
    for broken in [f32::NAN, f32::INFINITY] {
        let mut matrix = matrix.clone();
        matrix[77] = broken;
        assert!(run_by(&gpu, &mut products, &matrix).iter().any(|value| !value.is_finite()), "{broken}");
    }
    assert!(bits(&run_by(&gpu, &mut products, &matrix)) == first, "what was there before is not read");
}

/// LI-4
#[test]
fn matrices_of_another_size_or_at_odd_places_are_refused_and_nothing_is_written() {
    let Some(gpu) = Gpu::open("refused matrices") else { return };
    let device = Device::open(GPU).unwrap();
    let empty = NewtonSchulz::new(&device, Shape::new(0, 8), &[]).unwrap_err();
    assert_eq!(empty, CudaFailure::NoMatrix { shape: Shape::new(0, 8) });
    let long = NewtonSchulz::new(&device, Shape::new(1, usize::MAX), &[]).unwrap_err();
    assert!(matches!(long, CudaFailure::TooLarge { what: "columns", .. }), "{long}");
    let mut products = NewtonSchulz::new(&device, Shape::new(8, 16), &NewtonSchulz::QUINTIC).unwrap();
    let handles = handles(&gpu);
    let (matrix, result) = (gpu.buffer(&[1.0_f32; 128]), gpu.buffer(&[f32::NAN; 128]));
    let short = products.enqueue(&handles, lend(&matrix, 127), lend_mut(&result, 128)).unwrap_err();
    let (expected, element, wanted) = (128, ElementType::F32, ElementType::F32);
    let what = "the matrix";
    assert_eq!(short, CudaFailure::Operand { what, actual: 127, element, expected, wanted });
    let short = products.enqueue(&handles, lend(&matrix, 128), lend_mut(&result, 64)).unwrap_err();
    assert!(short.to_string().contains("the nearly orthogonal matrix has 64 elements"), "{short}");
    let shifted = gpu.buffer_at(&[f32::NAN; 128], 16);
    let odd = products.enqueue(&handles, lend(&matrix, 128), lend_mut(&shifted, 128)).unwrap_err();
    assert!(matches!(odd, CudaFailure::Misaligned { multiple: 256, .. }), "{odd}");
    let shifted = gpu.buffer_at(&[1.0_f32; 128], 4);
    let odd = products.enqueue(&handles, lend(&shifted, 128), lend_mut(&result, 128)).unwrap_err();
    assert!(matches!(odd, CudaFailure::Misaligned { what: "the matrix", multiple: 16, .. }), "{odd}");
    result::ctx::synchronize().unwrap();
    assert!(result_is_untouched(&result));
}

fn result_is_untouched(result: &Buffer<f32>) -> bool {
    result.read().iter().all(|value| value.is_nan())
}
