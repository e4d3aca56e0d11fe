//! Scales of weights as block-scaled products read them.
//!
//! Law: a weight's own planes stay as gathers and transpositions left them. The swizzled copy is made anew by
//! every product, because the next weight of the layer takes its place.

use std::rc::Rc;

use super::blas::{Blas, Scratch};
use super::product::Scaled;
use crate::failure::CudaFailure;
use crate::kernels::ScaleSwizzler;
use crate::surface::CudaHandles;
use warpweft_format::{Format, Orientation, PlaneSpec, Shape};

/// Room for the swizzled scales of one orientation of weights of one shape.
#[derive(Debug)]
pub(crate) struct Swizzled {
    swizzler: ScaleSwizzler,
    scale: Scratch,
    blas: Rc<Blas>,
}

impl Swizzled {
    /// For weights of `shape` in MXFP8 or NVFP4.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for another format and columns that do not divide into blocks; no memory.
    pub(crate) fn new(
        blas: &Rc<Blas>,
        format: Format,
        orientation: Orientation,
        shape: Shape,
    ) -> Result<Self, CudaFailure> {
        blas.make_current()?;
        let swizzler = blas.kernels().scale_swizzler(format, orientation, shape)?;
        let bytes = format.planes(orientation, shape).get(1).map_or(0, PlaneSpec::bytes);
        Ok(Self { swizzler, scale: blas.scratch(bytes)?, blas: Rc::clone(blas) })
    }

    /// The weight with its scales swizzled, once what is enqueued here has run. Allocates nothing and waits for
    /// nothing.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a stream of another GPU, and for scales that are absent, too few or
    /// misaligned.
    pub(crate) fn enqueue<'s>(
        &'s mut self,
        handles: &CudaHandles,
        weight: Scaled<'s>,
    ) -> Result<Scaled<'s>, CudaFailure> {
        self.blas.check(handles)?;
        let swizzled = self.scale.write();
        let scale = weight.scale.filter(|scale| scale.bytes() >= swizzled.bytes()).ok_or_else(|| {
            CudaFailure::Refused(format!(
                "a weight came without the {} bytes of its scales",
                swizzled.bytes()
            ))
        })?;
        let launch = self.swizzler.launch(scale.address(), swizzled.address())?;
        // SAFETY: the handles' context is current, and they are of the GPU the kernel was loaded for. The scales
        // were lent with their length, and the copy is this value's own and as long. A launch without a table
        // need not outlive its enqueuing: its arguments are copied. The swizzler keeps the module, and what is
        // captured outlives neither it nor the copy (RH-1).
        handles.driver(|| unsafe { launch.enqueue(handles.stream()) })?;
        Ok(Scaled { scale: Some(self.scale.read()), ..weight })
    }
}
