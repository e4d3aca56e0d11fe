//! A contiguous range of a flattened weight, seen row by row.
//!
//! Every amax and cast kernel works on a [`Span`]. A row shard is a weight of its own shape whose span is
//! everything; a flat (ZeRO) shard is any other range. So one kernel serves both.

use std::ops::Range;

/// The elements `start .. start + len` of a flattened row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

impl Span {
    /// All of a matrix with `elements` elements.
    pub(super) const fn whole(elements: usize) -> Self {
        Self { start: 0, len: elements }
    }

    /// The rows the span touches. `cols` is the width of the matrix.
    pub(super) fn rows(self, cols: usize) -> Range<usize> {
        if self.len == 0 { 0..0 } else { self.start / cols..(self.start + self.len).div_ceil(cols) }
    }

    /// The columns of `row` that are in the span and in `columns`; an empty range within `columns` if none are.
    pub(super) fn columns(self, row: usize, cols: usize, columns: Range<usize>) -> Range<usize> {
        let first = row * cols;
        let (low, high) = (first + columns.start, first + columns.end.min(cols));
        self.start.clamp(low, high) - first..(self.start + self.len).clamp(low, high) - first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_cover_every_element_of_the_span_once() {
        for (start, len) in [(0, 0), (7, 0), (0, 35), (3, 1), (3, 9), (13, 22), (34, 1)] {
            let span = Span { start, len };
            let mut elements = vec![];
            for row in span.rows(7) {
                for left in [0, 4] {
                    let columns = span.columns(row, 7, left..left + 4);
                    assert!(left <= columns.start && columns.end <= left + 4);
                    elements.extend(columns.map(|column| row * 7 + column));
                }
            }
            assert_eq!(elements, (start..start + len).collect::<Vec<_>>());
        }
    }
}
