//! A quantized weight, or a shard of one, that owns its planes.
//!
//! Laws:
//! - **QW-1** swizzled scales are never gathered, transposed, dequantized or viewed.
//! - **QW-2** an operation that fails leaves the weight as it was; one that succeeds keeps the addresses of
//!   planes that existed before.
//!
//! For tools, checkpoints and tests. A training step keeps its planes in an arena and uses the stages.

use super::format::Format;
use super::shape::{Orientation, PlaneKind, Planes, PlanesMut, Shape};
use super::swizzle::{ScaleLayout, swizzle_scale};
use super::{FormatError, dequantize, transpose};

/// The planes of one orientation, with padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedPlanes {
    /// The data plane.
    pub data: Vec<u8>,
    /// The scale plane; empty if the format has none.
    pub scale: Vec<u8>,
}

impl OwnedPlanes {
    /// Zeroed planes for a full weight of `shape`.
    #[must_use]
    pub fn zeroed(format: Format, orientation: Orientation, shape: Shape) -> Self {
        Self {
            data: vec![0; format.data_plane(orientation, shape).bytes()],
            scale: vec![0; format.scale_bytes(orientation, shape).padded],
        }
    }

    /// The plane of this kind.
    #[must_use]
    pub fn of(&self, kind: PlaneKind) -> &[u8] {
        match kind {
            PlaneKind::Data => &self.data,
            PlaneKind::Scale => &self.scale,
        }
    }

    /// The planes, borrowed.
    #[must_use]
    pub fn as_planes(&self) -> Planes<'_> {
        Planes { data: &self.data, scale: &self.scale }
    }

    /// The planes, borrowed to be written.
    #[must_use]
    pub fn as_planes_mut(&mut self) -> PlanesMut<'_> {
        PlanesMut { data: &mut self.data, scale: &mut self.scale }
    }
}

/// A quantized weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    /// How it is encoded.
    pub format: Format,
    /// Its logical shape.
    pub shape: Shape,
    /// Largest magnitude, after the rounding of [`super::Via`]; 0 for f32 and bf16, whose stages need none.
    /// Chunks keep the amax of the whole weight ([`Quantized::split_rows`]).
    pub amax: f32,
    /// What dequantize needs besides the planes; see [`super::fused_scale`].
    pub tensor_scale: f32,
    /// How the scale planes are laid out.
    pub scale_layout: ScaleLayout,
    /// Rowwise planes, if requested.
    pub rowwise: Option<OwnedPlanes>,
    /// Columnwise planes, if requested.
    pub columnwise: Option<OwnedPlanes>,
}

impl Quantized {
    /// The planes of `orientation`, with row-major scales.
    ///
    /// # Errors
    /// [`FormatError::MissingPlanes`]; [`FormatError::Swizzled`], which says that they cannot be `what`.
    pub(super) fn row_major(
        &self,
        orientation: Orientation,
        what: &'static str,
    ) -> Result<&OwnedPlanes, FormatError> {
        if self.scale_layout == ScaleLayout::Swizzled {
            return Err(FormatError::Swizzled { format: self.format, what });
        }
        let planes = match orientation {
            Orientation::Rowwise => &self.rowwise,
            Orientation::Columnwise => &self.columnwise,
        };
        planes.as_ref().ok_or(FormatError::MissingPlanes { orientation })
    }

    /// The values: `[rows, cols]` from rowwise planes, `[cols, rows]` from columnwise ones.
    ///
    /// # Errors
    /// The planes are absent or swizzled.
    pub fn dequantize(&self, orientation: Orientation) -> Result<Vec<f32>, FormatError> {
        let planes = self.row_major(orientation, "dequantized")?;
        let mut values = vec![0.0; self.shape.elements()];
        dequantize(self.format, orientation, self.shape, planes.as_planes(), self.tensor_scale, &mut values)?;
        Ok(values)
    }

    /// Makes the columnwise planes from the rowwise ones, in place if there were any.
    ///
    /// # Errors
    /// The rowwise planes are absent or swizzled; the format does not derive.
    pub fn derive_columnwise(&mut self) -> Result<(), FormatError> {
        self.row_major(Orientation::Rowwise, "transposed")?;
        self.format.derives_columnwise()?;
        let (format, shape) = (self.format, self.shape);
        if let Some(rowwise) = &self.rowwise {
            let columnwise = self
                .columnwise
                .get_or_insert_with(|| OwnedPlanes::zeroed(format, Orientation::Columnwise, shape));
            transpose(format, shape, rowwise.as_planes(), columnwise.as_planes_mut())?;
        }
        Ok(())
    }

    /// Puts the scale planes into the layout a GEMM reads. Does nothing if they already have it.
    ///
    /// # Errors
    /// [`FormatError::NoSwizzledLayout`].
    pub fn swizzle(&mut self) -> Result<(), FormatError> {
        if self.scale_layout == ScaleLayout::Swizzled {
            return Ok(());
        }
        let swizzled = |orientation, planes: &Option<OwnedPlanes>| -> Result<Option<Vec<u8>>, FormatError> {
            let Some(planes) = planes else {
                return Ok(None);
            };
            let mut swizzled = vec![0; self.format.scale_bytes(orientation, self.shape).padded];
            swizzle_scale(self.format, orientation, self.shape, &planes.scale, &mut swizzled)?;
            Ok(Some(swizzled))
        };
        let rowwise = swizzled(Orientation::Rowwise, &self.rowwise)?;
        let columnwise = swizzled(Orientation::Columnwise, &self.columnwise)?;
        for (planes, scale) in [(&mut self.rowwise, rowwise), (&mut self.columnwise, columnwise)] {
            if let (Some(planes), Some(scale)) = (planes, scale) {
                planes.scale.copy_from_slice(&scale);
            }
        }
        self.scale_layout = ScaleLayout::Swizzled;
        Ok(())
    }
}
