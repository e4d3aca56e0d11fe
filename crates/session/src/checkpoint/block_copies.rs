//! Blocks of a matrix: what ranks have of a weight that tensor parallelism cuts.
//!
//! Law: matrix and block are row-major, and values are copied and nothing else. A block that is not wholly within the
//! values that are there is none.

use std::ops::Range;

use warpweft_plan::model::Block;

/// The values of a block of `matrix`, which has `columns` columns.
pub(crate) fn taken(matrix: &[f32], columns: usize, block: Block) -> Option<Vec<f32>> {
    if block.shape.cols == columns {
        let begin = block.first.rows * columns;
        return matrix.get(begin..begin + block.shape.elements()).map(<[f32]>::to_vec);
    }
    let mut values = Vec::with_capacity(block.shape.elements().min(matrix.len()));
    for row in rows(columns, block) {
        values.extend_from_slice(matrix.get(row)?);
    }
    Some(values)
}

/// The values of blocks, one after the other: what a rank has of a weight ([`ShardLayout::blocks_of`]).
///
/// [`ShardLayout::blocks_of`]: warpweft_plan::model::ShardLayout::blocks_of
pub(crate) fn all_taken(
    matrix: &[f32],
    columns: usize,
    mut blocks: impl Iterator<Item = Block>,
) -> Option<Vec<f32>> {
    let first = blocks.next().map_or_else(|| Some(Vec::new()), |block| taken(matrix, columns, block))?;
    blocks.try_fold(first, |mut values, block| {
        values.extend(taken(matrix, columns, block)?);
        Some(values)
    })
}

/// Puts the values of blocks in their places, as [`all_taken`] gave them.
pub(crate) fn put_all(
    mut values: &[f32],
    blocks: impl Iterator<Item = Block>,
    matrix: &mut [f32],
    columns: usize,
) {
    for block in blocks {
        let (own, others) = values.split_at(block.shape.elements().min(values.len()));
        put(own, block, matrix, columns);
        values = others;
    }
}

/// Puts the values of a block in their place in `matrix`, which has `columns` columns.
pub(crate) fn put(values: &[f32], block: Block, matrix: &mut [f32], columns: usize) {
    for (row, values) in rows(columns, block).zip(values.chunks_exact(block.shape.cols.max(1))) {
        if let Some(to) = matrix.get_mut(row) {
            to.copy_from_slice(values);
        }
    }
}

/// The ranges of the rows of a block, in a matrix of `columns` columns.
fn rows(columns: usize, block: Block) -> impl Iterator<Item = Range<usize>> {
    let begin = move |row: usize| row * columns + block.first.cols;
    let rows = block.first.rows..block.first.rows + block.shape.rows;
    rows.map(move |row| begin(row)..begin(row) + block.shape.cols)
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_format::Shape;

    #[test]
    fn a_block_that_is_taken_and_put_back_is_where_it_was() {
        let matrix: Vec<f32> = (0..12u8).map(f32::from).collect();
        let block = |first: [usize; 2], shape: [usize; 2]| Block {
            first: Shape::new(first[0], first[1]),
            shape: Shape::new(shape[0], shape[1]),
        };
        for (block, expected) in [
            (block([1, 0], [2, 4]), &[4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0][..]),
            (block([1, 2], [2, 2]), &[6.0, 7.0, 10.0, 11.0]),
            (block([3, 2], [0, 2]), &[]),
        ] {
            let values = taken(&matrix, 4, block).unwrap();
            assert_eq!(values, expected);
            let mut zeros = vec![0.0; 12];
            put(&values, block, &mut zeros, 4);
            assert_eq!(taken(&zeros, 4, block).unwrap(), expected);
            assert_eq!(zeros.iter().sum::<f32>(), expected.iter().sum::<f32>());
        }
        let blocks = [block([0, 1], [1, 2]), block([2, 1], [1, 2])];
        let values = all_taken(&matrix, 4, blocks.into_iter()).unwrap();
        assert_eq!(values, [1.0, 2.0, 9.0, 10.0]);
        let mut zeros = vec![0.0; 12];
        put_all(&values, blocks.into_iter(), &mut zeros, 4);
        assert_eq!((all_taken(&zeros, 4, blocks.into_iter()).unwrap(), zeros.iter().sum()), (values, 22.0));
        assert_eq!(all_taken(&matrix, 4, std::iter::empty()), Some(Vec::new()));
        assert_eq!(taken(&matrix, 4, block([2, 2], [2, 2])), None);
        assert_eq!(taken(&matrix, 4, block([2, 0], [2, 4])), None);
    }
}
