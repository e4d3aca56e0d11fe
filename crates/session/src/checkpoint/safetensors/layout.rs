//! The layout of a file of tensors before it is written, from names, dtypes and shapes.
//!
//! Tensors are sorted by dtype, wider elements first, then by name: the order of the safetensors library, which
//! aligns every tensor to its element when the file is mapped. They may be written in any order.

use std::collections::{BTreeMap, HashSet};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::ser::{SerializeMap, Serializer};

use super::entry::{LENGTH_BYTES, LONGEST_HEADER, METADATA, size};
use super::invalid::{Invalid, TensorFileError};

/// A tensor of a file that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorId(pub(super) usize);

/// The tensors that a file is going to have.
#[derive(Debug, Default)]
pub struct Outline {
    tensors: Vec<Planned>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Header and offsets of such a file.
#[derive(Debug)]
pub struct Layout {
    /// The length of the header, and the header.
    pub(in crate::checkpoint) head: Vec<u8>,
    /// The tensors in the order of the file.
    pub(super) order: Vec<TensorId>,
    /// By tensor id: its first byte in the file, and its bytes.
    pub(super) places: Vec<(u64, u64)>,
    /// Bytes of the file.
    pub file_bytes: u64,
}

impl Outline {
    /// Adds a tensor.
    pub fn add(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) -> TensorId {
        self.tensors.push(Planned { name, dtype, shape });
        TensorId(self.tensors.len() - 1)
    }

    /// Fixes the place of every tensor in a file that says `metadata` of itself.
    ///
    /// # Errors
    /// [`Invalid::DuplicateTensor`] for a name that two tensors have or none can have; [`Invalid::HeaderTooLarge`].
    pub fn lay_out(&self, metadata: &BTreeMap<String, String>) -> Result<Layout, TensorFileError> {
        let mut names = HashSet::from([METADATA]);
        if let Some(twice) = self.tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(Invalid::DuplicateTensor { tensor: twice.name.clone() }.into());
        }
        let mut order: Vec<TensorId> = (0..self.tensors.len()).map(TensorId).collect();
        order.sort_by(|left, right| {
            let (left, right) = (&self.tensors[left.0], &self.tensors[right.0]);
            right.dtype.cmp(&left.dtype).then_with(|| left.name.cmp(&right.name))
        });
        let mut places = vec![(0, 0); order.len()];
        let mut end = 0u64;
        for id in &order {
            let Planned { dtype, shape, .. } = &self.tensors[id.0];
            // Saturates far above any file; the file system refuses it then.
            let bytes = size(*dtype, shape).unwrap_or(u64::MAX);
            places[id.0] = (end, bytes);
            end = end.saturating_add(bytes);
        }
        let mut head = self.head(&order, &places, metadata).map_err(std::io::Error::from)?;
        let bytes = head.len() as u64 - LENGTH_BYTES;
        if bytes > LONGEST_HEADER {
            return Err(Invalid::HeaderTooLarge { bytes, limit: LONGEST_HEADER }.into());
        }
        head[..LENGTH_BYTES as usize].copy_from_slice(&bytes.to_le_bytes());
        let data = head.len() as u64;
        places.iter_mut().for_each(|(begin, _)| *begin = begin.saturating_add(data));
        Ok(Layout { head, order, places, file_bytes: end.saturating_add(data) })
    }

    /// Room for the length, and the JSON, padded with spaces so that the data begins at a multiple of eight.
    fn head(
        &self,
        order: &[TensorId],
        places: &[(u64, u64)],
        metadata: &BTreeMap<String, String>,
    ) -> serde_json::Result<Vec<u8>> {
        let mut head = vec![0; LENGTH_BYTES as usize];
        let mut serializer = serde_json::Serializer::new(&mut head);
        let mut map = serializer.serialize_map(None)?;
        if !metadata.is_empty() {
            map.serialize_entry(METADATA, metadata)?;
        }
        for id in order {
            let (Planned { name, dtype, shape }, (begin, bytes)) = (&self.tensors[id.0], places[id.0]);
            let data_offsets = (begin as usize, begin.saturating_add(bytes) as usize);
            map.serialize_entry(name, &TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets })?;
        }
        map.end()?;
        head.resize(head.len().next_multiple_of(8), b' ');
        Ok(head)
    }
}
