//! Sessions on GPUs: of this process alone, or as one process of several.
//!
//! Law: what waits for other processes or opens devices does so on a thread of its own, whatever executor
//! polls: an executor's thread is held up for as long as it takes to start one. A future dropped meanwhile
//! leaves that thread to end by itself, at the deadline at the latest, and what it made is closed; once the
//! processes have met, it ends the world (`given_up.rs`).

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use super::cancelled::GivenUp;
use crate::config::{self, Config};
use crate::session::{CompiledHere, Session, SessionBuilder, SessionError};
use warpweft_backend::rendezvous::{ProcessEnvironment, Rendezvous, RendezvousError, Secret};
use warpweft_cuda::{
    CudaBackend, CudaFailure, CudaOptions, CudaSurface, CudaWorld, DeviceOrdinal, Transport,
};

/// How long a rank looks for its next command before it sleeps: longer than a caller's thread takes to wake
/// and to request the next step, so that steps that follow one another wake no rank.
const PATIENCE: Duration = Duration::from_micros(300);

/// [`PATIENCE`], where all ranks of the host, of whatever processes, and as many other threads have a core
/// each; else a rank that looks would take the core from one that works. `cores` are those this process may
/// use: it cannot know whether others may use them too, and takes it that they may.
const fn patience(ranks_of_host: usize, cores: usize) -> Duration {
    if cores >= ranks_of_host.saturating_mul(2) { PATIENCE } else { Duration::ZERO }
}

impl SessionBuilder<CudaSurface> {
    /// Starts one rank on each of `devices`, one thread per rank, in as many replicas as the configuration
    /// says, with the transport, the deadline and the checking layer that the configuration names. Tasks are
    /// timed on the device if a trace is requested.
    ///
    /// # Errors
    /// [`SessionError::Config`] before anything is opened,
    /// [`SessionError::Cuda`] when a library or a device is missing, then as [`SessionBuilder::start`].
    pub async fn start_cuda(self, devices: Vec<DeviceOrdinal>) -> Result<Session, SessionError> {
        self.start_cuda_here(devices).await
    }

    fn start_cuda_here(self, devices: Vec<DeviceOrdinal>) -> CompiledHere<'static, Session> {
        Box::pin(async move {
            self.config.validate()?;
            let ranks = u32::try_from(devices.len()).unwrap_or(u32::MAX);
            let rendezvous = Arc::new(Rendezvous::of_threads(ranks, self.deadline()));
            self.start_cuda_in(rendezvous, devices).await
        })
    }

    /// As [`SessionBuilder::start_cuda`], as one of the processes that a launcher started: waits for the
    /// others, with which this one shares the secret of the environment ([`Secret::of_environment`]), and
    /// starts one rank on each of `devices`. Ranks are numbered in the order of processes.
    ///
    /// # Errors
    /// [`SessionError::Rendezvous`] when the processes do not meet, then as [`SessionBuilder::start_cuda`].
    pub async fn start_cuda_process(
        self,
        environment: &ProcessEnvironment,
        devices: Vec<DeviceOrdinal>,
    ) -> Result<Session, SessionError> {
        self.start_cuda_process_here(environment, devices).await
    }

    fn start_cuda_process_here(
        self,
        environment: &ProcessEnvironment,
        devices: Vec<DeviceOrdinal>,
    ) -> CompiledHere<'_, Session> {
        Box::pin(async move {
            self.config.validate()?;
            let ranks = u32::try_from(devices.len()).unwrap_or(u32::MAX);
            let secret = Secret::of_environment()?;
            let (environment, deadline) = (environment.clone(), self.deadline());
            let meet = move || Rendezvous::of_processes(&environment, ranks, secret.as_ref(), deadline);
            let rendezvous = beside(meet).await??;
            self.start_cuda_in(Arc::new(rendezvous), devices).await
        })
    }

    /// As [`SessionBuilder::start_cuda`], for the ranks of this process in a world whose ranks meet at
    /// `rendezvous`.
    ///
    /// # Errors
    /// [`SessionError::Cuda`], then as [`SessionBuilder::start_in`].
    pub async fn start_cuda_in(
        self,
        rendezvous: Arc<Rendezvous>,
        devices: Vec<DeviceOrdinal>,
    ) -> Result<Session, SessionError> {
        self.start_cuda_in_here(rendezvous, devices).await
    }

    fn start_cuda_in_here(
        mut self,
        rendezvous: Arc<Rendezvous>,
        devices: Vec<DeviceOrdinal>,
    ) -> CompiledHere<'static, Session> {
        Box::pin(async move {
            let told = self.config.validate();
            told.inspect_err(|error| drop(rendezvous.end(&error.to_string())))?;
            self.divide(rendezvous.ranks());
            let mesh = self.config.mesh_of(rendezvous.ranks());
            let mesh = mesh.inspect_err(|error| drop(rendezvous.end(&error.to_string())))?;
            let options = CudaOptions {
                transport: match self.config.transport {
                    config::Transport::Auto => None,
                    config::Transport::Peer => Some(Transport::Peer),
                    config::Transport::Nccl => Some(Transport::Nccl),
                },
                reduce: self.config.reduce,
                replicas: mesh.replicas(),
                context: mesh.context(),
                tensor: mesh.tensor(),
                expert: mesh.expert(),
                expert_shards: Some(mesh.expert_shards()),
                instances: mesh.instances(),
                levels: self.config.mesh.levels,
                kernel_bytes: self.kernel_bytes(),
                signal_by: self.config.signal_by,
                timeline: self.config.trace.enabled.then_some(self.config.trace.device),
                deadline: self.deadline(),
                ..CudaOptions::new(devices)
            };
            let met = Arc::clone(&rendezvous);
            let open = move || {
                let world = CudaWorld::within(Arc::clone(&met), options)?;
                let backends = world.backends().inspect_err(|failure| drop(met.end(&failure.to_string())))?;
                Ok((backends, world.ranks_of_host()))
            };
            self.start_opened(rendezvous, open).await
        })
    }

    /// Starts on what `open` opens, which also says how many ranks are on the host.
    async fn start_opened(
        mut self,
        rendezvous: Arc<Rendezvous>,
        open: impl FnOnce() -> Result<(Vec<CudaBackend>, usize), CudaFailure> + Send + 'static,
    ) -> Result<Session, SessionError> {
        // Over all of it, so that nothing lies between the opening and what guards itself after it.
        let given_up = GivenUp::unless_ended(&rendezvous);
        let started = async {
            let (backends, ranks_of_host) = beside(open).await??;
            let cores = thread::available_parallelism().map_or(1, usize::from);
            self.patience = patience(ranks_of_host, cores);
            self.start_in(Arc::clone(&rendezvous), backends).await
        };
        let started = started.await.inspect_err(|error| drop(rendezvous.end(&error.to_string())));
        given_up.ended();
        started
    }

    /// Up to how many bytes for a peer go by a kernel.
    fn kernel_bytes(&self) -> usize {
        let usual = match self.config.capture {
            config::Capture::Off => config::ByteSize::new(0),
            config::Capture::Step | config::Capture::Segments => Config::KERNEL_EXCHANGE,
        };
        usize::try_from(self.config.kernel_exchange.unwrap_or(usual).bytes()).unwrap_or(usize::MAX)
    }

    fn deadline(&self) -> Duration {
        self.config.deadline()
    }
}

/// Runs `work`, which blocks, on a thread of its own. It needs no runtime; a panic goes on here.
async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, RendezvousError> {
    let refused = |reason: String| RendezvousError::System { what: "a thread that starts a session", reason };
    let (tell, told) = oneshot::channel();
    let thread = thread::Builder::new().name("warpweft start".to_owned());
    let thread = thread.spawn(move || drop(tell.send(work()))).map_err(|error| refused(error.to_string()))?;
    match told.await {
        Ok(outcome) => Ok(outcome),
        Err(silence) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Err(refused(silence.to_string())),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};
    use std::time::Instant;

    use super::*;
    use warpweft_plan::compute::ComputeContext;
    use warpweft_plan::model::Call;

    #[test]
    fn ranks_look_for_commands_only_where_all_ranks_of_the_host_have_two_cores_each() {
        for (ranks_of_host, cores, looks) in
            [(1, 2, true), (1, 1, false), (4, 16, true), (8, 16, true), (8, 15, false), (8, 8, false)]
        {
            let expected = if looks { PATIENCE } else { Duration::ZERO };
            assert_eq!(patience(ranks_of_host, cores), expected, "{ranks_of_host} ranks, {cores} cores");
        }
    }

    #[test]
    fn an_executor_goes_on_while_a_session_waits_for_other_processes() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (go, gone) = std::sync::mpsc::channel();
        // Work that ends only if the same executor gets to the other future.
        let waits = beside(move || gone.recv_timeout(Duration::from_secs(60)).is_ok());
        let says = async { go.send(()).unwrap() };
        let begun = Instant::now();
        let (went_on, ()) = runtime.block_on(async { tokio::join!(waits, says) });
        assert!(went_on.unwrap(), "{:?}", begun.elapsed());
    }

    /// A start on GPUs of the first of two ranks, on what `open` opens, and where these meet.
    fn start_opened_by(
        open: impl FnOnce() -> Result<(Vec<CudaBackend>, usize), CudaFailure> + Send + 'static,
    ) -> (Arc<Rendezvous>, impl Future<Output = Result<Session, SessionError>>) {
        let rendezvous = Arc::new(Rendezvous::of_threads(2, Duration::from_secs(60)));
        let closures = |_| |_: &Call, _: &ComputeContext<'_, CudaSurface>| Ok(());
        let builder = Session::builder(Config::default(), closures);
        (Arc::clone(&rendezvous), builder.start_opened(rendezvous, open))
    }

    #[test]
    fn a_start_that_is_given_up_while_devices_are_opened_ends_the_world() {
        let (close, closed) = std::sync::mpsc::channel::<()>();
        let (rendezvous, start) = start_opened_by(move || {
            // Until the test is over.
            let _ = closed.recv();
            Err(CudaFailure::Refused("it came too late".to_owned()))
        });
        let mut start = Box::pin(start);
        let poll = start.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        assert_eq!(rendezvous.ended(), None);
        drop(start);
        let ended = rendezvous.ended().unwrap();
        assert!(ended.contains("given up while it started"), "{ended}");
        drop(close);
    }

    #[test]
    fn a_start_that_opens_nothing_ends_the_world_for_the_reason_that_it_gives() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (rendezvous, start) = start_opened_by(|| Err(CudaFailure::Refused("no such device".to_owned())));
        let error = runtime.block_on(start).unwrap_err().to_string();
        assert_eq!(rendezvous.ended(), Some(error.as_str()));
        assert!(error.contains("no such device"), "{error}");
    }

    #[test]
    fn a_start_that_panics_while_devices_are_opened_ends_the_world() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (rendezvous, start) = start_opened_by(|| panic!("no such library"));
        let start = std::panic::AssertUnwindSafe(|| runtime.block_on(start));
        assert!(std::panic::catch_unwind(start).is_err());
        let ended = rendezvous.ended().unwrap();
        assert!(ended.contains("given up while it started: it panicked"), "{ended}");
    }

    #[test]
    fn a_panic_of_the_work_is_one_of_whoever_awaits_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let panic = std::panic::catch_unwind(|| runtime.block_on(beside(|| panic!("no such library"))));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"no such library"));
    }
}
