//! GPUs as the device of the shared test bodies. Ranks beyond the number of GPUs share them, where the way bytes go
//! allows it; elsewhere the body that requests them ends there.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warpweft_backend::{DeviceTimes, SignalBy};
use warpweft_cuda::{CudaBackend, CudaFailure, CudaOptions, CudaWorld, DeviceOrdinal, Transport};
use warpweft_plan::model::Mesh;

use crate::bodies::harness::{Plan, RankWork, made_by_ranks, within_limit};

pub(crate) type Device = CudaBackend;

/// Nothing to choose: the transport is the run's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeviceOptions {}

/// How bytes get from rank to rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Copy engines, and kernels for the smallest. Kernels alone between ranks that share a GPU.
    Engines,
    /// The same, where words are set by copies.
    Copies,
    /// Kernels that meet, for everything.
    Kernels,
    Nccl,
}

static WAY: Mutex<Way> = Mutex::new(Way::Engines);

/// A world on every GPU there is, if kernels can be made for them.
pub(crate) fn every_gpu() -> Result<CudaWorld, CudaFailure> {
    let world = CudaWorld::new(CudaOptions::new(DeviceOrdinal::all()?))?;
    world.backends().map(drop)?;
    Ok(world)
}

/// NCCL, and kernels that wait for each other, take one rank per GPU.
pub(crate) fn ways() -> Vec<Way> {
    let several = gpus().len() >= 2;
    let all = [Way::Engines, Way::Copies, Way::Kernels, Way::Nccl];
    all.into_iter().filter(|way| several || way.lets_ranks_share_gpus()).collect()
}

impl Way {
    pub(crate) fn lets_ranks_share_gpus(self) -> bool {
        matches!(self, Self::Engines | Self::Copies)
    }
}

/// What ends a body whose ranks would share GPUs, where each must have its own.
pub(crate) struct Crowded {
    /// Ranks of the world it requested.
    pub(crate) ranks: usize,
    /// GPUs of this machine.
    pub(crate) gpus: usize,
}

fn gpus() -> Vec<DeviceOrdinal> {
    DeviceOrdinal::all().unwrap_or_default()
}

pub(crate) fn choose(way: Way) {
    *WAY.lock().unwrap() = way;
}

/// The way of this run.
pub(crate) fn way() -> Way {
    *WAY.lock().unwrap()
}

/// Whether the checking layer can look at what a closure wrote.
pub(crate) const HOST_SEES_MEMORY: bool = false;

/// Whether of slots with counts only what is filled is moved. NCCL is told sizes when it is enqueued.
pub(crate) fn moves_filled_rows_alone() -> bool {
    way() != Way::Nccl
}

/// Ranks whose steps can be captured together: one on each GPU.
pub(crate) fn most_captured_ranks() -> u32 {
    u32::try_from(gpus().len().clamp(1, 4)).unwrap()
}

/// Meshes of several replicas, those of fewest ranks first: a body goes as far as there are GPUs.
pub(crate) fn meshes() -> Vec<Mesh> {
    [(2, 2, 1), (3, 3, 1), (4, 2, 1), (4, 4, 1), (4, 4, 2)]
        .map(|(ranks, replicas, instances)| {
            Mesh::hybrid(ranks, replicas).and_then(|mesh| mesh.with_instances(instances)).unwrap()
        })
        .to_vec()
}

/// Runs `work` on every rank of a world of its own, each on its thread.
pub(crate) fn on_every_rank<R, F>(plan: Plan, _: DeviceOptions, work: F) -> Vec<R>
where
    R: Send + 'static,
    F: Fn(CudaBackend, Arc<Plan>) -> R + Send + Sync + 'static,
{
    let (gpus, ranks, way) = (gpus(), plan.weights.mesh.ranks() as usize, way());
    if !way.lets_ranks_share_gpus() && ranks > gpus.len() {
        resume_unwind(Box::new(Crowded { ranks, gpus: gpus.len() }));
    }
    made_by_ranks(plan.weights.mesh.ranks(), work, move |work| start(plan, gpus, way, work))
}

fn start(plan: Plan, gpus: Vec<DeviceOrdinal>, way: Way, work: RankWork) {
    let ranks = plan.weights.mesh.ranks() as usize;
    within_limit(move || {
        let devices = (0..ranks).map(|rank| gpus[rank % gpus.len()]).collect();
        let transport = if way == Way::Nccl { Transport::Nccl } else { Transport::Peer };
        let kernel_bytes = if way == Way::Kernels { usize::MAX } else { 0 };
        // Both ways to time tasks get their turn; CUPTI where it is to be had.
        let times = if way == Way::Kernels { DeviceTimes::Events } else { DeviceTimes::Auto };
        let signal_by = if way == Way::Copies { SignalBy::Copy } else { SignalBy::Auto };
        // A rank that waits for ever says so before the limit of a test is reached.
        let deadline = Duration::from_secs(8);
        let options = CudaOptions {
            transport: Some(transport),
            replicas: plan.weights.mesh.replicas(),
            context: plan.weights.mesh.context(),
            tensor: plan.weights.mesh.tensor(),
            expert: plan.weights.mesh.expert(),
            expert_shards: Some(plan.weights.mesh.expert_shards()),
            instances: plan.weights.mesh.instances(),
            levels: Some(plan.weights.mesh.levels()),
            kernel_bytes,
            signal_by,
            timeline: Some(times),
            deadline,
            ..CudaOptions::new(devices)
        };
        let world = CudaWorld::new(options).unwrap();
        let plan = Arc::new(plan);
        let backends = world.backends().unwrap();
        std::thread::scope(|scope| {
            let ranks: Vec<_> = backends
                .into_iter()
                .map(|backend| {
                    let (plan, work) = (Arc::clone(&plan), &work);
                    scope.spawn(move || work(backend, plan))
                })
                .collect();
            ranks.into_iter().for_each(|rank| rank.join().unwrap());
        });
    });
}
