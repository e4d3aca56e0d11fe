//! Checks of operands before a table is built.

use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{Format, FormatError, Orientation, PlaneKind, PlaneSpec, Shape};

/// Refuses an address that is not a multiple of the size of what is there; a null one passes.
pub(super) fn element_aligned(what: &str, address: DeviceAddress, bytes: u64) -> Result<(), CudaFailure> {
    if address.number().is_multiple_of(bytes) {
        return Ok(());
    }
    Err(CudaFailure::Refused(format!("{what} at {address} does not begin at a multiple of {bytes} bytes")))
}

/// Refuses a null address.
pub(super) fn present(what: &str, address: DeviceAddress) -> Result<(), CudaFailure> {
    if address == DeviceAddress::NULL {
        return Err(CudaFailure::Refused(format!("{what} has no address")));
    }
    Ok(())
}

/// A number of rows, columns or entries as kernels take it.
pub(super) fn narrow(what: &str, number: usize) -> Result<u32, CudaFailure> {
    u32::try_from(number)
        .map_err(|_| CudaFailure::Refused(format!("{number} {what} are more than kernels count")))
}

/// A refusal of the format.
pub(super) fn refused(error: FormatError) -> CudaFailure {
    CudaFailure::Refused(error.to_string())
}

/// The scale plane among `planes`.
pub(super) fn scale_plane(planes: &[PlaneSpec]) -> Option<&PlaneSpec> {
    planes.iter().find(|plane| plane.kind == PlaneKind::Scale)
}

/// Entries per row of the scale plane of a weight; 0 without one.
pub(super) fn scale_pitch(format: Format, orientation: Orientation, shape: Shape) -> usize {
    scale_plane(&format.planes(orientation, shape)).map_or(0, |plane| plane.cols)
}

/// Refuses a shape whose columns do not divide into the format's blocks. Zero rows are fine.
pub(super) fn divides(format: Format, shape: Shape) -> Result<(), CudaFailure> {
    if shape.rows == 0 || shape.cols == 0 {
        return Ok(());
    }
    format.check_shape(shape).map_err(refused)
}
