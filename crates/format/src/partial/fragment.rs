//! Positions of the codes of a flat shard in the data plane.

use std::ops::Range;

use crate::FormatError;
use crate::format::Format;
use crate::shape::{ElementType, Orientation, Shape};
use crate::span::Span;

/// The elements `start .. start + len` of a flattened row-major weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlatShard {
    /// First element.
    pub start: usize,
    /// Number of elements; may be 0.
    pub len: usize,
}

impl FlatShard {
    /// The shard of a rank that owns nothing.
    pub const EMPTY: Self = Self { start: 0, len: 0 };

    /// Whether the shard lies in a weight of `shape`. An empty shard may begin at the very end.
    ///
    /// # Errors
    /// [`FormatError::FlatShardOutOfRange`].
    pub fn check(self, shape: Shape) -> Result<(), FormatError> {
        let Self { start, len } = self;
        let elements = shape.elements();
        match start.checked_add(len) {
            Some(end) if end <= elements => Ok(()),
            _ => Err(FormatError::FlatShardOutOfRange { start, len, elements }),
        }
    }

    /// The bytes of the full data plane that hold codes of the shard; the length of its fragment. An empty
    /// shard has none.
    #[must_use]
    pub fn fragment(self, format: Format) -> Range<usize> {
        let end = self.start.saturating_add(self.len);
        match format {
            _ if self.len == 0 => 0..0,
            Format::Nvfp4(_) => self.start / 2..end.div_ceil(2),
            Format::F32 => scaled(self.start..end, ElementType::F32),
            Format::Bf16 => scaled(self.start..end, ElementType::Bf16),
            Format::Fp8Block(_) | Format::Mxfp8 | Format::Fp8Tensor(_) => self.start..end,
        }
    }

    /// Whether the first and the last byte of the fragment hold a nibble of a neighbour.
    #[must_use]
    pub fn shares_bytes(self, format: Format) -> (bool, bool) {
        let odd = |element: usize| !element.is_multiple_of(2);
        match format {
            Format::Nvfp4(_) if self.len > 0 => (odd(self.start), odd(self.start) != odd(self.len)),
            _ => (false, false),
        }
    }

    /// The bits of byte `at` of the fragment that belong to the shard: 0xFF, 0x0F or 0xF0.
    #[must_use]
    pub fn owned_mask(self, format: Format, at: usize) -> u8 {
        let (first, last) = self.shares_bytes(format);
        let mut mask = 0xFF;
        if first && at == 0 {
            mask &= 0xF0;
        }
        if last && at + 1 == self.fragment(format).len() {
            mask &= 0x0F;
        }
        mask
    }

    pub(crate) const fn span(self) -> Span {
        Span { start: self.start, len: self.len }
    }
}

fn scaled(elements: Range<usize>, element: ElementType) -> Range<usize> {
    elements.start * element.bytes()..elements.end * element.bytes()
}

/// Merges the codes of a shard into the full data plane of a weight of `shape`; foreign nibbles of shared
/// bytes stay as they are (FS-2). `data` is the rowwise plane, or either plane of MXFP8; of codes of no element,
/// which complete the last blocks, it makes zeros (FO-6).
///
/// # Errors
/// A shard out of range, a fragment or plane of the wrong length. Nothing is written then.
pub fn place_fragment(
    format: Format,
    shape: Shape,
    shard: FlatShard,
    fragment: &[u8],
    data: &mut [u8],
) -> Result<(), FormatError> {
    format.check_blocks(shape)?;
    shard.check(shape)?;
    let range = shard.fragment(format);
    let plane = format.data_plane(Orientation::Rowwise, shape).bytes();
    for (what, expected, actual) in
        [("the fragment", range.len(), fragment.len()), ("the data plane", plane, data.len())]
    {
        if expected != actual {
            return Err(FormatError::Length { what, expected, actual });
        }
    }
    data[FlatShard { start: 0, len: shape.elements() }.fragment(format).end..].fill(0);
    let target = &mut data[range];
    let (first, last) = shard.shares_bytes(format);
    let (inner_start, inner_end) = (usize::from(first), target.len() - usize::from(last));
    if inner_start < inner_end {
        target[inner_start..inner_end].copy_from_slice(&fragment[inner_start..inner_end]);
    }
    for (shared, at) in [(first, 0), (last, fragment.len().saturating_sub(1))] {
        if shared {
            let mask = shard.owned_mask(format, at);
            target[at] = (target[at] & !mask) | (fragment[at] & mask);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FS-2.
    #[test]
    fn a_lone_nibble_is_placed_beside_its_neighbour() {
        let shape = Shape::new(16, 16);
        for (start, merged) in [(2, 0xA7), (3, 0x75)] {
            let mut data = vec![0xA5; 128];
            let shard = FlatShard { start, len: 1 };
            place_fragment(Format::NVFP4_2D, shape, shard, &[0x77], &mut data).unwrap();
            let mut expected = vec![0xA5; 128];
            expected[1] = merged;
            assert_eq!(data, expected);
        }
    }

    #[test]
    fn an_empty_shard_has_no_fragment_even_at_the_end() {
        let shape = Shape::new(16, 16);
        for start in [0, 7, 256] {
            let shard = FlatShard { start, len: 0 };
            assert_eq!(shard.check(shape), Ok(()));
            assert_eq!(shard.fragment(Format::NVFP4_2D), 0..0);
        }
    }

    #[test]
    fn a_shard_beyond_the_weight_is_refused() {
        let shape = Shape::new(16, 16);
        for (start, len) in [(0, 257), (257, 0), (usize::MAX, 2)] {
            let error = FlatShard { start, len }.check(shape);
            assert!(matches!(error, Err(FormatError::FlatShardOutOfRange { .. })));
        }
    }
}
