//! Delayed scaling: `kernels/delayed.cu`.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::device_table::DeviceTable;
use super::launch::{KernelLaunch, THREADS};
use super::module::Kernels;
use super::source::Family;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{AmaxChoice, Fp8Tensor, ScaleRule};

/// The scales of a bucket's weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayedScaleOperand {
    /// For each weight the positions of those whose histories its factor follows from, its own among them.
    pub scaled_with: Vec<Range<usize>>,
    /// Amaxes remembered for each, at least 1.
    pub length: usize,
    /// f32 `[weights, length]`, the latest first; null to keep the factors.
    pub history: DeviceAddress,
    /// f32, one factor per weight, updated.
    pub scale: DeviceAddress,
    /// f32, one reciprocal per weight, written.
    pub tensor_scale: DeviceAddress,
}

/// Amaxes of a bucket's weights, to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordAmaxOperand {
    /// Number of weights.
    pub weights: usize,
    /// Amaxes remembered for each, at least 1.
    pub length: usize,
    /// f32, one per weight.
    pub tensor_amax: DeviceAddress,
    /// f32 `[weights, length]`, the latest first, updated.
    pub history: DeviceAddress,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct ScaleArguments {
    history: DeviceAddress,
    scale: DeviceAddress,
    tensor_scale: DeviceAddress,
    vote: DeviceAddress,
    groups: DeviceAddress,
    weights: u32,
    length: u32,
    latest: u32,
    power_of_two: u32,
    largest: f32,
    epsilon: f32,
}
const _: () = assert!(size_of::<ScaleArguments>() == 64);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct RecordArguments {
    tensor_amax: DeviceAddress,
    history: DeviceAddress,
    vote: DeviceAddress,
    weights: u32,
    length: u32,
}
const _: () = assert!(size_of::<RecordArguments>() == 32);

impl Kernels {
    /// Factors of the coming cast and their reciprocals (see [`delayed_scale`](warpweft_format::delayed_scale)).
    ///
    /// `vote` is an [`op::Vote`](warpweft_plan::op::Vote), or null; nothing is written when it skips.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned, or an empty history.
    pub fn delayed_scale(
        &self,
        tensor: Fp8Tensor,
        choice: AmaxChoice,
        operand: &DelayedScaleOperand,
        vote: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        element_aligned("an amax history", operand.history, 4)?;
        for (what, address) in [("factors", operand.scale), ("tensor scales", operand.tensor_scale)] {
            element_aligned(what, address, 4)?;
            present(what, address)?;
        }
        let weights = operand.scaled_with.len();
        let shares = operand.scaled_with.iter().any(|group| group.len() != 1);
        let table = shares.then(|| groups(&operand.scaled_with)).transpose()?;
        let arguments = ScaleArguments {
            history: operand.history,
            scale: operand.scale,
            tensor_scale: operand.tensor_scale,
            vote,
            groups: table.as_ref().map_or(DeviceAddress::NULL, DeviceTable::address),
            weights: narrow("weights", weights)?,
            length: length(operand.length)?,
            latest: u32::from(choice == AmaxChoice::Latest),
            power_of_two: u32::from(tensor.scale == ScaleRule::PowerOfTwo),
            largest: tensor.element.largest(),
            epsilon: tensor.epsilon.value(),
        };
        let function = self.function(Family::Delayed, c"delayed_scale")?;
        Ok(KernelLaunch::new(function, arguments.weights.div_ceil(THREADS), THREADS, arguments, table))
    }

    /// Amaxes into the history (see [`record_amax`](warpweft_format::record_amax)). `vote` as for
    /// [`delayed_scale`](Self::delayed_scale).
    ///
    /// # Errors
    /// As [`delayed_scale`](Self::delayed_scale).
    pub fn record_amax(
        &self,
        operand: &RecordAmaxOperand,
        vote: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        for (what, address) in [("amaxes", operand.tensor_amax), ("an amax history", operand.history)] {
            element_aligned(what, address, 4)?;
            present(what, address)?;
        }
        let arguments = RecordArguments {
            tensor_amax: operand.tensor_amax,
            history: operand.history,
            vote,
            weights: narrow("weights", operand.weights)?,
            length: length(operand.length)?,
        };
        let function = self.function(Family::Delayed, c"record_amax")?;
        Ok(KernelLaunch::new(function, arguments.weights.div_ceil(THREADS), THREADS, arguments, None))
    }
}

/// First position and number of the weights that share a scale with each.
fn groups(scaled_with: &[Range<usize>]) -> Result<DeviceTable, CudaFailure> {
    let mut words: Vec<u32> = Vec::new();
    for group in scaled_with {
        words.extend([narrow("weights", group.start)?, narrow("weights", group.len())?]);
    }
    DeviceTable::fill(size_of_val(&words[..]), |_| bytemuck::cast_slice(&words).to_vec())
}

fn length(length: usize) -> Result<u32, CudaFailure> {
    if length == 0 {
        return Err(CudaFailure::Refused("an amax history of no steps".to_owned()));
    }
    narrow("remembered amaxes", length)
}
