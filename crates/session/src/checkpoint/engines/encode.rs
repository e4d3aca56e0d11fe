//! Rows of a weight, quantized and laid out as a dialect stores them.
//!
//! Law: codes and scales are those of `warpweft_format`, bit for bit. Here rows are cropped and the one scale row of
//! a 16×16 tile is repeated for each of its rows; nothing is computed.

use std::borrow::Cow;

use warpweft_format::{
    Directions, Format, FormatError, Orientation, OwnedPlanes, PlaneKind, PlaneSpec, Planes, Shape, Via,
    dequantize, partial_cast, quantize, quantize_shard,
};

use super::encoding::Encoding;

/// Quantized rows of one weight.
pub(crate) struct EncodedRows {
    format: Format,
    shape: Shape,
    planes: OwnedPlanes,
    /// The scale plane as `planes` has it.
    scale: Option<PlaneSpec>,
    /// What dequantizing needs besides the planes: the amax in NVFP4, the scale in FP8 by tensors, else 1.
    pub(crate) tensor_scale: f32,
}

impl EncodedRows {
    /// Rows in FP8 by tensors, by the factor of delayed scaling that training used.
    pub(crate) fn delayed(
        format: Format,
        via: Via,
        shape: Shape,
        values: &[f32],
        factor: f32,
    ) -> Result<Self, FormatError> {
        let mut planes = OwnedPlanes::zeroed(format, Orientation::Rowwise, shape);
        partial_cast(format, Orientation::Rowwise, via, shape, values, &[factor], &mut planes.data)?;
        Ok(Self { format, shape, planes, scale: None, tensor_scale: 1.0 / factor })
    }

    /// Quantizes rows that begin at a multiple of [`ROWS_OF_BLOCKS`] of the weight. `amax` is that of the whole weight,
    /// or of all weights that share its scale.
    pub(crate) fn quantize(
        format: Format,
        via: Via,
        shape: Shape,
        values: &[f32],
        amax: f32,
    ) -> Result<Self, FormatError> {
        let specs;
        let (planes, tensor_scale) = if format.needs_tensor_amax() {
            let (planes, scale) = quantize_shard(format, via, shape, values, |_| Ok::<_, FormatError>(amax))?;
            specs = format.compact_planes(Orientation::Rowwise, shape);
            (planes.into_iter().next(), scale)
        } else {
            specs = format.planes(Orientation::Rowwise, shape);
            (quantize(format, Directions::Rowwise, via, shape, values)?.rowwise, 1.0)
        };
        let planes = planes.ok_or(FormatError::MissingPlanes { orientation: Orientation::Rowwise })?;
        let scale = specs.into_iter().find(|spec| spec.kind == PlaneKind::Scale);
        Ok(Self { format, shape, planes, scale, tensor_scale })
    }

    /// The codes, without rows that complete a block.
    pub(crate) fn codes(&self) -> &[u8] {
        let bytes = match self.format {
            Format::Nvfp4(_) => self.shape.elements() / 2,
            _ => self.shape.elements(),
        };
        &self.planes.data[..bytes]
    }

    /// The scales of the blocks, without padding, in the rows that the dialects have.
    pub(crate) fn scales(&self) -> Cow<'_, [u8]> {
        let (Some(spec), Some(encoding)) = (&self.scale, Encoding::of(self.format)) else {
            return Cow::Borrowed(&[]);
        };
        let Shape { rows, cols } = self.shape;
        // Rows in the dialect, bytes of one, and for how many of them a row of the plane stands.
        let (rows, bytes, copies) = match encoding {
            Encoding::Nvfp4 if self.format == Format::NVFP4_2D => (rows, cols / 16, TILE),
            Encoding::Nvfp4 => (rows, cols / 16, 1),
            Encoding::Mxfp8 => (rows, cols / 32, 1),
            Encoding::Fp8Block => (rows.div_ceil(128), cols.div_ceil(128) * size_of::<f32>(), 1),
            Encoding::Fp8Tensor | Encoding::Fp8Channel => return Cow::Borrowed(&[]),
        };
        let mut scales = Vec::with_capacity((rows + copies) * bytes);
        for line in self.planes.scale.chunks_exact(spec.row_bytes()) {
            (0..copies).for_each(|_| scales.extend_from_slice(&line[..bytes]));
        }
        scales.truncate(rows * bytes);
        Cow::Owned(scales)
    }

    /// The values of the first `rows`, a multiple of [`ROWS_OF_BLOCKS`] or all, that training computes with.
    pub(crate) fn first_values(&self, rows: usize) -> Result<Vec<f32>, FormatError> {
        let shape = Shape { rows, ..self.shape };
        let data = self.format.compact_planes(Orientation::Rowwise, shape);
        let bytes = data.iter().find(|spec| spec.kind == PlaneKind::Data).map_or(0, PlaneSpec::bytes);
        // Of the plane that was made: compact, or padded.
        let specs = if self.format.needs_tensor_amax() {
            data
        } else {
            self.format.planes(Orientation::Rowwise, shape)
        };
        let scale = specs.iter().find(|spec| spec.kind == PlaneKind::Scale).map_or(0, PlaneSpec::bytes);
        let planes = Planes { data: &self.planes.data[..bytes], scale: &self.planes.scale[..scale] };
        let mut values = vec![0.0; shape.elements()];
        dequantize(self.format, Orientation::Rowwise, shape, planes, self.tensor_scale, &mut values)?;
        Ok(values)
    }
}

/// Rows of a tile of NVFP4.
const TILE: usize = 16;

/// A multiple of the rows of every block.
pub(crate) const ROWS_OF_BLOCKS: usize = 128;
