//! Steady state on the CPU backend (`steady`): 200 steps allocate nothing on rank and lane threads and move nothing.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::WeightId;
use warpweft_format::Orientation;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::Call;
use warpweft_session::config::Capture;
use warpweft_session::session::SessionBuilder;
use warpweft_testing::steady::{Addresses, Place, Starting, nothing_is_allocated_and_nothing_moves};
use warpweft_testing::trainer::SIZE;

warpweft_testing::alone! {
    two_hundred_steps_allocate_nothing_on_rank_and_lane_threads_and_move_nothing,
}

#[derive(Clone)]
struct Cpu;

impl Place for Cpu {
    type Surface = CpuSurface;

    fn ranks(&self) -> u32 {
        3
    }

    fn start(&self, builder: SessionBuilder<CpuSurface>) -> Starting {
        let ranks = self.ranks();
        Box::pin(async move { builder.start_cpu(ranks).await.unwrap() })
    }

    fn touch(
        call: &Call,
        context: &ComputeContext<'_, CpuSurface>,
        middle: WeightId,
        seen: &Addresses,
    ) -> Result<(), ComputeError> {
        for access in call.buffers.iter().filter(|access| access.access.writes()) {
            context.write::<f32>(access.buffer)?.fill(0.25);
        }
        for gradient in &call.gradients {
            context.gradient(gradient.weight)?.fill(0.125);
        }
        if call.name == "b1" {
            let dense = context.dense(middle, Orientation::Columnwise)?;
            assert_eq!(dense.len(), SIZE * SIZE);
            let gradient = context.gradient(middle)?;
            seen.lock().unwrap().push((dense.as_ptr().addr(), gradient.as_ptr().addr()));
        }
        Ok(())
    }

    /// Closures run on replay too.
    fn calls(_: Capture, steps: usize) -> usize {
        steps
    }

    fn free(&self) -> Vec<usize> {
        Vec::new()
    }
}

fn two_hundred_steps_allocate_nothing_on_rank_and_lane_threads_and_move_nothing() {
    nothing_is_allocated_and_nothing_moves(&Cpu);
}
