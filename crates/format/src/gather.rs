//! The bytes that a row shard sends, and the full weight that receives them.
//!
//! Laws:
//! - **GA-1** a shard sends its data plane and the valid rows of its scale plane, both as they lie in memory:
//!   no padding row travels, so shards laid end to end are the weight.
//! - **GA-2** receiving writes the first rows of the planes the weight already has and zeroes the padding
//!   below: no address changes.
//! - **GA-3** everything is checked before a byte is written.
//!
//! The tensor scale is not gathered: every rank computed the same one.

use super::FormatError;
use super::quantized::Quantized;
use super::shape::{Orientation, Planes, Shape};

impl Quantized {
    /// The planes this shard contributes to a gather of `orientation` (GA-1).
    ///
    /// # Errors
    /// [`FormatError::Swizzled`], before anything else is checked; a format that cannot be sharded; rows
    /// that are no multiple of [`super::Format::row_tile`]; planes that are absent or not of this shape.
    pub fn sent_planes(&self, orientation: Orientation) -> Result<Planes<'_>, FormatError> {
        let planes = self.row_major(orientation, "gathered")?;
        self.format.check_weight()?;
        let multiple = self.format.row_tile();
        if !self.shape.rows.is_multiple_of(multiple) {
            return Err(FormatError::RowsNotAligned { format: self.format, shape: self.shape, multiple });
        }
        let data = self.format.data_plane(orientation, self.shape).bytes();
        if planes.data.len() != data {
            let actual = planes.data.len();
            return Err(FormatError::Length { what: "the data plane", expected: data, actual });
        }
        let scale = self.format.scale_bytes(orientation, self.shape);
        match planes.scale.get(..scale.shard) {
            Some(valid) if planes.scale.len() == scale.shard || planes.scale.len() == scale.padded => {
                Ok(Planes { data: &planes.data, scale: valid })
            }
            _ => Err(FormatError::ScaleLength {
                orientation,
                shard: scale.shard,
                padded: scale.padded,
                actual: planes.scale.len(),
            }),
        }
    }

    /// Receives the planes of all shards, in row order, into the planes of `orientation` (GA-2). The rows of the last
    /// shard complete the last blocks ([`super::Format::whole_blocks`]). Columnwise planes that exist and derive from
    /// the rowwise ones are derived again.
    ///
    /// `amax` and `tensor_scale` are those all shards were quantized with.
    ///
    /// # Errors
    /// Shards that are not whole blocks of rows of this weight; planes that are absent or swizzled.
    pub fn receive(
        &mut self,
        orientation: Orientation,
        amax: f32,
        tensor_scale: f32,
        shards: &[Planes<'_>],
    ) -> Result<(), FormatError> {
        let format = self.format;
        self.row_major(orientation, "overwritten by a gather")?;
        format.check_weight()?;
        self.check_shards(orientation, shards)?;
        let planes = match orientation {
            Orientation::Rowwise => &mut self.rowwise,
            Orientation::Columnwise => &mut self.columnwise,
        };
        if let Some(planes) = planes {
            let valid = concatenate(&mut planes.data, shards.iter().map(|shard| shard.data));
            planes.data[valid..].fill(0);
            let valid = concatenate(&mut planes.scale, shards.iter().map(|shard| shard.scale));
            planes.scale[valid..].fill(0);
        }
        (self.amax, self.tensor_scale) = (amax, tensor_scale);
        if orientation == Orientation::Rowwise
            && self.columnwise.is_some()
            && format.derives_columnwise().is_ok()
        {
            self.derive_columnwise()?;
        }
        Ok(())
    }

    fn check_shards(&self, orientation: Orientation, shards: &[Planes<'_>]) -> Result<(), FormatError> {
        let (format, shape) = (self.format, self.shape);
        let mismatch = |shard, reason| FormatError::ShardMismatch { orientation, shard, shape, reason };
        let row_bytes =
            format.data_plane(orientation, Shape::new(1.max(format.row_tile()), shape.cols)).bytes();
        let mut rows = 0;
        for (at, shard) in shards.iter().enumerate() {
            if row_bytes == 0 || !shard.data.len().is_multiple_of(row_bytes) {
                return Err(mismatch(
                    at,
                    "its data is not a whole number of block rows; change the rows per rank",
                ));
            }
            let shard_rows = shard.data.len() / row_bytes * format.row_tile();
            let expected = format.scale_bytes(orientation, Shape::new(shard_rows, shape.cols)).shard;
            if shard.scale.len() != expected {
                return Err(mismatch(at, "its scales do not have the geometry of its data"));
            }
            rows += shard_rows;
        }
        if rows != format.whole_blocks(shape).rows {
            return Err(mismatch(
                shards.len(),
                "the shards before it do not add up to the rows of the weight",
            ));
        }
        Ok(())
    }
}

/// Copies `parts` one after the other; returns their total length.
fn concatenate<'a>(target: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut at = 0;
    for part in parts {
        target[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    at
}
