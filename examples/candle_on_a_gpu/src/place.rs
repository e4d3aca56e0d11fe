//! The devices of ranks, and the start of a session there.

use std::sync::Arc;

use candle_core::Device;
#[cfg(feature = "cuda")]
use warpweft::compute::Seat;
use warpweft::prelude::*;
use warpweft::session::initial;

use crate::closure::{Closure, Step};
use crate::on_cpu::OnCpu;
#[cfg(feature = "cuda")]
use crate::{on_cuda::OnCuda, print::println};

/// The devices of ranks.
pub(crate) enum Place {
    Cpu(u32),
    #[cfg(feature = "cuda")]
    Gpus(Vec<DeviceOrdinal>),
}

impl Place {
    /// GPUs if there are any and the feature `cuda` is on, or else the CPU.
    pub(crate) fn choose() -> Self {
        #[cfg(feature = "cuda")]
        match DeviceOrdinal::all() {
            Ok(found) if !found.is_empty() => return Self::Gpus(found.into_iter().take(2).collect()),
            Ok(_) => println!("no GPU, so on the CPU"),
            Err(failure) => println!("on the CPU: {failure}"),
        }
        Self::Cpu(2)
    }

    /// How many.
    pub(crate) fn ranks(&self) -> usize {
        match self {
            Self::Cpu(ranks) => *ranks as usize,
            #[cfg(feature = "cuda")]
            Self::Gpus(gpus) => gpus.len(),
        }
    }

    /// candle's device for the run without warpweft.
    pub(crate) fn device(&self) -> candle_core::Result<Device> {
        match self {
            Self::Cpu(_) => Ok(Device::Cpu),
            #[cfg(feature = "cuda")]
            Self::Gpus(gpus) => Device::new_cuda(gpus[0].number() as usize),
        }
    }

    /// Starts a session of `program`, which `step` carries out.
    pub(crate) async fn start(
        &self,
        config: Config,
        step: Step,
        program: StepProgram,
    ) -> Result<Session, SessionError> {
        let step = Arc::new(step);
        match self {
            Self::Cpu(ranks) => {
                let closures = move |_| Closure::new(Arc::clone(&step), OnCpu);
                let builder = Session::builder(config, closures).program(program);
                builder.initialize(initial_values).start_cpu(*ranks).await
            }
            #[cfg(feature = "cuda")]
            Self::Gpus(gpus) => {
                let closures = move |seat: Seat<DeviceOrdinal>| {
                    let bridge = OnCuda::new(seat.device).map_err(ComputeError::closure)?;
                    Ok(Closure::new(Arc::clone(&step), bridge))
                };
                let builder = Session::try_builder(config, closures).program(program);
                builder.initialize(initial_values).start_cuda(gpus.clone()).await
            }
        }
    }
}

/// Ones for gains, small random numbers for the rest.
fn initial_values(rows: initial::MasterRows<'_>, values: &mut [f32]) {
    match rows.weight.ends_with("gain") {
        true => values.fill(1.0),
        false => initial::normal(17, 0.05)(rows, values),
    }
}
