//! Where the tensors of an output will lie, decided from names, dtypes and shapes before any byte is written.
//!
//! Tensors are sorted by dtype, wider elements first, then by name: the order of the safetensors library, which
//! aligns every tensor to its element when the file is mapped. They may be written in any order.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use safetensors::Dtype;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::entry::LENGTH_BYTES;
use super::header::{LONGEST_HEADER, size};
use super::parse::METADATA;
use crate::ToolError;

/// A tensor of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorId(pub(super) usize);

/// The tensors an output is going to have.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    tensors: Vec<Planned>,
}

#[derive(Debug)]
struct Planned {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// Header and offsets of an output.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The length of the header, and the header.
    pub(super) head: Vec<u8>,
    /// By tensor id: its first byte in the file, and its bytes.
    pub(super) places: Vec<(u64, u64)>,
    /// Bytes of the file.
    pub(crate) file_bytes: u64,
}

impl Outline {
    /// Adds a tensor.
    pub(crate) fn add(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) -> TensorId {
        self.tensors.push(Planned { name, dtype, shape });
        TensorId(self.tensors.len() - 1)
    }

    /// Fixes the place of every tensor in the file `output`, which is not touched.
    pub(crate) fn lay_out(
        self,
        metadata: &BTreeMap<String, String>,
        output: &Path,
    ) -> Result<Layout, ToolError> {
        let mut names = HashSet::from([METADATA]);
        if let Some(twice) = self.tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(ToolError::NameTaken { tensor: twice.name.clone() });
        }
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by(|&left, &right| {
            let (left, right) = (&self.tensors[left], &self.tensors[right]);
            right.dtype.cmp(&left.dtype).then_with(|| left.name.cmp(&right.name))
        });
        let mut places = vec![(0, 0); order.len()];
        let mut end = 0u64;
        for &id in &order {
            let Planned { dtype, shape, .. } = &self.tensors[id];
            // Saturates far above any file; the file system refuses it then.
            let bytes = size(*dtype, shape).unwrap_or(u64::MAX);
            places[id] = (end, bytes);
            end = end.saturating_add(bytes);
        }
        let header = Header { tensors: &self.tensors, order: &order, places: &places, metadata };
        let head = header.bytes(output)?;
        let data_start = head.len() as u64;
        for (begin, _) in &mut places {
            *begin = begin.saturating_add(data_start);
        }
        Ok(Layout { head, places, file_bytes: end.saturating_add(data_start) })
    }
}

/// What the header says.
struct Header<'a> {
    tensors: &'a [Planned],
    order: &'a [usize],
    places: &'a [(u64, u64)],
    metadata: &'a BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Description<'a> {
    dtype: Dtype,
    shape: &'a [usize],
    data_offsets: (u64, u64),
}

impl Header<'_> {
    /// The length and the JSON, padded with spaces so that the data begins at a multiple of eight.
    fn bytes(&self, output: &Path) -> Result<Vec<u8>, ToolError> {
        let mut head = vec![0; LENGTH_BYTES as usize];
        let written = serde_json::to_writer(&mut head, self);
        written.map_err(|error| ToolError::file("write the header of", output)(error.into()))?;
        head.resize(head.len().next_multiple_of(8), b' ');
        let bytes = head.len() as u64 - LENGTH_BYTES;
        if bytes > LONGEST_HEADER {
            return Err(ToolError::HeaderTooLarge { bytes, limit: LONGEST_HEADER });
        }
        head[..LENGTH_BYTES as usize].copy_from_slice(&bytes.to_le_bytes());
        Ok(head)
    }
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA, self.metadata)?;
        }
        for &id in self.order {
            let (Planned { name, dtype, shape }, (begin, bytes)) = (&self.tensors[id], self.places[id]);
            let data_offsets = (begin, begin.saturating_add(bytes));
            map.serialize_entry(name, &Description { dtype: *dtype, shape, data_offsets })?;
        }
        map.end()
    }
}
