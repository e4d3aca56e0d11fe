//! The place of the ranks: the CPU or GPUs of this machine.
//!
//! Law: what differs between places is the device that blocks are tried on, the bridge of each rank, and the start.

use std::sync::Arc;

use candle_core::Device;
use warpweft::compute::{ComputeError, Seat};
use warpweft::config::Config;
use warpweft::model::StepProgram;
use warpweft::session::Session;
use warpweft::session::initial::MasterRows;
use warpweft_blocks::Jobs;

use crate::Error;
use crate::on_cpu::OnCpu;
use crate::rank::Rank;
use crate::sharded::Devices;
use crate::shared::Shared;
#[cfg(feature = "cuda")]
use {
    crate::on_cuda::{self, OnCuda},
    warpweft::backend::cuda::DeviceOrdinal,
    warpweft::config::Capture,
};

/// Where ranks are.
pub(crate) enum Place {
    Cpu {
        ranks: u32,
    },
    #[cfg(feature = "cuda")]
    Gpus {
        gpus: Vec<DeviceOrdinal>,
        /// That of the trial.
        device: Device,
    },
}

impl Place {
    /// Opens the device that blocks are tried on.
    #[cfg_attr(not(feature = "cuda"), expect(clippy::unnecessary_wraps, reason = "a GPU may be missing"))]
    pub(crate) fn open(
        devices: Devices,
        #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "what GPUs refuse of it"))]
        config: &Config,
    ) -> Result<Self, Error> {
        match devices {
            Devices::Cpu { ranks } => Ok(Self::Cpu { ranks }),
            #[cfg(feature = "cuda")]
            Devices::Gpus { ranks } => {
                if config.capture != Capture::Off {
                    return Err(Error::Undeclared {
                        what: "candle allocates in every call, so no call of its blocks can be captured"
                            .to_owned(),
                        advice: "leave `capture` \"off\"",
                    });
                }
                let mut gpus = DeviceOrdinal::all().map_err(warpweft::session::SessionError::from)?;
                if gpus.len() < ranks as usize {
                    return Err(Error::Undeclared {
                        what: format!("{ranks} ranks on GPUs, and this process sees {}", gpus.len()),
                        advice: "give as many as there are, or run on CPUs",
                    });
                }
                gpus.truncate(ranks as usize);
                let device = match gpus.first() {
                    Some(first) => on_cuda::device(*first).map_err(Error::candle("the first GPU"))?,
                    // Refused like any other place without ranks.
                    None => Device::Cpu,
                };
                Ok(Self::Gpus { gpus, device })
            }
        }
    }

    /// Where blocks are tried.
    pub(crate) const fn device(&self) -> &Device {
        match self {
            Self::Cpu { .. } => &Device::Cpu,
            #[cfg(feature = "cuda")]
            Self::Gpus { device, .. } => device,
        }
    }

    /// Are matrices lent in bf16 to blocks that have them so?
    pub(crate) const fn lends_bf16(&self) -> bool {
        !matches!(self, Self::Cpu { .. })
    }

    /// Starts the session whose calls the blocks are.
    pub(crate) async fn start(
        self,
        (config, programs, jobs): (Config, Vec<StepProgram>, Vec<Jobs>),
        shared: Arc<Shared>,
        fill: impl Fn(MasterRows<'_>, &mut [f32]) -> Result<(), String> + Send + Sync + 'static,
    ) -> Result<Session, Error> {
        match self {
            Self::Cpu { ranks } => {
                let compute = move |seat: Seat| {
                    let rank = Rank::new(Arc::clone(&shared), seat.rank, OnCpu::default());
                    Ok(warpweft_blocks::compute(jobs.clone(), rank.map_err(ComputeError::closure)?))
                };
                let builder = Session::try_builder(config, compute);
                let builder = programs.into_iter().fold(builder, |builder, program| builder.program(program));
                Ok(builder.try_initialize(fill).start_cpu(ranks).await?)
            }
            #[cfg(feature = "cuda")]
            Self::Gpus { gpus, device } => {
                drop(device);
                let compute = move |seat: Seat<DeviceOrdinal>| {
                    let bridge = OnCuda::new(seat.device).map_err(ComputeError::closure)?;
                    let rank = Rank::new(Arc::clone(&shared), seat.rank, bridge);
                    Ok(warpweft_blocks::compute(jobs.clone(), rank.map_err(ComputeError::closure)?))
                };
                let builder = Session::try_builder(config, compute);
                let builder = programs.into_iter().fold(builder, |builder, program| builder.program(program));
                Ok(builder.try_initialize(fill).start_cuda(gpus).await?)
            }
        }
    }
}
