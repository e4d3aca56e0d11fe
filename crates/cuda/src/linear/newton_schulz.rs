//! Newton-Schulz orthogonalization for custom optimizers such as Muon.

use super::device::Device;
use crate::CudaFailure;
use crate::gemm;
use crate::{CudaHandles, DeviceSlice, DeviceSliceMut};
use warpweft_format::{ElementType, Shape};

/// The nearly orthogonal matrix of a matrix: the one with the same singular vectors, and singular values near 1.
///
/// This is what Muon does to the momentum of a weight, on the rank that has it whole: from
/// [`Optimizer::transform`](warpweft_plan::compute::Optimizer::transform), with `matrix` and `transformed` of its
/// [`TransformContext`](warpweft_plan::compute::TransformContext). One value serves all matrices of one shape
/// on one lane, as a [`Linear`](super::Linear) does, and keeps **LI-1** to **LI-4**.
///
/// The matrix is divided by its Frobenius norm. Then every triple (a, b, c) of the coefficients makes of each singular
/// value s the value as + bs³ + cs⁵. Matrices are bf16 between the products; sums are f32. A step takes
/// 4·l·s² + 2·s³ flops for a matrix whose smaller side is s and whose larger is l. On the GPU it keeps
/// 2·l·s + 4·s² bytes.
#[derive(Debug)]
pub struct NewtonSchulz {
    products: gemm::NewtonSchulz,
    shape: Shape,
}

impl NewtonSchulz {
    /// The quintic of Muon, five times (source: Jordan and others, "Muon: An optimizer for hidden layers in neural
    /// networks", 2024). It brings singular values from 0.002 on to between 0.68 and 1.21, and does not go on to 1.
    pub const QUINTIC: [[f32; 3]; 5] = [[3.4445, -4.7750, 2.0315]; 5];

    /// Chooses the products of matrices of `shape`. Without coefficients a matrix is normalized and nothing else.
    ///
    /// # Errors
    /// [`CudaFailure::NoMatrix`] for a shape without elements, [`CudaFailure::TooLarge`], and [`CudaFailure::Call`],
    /// also when memory is short.
    pub fn new(device: &Device, shape: Shape, coefficients: &[[f32; 3]]) -> Result<Self, CudaFailure> {
        if shape.elements() == 0 {
            return Err(CudaFailure::NoMatrix { shape });
        }
        let largest = 1_usize << 31;
        for (what, size) in [("rows", shape.rows), ("columns", shape.cols)] {
            if size > largest {
                return Err(CudaFailure::TooLarge { what, size, largest });
            }
        }
        Ok(Self { products: gemm::NewtonSchulz::new(&device.blas, shape, coefficients)?, shape })
    }

    /// Enqueues all steps on the stream of `handles`: `result` becomes the nearly orthogonal matrix of `matrix`, both
    /// f32 `[rows, columns]`. Zeros stay zeros. What of a matrix is not finite, is not finite after it.
    ///
    /// # Errors
    /// [`CudaFailure::Operand`] and [`CudaFailure::Misaligned`] before anything is enqueued; [`CudaFailure::Call`].
    pub fn enqueue(
        &mut self,
        handles: &CudaHandles,
        matrix: DeviceSlice<'_, f32>,
        result: DeviceSliceMut<'_, f32>,
    ) -> Result<(), CudaFailure> {
        let given = [
            ("the matrix", matrix.len(), matrix.address(), 16),
            ("the nearly orthogonal matrix", result.len(), result.address(), gemm::Kept::ALIGNMENT),
        ];
        for (what, actual, address, multiple) in given {
            let (expected, element, wanted) = (self.shape.elements(), ElementType::F32, ElementType::F32);
            if actual != expected {
                return Err(CudaFailure::Operand { what, actual, element, expected, wanted });
            }
            let address = address.number();
            if !address.is_multiple_of(multiple as u64) {
                return Err(CudaFailure::Misaligned { what, address, multiple });
            }
        }
        self.products.enqueue(handles, matrix, result)
    }
}
