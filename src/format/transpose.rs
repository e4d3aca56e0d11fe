//! Transposed copies of matrices of 1-, 2- and 4-byte elements, in blocks that stay in the cache.

use super::shape::Shape;

/// `output[k][m] = input[m][k]` for a row-major matrix of `shape` with elements of `SIZE` bytes.
pub(super) fn bytes<const SIZE: usize>(shape: Shape, input: &[u8], output: &mut [u8]) {
    elements(shape, input.as_chunks::<SIZE>().0, output.as_chunks_mut::<SIZE>().0);
}

/// `output[k][m] = input[m][k]` for a row-major matrix of `shape`.
pub(super) fn elements<T: Copy>(shape: Shape, input: &[T], output: &mut [T]) {
    const BLOCK: usize = 32;
    let Shape { rows, cols } = shape;
    for top in (0..rows).step_by(BLOCK) {
        let bottom = (top + BLOCK).min(rows);
        for left in (0..cols).step_by(BLOCK) {
            let right = (left + BLOCK).min(cols);
            for column in left..right {
                for (row, out) in (top..bottom).zip(&mut output[column * rows + top..]) {
                    *out = input[row * cols + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_moves_to_its_mirror_place() {
        for (rows, cols) in [(1, 1), (3, 70), (70, 3), (33, 65), (0, 4), (4, 0)] {
            let shape = Shape::new(rows, cols);
            let input: Vec<u32> = (0..shape.elements() as u32).collect();
            let mut output = vec![u32::MAX; input.len()];
            elements(shape, &input, &mut output);
            for row in 0..rows {
                for column in 0..cols {
                    assert_eq!(output[column * rows + row], input[row * cols + column]);
                }
            }
        }
    }
}
