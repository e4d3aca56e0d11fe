//! Choices of a CUDA world.

use std::time::Duration;

use super::device::context::DeviceOrdinal;
use warpweft_backend::{DeviceTimes, SignalBy};
use warpweft_plan::model::Levels;
use warpweft_plan::policy::Reduce;

/// How bytes get from one GPU to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Copy engines write into the peers' memory, or a kernel does where little is sent
    /// ([`CudaOptions::kernel_bytes`]). Needs GPUs that reach each other. Over several hosts, which need the
    /// same number of ranks, numbered host by host, this holds inside each host, and NCCL carries what goes
    /// between them.
    Peer,
    /// NCCL's collectives. Needs a GPU of its own for each rank.
    Nccl,
}

/// Choices of a CUDA world.
#[derive(Clone, Debug, PartialEq)]
pub struct CudaOptions {
    /// The GPU of every rank of this process, in rank order. Ranks may share one, to try things out: all ranks then
    /// also meet on the host, twice in every turn of a collective, and steps are not captured.
    pub devices: Vec<DeviceOrdinal>,
    /// `None` takes [`Transport::Peer`] where all GPUs of a host reach each other, and over several hosts if
    /// these have the same number of ranks and more than one; NCCL elsewhere.
    pub transport: Option<Transport>,
    /// How gradients are summed; [`Reduce::Nccl`] needs [`Transport::Nccl`].
    pub reduce: Reduce,
    /// Replicas of the model: the world is a mesh of that many replicas. Over several hosts with
    /// [`Transport::Peer`], replicas fill hosts or hosts fill replicas.
    pub replicas: u32,
    /// Ranks that share the tokens of a text; 1 without context parallelism.
    pub context: u32,
    /// Ranks of a tensor-parallel group; 1 without tensor parallelism.
    pub tensor: u32,
    /// Ranks of an expert-parallel group; 1 without expert parallelism.
    pub expert: u32,
    /// Ranks that one expert is sharded over; `None` for what `expert` leaves of a replica.
    pub expert_shards: Option<u32>,
    /// Blocks of replicas that each keep all optimizer state.
    pub instances: u32,
    /// In which levels the mesh sums; `None` for those that it has by itself.
    pub levels: Option<Levels>,
    /// Up to this many bytes per neighbour, a collective of [`Transport::Peer`] goes by one kernel instead of
    /// copy engines. A kernel waits for a multiprocessor, and takes some from the products beside it. It
    /// costs the host one launch, where engines cost a call per word and copy, and in a capture they do so
    /// at every launch of it.
    pub kernel_bytes: usize,
    /// What sets the words by which ranks meet that push with copy engines. Ranks need not agree.
    pub signal_by: SignalBy,
    /// What measures begin and end of every task on the device; `None` for nothing, except events in plans
    /// that request it.
    pub timeline: Option<DeviceTimes>,
    /// How long a rank waits for the others, and for a lane to make progress, before it gives up the world.
    pub deadline: Duration,
}

impl CudaOptions {
    /// One rank on each device, everything else as usual.
    #[must_use]
    pub fn new(devices: Vec<DeviceOrdinal>) -> Self {
        Self {
            devices,
            transport: None,
            reduce: Reduce::Ordered,
            replicas: 1,
            context: 1,
            tensor: 1,
            expert: 1,
            expert_shards: None,
            instances: 1,
            levels: None,
            kernel_bytes: 0,
            signal_by: SignalBy::Auto,
            timeline: None,
            deadline: Duration::from_secs(30),
        }
    }
}
