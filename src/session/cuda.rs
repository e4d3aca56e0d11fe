//! Sessions on the GPUs of this machine.

use std::time::Duration;

use super::{Session, SessionBuilder, SessionError};
use crate::backend::Checked;
use crate::backend::cuda::{CudaOptions, CudaSurface, CudaWorld, DeviceOrdinal, Transport};
use crate::config;

impl SessionBuilder<CudaSurface> {
    /// Starts one rank on each of `devices`, one thread per rank, with the transport, the deadline and the checking
    /// layer that the configuration names. Tasks are timed on the device if a trace is asked for.
    ///
    /// # Errors
    /// [`SessionError::Cuda`] when a library or a device is missing, then as [`SessionBuilder::start`].
    pub async fn start_cuda(self, devices: Vec<DeviceOrdinal>) -> Result<Session, SessionError> {
        self.config.validate()?;
        let options = CudaOptions {
            transport: match self.config.transport {
                config::Transport::Auto => None,
                config::Transport::Peer => Some(Transport::Peer),
                config::Transport::Nccl => Some(Transport::Nccl),
            },
            reduce: self.config.reduce,
            timeline: self.config.trace.enabled,
            deadline: Duration::from_secs_f64(self.config.deadline_s),
            ..CudaOptions::new(devices)
        };
        let backends = CudaWorld::new(options)?.backends()?;
        if self.config.check {
            self.start(backends.into_iter().map(Checked::new).collect()).await
        } else {
            self.start(backends).await
        }
    }
}
