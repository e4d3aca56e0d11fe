//! The kernels: what to launch for an op on given addresses.
//!
//! Laws:
//! - One function per op prepares one [`KernelLaunch`] for any number of tensors (a *multi-tensor launch*):
//!   it checks its operands, builds the table the kernel reads and uploads it. That may allocate, compile and
//!   wait; [`KernelLaunch::enqueue`] does none of these.
//! - Operands are addresses, shapes and formats. Nothing here knows plans, slots, ranks or streams.
//! - The numbers are those of [`mod@warpweft_format`] and of the CPU backend, bit for bit: amaxes, scales,
//!   codes, values, transposes, sums, Adam. A norm differs at most by the order of an f64 sum.
//! - Any shape, any alignment of elements and any fragment is correct; rows that begin at multiples of 16
//!   bytes are fast.
//! - A context must be current on the thread, the same one when preparing and when enqueuing.
//!
//! Kernel sources are the crate `warpweft-kernels`, in `kernels/`; the heads of the files state the laws of the
//! device side.

/// Compares constants with those of the same name in a family's source: the numbers by which a launch is cut
/// are written on both sides.
#[cfg(test)]
macro_rules! mirrors {
    ($family:expr, $($name:ident),+) => {
        #[test]
        fn constants_are_those_of_the_kernels() {
            $(assert_eq!(
                $crate::kernels::source::constant($family, stringify!($name)),
                Some(u64::from($name as u32)),
                stringify!($name)
            );)+
        }
    };
}

mod activation;
mod adam;
mod adam_amax;
mod adam_block_cast;
mod adam_operand;
mod amax;
pub(crate) mod cache;
mod cast;
mod check;
pub(crate) mod compile;
mod delayed;
mod dequantize;
mod device_table;
mod dispatch;
mod elementwise;
mod exchange;
mod expand;
mod finite_check;
mod fragment;
mod launch;
mod meeting;
mod memory;
mod module;
mod norm;
mod orthogonalize;
mod scalars;
mod scale;
mod slices;
mod source;
mod sum;
mod swizzle;
mod tiles;
mod transpose;

pub use activation::{ActivationOperand, ActivationQuantizer, ActivationSource};
pub use adam_operand::{AdamOperand, Bounds, MasterAmax, MasterCast, MasterState};
pub use amax::AmaxOperand;
pub use cast::CastOperand;
pub use delayed::{DelayedScaleOperand, RecordAmaxOperand};
pub use dequantize::DequantizeOperand;
pub use dispatch::{CountsOperand, GivenOperand, SlotShape};
pub use elementwise::{ElementwiseKernels, Summed};
pub use expand::ExpandOperand;
pub use finite_check::FiniteCheckOperand;
pub use fragment::MasterFragment;
pub use launch::KernelLaunch;
pub use meeting::{Mark, Partner};
pub use memory::{CopyOperand, ZeroOperand};
pub use module::Kernels;
pub use norm::{NormFrom, NormOperand, VoteOperand};
pub use orthogonalize::OrthogonalizeKernels;
pub use scalars::{ProductScalars, ScalarsOperand};
pub use scale::{ScaleOperand, ScaleRows};
pub use slices::SlicesOperand;
pub use source::Family;
pub use sum::{AccumulateOperand, CombineOperand};
pub use swizzle::{ScaleSwizzler, SwizzleOperand};
pub use transpose::TransposeOperand;
