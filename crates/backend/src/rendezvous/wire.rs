//! Binary encoding of the messages between ranks, field by field.
//!
//! Law: numbers are little-endian. A reader takes a length only after it has seen that so many bytes are
//! there, so what it allocates is bounded by what it was given.

/// Bytes that end before what they should hold, or go on after it.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the bytes end too early or too late")]
pub struct Truncated;

warpweft_base::debug_in_words!(Truncated);

/// Appends fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// One byte.
    pub fn byte(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    /// A 32-bit number.
    pub fn number(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// A 64-bit number.
    pub fn long(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    /// Bytes whose number the reader knows.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Bytes after their number.
    pub fn list(&mut self, bytes: &[u8]) -> &mut Self {
        self.long(bytes.len() as u64).raw(bytes)
    }

    /// Everything so far; the writer is empty then.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Takes fields off.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// From the first byte on.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// One byte.
    ///
    /// # Errors
    /// [`Truncated`], as for all that follow.
    pub fn byte(&mut self) -> Result<u8, Truncated> {
        self.fixed().map(|[byte]| byte)
    }

    /// A 32-bit number.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn number(&mut self) -> Result<u32, Truncated> {
        self.fixed().map(u32::from_le_bytes)
    }

    /// A 64-bit number.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn long(&mut self) -> Result<u64, Truncated> {
        self.fixed().map(u64::from_le_bytes)
    }

    /// `N` bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        self.raw(N)?.try_into().map_err(|_| Truncated)
    }

    /// `count` bytes.
    ///
    /// # Errors
    /// [`Truncated`].
    pub(crate) fn raw(&mut self, count: usize) -> Result<&'a [u8], Truncated> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Bytes after their number.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn list(&mut self) -> Result<&'a [u8], Truncated> {
        let count = self.long()?;
        self.raw(usize::try_from(count).map_err(|_| Truncated)?)
    }

    /// A text after its number of bytes; what is no UTF-8 is replaced.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn text(&mut self) -> Result<String, Truncated> {
        self.list().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// Nothing may be left.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn end(&self) -> Result<(), Truncated> {
        if self.bytes.is_empty() { Ok(()) } else { Err(Truncated) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_length_that_lies_allocates_nothing() {
        let mut writer = Writer::default();
        let bytes = writer.byte(7).number(8).long(9).list(b"ten").raw(b"rest").take();
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.byte(), reader.number(), reader.long()), (Ok(7), Ok(8), Ok(9)));
        assert_eq!(reader.text().as_deref(), Ok("ten"));
        assert_eq!(reader.end(), Err(Truncated));
        assert_eq!((reader.rest(), reader.end()), (&b"rest"[..], Ok(())));
        let lie = Writer::default().long(u64::MAX).raw(b"x").take();
        assert_eq!(Reader::new(&lie).list(), Err(Truncated));
    }
}
