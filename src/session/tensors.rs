//! A checkpoint as named tensors.
//!
//! Law: planes have the names, element types and shapes of `warpweft quantize`, and hold the same
//! numbers, so whoever reads its files reads these.

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};

use super::{Carried, Checkpoint, WeightState};
use crate::format::{ElementType, Format};

/// One tensor of the file.
pub(super) struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Tensor {
    /// The tensor as safetensors takes it.
    pub(super) fn view(&self) -> Result<(&str, TensorView<'_>), SafeTensorError> {
        Ok((&self.name, TensorView::new(self.dtype, self.shape.clone(), &self.bytes)?))
    }

    fn scalar(name: String, value: f32) -> Self {
        Self::list(name, &[value])
    }

    fn list(name: String, values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { name, dtype: Dtype::F32, shape: vec![values.len()], bytes }
    }
}

/// The name of one rank's part of a carried buffer.
pub(super) fn carried_name(buffer: &str, rank: usize) -> String {
    format!("carried.{buffer}.rank{rank}")
}

/// The names of a weight's scale in use and amax history, where scaling is delayed.
pub(super) fn delayed_names(weight: &str) -> [String; 2] {
    ["delayed_scale", "amax_history"].map(|suffix| format!("{weight}.{suffix}"))
}

/// Every tensor of `checkpoint`.
pub(super) fn of(checkpoint: &Checkpoint) -> Vec<Tensor> {
    let mut tensors: Vec<Tensor> = checkpoint.weights.iter().flat_map(weight).collect();
    if let Carried::Buffers(buffers) = &checkpoint.carried {
        for buffer in buffers {
            tensors.extend(buffer.ranks.iter().enumerate().map(|(rank, bytes)| Tensor {
                name: carried_name(&buffer.name, rank),
                dtype: Dtype::U8,
                shape: vec![bytes.len()],
                bytes: bytes.clone(),
            }));
        }
    }
    tensors
}

fn weight(state: &WeightState) -> Vec<Tensor> {
    let parts = [("master", &state.master), ("exp_avg", &state.exp_avg), ("exp_avg_sq", &state.exp_avg_sq)];
    let mut tensors: Vec<Tensor> = parts
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(suffix, values)| Tensor {
            name: format!("{}.{suffix}", state.name),
            dtype: Dtype::F32,
            shape: vec![state.shape.rows, state.shape.cols],
            bytes: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        })
        .collect();
    if let Some(delayed) = &state.delayed {
        let [scale, history] = delayed_names(&state.name);
        tensors.extend([Tensor::scalar(scale, delayed.scale), Tensor::list(history, &delayed.history)]);
    }
    for stored in &state.planes {
        let planes = stored.specs.iter().zip(&stored.planes);
        tensors.extend(["data", "scale"].iter().zip(planes).map(|(kind, (spec, bytes))| Tensor {
            name: format!("{}.{}_{kind}", state.name, stored.orientation),
            dtype: match spec.element {
                ElementType::F32 => Dtype::F32,
                ElementType::Bf16 => Dtype::BF16,
                ElementType::U8 => Dtype::U8,
                ElementType::U32 => Dtype::U32,
            },
            shape: vec![spec.rows, spec.cols],
            bytes: bytes.clone(),
        }));
        if let Format::Fp8Tensor(_) = state.format {
            tensors.push(Tensor::scalar(
                format!("{}.{}_scale", state.name, stored.orientation),
                state.tensor_scale,
            ));
        }
    }
    if let Format::Nvfp4(_) = state.format
        && !state.planes.is_empty()
    {
        tensors.push(Tensor::scalar(format!("{}.amax", state.name), state.tensor_scale));
    }
    tensors
}
