//! Digests: numbers that tell whether bytes are the same, also to another process or another build.
//!
//! Law: the number follows from the parts alone, in their order and with their lengths, so no two lists of parts run
//! together; but what `Digest::more` takes is one part. Other parts have another number, but for a chance of 2^-64 or
//! 2^-128. It is about mistakes and worn disks, not about forgery.

use sha2::{Digest as _, Sha256};

/// Takes parts, and ends as a number.
#[derive(Clone, Debug, Default)]
pub struct Digest(Sha256);

impl Digest {
    /// The next part.
    pub fn add(&mut self, part: &[u8]) {
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
    }

    /// More bytes, without how many they are. For what is one piece of a length that is known otherwise, and comes in
    /// pieces of any size.
    pub fn more(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The number of what was added.
    pub fn short(self) -> u64 {
        u64::from_le_bytes(self.first())
    }

    /// As [`Digest::short`], for what is kept for years among many others.
    pub fn long(self) -> u128 {
        u128::from_le_bytes(self.first())
    }

    fn first<const BYTES: usize>(self) -> [u8; BYTES] {
        self.0.finalize().first_chunk().copied().unwrap_or([0; BYTES])
    }
}

impl<'part> FromIterator<&'part [u8]> for Digest {
    fn from_iter<I: IntoIterator<Item = &'part [u8]>>(parts: I) -> Self {
        let mut digest = Self::default();
        parts.into_iter().for_each(|part| digest.add(part));
        digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&[u8]]) -> Digest {
        Digest::from_iter(parts.iter().copied())
    }

    #[test]
    fn lists_of_parts_that_would_run_together_have_other_numbers() {
        let numbers = [of(&[b"ab", b"c"]), of(&[b"a", b"bc"]), of(&[b"abc"]), of(&[b"abc", b""]), of(&[])];
        for (place, digest) in numbers.iter().enumerate() {
            assert!(numbers[..place].iter().all(|other| other.clone().short() != digest.clone().short()));
        }
    }

    #[test]
    fn one_piece_has_the_same_number_in_whatever_pieces_it_comes() {
        let more = |pieces: &[&[u8]]| {
            let mut digest = Digest::default();
            pieces.iter().for_each(|piece| digest.more(piece));
            digest.short()
        };
        assert_eq!(more(&[b"ab", b"", b"c"]), more(&[b"abc"]));
        assert_ne!(more(&[b"abc"]), more(&[b"abd"]));
        // The length goes before a part.
        assert_eq!(more(&[&3_u64.to_le_bytes(), b"abc"]), of(&[b"abc"]).short());
    }

    /// SHA-256 of eight zero bytes, as `printf '\0\0\0\0\0\0\0\0' | sha256sum` prints it. It must not change from
    /// build to build: processes tell it each other, and files keep it.
    #[test]
    fn the_number_is_that_of_sha_256() {
        let first = 0xaf55_70f5_a181_0b7a_f78c_af4b_c70a_660f_u128;
        assert_eq!(of(&[b""]).long(), first.swap_bytes());
        assert_eq!(of(&[b""]).short(), 0xaf55_70f5_a181_0b7a_u64.swap_bytes());
    }
}
