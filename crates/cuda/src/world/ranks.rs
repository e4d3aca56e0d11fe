//! The ranks of a world on GPUs: which devices, by which transport, and one backend for each rank of this
//! process.

use std::sync::{Arc, Mutex};

use super::placement::{Statement, network, ranks_beside};
use crate::backend::CudaBackend;
use crate::device::context::Context;
use crate::failure::CudaFailure;
use crate::kernels::Kernels;
use crate::kernels::cache::KernelCache;
use crate::options::{CudaOptions, Transport};
use crate::timing::source::Times;
use crate::transport::signal::signal_by;
use crate::world::{World, refused};
use warpweft_backend::bell::lock;
use warpweft_backend::rendezvous::{HostName, Rendezvous, RendezvousError, Topic};
use warpweft_base::id::RankId;
use warpweft_plan::model::Mesh;

/// Ranks as GPUs, one thread each, of this process and perhaps of others. One value makes the backends of all
/// ranks of this process.
#[derive(Debug)]
pub struct CudaWorld {
    shared: Arc<World>,
    ranks_of_host: usize,
    /// Of the ranks of this process, until their backends are made.
    kernels: Vec<Mutex<Option<Kernels>>>,
}

impl CudaWorld {
    /// A world with one rank per device, all in this process, in the number of replicas that the options say;
    /// its clock starts now.
    ///
    /// # Errors
    /// [`CudaFailure`] when a library or a device is missing, or the devices cannot do what was asked.
    pub fn new(options: CudaOptions) -> Result<Self, CudaFailure> {
        let ranks = u32::try_from(options.devices.len()).unwrap_or(u32::MAX);
        let rendezvous = Rendezvous::of_threads(ranks, options.deadline);
        Self::within(Arc::new(rendezvous), options)
    }

    /// The ranks of this process, one on each device, in a world whose ranks meet at `rendezvous`. Waits for
    /// the other processes, which call it with the same transport, sums and mesh.
    ///
    /// # Errors
    /// As [`CudaWorld::new`]; what one process cannot do ends the world for all.
    pub fn within(rendezvous: Arc<Rendezvous>, options: CudaOptions) -> Result<Self, CudaFailure> {
        let told = Arc::clone(&rendezvous);
        Self::make(rendezvous, options).inspect_err(|failure| drop(told.end(&failure.to_string())))
    }

    fn make(rendezvous: Arc<Rendezvous>, options: CudaOptions) -> Result<Self, CudaFailure> {
        let mesh = Mesh::of(rendezvous.ranks(), options.replicas, options.tensor, None);
        let mesh = mesh.and_then(|mesh| mesh.with_context(options.context));
        let mesh = mesh.and_then(|mesh| mesh.with_experts(options.expert, options.expert_shards));
        let mesh = mesh.and_then(|mesh| mesh.with_instances(options.instances));
        let mesh = mesh.and_then(|mesh| options.levels.map_or(Ok(mesh), |levels| mesh.with_levels(levels)));
        let mesh = mesh.map_err(|error| CudaFailure::Refused(error.to_string()))?;
        let (devices, ranks) = (options.devices.len(), rendezvous.range().len());
        if devices != ranks {
            let words = format!("this process owns {ranks} ranks and was given {devices} devices");
            return Err(CudaFailure::Refused(words));
        }
        let retained = options.devices.iter().map(|device| Context::retain(*device).map(Arc::new));
        let contexts: Vec<_> = retained.collect::<Result<_, _>>()?;
        // Before ranks first meet, so that no rank waits for a process that compiles, and once in a process.
        let kernels = load_kernels(&contexts)?;
        let statements = statements(&rendezvous, &options, mesh, &contexts)?;
        let meets = rendezvous.ranks() > 1;
        let network = network(&statements, mesh, || reach_all(&contexts, meets))?;
        let shares_gpus = (statements.iter().enumerate()).any(|(place, statement)| {
            statements[..place].iter().any(|other| other.shares_gpu_with(statement))
        });
        let options = CudaOptions { signal_by: signal_by(options.signal_by)?, ..options };
        let times = options.timeline.map(|wished| Times::settle(wished, &contexts)).transpose()?;
        let ranks_of_host = ranks_beside(&statements, RankId::at(rendezvous.range().start));
        let world = World::new(mesh, network, options, rendezvous, contexts, shares_gpus, times);
        Ok(Self { shared: Arc::new(world), ranks_of_host, kernels })
    }

    /// The backend of one rank; it may move to the thread that drives the rank.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a rank of another process or of none, or the second time.
    pub fn backend(&self, rank: RankId) -> Result<CudaBackend, CudaFailure> {
        match self.shared.take(rank) {
            Some(false) => CudaBackend::new(Arc::clone(&self.shared), rank, self.kernels_of(rank)?),
            Some(true) => Err(CudaFailure::Refused(format!("the backend of {rank} was taken before"))),
            None => Err(CudaFailure::Refused(format!(
                "{rank} is not among the ranks {:?} of this process in a world of {}; ranks are counted from 0",
                self.shared.rendezvous.range(),
                self.shared.mesh.ranks()
            ))),
        }
    }

    /// They are the backend's from now on, which gives them back where their context is current.
    fn kernels_of(&self, rank: RankId) -> Result<Kernels, CudaFailure> {
        let place = rank.index().checked_sub(self.shared.rendezvous.range().start);
        let kernels = place.and_then(|place| lock(self.kernels.get(place)?).take());
        kernels.ok_or_else(|| CudaFailure::Refused(format!("the kernels of {rank} were taken before")))
    }

    /// The backends of all ranks of this process, in rank order.
    ///
    /// # Errors
    /// As [`CudaWorld::backend`].
    pub fn backends(&self) -> Result<Vec<CudaBackend>, CudaFailure> {
        self.shared.rendezvous.own().map(|rank| self.backend(rank)).collect()
    }

    /// How many ranks of this world are on the host of this process, including those of other processes.
    #[must_use]
    pub const fn ranks_of_host(&self) -> usize {
        self.ranks_of_host
    }

    /// How bytes get from one GPU of this world to another, on one host.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.shared.network.transport
    }

    /// Over how many hosts peers are spread, between which NCCL carries bytes; 1 if all bytes go one way.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.shared.network.hosts.count()
    }
}

fn load_kernels(contexts: &[Arc<Context>]) -> Result<Vec<Mutex<Option<Kernels>>>, CudaFailure> {
    let cache = KernelCache::of_user();
    let load = |context: &Arc<Context>| {
        context.make_current()?;
        let kernels = Kernels::for_current_context(cache.clone())?;
        kernels.load_all()?;
        Ok(Mutex::new(Some(kernels)))
    };
    contexts.iter().map(load).collect()
}

/// What all ranks reported of themselves, in rank order.
fn statements(
    rendezvous: &Rendezvous,
    options: &CudaOptions,
    mesh: Mesh,
    contexts: &[Arc<Context>],
) -> Result<Vec<Statement>, CudaFailure> {
    let meets = rendezvous.ranks() > 1;
    let host = match HostName::of_this_process() {
        // One process is on one machine, whatever it is called.
        Err(RendezvousError::Host { .. }) if rendezvous.is_whole() => HostName::new("this machine"),
        other => other.map_err(refused)?,
    };
    let own = contexts.iter().map(|context| {
        // Those of other processes are among what this one sees.
        let is_whole = rendezvous.is_whole();
        let reaches = if is_whole { context.can_reach_each(contexts)? } else { context.can_reach_all()? };
        let reaches = reaches && (!meets || context.can_meet()?);
        Ok(Statement::new(options, mesh, host.clone(), context.gpu()?, reaches).encode())
    });
    let own = own.collect::<Result<Vec<_>, CudaFailure>>()?;
    let all = rendezvous.exchange_all(Topic::Devices, &own).map_err(refused)?;
    let statement = |bytes: &Arc<[u8]>| {
        Statement::decode(bytes).map_err(|error| CudaFailure::Refused(format!("another process: {error}")))
    };
    all.iter().map(statement).collect()
}

/// Makes the GPUs of this process reach each other; `meets` says whether their ranks meet any.
fn reach_all(contexts: &[Arc<Context>], meets: bool) -> Result<(), CudaFailure> {
    for context in contexts {
        if meets && !context.can_meet()? {
            return Err(CudaFailure::Refused(format!(
                "streams of {} cannot wait for words of 64 bits; install NCCL and set transport = \"nccl\"",
                context.ordinal()
            )));
        }
    }
    for (one, other) in contexts.iter().flat_map(|one| contexts.iter().map(move |other| (one, other))) {
        if !one.reach(other)? {
            return Err(CudaFailure::Refused(format!(
                "{} cannot reach the memory of {}; install NCCL and set transport = \"nccl\"",
                one.ordinal(),
                other.ordinal()
            )));
        }
    }
    Ok(())
}
