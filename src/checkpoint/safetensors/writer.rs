//! Tensors as a safetensors file, one after the other.
//!
//! Law: the file is byte for byte the one that `safetensors::serialize` makes of the same tensors: the header's
//! length, the header padded to a multiple of eight, then the tensors, wider elements first and by name among
//! equals. That function makes it in memory, and the one for files gives it a name by itself; here each tensor goes
//! out from where it is, into a file that somebody else names.

use std::collections::HashMap;
use std::io::{BufWriter, Write};

use safetensors::SafeTensorError;
use safetensors::tensor::{Metadata, TensorInfo};

use super::tensor::Tensor;

/// The longest header that safetensors reads, bytes; what claims a longer one is something else.
pub(in crate::checkpoint) const MOST_HEADER: usize = 100_000_000;

/// The key of a header under which there is no tensor, and so the one name that no tensor can have.
pub(in crate::checkpoint) const METADATA: &str = "__metadata__";

/// Writes a file of `tensors`, no two of one name, with `about` as its metadata.
///
/// # Errors
/// What `file` refuses; a tensor whose bytes are not those of its shape; a header that no reader takes.
pub(in crate::checkpoint) fn write(
    tensors: Vec<Tensor<'_>>,
    about: HashMap<String, String>,
    file: &mut impl Write,
) -> Result<(), SafeTensorError> {
    let tensors = ordered(tensors);
    let header = header(&tensors, about)?;
    // What is large goes past its buffer.
    let mut file = BufWriter::new(file);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    for tensor in &tensors {
        tensor.content.write(&mut file)?;
    }
    Ok(file.flush()?)
}

/// Tensors in the order of a file.
pub(in crate::checkpoint) fn ordered(mut tensors: Vec<Tensor<'_>>) -> Vec<Tensor<'_>> {
    tensors.sort_by(|one, other| other.dtype.cmp(&one.dtype).then_with(|| one.name.cmp(&other.name)));
    tensors
}

/// The header of these tensors in this order. That it is made of each tensor's shape and bytes checks both.
pub(in crate::checkpoint) fn header(
    tensors: &[Tensor<'_>],
    about: HashMap<String, String>,
) -> Result<Vec<u8>, SafeTensorError> {
    let mut end: usize = 0;
    let described = tensors.iter().map(|Tensor { name, dtype, shape, content }| {
        let begin = end;
        // Offsets that do not fit are refused with the shapes they are of.
        end = begin.saturating_add(content.bytes());
        (name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets: (begin, end) })
    });
    let mut header = serde_json::to_vec(&Metadata::new(Some(about), described.collect())?)?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    if header.len() > MOST_HEADER { Err(SafeTensorError::HeaderTooLarge) } else { Ok(header) }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

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
            let about = HashMap::from([("weights".to_owned(), "[\"b\"]".to_owned())]);
            let views = tensors().map(|Tensor { name, dtype, shape, content }| {
                let Content::Bytes(Cow::Borrowed(bytes)) = content else { unreachable!() };
                (name, TensorView::new(dtype, shape, bytes).unwrap())
            });
            let expected = safetensors::serialize(views, Some(about.clone())).unwrap();
            let mut written = Vec::new();
            write(tensors().collect(), about, &mut written).unwrap();
            assert_eq!(written, expected, "{count} tensors");
        }
    }

    #[test]
    fn a_tensor_without_the_bytes_of_its_shape_is_refused_before_anything_is_written() {
        let mut written = Vec::new();
        let wrong = tensor("w", Dtype::F32, &[2], &[0; 7]);
        assert!(write(vec![wrong], HashMap::new(), &mut written).is_err());
        assert!(written.is_empty());
    }
}
