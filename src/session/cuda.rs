//! Sessions on GPUs: of this process alone, or as one process of several.

use std::sync::Arc;
use std::time::Duration;

use super::{Session, SessionBuilder, SessionError};
use crate::backend::Checked;
use crate::backend::cuda::{CudaOptions, CudaSurface, CudaWorld, DeviceOrdinal, Transport};
use crate::config;
use crate::rendezvous::{ProcessEnvironment, Rendezvous, Secret};

impl SessionBuilder<CudaSurface> {
    /// Starts one rank on each of `devices`, one thread per rank, with the transport, the deadline and the checking
    /// layer that the configuration names. Tasks are timed on the device if a trace is asked for.
    ///
    /// # Errors
    /// [`SessionError::Cuda`] when a library or a device is missing, then as [`SessionBuilder::start`].
    pub async fn start_cuda(self, devices: Vec<DeviceOrdinal>) -> Result<Session, SessionError> {
        self.config.validate()?;
        let ranks = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let rendezvous = Arc::new(Rendezvous::of_threads(ranks, self.deadline()));
        self.start_cuda_in(rendezvous, devices).await
    }

    /// As [`SessionBuilder::start_cuda`], as one of the processes that a launcher started: waits for the others, with which this one
    /// shares the secret of the environment ([`Secret::of_environment`]), and starts one rank on each of `devices`. Ranks are
    /// numbered in the order of processes.
    ///
    /// # Errors
    /// [`SessionError::Rendezvous`] when the processes do not meet, then as [`SessionBuilder::start_cuda`].
    pub async fn start_cuda_process(
        self,
        environment: &ProcessEnvironment,
        devices: Vec<DeviceOrdinal>,
    ) -> Result<Session, SessionError> {
        self.config.validate()?;
        let ranks = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let secret = Secret::of_environment()?;
        let rendezvous = Rendezvous::of_processes(environment, ranks, secret.as_ref(), self.deadline())?;
        self.start_cuda_in(Arc::new(rendezvous), devices).await
    }

    /// As [`SessionBuilder::start_cuda`], for the ranks of this process in a world whose ranks meet at `rendezvous`.
    ///
    /// # Errors
    /// [`SessionError::Cuda`], then as [`SessionBuilder::start_in`].
    pub async fn start_cuda_in(
        self,
        rendezvous: Arc<Rendezvous>,
        devices: Vec<DeviceOrdinal>,
    ) -> Result<Session, SessionError> {
        self.config.validate()?;
        let options = CudaOptions {
            transport: match self.config.transport {
                config::Transport::Auto => None,
                config::Transport::Peer => Some(Transport::Peer),
                config::Transport::Nccl => Some(Transport::Nccl),
            },
            reduce: self.config.reduce,
            timeline: self.config.trace.enabled,
            deadline: self.deadline(),
            ..CudaOptions::new(devices)
        };
        let backends = CudaWorld::within(Arc::clone(&rendezvous), options)?.backends();
        let backends = backends.inspect_err(|failure| drop(rendezvous.end(&failure.to_string())))?;
        if self.config.check {
            self.start_in(rendezvous, backends.into_iter().map(Checked::new).collect()).await
        } else {
            self.start_in(rendezvous, backends).await
        }
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.config.deadline_s)
    }
}
