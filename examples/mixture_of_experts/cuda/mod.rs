//! The same calls on a GPU: one closure per rank, kernels of our own and cuBLAS. Ranks may share a GPU.
//!
//! Laws:
//! - The calls, their buffers and their formulas are those of the CPU; only sums run in another order. What is the
//!   main job's is used as it is.
//! - A call only enqueues. Scratch is made before the first step, and no call reads what another left there, but rows
//!   after a count, whose results nobody reads.
//! - Counts are made by kernels and stay on the GPU.

// What the main job knows of a GPU.
#[path = "../../train/cuda/common.rs"]
mod common;
#[path = "../../train/cuda/compile.rs"]
mod compile;
#[path = "../../train/cuda/device.rs"]
#[allow(dead_code, reason = "the job copies, too")]
mod device;
#[path = "../../train/cuda/embedding.rs"]
mod embedding;
#[path = "../../train/cuda/failure.rs"]
mod failure;
#[path = "../../train/cuda/launch.rs"]
#[allow(dead_code, reason = "the job launches with shared memory, too")]
mod launch;
#[path = "../../train/cuda/library.rs"]
mod library;
#[path = "../../train/cuda/span.rs"]
mod span;

mod closure;
mod experts;
mod kernel;

use std::error::Error;

use warpweft::prelude::*;

use crate::model::{EXPERTS, HIDDEN, Sizes, VOCABULARY, WIDTH};
use compile::{Cubin, compile_for};
use device::{Buffer, Device};
use failure::Failure;
pub(crate) use library::gpus;
use span::{Span, SpanMut};

pub(crate) type Context<'a> = ComputeContext<'a, CudaSurface>;

/// What a call returns: an operand or a launch may be refused.
type Enqueued = Result<(), Box<dyn Error + Send + Sync>>;

/// The GPU of each rank, with its kernels: one each where there are enough GPUs, else the first for all ranks.
///
/// # Errors
/// A library or a GPU that is not there.
pub(crate) fn place(ranks: u32) -> Result<Vec<(u32, Cubin)>, Failure> {
    let found = gpus()?;
    let own = found.count() >= ranks;
    let gpus: Vec<u32> = (0..ranks).map(|rank| if own { rank } else { 0 }).collect();
    Ok(gpus.iter().copied().zip(compile_for(kernel::SOURCE, &found, &gpus)?).collect())
}

/// One rank's closure and its scratch.
pub(crate) struct Gpu {
    sizes: Sizes,
    device: Device,
    /// `[tokens, WIDTH]`: what the head reads.
    y: Buffer<f32>,
    /// `[tokens, VOCABULARY]`: logits, then their gradient.
    logits: Buffer<f32>,
    /// `[tokens]`.
    losses: Buffer<f32>,
    /// `[tokens, EXPERTS]`: the gradient of the router's scores.
    scores: Buffer<f32>,
    /// `[slots, capacity, HIDDEN]` of the experts: before the activation, after it, and the gradient.
    inner: [Buffer<f32>; 3],
}

impl Gpu {
    /// Opens GPU `ordinal` on this thread.
    ///
    /// # Errors
    /// Whatever the driver or a library refuses.
    pub(crate) fn new(sizes: Sizes, ordinal: u32, kernels: &Cubin) -> Result<Self, Failure> {
        let device = Device::open(ordinal, kernels)?;
        let zeros = |len: usize| device.zeros::<f32>(len);
        let inner = EXPERTS * sizes.capacity * HIDDEN;
        Ok(Self {
            sizes,
            y: zeros(sizes.tokens * WIDTH)?,
            logits: zeros(sizes.tokens * VOCABULARY)?,
            losses: zeros(sizes.tokens)?,
            scores: zeros(sizes.tokens * EXPERTS)?,
            inner: [zeros(inner)?, zeros(inner)?, zeros(inner)?],
            device,
        })
    }
}

impl Compute<CudaSurface> for Gpu {
    fn run(&mut self, call: &Call, context: &Context<'_>) -> Result<(), ComputeError> {
        self.device.work_on(context.handles().stream()).map_err(ComputeError::closure)?;
        let enqueued = match call.name.as_str() {
            "embed" => self.embed(context),
            "route" => self.route(context),
            "experts" => self.experts(context),
            "head" => self.head(context),
            "experts backward" => self.experts_backward(context),
            "route backward" => self.route_backward(context),
            "embed backward" => self.embed_backward(context),
            other => Err(format!("no closure is written for call `{other}`").into()),
        };
        Ok(enqueued?)
    }
}

/// A buffer of features to read.
fn read<'a>(context: &Context<'a>, name: &str) -> Result<Span<'a, f32>, ComputeError> {
    Ok(context.read_named::<f32>(name)?.into())
}

/// One to write.
fn write<'a>(context: &Context<'a>, name: &str) -> Result<SpanMut<'a, f32>, ComputeError> {
    Ok(context.write_named::<f32>(name)?.into())
}

/// A buffer of experts, places or counts to read.
fn read_indices<'a>(context: &Context<'a>, name: &str) -> Result<Span<'a, u32>, ComputeError> {
    Ok(context.read_named::<u32>(name)?.into())
}

/// One to write.
fn write_indices<'a>(context: &Context<'a>, name: &str) -> Result<SpanMut<'a, u32>, ComputeError> {
    Ok(context.write_named::<u32>(name)?.into())
}

/// Tokens.
fn bytes<'a>(context: &Context<'a>, name: &str) -> Result<Span<'a, u8>, ComputeError> {
    Ok(context.read_named::<u8>(name)?.into())
}

/// A weight.
fn weight<'a>(context: &Context<'a>, name: &str) -> Result<Span<'a, f32>, ComputeError> {
    Ok(context.dense_named(name)?.into())
}

/// Its gradient, to write.
fn gradient<'a>(context: &Context<'a>, name: &str) -> Result<SpanMut<'a, f32>, ComputeError> {
    Ok(context.gradient_named(name)?.into())
}
