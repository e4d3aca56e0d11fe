//! Elements that a closure left unwritten, by the pattern of the checking layer.
//!
//! Law: an element is left out when all its bytes are [`SPOILED`]. What is added to such a float is that very NaN
//! again, so a closure that adds instead of writing shows too.

use super::SPOILED;

/// Elements of a gradient or output that a closure left as they were filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// How many there are.
    pub missing: usize,
    /// The first, counted from 0.
    pub first: usize,
}

impl LeftOut {
    /// What is left out among the elements of `element` bytes in `bytes`, if anything is.
    #[must_use]
    pub fn among(bytes: &[u8], element: usize) -> Option<Self> {
        let is_left = |element: &[u8]| element.iter().all(|byte| *byte == SPOILED);
        let mut left = bytes.chunks_exact(element.max(1)).enumerate().filter(|(_, element)| is_left(element));
        let (first, _) = left.next()?;
        Some(Self { missing: 1 + left.count(), first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// EX-4
    #[test]
    fn elements_that_are_filled_through_and_through_are_counted_and_others_are_not() {
        let spoiled = f32::from_bits(u32::MAX);
        let among = |values: &[f32]| LeftOut::among(bytemuck::cast_slice(values), 4);
        assert_eq!(among(&[]), None);
        assert_eq!(among(&[1.0, f32::NAN, -f32::NAN, f32::INFINITY]), None);
        assert_eq!(among(&[1.0, spoiled, 0.0, spoiled]), Some(LeftOut { missing: 2, first: 1 }));
        let halves = [half::bf16::from_bits(u16::MAX), half::bf16::NAN];
        assert_eq!(LeftOut::among(bytemuck::cast_slice(&halves), 2), Some(LeftOut { missing: 1, first: 0 }));
    }
}
