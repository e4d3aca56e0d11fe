//! Elementwise work of a lane, as a closure enqueues it.

use std::rc::Rc;

use half::bf16;

use super::blas::{Blas, Scratch};
use crate::failure::CudaFailure;
use crate::kernels::{ElementwiseKernels, KernelLaunch, Summed};
use crate::surface::{CudaHandles, DeviceSlice, DeviceSliceMut};

/// The kernels, with room for the parts of a sum.
#[derive(Debug)]
pub(crate) struct Elementwise {
    kernels: ElementwiseKernels,
    partial: Scratch,
    blas: Rc<Blas>,
}

impl Elementwise {
    pub(crate) fn new(blas: &Rc<Blas>) -> Result<Self, CudaFailure> {
        blas.make_current()?;
        Ok(Self {
            kernels: blas.kernels().elementwise()?,
            partial: blas.scratch(ElementwiseKernels::PARTIAL_BYTES)?,
            blas: Rc::clone(blas),
        })
    }

    pub(crate) fn gelu(
        &self,
        handles: &CudaHandles,
        x: DeviceSlice<'_, bf16>,
        y: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        alike(x.len(), y.len())?;
        self.enqueue(handles, &self.kernels.gelu(x.address(), y.address(), y.len())?)
    }

    pub(crate) fn gelu_backward(
        &self,
        handles: &CudaHandles,
        x: DeviceSlice<'_, bf16>,
        gradient: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        alike(x.len(), gradient.len())?;
        let launch = self.kernels.gelu_backward(x.address(), gradient.address(), gradient.len())?;
        self.enqueue(handles, &launch)
    }

    pub(crate) fn fill(
        &self,
        handles: &CudaHandles,
        value: f32,
        y: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        self.enqueue(handles, &self.kernels.fill(value, y.address(), y.len())?)
    }

    pub(crate) fn uniform(
        &self,
        handles: &CudaHandles,
        seed: u32,
        scale: f32,
        y: DeviceSliceMut<'_, bf16>,
    ) -> Result<(), CudaFailure> {
        self.enqueue(handles, &self.kernels.uniform(seed, scale, y.address(), y.len())?)
    }

    pub(crate) fn sum(
        &mut self,
        handles: &CudaHandles,
        summed: Summed,
        x: DeviceSlice<'_, bf16>,
        sum: DeviceSliceMut<'_, f32>,
    ) -> Result<(), CudaFailure> {
        if sum.is_empty() {
            return Err(CudaFailure::Refused("a sum needs one element to be written to".to_owned()));
        }
        self.blas.check(handles)?;
        let partial = self.partial.write().address();
        let launches = self.kernels.sum(summed, x.address(), partial, sum.address(), x.len())?;
        launches.iter().try_for_each(|launch| self.enqueue(handles, launch))
    }

    fn enqueue(&self, handles: &CudaHandles, launch: &KernelLaunch) -> Result<(), CudaFailure> {
        self.blas.check_device(handles)?;
        // SAFETY: the handles' context is current, and they are of the GPU the kernels were loaded for. Every
        // vector was lent with its length, which is the launch's, and the parts are this value's own. A
        // launch without a table need not outlive its enqueuing: its arguments are copied. `kernels` keeps
        // the module, and what is captured outlives neither it nor the parts (RH-1).
        handles.driver(|| unsafe { launch.enqueue(handles.stream()) })
    }
}

fn alike(given: usize, wanted: usize) -> Result<(), CudaFailure> {
    if given == wanted {
        return Ok(());
    }
    Err(CudaFailure::Refused(format!("{given} values cannot become {wanted}")))
}
