//! A checkpoint as named tensors.
//!
//! Law: nothing large is copied here. Planes have the names, element types and shapes of `warpweft quantize`,
//! and hold the same numbers, so whoever reads its files reads these.

use std::borrow::Cow;
use std::io::{self, Write};

use bytemuck::Pod;
use half::bf16;
use safetensors::tensor::Dtype;

use super::{Carried, Checkpoint, WeightState};
use crate::exec::StatePart;
use warpweft_format::{ElementType, Format};

/// One tensor of a file. What it holds is the checkpoint's own, but for single numbers.
pub(super) struct Tensor<'checkpoint> {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) content: Content<'checkpoint>,
}

/// Writes the bytes of a tensor.
pub(super) type LateBytes<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// What a tensor holds.
pub(super) enum Content<'checkpoint> {
    /// As it is in the file.
    Bytes(Cow<'checkpoint, [u8]>),
    /// So many bytes, which whoever has them writes when it is their turn.
    Later { bytes: usize, write: Box<LateBytes<'checkpoint>> },
    /// Values that are rounded to bf16 on their way into the file, to nearest, ties to even.
    Rounded(&'checkpoint [f32]),
}

impl Content<'_> {
    /// Values rounded at once.
    const PIECE: usize = 1 << 15;

    /// Bytes in the file.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Later { bytes, .. } => *bytes,
            Self::Rounded(values) => values.len() * size_of::<bf16>(),
        }
    }

    /// Puts them there.
    pub(super) fn write(&self, file: &mut impl Write) -> io::Result<()> {
        let values = match self {
            Self::Bytes(bytes) => return file.write_all(bytes),
            Self::Later { write, .. } => return write(file),
            Self::Rounded(values) => values,
        };
        let mut rounded = Vec::with_capacity(values.len().min(Self::PIECE));
        for piece in values.chunks(Self::PIECE) {
            rounded.clear();
            rounded.extend(piece.iter().map(|value| bf16::from_f32(*value)));
            file.write_all(bytemuck::cast_slice(&rounded))?;
        }
        Ok(())
    }
}

impl<'checkpoint> Tensor<'checkpoint> {
    fn scalar(name: String, value: f32) -> Self {
        let content = Content::Bytes(Cow::Owned(value.to_le_bytes().to_vec()));
        Self { name, dtype: Dtype::F32, shape: vec![1], content }
    }

    /// Values or bytes that are fetched when it is their turn: `elements` of `dtype`, in this shape.
    pub(super) fn later<T: Pod>(
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        fetch: impl Fn() -> io::Result<Vec<T>> + 'checkpoint,
    ) -> Self {
        let elements = shape.iter().fold(1_usize, |elements, extent| elements.saturating_mul(*extent));
        let write = move |file: &mut dyn Write| {
            let values = fetch()?;
            if values.len() != elements {
                let said = format!("there are {} values for a tensor of {elements}", values.len());
                return Err(io::Error::new(io::ErrorKind::InvalidData, said));
            }
            file.write_all(bytemuck::cast_slice(&values))
        };
        let bytes = elements.saturating_mul(size_of::<T>());
        Self { name, dtype, shape, content: Content::Later { bytes, write: Box::new(write) } }
    }

    /// Values in f32.
    pub(super) fn values(name: String, shape: Vec<usize>, values: &'checkpoint [f32]) -> Self {
        let content = Content::Bytes(Cow::Borrowed(bytemuck::cast_slice(values)));
        Self { name, dtype: Dtype::F32, shape, content }
    }

    /// Values in bf16.
    pub(super) fn rounded(name: String, shape: Vec<usize>, values: &'checkpoint [f32]) -> Self {
        Self { name, dtype: Dtype::BF16, shape, content: Content::Rounded(values) }
    }
}

/// The name of one rank's part of a carried buffer.
pub(super) fn carried_name(buffer: &str, rank: usize) -> String {
    format!("carried.{buffer}.rank{rank}")
}

/// The name of a master or a moment.
pub(super) fn state_name(weight: &str, part: StatePart) -> String {
    let suffix = match part {
        StatePart::Master => "master",
        StatePart::FirstMoment => "exp_avg",
        StatePart::SecondMoment => "exp_avg_sq",
    };
    format!("{weight}.{suffix}")
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
    let parts = StatePart::ALL.into_iter().zip([&state.master, &state.exp_avg, &state.exp_avg_sq]);
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
        tensors.extend(["data", "scale"].iter().zip(planes).map(|(kind, (spec, bytes))| Tensor {
            name: format!("{}.{}_{kind}", state.name, stored.orientation),
            dtype: match spec.element {
                ElementType::F32 => Dtype::F32,
                ElementType::Bf16 => Dtype::BF16,
                ElementType::U8 => Dtype::U8,
                ElementType::U32 => Dtype::U32,
            },
            shape: vec![spec.rows, spec.cols],
            content: Content::Bytes(Cow::Borrowed(bytes)),
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
