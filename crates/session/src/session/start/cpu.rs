//! Sessions on this machine's CPU.

use std::time::Duration;

use super::SessionBuilder;
use crate::config::Transport;
use crate::session::{CompiledHere, Session, SessionError};
use warpweft_backend::cpu::{CpuOptions, CpuSurface, CpuWorld, Pace};
use warpweft_base::id::RankId;

impl SessionBuilder<CpuSurface> {
    /// Starts `ranks` ranks on this machine's CPU, in as many replicas, checked and with a paced link as the
    /// configuration says.
    ///
    /// # Errors
    /// As [`SessionBuilder::start`]; [`SessionError::Config`] for a `transport` that only GPUs have;
    /// [`SessionError::Exec`] with [`BackendError::Room`](warpweft_backend::BackendError::Room), before anything is
    /// reserved, for more ranks than the system gives one process the threads and the memory for.
    pub async fn start_cpu(self, ranks: u32) -> Result<Session, SessionError> {
        self.start_cpu_here(ranks).await
    }

    fn start_cpu_here(mut self, ranks: u32) -> CompiledHere<'static, Session> {
        Box::pin(async move {
            self.config.validate()?;
            if self.config.transport != Transport::Auto {
                let advice = "remove it, or run on GPUs";
                return Err(self
                    .config
                    .unsupported("transport", "which is a way between GPUs", advice)
                    .into());
            }
            self.divide(ranks);
            let pace = &self.config.cpu.link;
            let link = pace.bytes_per_s.map(|bytes_per_s| Pace {
                bytes_per_s,
                latency: Duration::from_secs_f64(pace.latency_us * 1e-6),
            });
            let world = CpuWorld::new(self.config.mesh_of(ranks)?, CpuOptions { link })?;
            let backends = (0..ranks).map(RankId::new).map(|rank| world.backend(rank));
            self.start(backends.collect::<Result<_, _>>()?).await
        })
    }
}
