//! A contiguous range of a flattened weight, walked row by row and tile by tile.
//!
//! Every amax and cast kernel works on a [`Span`]. A row shard is a weight of its own shape whose span is
//! everything; a flat (ZeRO) shard is any other range. So there is one kernel for both.

use std::ops::Range;

/// The elements `start .. start + len` of a flattened row-major matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: usize,
    pub(super) len: usize,
}

/// The part of a span that lies in one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    /// Row of the matrix.
    pub(super) row: usize,
    /// First column.
    pub(super) column: usize,
    /// Offset from the start of the span.
    pub(super) offset: usize,
    /// Number of elements.
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

    /// The columns of `row` that are in the span and in `columns`; an empty range within `columns` if none
    /// are.
    pub(super) fn columns(self, row: usize, cols: usize, columns: Range<usize>) -> Range<usize> {
        let first = row * cols;
        let (low, high) = (first + columns.start, first + columns.end.min(cols));
        self.start.clamp(low, high) - first..(self.start + self.len).clamp(low, high) - first
    }

    /// The rows the span touches, in order. `cols` is the width of the matrix.
    pub(super) fn segments(self, cols: usize) -> impl Iterator<Item = Segment> {
        let end = self.start + self.len;
        let mut next = self.start;
        std::iter::from_fn(move || {
            if next >= end {
                return None;
            }
            let (row, column) = (next / cols, next % cols);
            let len = (cols - column).min(end - next);
            let segment = Segment { row, column, offset: next - self.start, len };
            next += len;
            Some(segment)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_cover_the_span_once_and_stay_in_their_rows() {
        for (start, len, cols) in
            [(0, 0, 5), (3, 0, 5), (0, 15, 5), (3, 1, 5), (4, 2, 5), (7, 11, 5), (2, 1, 1)]
        {
            let mut next = start;
            for segment in (Span { start, len }).segments(cols) {
                assert_eq!(segment.row * cols + segment.column, next);
                assert_eq!(segment.offset, next - start);
                assert!(segment.len > 0 && segment.column + segment.len <= cols);
                next += segment.len;
            }
            assert_eq!(next, start + len);
        }
    }

    #[test]
    fn rows_and_columns_name_the_same_elements_as_the_segments() {
        for (start, len) in [(0, 0), (7, 0), (0, 35), (3, 1), (3, 9), (13, 22), (34, 1)] {
            let span = Span { start, len };
            assert!(span.segments(7).map(|segment| segment.row).eq(span.rows(7)));
            let mut elements = vec![];
            for row in span.rows(7) {
                for left in [0, 4] {
                    elements.extend(span.columns(row, 7, left..left + 4).map(|column| row * 7 + column));
                }
            }
            assert_eq!(elements, (start..start + len).collect::<Vec<_>>());
        }
    }
}
