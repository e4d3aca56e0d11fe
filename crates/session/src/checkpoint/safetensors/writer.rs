//! The writer of safetensors files.
//!
//! Law: the file is byte for byte the one that `safetensors::serialize` makes of the same tensors: the header's
//! length, the header padded to a multiple of eight, then the tensors, wider elements first and by name among
//! equals. That function makes it in memory, and the one for files gives it a name by itself; here each tensor goes
//! out from where it is, in pieces and in any order, into a file that somebody else names. Every tensor has the bytes
//! of its shape, or the file is not finished.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

use super::entry::TensorEntry;
use super::invalid::TensorFileError;
use super::layout::{Layout, Outline, TensorId};
use super::tensor::{Taker, Tensor};

/// A file on its way.
#[derive(Debug)]
pub struct Writer<F> {
    file: F,
    /// Where the next byte goes, unless a tensor is elsewhere.
    at: u64,
    layout: Layout,
    /// Bytes of each tensor that are written.
    written: Vec<u64>,
}

impl<F: Write + Seek> Writer<F> {
    /// Writes the header.
    ///
    /// # Errors
    /// What the file refuses.
    pub fn begin(mut file: F, layout: Layout) -> io::Result<Self> {
        file.write_all(&layout.head)?;
        Ok(Self { file, at: layout.head.len() as u64, written: vec![0; layout.places.len()], layout })
    }

    /// Writes the next bytes of a tensor.
    ///
    /// # Errors
    /// More than it has by its shape; what the file refuses.
    pub fn append(&mut self, id: TensorId, bytes: &[u8]) -> io::Result<()> {
        let ((begin, room), written) = (self.layout.places[id.0], self.written[id.0]);
        let reached = written + bytes.len() as u64;
        if reached > room {
            return Err(io::Error::other("a tensor is longer than its header says"));
        }
        if self.at != begin + written {
            self.file.seek(SeekFrom::Start(begin + written))?;
        }
        self.file.write_all(bytes)?;
        (self.written[id.0], self.at) = (reached, begin + reached);
        Ok(())
    }

    /// Gives the file back, once every tensor is whole.
    ///
    /// # Errors
    /// A tensor that is not; what the file refuses.
    pub fn finish(mut self) -> io::Result<F> {
        if !self.layout.places.iter().map(|(_, room)| room).eq(&self.written) {
            return Err(io::Error::other("a tensor is shorter than its header says"));
        }
        self.file.flush()?;
        Ok(self.file)
    }
}

/// Writes a file of `tensors`, no two of one name, with `about` as its metadata.
///
/// # Errors
/// What `file` refuses; a tensor whose bytes are not those of its shape; a header that no reader takes.
pub(in crate::checkpoint) fn write<F: Write + Seek>(
    tensors: Vec<Tensor<'_>>,
    about: &BTreeMap<String, String>,
    file: F,
) -> Result<F, TensorFileError> {
    let outline = outline(&tensors)?;
    // What is large goes past its buffer.
    let mut writer = Writer::begin(BufWriter::new(file), outline.lay_out(about)?)?;
    each_in_order(&tensors, &mut writer, |tensor, out| tensor.content.write(out))?;
    Ok(writer.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?)
}

/// The outline of a file of these tensors, each of which has the bytes of its shape.
pub(in crate::checkpoint) fn outline(tensors: &[Tensor<'_>]) -> Result<Outline, TensorFileError> {
    let mut outline = Outline::default();
    for Tensor { name, dtype, shape, content } in tensors {
        let (name, dtype, shape, end) = (name.clone(), *dtype, shape.clone(), content.bytes() as u64);
        TensorEntry { name: name.clone(), dtype, shape: shape.clone(), begin: 0, end }.check_size()?;
        outline.add(name, dtype, shape);
    }
    Ok(outline)
}

/// Writes each of the tensors whose outline is laid out, in the order of the file.
pub(in crate::checkpoint) fn each_in_order<F: Write + Seek>(
    tensors: &[Tensor<'_>],
    writer: &mut Writer<F>,
    mut write: impl FnMut(&Tensor<'_>, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    for id in writer.layout.order.clone() {
        let append = |bytes: &[u8]| writer.append(id, bytes).map(|()| bytes.len());
        write(&tensors[id.0], &mut Taker(append))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::io::Cursor;

    use safetensors::tensor::{Dtype, TensorView};

    use super::super::tensor::Content;
    use super::*;

    fn tensor(name: &str, dtype: Dtype, shape: &[usize], bytes: &'static [u8]) -> Tensor<'static> {
        Tensor {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
            content: Content::Bytes(Cow::Borrowed(bytes)),
        }
    }

    #[test]
    fn a_file_has_the_bytes_that_the_crate_makes_in_memory() {
        let all = || {
            vec![
                tensor("b", Dtype::U8, &[2, 2], &[1, 2, 3, 4]),
                tensor("z", Dtype::F32, &[1], &[5; 4]),
                tensor("a", Dtype::BF16, &[3], &[6; 6]),
                tensor("none", Dtype::U8, &[0], &[]),
                tensor("a \"quoted\" name", Dtype::F32, &[2, 1], &[7; 8]),
            ]
        };
        for count in 0..=all().len() {
            let tensors = || all().into_iter().take(count);
            let about = BTreeMap::from([("weights".to_owned(), "[\"b\"]".to_owned())]);
            let views = tensors().map(|Tensor { name, dtype, shape, content }| {
                let Content::Bytes(Cow::Borrowed(bytes)) = content else { unreachable!() };
                (name, TensorView::new(dtype, shape, bytes).unwrap())
            });
            let expected = safetensors::serialize(views, Some(about.clone().into_iter().collect())).unwrap();
            let written = write(tensors().collect(), &about, Cursor::new(Vec::new())).unwrap();
            assert_eq!(written.into_inner(), expected, "{count} tensors");
        }
    }

    #[test]
    fn a_tensor_without_the_bytes_of_its_shape_is_refused_before_anything_is_written() {
        let mut written = Cursor::new(Vec::new());
        let wrong = tensor("w", Dtype::F32, &[2], &[0; 7]);
        assert!(write(vec![wrong], &BTreeMap::new(), &mut written).is_err());
        assert!(written.into_inner().is_empty());
    }
}
