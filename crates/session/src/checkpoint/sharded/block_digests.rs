//! Digests of blocks, as files keep them.
//!
//! Law: a tensor is cut into blocks of [`BLOCK`] bytes from its first byte on, the last one shorter, and each block has
//! a digest of its own. So who needs some rows reads the blocks that they lie in, and no more of the tensor.

use crate::checkpoint::hexadecimal;
use warpweft_base::digest::Digest;

/// Bytes of a block. A reader of some rows reads up to two blocks more than these; 16 digits are kept for each.
pub(super) const BLOCK: usize = 1 << 20;

/// Digits of a digest in a text.
const DIGITS: usize = 16;

/// How many blocks so many bytes are.
pub(super) const fn count(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK)
}

/// The digest of one block, or of anything else that is known to be one piece.
pub(super) fn digest(block: &[u8]) -> u64 {
    let mut digest = Digest::default();
    digest.more(block);
    digest.short()
}

/// Digests as a text, one after the other.
pub(super) fn text(digests: &[u64]) -> String {
    digests.iter().copied().map(hexadecimal::text).collect()
}

/// So many digests of a text, which has no more.
pub(super) fn digests(text: &str, count: usize) -> Option<Vec<u64>> {
    let is_whole = Some(text.len()) == count.checked_mul(DIGITS);
    if is_whole { (0..count).map(|place| digest_at(text, place)).collect() } else { None }
}

/// One digest of a text, counted from 0.
pub(super) fn digest_at(text: &str, place: usize) -> Option<u64> {
    let begin = place.checked_mul(DIGITS)?;
    hexadecimal::number(text.get(begin..begin.checked_add(DIGITS)?)?)
}

/// The digests of tensors whose bytes come in pieces of any size.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    done: Vec<u64>,
    open: Digest,
    filled: usize,
}

impl Blocks {
    /// The next bytes of a tensor.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while let Some((piece, rest)) = bytes.split_at_checked((BLOCK - self.filled).min(bytes.len()))
            && !piece.is_empty()
        {
            self.open.more(piece);
            self.filled += piece.len();
            if self.filled == BLOCK {
                self.end();
            }
            bytes = rest;
        }
    }

    /// The end of a tensor.
    pub(super) fn end(&mut self) {
        if self.filled > 0 {
            self.done.push(std::mem::take(&mut self.open).short());
            self.filled = 0;
        }
    }

    /// Those of all tensors that ended.
    pub(super) fn text(&self) -> String {
        text(&self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_in_pieces_of_any_size_have_the_digests_of_their_blocks() {
        let bytes: Vec<u8> = (0..2 * BLOCK + 77).map(|at| ((at * at) >> 7) as u8).collect();
        let tensors = [&bytes[..], &bytes[..BLOCK], &[], &bytes[5..6], &bytes[1..BLOCK + 2]];
        let expected: Vec<u64> = tensors.iter().flat_map(|tensor| tensor.chunks(BLOCK)).map(digest).collect();
        assert_eq!(expected.len(), tensors.iter().map(|tensor| count(tensor.len())).sum::<usize>());
        for piece in [1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
            let mut blocks = Blocks::default();
            for tensor in tensors {
                tensor.chunks(piece).for_each(|piece| blocks.add(piece));
                blocks.end();
            }
            assert_eq!(digests(&blocks.text(), expected.len()).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn a_text_that_is_no_list_of_so_many_digests_is_none() {
        let listed = text(&[0, u64::MAX, 7]);
        assert_eq!(digests(&listed, 3), Some(vec![0, u64::MAX, 7]));
        assert_eq!(digests("", 0), Some(Vec::new()));
        assert_eq!([1, 3, usize::MAX].map(|place| digest_at(&listed, place)), [Some(u64::MAX), None, None]);
        for (text, count) in [
            (listed.as_str(), 2),
            (&listed[1..], 3),
            ("", usize::MAX),
            ("g000000000000000", 1),
            ("00000000000000é", 1),
            ("000000000000000é000000000000000", 2),
        ] {
            assert_eq!(digests(text, count), None, "{text}");
        }
    }
}
