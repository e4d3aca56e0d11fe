//! A checkpoint as named tensors.
//!
//! Law: nothing large is copied here. Planes have the names, element types and shapes of `warpweft quantize`,
//! and hold the same numbers, so whoever reads its files reads these.

use std::borrow::Cow;

use safetensors::Dtype;

use super::manifest::Part;
use super::safetensors::tensor::{Content, Tensor, dtype};
use super::{Carried, Checkpoint, StatePart, WeightState};
use warpweft_format::Format;

/// The name of one rank's part of a carried buffer.
pub(super) fn carried_name(buffer: &str, rank: usize) -> String {
    format!("carried.{buffer}.rank{rank}")
}

/// The name of a master or a list of optimizer state. The first two lists have the names of Adam's moments, whatever
/// the optimizer.
pub(super) fn state_name(weight: &str, part: StatePart) -> String {
    match part {
        StatePart::Master => format!("{weight}.master"),
        StatePart::FIRST_MOMENT => format!("{weight}.exp_avg"),
        StatePart::SECOND_MOMENT => format!("{weight}.exp_avg_sq"),
        StatePart::State(list) => format!("{weight}.state{}", list.number()),
    }
}

/// The names of a weight's scale in use and amax history, where scaling is delayed.
pub(super) fn delayed_names(weight: &str) -> [String; 2] {
    ["delayed_scale", "amax_history"].map(|suffix| format!("{weight}.{suffix}"))
}

/// Every tensor of `checkpoint`. Of frozen weights there are none: a file has digests of them.
pub(super) fn of(checkpoint: &Checkpoint) -> Vec<Tensor<'_>> {
    let kept = checkpoint.weights.iter().filter(|state| state.frozen.is_none());
    let mut tensors: Vec<Tensor<'_>> = kept.flat_map(weight).collect();
    if let Carried::Buffers(buffers) = &checkpoint.carried {
        for buffer in buffers {
            tensors.extend(buffer.ranks.iter().enumerate().map(|(rank, bytes)| Tensor {
                name: carried_name(&buffer.name, rank),
                dtype: Dtype::U8,
                shape: vec![bytes.len()],
                content: Content::Bytes(Cow::Borrowed(bytes)),
            }));
        }
    }
    tensors
}

fn weight(state: &WeightState) -> Vec<Tensor<'_>> {
    let values = std::iter::once(&state.master).chain(&state.states);
    let parts = StatePart::kept(state.states.len()).zip(values);
    let mut tensors: Vec<Tensor<'_>> = parts
        .filter(|(_, values)| !values.is_empty())
        .map(|(part, values)| {
            let shape = vec![state.shape.rows, state.shape.cols];
            Tensor::values(state_name(&state.name, part), shape, values)
        })
        .collect();
    if let Some(delayed) = &state.delayed {
        let [scale, history] = delayed_names(&state.name);
        tensors.extend([
            Tensor::scalar(scale, delayed.scale),
            Tensor::values(history, vec![delayed.history.len()], &delayed.history),
        ]);
    }
    for stored in &state.planes {
        let planes = stored.specs.iter().zip(&stored.planes);
        tensors.extend(planes.map(|(spec, bytes)| Tensor {
            name: Part::of(stored.orientation, spec.kind).name(&state.name),
            dtype: dtype(spec.element),
            shape: vec![spec.rows, spec.cols],
            content: Content::Bytes(Cow::Borrowed(bytes)),
        }));
        if let Format::Fp8Tensor(_) = state.format {
            tensors
                .push(Tensor::scalar(Part::Scale(stored.orientation).name(&state.name), state.tensor_scale));
        }
    }
    if let Format::Nvfp4(_) = state.format
        && !state.planes.is_empty()
    {
        tensors.push(Tensor::scalar(Part::Amax.name(&state.name), state.tensor_scale));
    }
    tensors
}
