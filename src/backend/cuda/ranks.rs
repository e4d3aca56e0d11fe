//! The ranks of a world on the GPUs of this process: which devices, by which way, and one backend each.

use std::sync::Arc;

use super::backend::CudaBackend;
use super::context::Context;
use super::failure::CudaFailure;
use super::library::Library;
use super::options::{CudaOptions, Transport};
use super::world::World;
use crate::config::Reduce;
use crate::id::RankId;
use crate::model::Mesh;

/// Ranks as GPUs of this process, one thread each. One value makes the backends of all its ranks.
#[derive(Debug)]
pub struct CudaWorld {
    shared: Arc<World>,
}

impl CudaWorld {
    /// A world of as many ranks as devices; its clock starts now.
    ///
    /// # Errors
    /// [`CudaFailure`] when a library or a device is missing, or the devices cannot do what was asked.
    pub fn new(options: CudaOptions) -> Result<Self, CudaFailure> {
        let count = u32::try_from(options.devices.len()).unwrap_or(u32::MAX);
        let mesh = Mesh::new(count).map_err(|error| CudaFailure::Refused(error.to_string()))?;
        let contexts: Vec<_> = options
            .devices
            .iter()
            .map(|device| Context::retain(*device).map(Arc::new))
            .collect::<Result<_, _>>()?;
        let transport = transport(&options, &contexts)?;
        Ok(Self { shared: Arc::new(World::new(mesh, transport, options, contexts)) })
    }

    /// The backend of one rank; it may move to the thread that drives the rank.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for a rank outside of the mesh, or the second time.
    pub fn backend(&self, rank: RankId) -> Result<CudaBackend, CudaFailure> {
        match self.shared.take(rank) {
            Some(false) => CudaBackend::new(Arc::clone(&self.shared), rank),
            Some(true) => Err(CudaFailure::Refused(format!("the backend of {rank} was taken before"))),
            None => Err(CudaFailure::Refused(format!(
                "{rank} is not in a world of {} ranks; ranks are counted from 0",
                self.shared.mesh.ranks()
            ))),
        }
    }

    /// The backends of all ranks, in rank order.
    ///
    /// # Errors
    /// As [`CudaWorld::backend`].
    pub fn backends(&self) -> Result<Vec<CudaBackend>, CudaFailure> {
        self.shared.mesh.iter().map(|rank| self.backend(rank)).collect()
    }

    /// How bytes get from one GPU of this world to another.
    #[must_use]
    pub fn transport(&self) -> Transport {
        self.shared.transport
    }
}

/// The transport asked for, or the best there is; peers are made reachable.
fn transport(options: &CudaOptions, contexts: &[Arc<Context>]) -> Result<Transport, CudaFailure> {
    let mut devices = options.devices.clone();
    devices.sort_unstable();
    devices.dedup();
    let alone = devices.len() == contexts.len();
    match options.transport {
        Some(Transport::Nccl) if !alone => Err(CudaFailure::Refused(
            "NCCL needs a GPU of its own for each rank; name each GPU once, or set transport = \"peer\""
                .to_owned(),
        )),
        Some(Transport::Nccl) => Library::Nccl.open().map(|()| Transport::Nccl),
        Some(Transport::Peer) if options.reduce == Reduce::Nccl => Err(CudaFailure::Refused(
            "reduce = \"nccl\" and transport = \"peer\" exclude each other; set reduce = \"ordered\""
                .to_owned(),
        )),
        Some(Transport::Peer) => reach_all(contexts).map(|()| Transport::Peer),
        None if options.reduce == Reduce::Nccl => Library::Nccl.open().map(|()| Transport::Nccl),
        None => match reach_all(contexts) {
            Err(_) if alone && Library::Nccl.open().is_ok() => Ok(Transport::Nccl),
            reached => reached.map(|()| Transport::Peer),
        },
    }
}

fn reach_all(contexts: &[Arc<Context>]) -> Result<(), CudaFailure> {
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
