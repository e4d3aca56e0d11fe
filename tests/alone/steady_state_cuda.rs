//! Steady state on GPUs (`steady`): 200 steps allocate nothing on rank threads nor on a device, and move nothing:
//! issued, captured, and captured in segments.
//!
//! One rank on each GPU, four at most. Without a GPU it says on stderr that it was skipped.

#![allow(unsafe_code, reason = "a closure enqueues by the driver")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use warpweft_base::id::WeightId;
use warpweft_cuda::{CudaSurface, DeviceOrdinal, DeviceSliceMut};
use warpweft_format::Orientation;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_session::config::Capture;
use warpweft_session::session::SessionBuilder;
use warpweft_testing::steady::{Addresses, Place, Starting, nothing_is_allocated_and_nothing_moves};
use warpweft_testing::trainer::SIZE;

warpweft_testing::alone! {
    two_hundred_steps_allocate_nothing_on_rank_threads_and_gpus_and_move_nothing,
}

/// As many GPUs as there are, four at most. Their contexts stay, so what is free is that of one context
/// throughout.
#[derive(Clone)]
struct Gpus {
    devices: Vec<DeviceOrdinal>,
    contexts: Vec<Arc<CudaContext>>,
}

impl Gpus {
    fn all() -> Result<Self, String> {
        let mut devices = DeviceOrdinal::all().map_err(|failure| failure.to_string())?;
        devices.truncate(4);
        let contexts = devices.iter().map(|device| CudaContext::new(device.number() as usize));
        let contexts = contexts.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        if devices.is_empty() { Err("there is no GPU".to_owned()) } else { Ok(Self { devices, contexts }) }
    }
}

/// Enqueues that every element becomes `value`.
fn fill(context: &ComputeContext<'_, CudaSurface>, to: &DeviceSliceMut<'_, f32>, value: f32) {
    let stream = context.handles().stream();
    // SAFETY: the elements are lent to this call, whose work goes to this stream, and their context is current.
    let done = unsafe { sys::cuMemsetD32Async(to.address().number(), value.to_bits(), to.len(), stream) };
    done.result().unwrap();
}

impl Place for Gpus {
    type Surface = CudaSurface;

    fn ranks(&self) -> u32 {
        u32::try_from(self.devices.len()).unwrap()
    }

    fn start(&self, builder: SessionBuilder<CudaSurface>) -> Starting {
        let devices = self.devices.clone();
        Box::pin(async move { builder.start_cuda(devices).await.unwrap() })
    }

    fn touch(
        call: &Call,
        context: &ComputeContext<'_, CudaSurface>,
        middle: WeightId,
        seen: &Addresses,
    ) -> Result<(), ComputeError> {
        for access in call.buffers.iter().filter(|access| access.access.writes()) {
            fill(context, &context.write::<f32>(access.buffer)?, 0.25);
        }
        for gradient in &call.gradients {
            fill(context, &context.gradient(gradient.weight)?, 0.125);
        }
        if call.name == "b1" {
            let dense = context.dense(middle, Orientation::Columnwise)?;
            assert_eq!(dense.len(), SIZE * SIZE);
            let addresses = [dense.address(), context.gradient(middle)?.address()];
            let [dense, gradient] = addresses.map(|address| usize::try_from(address.number()).unwrap());
            seen.lock().unwrap().push((dense, gradient));
        }
        Ok(())
    }

    /// A closure runs while it is enqueued: in every issued step, once for a capture, and between segments
    /// in every step.
    fn calls(capture: Capture, steps: usize) -> usize {
        match capture {
            Capture::Step => 2,
            // The call is dynamic there, so it is in no capture.
            Capture::Off | Capture::Segments => steps,
        }
    }

    fn free(&self) -> Vec<usize> {
        self.contexts.iter().map(|context| context.mem_get_info().unwrap().0).collect()
    }
}

fn two_hundred_steps_allocate_nothing_on_rank_threads_and_gpus_and_move_nothing() {
    match Gpus::all() {
        Ok(gpus) => nothing_is_allocated_and_nothing_moves(&gpus),
        Err(reason) => eprintln!("skipped: {reason}"),
    }
}
