//! A part on its way into its file, with digests of its tensors in its header.
//!
//! Law: every byte that goes out is in a digest of its block, taken of what was handed to the file and not of what is
//! read back. The header comes first in a safetensors file and its digests are known last: it is written with zeros in
//! their place, and once more at the end. So no list of values is held, or asked for, twice.

use std::collections::HashMap;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use safetensors::SafeTensorError;

use super::blocks::{self, Blocks};
use crate::checkpoint::safetensors::tensor::Tensor;
use crate::checkpoint::safetensors::writer;

/// The key of a header under which the digests of all blocks stand: of each tensor in the order of the file.
pub(super) const DIGESTS: &str = "digests";

/// Writes a file of `tensors` that says `about` of itself, and gives the digest of its header.
///
/// # Errors
/// As [`writer::write`].
pub(super) fn write(
    tensors: Vec<Tensor<'_>>,
    mut about: HashMap<String, String>,
    file: &mut (impl Write + Seek),
) -> Result<u64, SafeTensorError> {
    let tensors = writer::ordered(tensors);
    let count = tensors.iter().map(|tensor| blocks::count(tensor.content.bytes())).sum();
    about.insert(DIGESTS.to_owned(), blocks::text(&vec![0; count]));
    let draft = writer::header(&tensors, about.clone())?;
    // What is large goes past its buffer.
    let mut file = BufWriter::new(file);
    file.write_all(&(draft.len() as u64).to_le_bytes())?;
    file.write_all(&draft)?;
    let mut digests = Blocks::default();
    for tensor in &tensors {
        tensor.content.write(&mut Digested { file: &mut file, digests: &mut digests })?;
        digests.end();
    }
    about.insert(DIGESTS.to_owned(), digests.text());
    let header = writer::header(&tensors, about)?;
    if header.len() != draft.len() {
        let said = "a tensor has other bytes than those of its shape";
        return Err(io::Error::new(io::ErrorKind::InvalidData, said).into());
    }
    file.seek(SeekFrom::Start(size_of::<u64>() as u64))?;
    file.write_all(&header)?;
    file.flush()?;
    Ok(blocks::digest(&header))
}

/// Passes on bytes of a tensor, and adds what the file took to a digest.
struct Digested<'f, W> {
    file: &'f mut W,
    digests: &'f mut Blocks,
}

impl<W: Write> Write for Digested<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.file.write(bytes)?;
        self.digests.add(bytes.get(..taken).unwrap_or(bytes));
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
