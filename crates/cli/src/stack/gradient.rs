//! The memory of weight gradients in the resident stack.
//!
//! Law: it has the element type of the sharded variants', so that both are measured with the same products.

use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{Device, DeviceBuffer, Elementwise, Output, Queue};
use warpweft_format::ElementType;

/// Memory for one gradient.
pub(super) enum Gradient {
    Bf16(DeviceBuffer<bf16>),
    F32(DeviceBuffer<f32>),
}

impl Gradient {
    /// Room for `elements` of `element`, which is bf16 or f32.
    pub(super) fn new(device: &Device, element: ElementType, elements: usize) -> Result<Self, CudaFailure> {
        match element {
            ElementType::Bf16 => Ok(Self::Bf16(device.buffer(elements)?)),
            ElementType::F32 => Ok(Self::F32(device.buffer(elements)?)),
            ElementType::U8 | ElementType::U32 => Err(CudaFailure::Result { element }),
        }
    }

    pub(super) fn lend(&mut self) -> Output<'_> {
        match self {
            Self::Bf16(buffer) => buffer.write().into(),
            Self::F32(buffer) => buffer.write().into(),
        }
    }

    /// The sum of all squares; of f32 on the host, since no step is timed any more. `sum` is scratch of one
    /// element.
    pub(super) fn sum_of_squares(
        &self,
        elementwise: &mut Elementwise,
        queue: &Queue,
        sum: &mut DeviceBuffer<f32>,
    ) -> Result<f64, CudaFailure> {
        match self {
            Self::Bf16(buffer) => {
                elementwise.sum_of_squares(queue.handles(), buffer.read(), sum.write())?;
                let found = queue.download(sum)?;
                Ok(found.first().copied().map_or(f64::NAN, f64::from))
            }
            Self::F32(buffer) => {
                let squares = queue.download(buffer)?.into_iter().map(|value| f64::from(value).powi(2));
                Ok(squares.sum())
            }
        }
    }
}
