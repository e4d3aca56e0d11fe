//! Activations made into operands, as a closure enqueues it.

use std::rc::Rc;

use cudarc::driver::result;

use super::super::address::DeviceAddress;
use super::super::failure::CudaFailure;
use super::super::kernels::{ActivationOperand, ActivationQuantizer, KernelLaunch};
use super::super::surface::CudaHandles;
use super::blas::{Blas, Scratch};
use super::lent::Lent;
use super::product::Scaled;
use crate::format::{Directions, Format, Orientation, PlaneKind, PlaneSpec, Shape};

/// A bf16 matrix of one shape that is made an operand of products again and again, in memory of its own: codes
/// `[rows, cols]`, codes of the transpose `[cols, rows rounded up to 16]`, and their scales.
#[derive(Debug)]
pub(crate) struct Activation {
    shape: Shape,
    /// Elements from one row of values to the next.
    row_pitch: usize,
    quantizer: ActivationQuantizer,
    codes: Scratch,
    turned: Scratch,
    /// Scales of the codes; one f32 for both where one holds for the whole matrix.
    scale: Scratch,
    /// Scales of the turned codes; where one scale holds for the whole matrix, its amax.
    turned_scale: Scratch,
    blas: Rc<Blas>,
}

impl Activation {
    /// Matrices of `shape` in `format`, FP8 in 1×128 blocks or with one scale; their rows begin `row_pitch` elements apart.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for another format; no memory.
    pub(crate) fn new(
        blas: &Rc<Blas>,
        format: Format,
        shape: Shape,
        row_pitch: usize,
    ) -> Result<Self, CudaFailure> {
        blas.make_current()?;
        let scale_bytes = |shape| {
            let planes = format.planes(Orientation::Rowwise, shape);
            let plane = planes.iter().find(|plane| plane.kind == PlaneKind::Scale);
            plane.map_or(size_of::<f32>(), PlaneSpec::bytes)
        };
        Ok(Self {
            shape,
            row_pitch,
            quantizer: blas.kernels().activation_quantizer(format)?,
            codes: blas.scratch(shape.elements())?,
            turned: blas.scratch(shape.cols * Self::turned_pitch(shape))?,
            scale: blas.scratch(scale_bytes(shape))?,
            turned_scale: blas.scratch(scale_bytes(shape.transposed()))?,
            blas: Rc::clone(blas),
        })
    }

    /// Elements of a line of turned codes. Those behind the last row are zero.
    pub(crate) const fn turned_pitch(shape: Shape) -> usize {
        shape.rows.next_multiple_of(16)
    }

    /// The codes with their scales, as the last quantization of this direction left them.
    pub(crate) const fn rowwise(&self) -> Scaled<'_> {
        Scaled { values: self.codes.read(), scale: Some(self.scale.read()) }
    }

    /// The codes of the transpose.
    pub(crate) const fn columnwise(&self) -> Scaled<'_> {
        let scale = if self.quantizer.needs_amax() { &self.scale } else { &self.turned_scale };
        Scaled { values: self.turned.read(), scale: Some(scale.read()) }
    }

    /// Quantizes `values`. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a stream of another GPU, and for values that are too few or misaligned.
    pub(crate) fn enqueue(
        &mut self,
        handles: &CudaHandles,
        values: Lent<'_>,
        directions: Directions,
    ) -> Result<(), CudaFailure> {
        self.blas.check(handles)?;
        let elements = self.shape.rows.saturating_sub(1) * self.row_pitch + self.shape.cols;
        let needed = elements * size_of::<half::bf16>();
        if values.bytes() < needed {
            return Err(CudaFailure::Refused(format!(
                "activations of {} take {needed} bytes, and {} were given",
                self.shape,
                values.bytes()
            )));
        }
        let wanted = |scratch: &mut Scratch, not: Directions| match directions == not {
            true => DeviceAddress::NULL,
            false => scratch.write().address(),
        };
        let operand = ActivationOperand {
            shape: self.shape,
            values: values.address(),
            row_pitch: self.row_pitch,
            data: wanted(&mut self.codes, Directions::Columnwise),
            scale: self.scale.write().address(),
            columnwise_data: wanted(&mut self.turned, Directions::Rowwise),
            columnwise_scale: self.turned_scale.write().address(),
        };
        if self.quantizer.needs_amax() {
            let amax = operand.columnwise_scale.number();
            // SAFETY: the word is this value's own, and the stream is alive.
            handles
                .driver(|| unsafe { result::memset_d8_async(amax, 0, size_of::<f32>(), handles.stream()) })
                .map_err(CudaFailure::driver("cuMemsetD8Async"))?;
            enqueue(handles, &self.quantizer.amax(&operand)?)?;
        }
        enqueue(handles, &self.quantizer.cast(&operand)?)
    }
}

fn enqueue(handles: &CudaHandles, launch: &KernelLaunch) -> Result<(), CudaFailure> {
    // SAFETY: the handles' context is current, and they are of the GPU the kernels were loaded for. The values were
    // measured; everything else is memory of the activation, made for its shape. A launch without a table needs not
    // outlive its enqueuing: its arguments are copied, and the activation keeps the module.
    handles.driver(|| unsafe { launch.enqueue(handles.stream()) })
}
