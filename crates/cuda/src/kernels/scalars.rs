//! Alpha and beta of products in NVFP4: `product_scalars` of `kernels/block_scaled.cu`.
//!
//! Law: a [`ProductScalars`] is made once and prepares launches by value, without tables: it allocates nothing, so
//! a closure may use it in every step.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, present};
use super::launch::KernelLaunch;
use super::module::{Function, Kernels};
use super::source::Family;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// The amaxes of two tensors in NVFP4, and where their product finds its scalars. Each is one f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalarsOperand {
    /// Amaxes of both factors: block scales are relative to them.
    pub amaxes: [DeviceAddress; 2],
    /// Becomes the product of the amaxes, over 2688².
    pub alpha: DeviceAddress,
    /// Becomes 1 where something is added to the product, otherwise 0.
    pub beta: DeviceAddress,
}

/// `ScalarsArguments` of the kernel.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    first_amax: DeviceAddress,
    second_amax: DeviceAddress,
    alpha: DeviceAddress,
    beta: DeviceAddress,
    addends: f32,
    reserved: u32,
}
const _: () = assert!(size_of::<Arguments>() == 40);

/// Prepares the scalars of products whose factors have amaxes on the device.
#[derive(Clone, Debug)]
pub struct ProductScalars(Function);

impl Kernels {
    /// The kernel, compiled and loaded.
    ///
    /// # Errors
    /// [`CudaFailure::Compile`], [`CudaFailure::Call`].
    pub fn product_scalars(&self) -> Result<ProductScalars, CudaFailure> {
        self.function(Family::BlockScaled, c"product_scalars").map(ProductScalars)
    }
}

impl ProductScalars {
    /// Scalars of the product, to which something is added or not.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn launch(&self, operand: &ScalarsOperand, adds: bool) -> Result<KernelLaunch, CudaFailure> {
        let ScalarsOperand { amaxes: [first_amax, second_amax], alpha, beta } = *operand;
        for (what, address) in
            [("an amax", first_amax), ("an amax", second_amax), ("alpha", alpha), ("beta", beta)]
        {
            present(what, address)?;
            element_aligned(what, address, 4)?;
        }
        let addends = if adds { 1.0 } else { 0.0 };
        let arguments = Arguments { first_amax, second_amax, alpha, beta, addends, reserved: 0 };
        Ok(KernelLaunch::new(self.0.clone(), 1, 1, arguments, None))
    }
}
