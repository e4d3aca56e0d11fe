//! The start of a session on a placement: the same programs and first values on either device.

use std::error::Error;
use std::sync::Arc;

use warpweft::compute::Surface;
use warpweft::compute::{ComputeError, Seat};
use warpweft::config::Config as Settings;
use warpweft::id::RankId;
use warpweft::rendezvous::ProcessEnvironment;
use warpweft::rendezvous::{Rendezvous, Secret};
use warpweft::session::{Session, SessionBuilder};

use crate::closure::Transformer;
use crate::host::Host;
use crate::init;
use crate::model::{Config, parameters};
use crate::placement::Placement;
use crate::program::Declared;

/// Everything but the device.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    /// Formats, prefetch, optimizer.
    pub(crate) settings: &'a Settings,
    /// Sizes.
    pub(crate) config: &'a Config,
    /// The programs.
    pub(crate) declared: &'a Declared,
    /// Of the first values.
    pub(crate) seed: u64,
}

/// Starts the ranks of this process, which is alone or, on GPUs, one of several.
pub(crate) async fn start(
    job: Job<'_>,
    placement: &Placement,
    process: Option<&ProcessEnvironment>,
) -> Result<Session, Box<dyn Error>> {
    let (config, declared) = (job.config.clone(), job.declared.clone());
    match placement {
        Placement::Cpu { ranks, .. } => {
            debug_assert!(process.is_none(), "ranks of several processes are placed on GPUs");
            let closure = move |_: RankId| Transformer::new(&declared, Host::new(&config));
            let builder = Session::builder(job.settings.clone(), closure);
            Ok(dressed(builder, job).start_cpu(*ranks).await?)
        }
        Placement::Cuda { gpus } => {
            use warpweft::backend::cuda::DeviceOrdinal;
            let kernels = crate::cuda::kernels(gpus)?;
            let devices: Vec<_> = gpus.iter().map(|gpu| DeviceOrdinal::new(*gpu)).collect();
            let rendezvous = Arc::new(meet(job.settings, process, gpus.len())?);
            let first = rendezvous.range().start;
            let closure = move |seat: Seat<DeviceOrdinal>| {
                let code = &kernels[seat.rank.index() - first];
                let gpu = crate::cuda::Gpu::new(&config, seat.device.number(), code);
                Ok(Transformer::new(&declared, gpu.map_err(ComputeError::closure)?))
            };
            let builder = Session::try_builder(job.settings.clone(), closure);
            Ok(dressed(builder, job).start_cuda_in(rendezvous, devices).await?)
        }
    }
}

/// Where the ranks meet: in this process, or with those of the others that a launcher started.
fn meet(
    settings: &Settings,
    process: Option<&ProcessEnvironment>,
    ranks: usize,
) -> Result<Rendezvous, Box<dyn Error>> {
    let (ranks, deadline) = (u32::try_from(ranks)?, settings.deadline());
    Ok(match process {
        None => Rendezvous::of_threads(ranks, deadline),
        Some(process) => {
            let secret = Secret::of_environment()?;
            Rendezvous::of_processes(process, ranks, secret.as_ref(), deadline)?
        }
    })
}

/// WORLD_SIZE, where it tells of other processes. Without RANK it tells no launcher, so the library takes this
/// process for one that was started by itself.
pub(crate) fn world_without_rank() -> Option<String> {
    std::env::var("WORLD_SIZE").ok().filter(|processes| !matches!(processes.trim(), "" | "0" | "1"))
}

/// How many GPUs the example can use, or why it can use none.
pub(crate) fn usable_gpus() -> Result<u32, String> {
    crate::cuda::gpus().map(|gpus| gpus.count()).map_err(|failure| failure.to_string())
}

fn dressed<S: Surface + 'static>(builder: SessionBuilder<S>, job: Job<'_>) -> SessionBuilder<S> {
    let masters: Vec<_> = parameters(job.config)
        .into_iter()
        .map(|parameter| (parameter.name.clone(), init::initial(&parameter, job.seed)))
        .collect();
    builder.program(job.declared.train.clone()).program(job.declared.evaluate.clone()).initialize(
        move |rows, own| {
            if let Some((_, values)) = masters.iter().find(|(name, _)| name == rows.weight) {
                own.copy_from_slice(&values[rows.first_element()..][..own.len()]);
            }
        },
    )
}
