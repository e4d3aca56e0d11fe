//! Newton-Schulz orthogonalization by matrix products.
//!
//! Laws:
//! - X₀ is the matrix divided by its Frobenius norm, so no singular value is above 1. A step with coefficients
//!   (a, b, c) makes of X, with G the smaller of XXᵀ and XᵀX: T = bG + cGG, then aX + TX or aX + XT. That is the odd
//!   polynomial as + bs³ + cs⁵ of each singular value s; singular vectors stay.
//! - Everything is bf16 with sums in f32, and the result is widened once (source of coefficients, and that bf16 is
//!   enough: Jordan and others, "Muon", 2024).
//! - Half of the result's memory holds every other X: what is kept besides is one X and two matrices of the smaller
//!   side.

use std::rc::Rc;

use half::bf16;

use super::blas::{Blas, Scratch};
use super::factor::{Element, Factor, ProductSpec, Scale};
use super::lent::{Lent, LentMut};
use super::product::{Product, Scaled, Weighted};
use crate::failure::CudaFailure;
use crate::kernels::{KernelLaunch, OrthogonalizeKernels};
use crate::surface::{CudaHandles, DeviceSlice, DeviceSliceMut};
use warpweft_format::Shape;

/// The products and kernels of one shape.
#[derive(Debug)]
pub(crate) struct NewtonSchulz {
    shape: Shape,
    steps: Vec<[f32; 3]>,
    /// X into G, G into T, T and X into the next X.
    products: [Product; 3],
    kernels: OrthogonalizeKernels,
    partial: Scratch,
    x: Scratch,
    gram: Scratch,
    polynomial: Scratch,
    blas: Rc<Blas>,
}

impl NewtonSchulz {
    /// The shape was checked: it has elements, and no side is beyond what products take.
    pub(crate) fn new(blas: &Rc<Blas>, shape: Shape, steps: &[[f32; 3]]) -> Result<Self, CudaFailure> {
        let side = shape.rows.min(shape.cols);
        let [gram, polynomial, next] = specs(shape);
        let bf16s = |elements: usize| blas.scratch(elements * size_of::<bf16>());
        Ok(Self {
            shape,
            steps: steps.to_vec(),
            products: [Product::new(blas, gram)?, Product::new(blas, polynomial)?, Product::new(blas, next)?],
            kernels: blas.kernels().orthogonalize()?,
            partial: blas.scratch(OrthogonalizeKernels::PARTIAL_BYTES)?,
            x: bf16s(shape.elements())?,
            gram: bf16s(side * side)?,
            polynomial: bf16s(side * side)?,
            blas: Rc::clone(blas),
        })
    }

    /// Enqueues the whole of it. Lengths and alignments were checked.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a stream of another GPU or lane; [`CudaFailure::Call`].
    pub(crate) fn enqueue(
        &mut self,
        handles: &CudaHandles,
        matrix: DeviceSlice<'_, f32>,
        result: DeviceSliceMut<'_, f32>,
    ) -> Result<(), CudaFailure> {
        self.blas.check(handles)?;
        let (wide, elements) = (result.address(), self.shape.elements());
        let (own, half) = (self.x.write(), LentMut::new(wide, elements * size_of::<bf16>()));
        // The last X is widened to where `half` is, so it must be the own one.
        let places = if self.steps.len().is_multiple_of(2) { [own, half] } else { [half, own] };
        let partial = self.partial.write().address();
        for launch in self.kernels.normalize(matrix.address(), partial, places[0].address(), elements)? {
            enqueue(handles, &launch)?;
        }
        let mut matrices = [self.gram.write(), self.polynomial.write()];
        for (step, coefficients) in self.steps.iter().enumerate() {
            let (x, next) = (&places[step % 2], &places[(step + 1) % 2]);
            let step = (is_wide(self.shape), *coefficients);
            enqueue_step(&mut self.products, handles, step, x.as_lent(), &mut matrices, next)?;
        }
        enqueue(handles, &self.kernels.widen(self.x.read().address(), wide, elements)?)
    }
}

/// The next X.
fn enqueue_step(
    [gram, polynomial, apply]: &mut [Product; 3],
    handles: &CudaHandles,
    (is_wide, [a, b, c]): (bool, [f32; 3]),
    x: Lent<'_>,
    [g, t]: &mut [LentMut<'_>; 2],
    next: &LentMut<'_>,
) -> Result<(), CudaFailure> {
    let again = |lent: &LentMut<'_>| LentMut::new(lent.address(), lent.bytes());
    gram.enqueue(handles, plain(x), plain(x), None, again(g))?;
    let sum = Weighted { product: c, addend: Some((b, g.as_lent())) };
    polynomial.enqueue_weighted(handles, plain(g.as_lent()), plain(g.as_lent()), sum, again(t))?;
    let sum = Weighted { product: 1.0, addend: Some((a, x)) };
    let [first, second] = if is_wide { [x, t.as_lent()] } else { [t.as_lent(), x] };
    apply.enqueue_weighted(handles, plain(first), plain(second), sum, again(next))
}

/// More columns than rows, or as many: then the smaller product is XXᵀ.
const fn is_wide(shape: Shape) -> bool {
    shape.rows <= shape.cols
}

/// X into G, G into GG, X and T into the next X. A row-major matrix is its transpose, column by column, so what is
/// computed of X is (XT)ᵀ = TXᵀ, or (TX)ᵀ = XᵀT; G and T are their own transposes.
fn specs(shape: Shape) -> [ProductSpec; 3] {
    let Shape { rows, cols } = shape;
    let side = rows.min(cols);
    let factor = |contiguous, pitch| Factor { element: Element::Bf16, contiguous, pitch, scale: Scale::None };
    let square = |inner, factor| {
        let (a, b) = (factor, factor);
        ProductSpec { rows: side, cols: side, inner, a, b, d: Element::Bf16, pitch: side }
    };
    let is_wide = is_wide(shape);
    let symmetric = factor(true, side);
    let (a, b) = if is_wide { (factor(false, cols), symmetric) } else { (symmetric, factor(true, cols)) };
    [
        square(rows.max(cols), factor(is_wide, cols)),
        square(side, symmetric),
        ProductSpec { rows: cols, cols: rows, inner: side, a, b, d: Element::Bf16, pitch: cols },
    ]
}

const fn plain(values: Lent<'_>) -> Scaled<'_> {
    Scaled { values, scale: None, amax: None }
}

fn enqueue(handles: &CudaHandles, launch: &KernelLaunch) -> Result<(), CudaFailure> {
    // SAFETY: the handles were checked: their context is current, and they are of the GPU the kernels were loaded for.
    // Every matrix was lent with its length or is the caller's own, and a launch without a table need not outlive its
    // enqueuing: its arguments are copied. The kernels keep their module, and what is captured outlives neither it
    // nor the scratch (RH-1).
    handles.driver(|| unsafe { launch.enqueue(handles.stream()) })
}
