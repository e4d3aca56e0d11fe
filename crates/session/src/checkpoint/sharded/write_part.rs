//! Writes one part of a sharded checkpoint, with digests of its tensors in its header.
//!
//! Law: every byte that goes out is in a digest of its block, taken of what was handed to the file and not of what is
//! read back. The header comes first in a safetensors file and its digests are known last: it is written with zeros in
//! their place, and once more at the end. So no list of values is held, or requested, twice.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::block_digests::{self, Blocks};
use crate::checkpoint::safetensors::tensor::{Taker, Tensor};
use crate::checkpoint::safetensors::writer;
use crate::checkpoint::safetensors::{TensorFileError, Writer};

/// The key of a header under which the digests of all blocks stand: of each tensor in the order of the file.
pub(super) const DIGESTS: &str = "digests";

/// Writes a file of `tensors` that says `about` of itself, and gives the digest of its header.
///
/// # Errors
/// As [`writer::write`].
pub(super) fn write(
    tensors: &[Tensor<'_>],
    about: Vec<(&'static str, String)>,
    file: &mut (impl Write + Seek),
) -> Result<u64, TensorFileError> {
    let mut about: BTreeMap<String, String> =
        about.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let outline = writer::outline(tensors)?;
    let count = tensors.iter().map(|tensor| block_digests::count(tensor.content.bytes())).sum();
    about.insert(DIGESTS.to_owned(), block_digests::text(&vec![0; count]));
    let draft = outline.lay_out(&about)?;
    let length = draft.head.len();
    // What is large goes past its buffer.
    let mut writer = Writer::begin(BufWriter::new(file), draft)?;
    let mut digests = Blocks::default();
    writer::each_in_order(tensors, &mut writer, |tensor, file| {
        let digested = |bytes: &[u8]| {
            let taken = file.write(bytes)?;
            digests.add(bytes.get(..taken).unwrap_or(bytes));
            Ok(taken)
        };
        tensor.content.write(&mut Taker(digested))?;
        digests.end();
        Ok(())
    })?;
    let mut file = writer.finish()?;
    about.insert(DIGESTS.to_owned(), digests.text());
    let head = outline.lay_out(&about)?.head;
    if head.len() != length {
        return Err(io::Error::other("the digests of its tensors are not as many as their blocks").into());
    }
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&head)?;
    file.flush()?;
    Ok(block_digests::digest(&head[size_of::<u64>()..]))
}
