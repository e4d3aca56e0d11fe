//! Turns activations into operands, as a closure enqueues it.

use std::rc::Rc;

use cudarc::driver::result;

use super::blas::{Blas, Scratch};
use super::kept::Kept;
use super::lent::{Lent, LentMut};
use super::product::Scaled;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use crate::kernels::{ActivationOperand, ActivationQuantizer, ActivationSource, KernelLaunch};
use crate::surface::CudaHandles;
use warpweft_format::{Directions, FlatShard, Format, Shape};

/// What is made an operand: bf16 lines, `row_pitch` elements apart.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// As they are.
    Values(Lent<'a>),
    /// Their GELU, rounded to bf16.
    Gelu(Lent<'a>),
    /// The gradient of `x`, rounded to bf16, from that of its GELU, which is laid out alike.
    GeluGradient { x: Lent<'a>, gradient: Lent<'a> },
}

/// A bf16 matrix of one shape that is made an operand of products again and again, in memory of its own:
/// codes `[rows, cols]`, codes of the transpose `[cols, rows rounded up]` ([`Kept::pitch`]), and their scales,
/// laid out as products read them. Of NVFP4 there are codes along the rows alone.
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
    /// Scales of the transposed codes; where scales depend on the amax of the whole matrix, that amax.
    turned_scale: Scratch,
    /// What is kept of the transpose, where it is quantized.
    kept: Option<Kept>,
    blas: Rc<Blas>,
}

/// Where a quantization puts its results; null for codes that are not wanted.
struct Places {
    data: DeviceAddress,
    scale: DeviceAddress,
    columnwise_data: DeviceAddress,
    columnwise_scale: DeviceAddress,
}

impl Activation {
    /// Matrices of `shape` in `format`, FP8 in 1×128 blocks or with one scale, MXFP8, or NVFP4 in 1×16 blocks;
    /// their rows begin `row_pitch` elements apart.
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
        let kept = match format {
            Format::Nvfp4(_) => None,
            _ => Some(Kept::of(format, shape)),
        };
        // Of the tokens there are, not of whole blocks of them.
        let code_bytes = FlatShard { start: 0, len: shape.elements() }.fragment(format).len();
        Ok(Self {
            shape,
            row_pitch,
            quantizer: blas.kernels().activation_quantizer(format)?,
            codes: blas.scratch(code_bytes)?,
            turned: blas.scratch(kept.map_or(0, Kept::code_bytes))?,
            scale: blas.scratch(Kept::scales_of(format, shape))?,
            turned_scale: blas.scratch(kept.map_or(size_of::<f32>(), Kept::scale_bytes))?,
            kept,
            blas: Rc::clone(blas),
        })
    }

    /// The codes with their scales, as the last quantization of this direction left them.
    pub(crate) fn rowwise(&self) -> Scaled<'_> {
        // What has no transpose is NVFP4, whose scales are relative to the amax.
        let amax = if self.kept.is_none() { Some(self.turned_scale.read()) } else { None };
        Scaled { values: self.codes.read(), scale: Some(self.scale.read()), amax }
    }

    /// The codes of the transpose.
    pub(crate) fn columnwise(&self) -> Scaled<'_> {
        let scale = if self.quantizer.needs_amax() { &self.scale } else { &self.turned_scale };
        Scaled { values: self.turned.read(), scale: Some(scale.read()), amax: None }
    }

    /// The codes of the transpose as [`Activation::enqueue_keeping`] left them in `kept`.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for memory that is not what is kept.
    pub(crate) fn kept<'a>(&self, kept: Lent<'a>) -> Result<Scaled<'a>, CudaFailure> {
        Ok(self.parts(kept)?.factor(kept))
    }

    /// The parts of what is kept, if `kept` is that.
    fn parts(&self, kept: Lent<'_>) -> Result<Kept, CudaFailure> {
        let parts = self.kept.ok_or_else(|| {
            CudaFailure::Refused("nothing is kept of a matrix whose transpose is not quantized".to_owned())
        })?;
        parts.check(kept)?;
        Ok(parts)
    }

    /// Quantizes a matrix into memory of this value's own. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a stream of another GPU, and for too few or misaligned values.
    pub(crate) fn enqueue(
        &mut self,
        handles: &CudaHandles,
        source: Source<'_>,
        directions: Directions,
    ) -> Result<(), CudaFailure> {
        let wanted = |scratch: &mut Scratch, not: Directions| match directions == not {
            true => DeviceAddress::NULL,
            false => scratch.write().address(),
        };
        let places = Places {
            data: wanted(&mut self.codes, Directions::Columnwise),
            scale: self.scale.write().address(),
            columnwise_data: wanted(&mut self.turned, Directions::Rowwise),
            columnwise_scale: self.turned_scale.write().address(),
        };
        self.enqueue_into(handles, source, &places)
    }

    /// Quantizes a matrix in both directions, from one reading: codes of the transpose and their scales into
    /// `kept`, the codes that are returned into memory of this value's own.
    ///
    /// # Errors
    /// As [`Activation::enqueue`], and as [`Activation::kept`].
    pub(crate) fn enqueue_keeping<'s>(
        &'s mut self,
        handles: &CudaHandles,
        source: Source<'_>,
        kept: &LentMut<'s>,
    ) -> Result<Scaled<'s>, CudaFailure> {
        let kept = kept.as_lent();
        let parts = self.parts(kept)?;
        let scale = parts.scale(kept);
        let whole = self.quantizer.needs_amax();
        // One scale is that of both directions and is kept; its amax is not.
        let places = Places {
            data: self.codes.write().address(),
            scale: if whole { scale.address() } else { self.scale.write().address() },
            columnwise_data: parts.codes(kept).address(),
            columnwise_scale: if whole { self.turned_scale.write().address() } else { scale.address() },
        };
        self.enqueue_into(handles, source, &places)?;
        let scale = if whole { scale } else { self.scale.read() };
        Ok(Scaled { values: self.codes.read(), scale: Some(scale), amax: None })
    }

    fn enqueue_into(
        &self,
        handles: &CudaHandles,
        source: Source<'_>,
        places: &Places,
    ) -> Result<(), CudaFailure> {
        self.blas.check(handles)?;
        let (values, source) = match source {
            Source::Values(values) => (values, ActivationSource::Values),
            Source::Gelu(x) => (x, ActivationSource::Gelu),
            Source::GeluGradient { x, gradient } => {
                self.check("the gradient of GELU", gradient)?;
                (x, ActivationSource::GeluGradient(gradient.address()))
            }
        };
        self.check("activations", values)?;
        let Places { data, scale, columnwise_data, columnwise_scale } = *places;
        let operand = ActivationOperand {
            shape: self.shape,
            values: values.address(),
            row_pitch: self.row_pitch,
            data,
            scale,
            columnwise_data,
            columnwise_scale,
        };
        let cast = self.quantizer.cast_of(source, &operand)?;
        if self.quantizer.needs_amax() {
            let find = self.quantizer.amax(&operand)?;
            let amax = operand.columnwise_scale.number();
            // SAFETY: the word is this value's own, and the stream is alive.
            handles
                .driver(|| unsafe { result::memset_d8_async(amax, 0, size_of::<f32>(), handles.stream()) })
                .map_err(CudaFailure::driver("cuMemsetD8Async"))?;
            enqueue(handles, &find)?;
        }
        enqueue(handles, &cast)
    }

    /// Refuses values that are too few.
    fn check(&self, what: &str, values: Lent<'_>) -> Result<(), CudaFailure> {
        let elements = self.shape.rows.saturating_sub(1) * self.row_pitch + self.shape.cols;
        let needed = elements * size_of::<half::bf16>();
        if values.bytes() >= needed {
            return Ok(());
        }
        Err(CudaFailure::Refused(format!(
            "{what} of {} take {needed} bytes, and {} were given",
            self.shape,
            values.bytes()
        )))
    }
}

fn enqueue(handles: &CudaHandles, launch: &KernelLaunch) -> Result<(), CudaFailure> {
    // SAFETY: the handles' context is current, and they are of the GPU the kernels were loaded for. The sizes
    // of the values and of what is kept were checked; everything else is memory of the activation, made for
    // its shape. A launch without a table need not outlive its enqueuing: its arguments are copied. The
    // activation keeps the module, and what is captured outlives neither it nor that memory (RH-1).
    handles.driver(|| unsafe { launch.enqueue(handles.stream()) })
}
