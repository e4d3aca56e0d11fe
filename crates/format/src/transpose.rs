//! Transposed copies of matrices of 4-, 8-, 16- and 32-bit elements.
//!
//! A square block whose row fills 64 bits is transposed in registers by swapping quadrants, then quadrants of
//! quadrants, and so on down to single elements. Eight blocks go side by side, which the compiler turns into
//! vectors. Blocks are visited in squares as wide as a cache line. For elements of a byte or less a square
//! has so many rows that, in a matrix whose rows are a power of two apart, they would push each other out of
//! the cache. Such squares are copied in and out of a buffer, and have so much to swap that the widest
//! vectors pay off. What is left over at the right and bottom edges is moved element by element.

use multiversion::multiversion;

use super::shape::Shape;

/// Blocks transposed side by side.
const LANES: usize = 8;

/// Blocks per side of a square; a block is 8 bytes wide.
const SQUARE: usize = 8;

/// Bytes of a row of a square.
const LINE: usize = SQUARE * 8;

/// Squares go through a buffer from this many elements per 64 bits on.
const BUFFERED: usize = 8;

/// Rows of the largest square: of blocks of 16 nibbles.
const ROWS: usize = SQUARE * 16;

/// One square, row by row.
type Buffer = [[u8; LINE]; ROWS];

/// `output[k][m] = input[m][k]` for a row-major matrix of `shape` with elements of `SIZE` bytes: 1, 2 or 4.
pub(super) fn bytes<const SIZE: usize>(shape: Shape, input: &[u8], output: &mut [u8]) {
    let copied = match SIZE {
        1 => blocks::<8, 8>(shape, input, output),
        2 => blocks::<4, 16>(shape, input, output),
        4 => blocks::<2, 32>(shape, input, output),
        _ => Shape::new(0, 0),
    };
    let (input, output) = (input.as_chunks::<SIZE>().0, output.as_chunks_mut::<SIZE>().0);
    for row in 0..shape.rows {
        let first = if row < copied.rows { copied.cols } else { 0 };
        for column in first..shape.cols {
            output[column * shape.rows + row] = input[row * shape.cols + column];
        }
    }
}

/// The same on nibbles, the even element of a byte in its low nibble. Both dimensions are multiples of 16.
pub(super) fn nibbles(shape: Shape, input: &[u8], output: &mut [u8]) {
    blocks::<16, 4>(shape, input, output);
}

/// The same on values, for whole weights at rest.
pub(super) fn values(shape: Shape, input: &[f32], output: &mut [f32]) {
    bytes::<4>(shape, bytemuck::cast_slice(input), bytemuck::cast_slice_mut(output));
}

/// Transposes the whole blocks of `N` × `N` elements of `BITS` = 64 / `N` bits. Returns the shape they cover.
fn blocks<const N: usize, const BITS: usize>(shape: Shape, input: &[u8], output: &mut [u8]) -> Shape {
    if N >= BUFFERED {
        blocks_by_wide_vectors::<N, BITS>(shape, input, output)
    } else {
        blocks_as_here::<N, BITS>(shape, input, output)
    }
}

#[multiversion(targets("x86_64+avx512f", "x86_64+avx2+bmi1+bmi2+fma+lzcnt+popcnt",))]
fn blocks_by_wide_vectors<const N: usize, const BITS: usize>(
    shape: Shape,
    input: &[u8],
    output: &mut [u8],
) -> Shape {
    blocks_as_here::<N, BITS>(shape, input, output)
}

/// With the vectors of whoever calls.
#[inline(always)]
fn blocks_as_here<const N: usize, const BITS: usize>(shape: Shape, input: &[u8], output: &mut [u8]) -> Shape {
    let (block_rows, block_cols) = (shape.rows / N, shape.cols / N);
    let (input_pitch, output_pitch) = (shape.cols * BITS / 8, shape.rows * BITS / 8);
    let mut matrices = Matrices { input, output, input_pitch, output_pitch };
    let mut buffers = [[[0; LINE]; ROWS]; 2];
    for top in (0..block_rows).step_by(SQUARE) {
        let bottom = (top + SQUARE).min(block_rows);
        for left in (0..block_cols).step_by(SQUARE) {
            let right = (left + SQUARE).min(block_cols);
            if N >= BUFFERED && (bottom - top, right - left) == (SQUARE, SQUARE) {
                matrices.transpose_square::<N, BITS>(top, left, &mut buffers);
                continue;
            }
            for column in left..right {
                let mut row = top;
                while row + LANES <= bottom {
                    matrices.transpose_blocks::<N, BITS, LANES>(row, column);
                    row += LANES;
                }
                for row in row..bottom {
                    matrices.transpose_blocks::<N, BITS, 1>(row, column);
                }
            }
        }
    }
    Shape::new(block_rows * N, block_cols * N)
}

/// The source and the target, with the bytes of their rows.
struct Matrices<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
    input_pitch: usize,
    output_pitch: usize,
}

impl Matrices<'_> {
    /// Moves the square whose first block is (`row`, `column`) to its mirror place.
    #[inline(always)]
    fn transpose_square<const N: usize, const BITS: usize>(
        &mut self,
        row: usize,
        column: usize,
        [before, after]: &mut [Buffer; 2],
    ) {
        let rows = SQUARE * N;
        for (line, copy) in before[..rows].iter_mut().enumerate() {
            let at = (row * N + line) * self.input_pitch + column * 8;
            copy.copy_from_slice(&self.input[at..at + LINE]);
        }
        let mut square = Matrices {
            input: before.as_flattened(),
            output: after.as_flattened_mut(),
            input_pitch: LINE,
            output_pitch: LINE,
        };
        for column in 0..SQUARE {
            square.transpose_blocks::<N, BITS, LANES>(0, column);
        }
        for (line, copy) in after[..rows].iter().enumerate() {
            let at = (column * N + line) * self.output_pitch + row * 8;
            self.output[at..at + LINE].copy_from_slice(copy);
        }
    }

    /// Moves `L` blocks, one below the other starting with block (`row`, `column`), to their mirror place.
    #[inline(always)]
    fn transpose_blocks<const N: usize, const BITS: usize, const L: usize>(
        &mut self,
        row: usize,
        column: usize,
    ) {
        let mut block = [[0; L]; N];
        for (line, lanes) in block.iter_mut().enumerate() {
            for (lane, word) in lanes.iter_mut().enumerate() {
                let at = ((row + lane) * N + line) * self.input_pitch + column * 8;
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&self.input[at..at + 8]);
                *word = u64::from_le_bytes(bytes);
            }
        }
        swap_quadrants::<N, BITS, L>(&mut block);
        for (line, lanes) in block.iter().enumerate() {
            let at = (column * N + line) * self.output_pitch + row * 8;
            for (lane, bytes) in lanes.iter().zip(self.output[at..at + 8 * L].as_chunks_mut::<8>().0) {
                *bytes = lane.to_le_bytes();
            }
        }
    }
}

/// Transposes `L` blocks held as `N` lines of `N` elements: swaps the off-diagonal quadrants, then those of
/// the quadrants, down to single elements.
#[inline(always)]
fn swap_quadrants<const N: usize, const BITS: usize, const L: usize>(block: &mut [[u64; L]; N]) {
    let mut half = N / 2;
    while half > 0 {
        let shift = half * BITS;
        // The low half of every group of 2 · half elements.
        let mask = u64::MAX / ((1 << shift) + 1);
        for upper in (0..N).filter(|line| line & half == 0) {
            let (above, below) = block.split_at_mut(upper + half);
            for (a, b) in above[upper].iter_mut().zip(&mut below[0]) {
                let difference = ((*a >> shift) ^ *b) & mask;
                *a ^= difference << shift;
                *b ^= difference;
            }
        }
        half /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [(usize, usize); 13] = [
        (1, 1),
        (3, 70),
        (70, 3),
        (8, 8),
        (33, 65),
        (64, 64),
        (40, 300),
        (300, 40),
        (129, 131),
        (200, 264),
        (0, 4),
        (4, 0),
        (2, 31),
    ];

    fn every_element_moves<const SIZE: usize>() {
        for (rows, cols) in SHAPES {
            let shape = Shape::new(rows, cols);
            let input: Vec<u8> = (0..shape.elements() * SIZE).map(|at| (at * 7 + at / 251) as u8).collect();
            let mut output = vec![0; input.len()];
            bytes::<SIZE>(shape, &input, &mut output);
            for row in 0..rows {
                for column in 0..cols {
                    let (from, to) = ((row * cols + column) * SIZE, (column * rows + row) * SIZE);
                    assert_eq!(output[to..to + SIZE], input[from..from + SIZE], "{shape} {row} {column}");
                }
            }
        }
    }

    #[test]
    fn every_element_moves_to_its_mirror_place() {
        every_element_moves::<1>();
        every_element_moves::<2>();
        every_element_moves::<4>();
    }

    #[test]
    fn every_nibble_moves_to_its_mirror_place() {
        for (rows, cols) in [(16, 16), (16, 64), (80, 48), (272, 144), (128, 128), (0, 16), (16, 0)] {
            let shape = Shape::new(rows, cols);
            let input: Vec<u8> = (0..shape.elements() / 2).map(|at| (at * 37 + at / 113) as u8).collect();
            let mut output = vec![0; input.len()];
            nibbles(shape, &input, &mut output);
            let nibble = |bytes: &[u8], at: usize| bytes[at / 2] >> (at % 2 * 4) & 15;
            for row in 0..rows {
                for column in 0..cols {
                    let (from, to) = (row * cols + column, column * rows + row);
                    assert_eq!(nibble(&output, to), nibble(&input, from), "{shape} {row} {column}");
                }
            }
        }
    }
}
