//! Commands: what a bound task enqueues.
//!
//! Law: **BK-2** A command holds addresses, lengths and prepared launches; [`Command::enqueue`] decides
//! nothing, allocates nothing and waits for nothing. [`Command::MeetOnHost`] does both, and exists only in worlds
//! whose ranks share a GPU.

use std::sync::Arc;

use crate::device::address::DeviceAddress;
use crate::device::pinned::PinnedSnapshot;
use crate::device::stream::Stream;
use crate::failure::CudaFailure;
use crate::kernels::KernelLaunch;
use crate::transport::communicator::{Communicator, Transfer};
use crate::transport::signal::MemoryOperations;
use crate::transport::strided_copy::StridedCopy;
use crate::world::HostMeeting;
use warpweft_backend::Activity;
use warpweft_plan::layout::Region;

/// One thing on a stream.
#[derive(Debug)]
pub(crate) enum Command {
    /// A kernel; what it is launched with is many times larger than other commands.
    Kernel(Box<KernelLaunch>),
    /// Copies bytes within the rank's own memory.
    Copy { from: DeviceAddress, to: DeviceAddress, bytes: usize },
    /// Copies bytes to the snapshot on the host, which it keeps.
    CopyToHost { from: DeviceAddress, to: DeviceAddress, bytes: usize, _kept: Arc<PinnedSnapshot> },
    /// Copies bytes into a peer's memory.
    Push(StridedCopy),
    /// Zeroes.
    Zero { to: DeviceAddress, bytes: usize },
    /// Words written and waited for.
    Memory(MemoryOperations),
    /// One group of NCCL transfers.
    Group { communicator: Arc<Communicator>, transfers: Vec<Transfer> },
    /// Goes on when every rank has enqueued what stands before it.
    MeetOnHost(HostMeeting),
}

impl Command {
    pub(crate) fn enqueue(&self, stream: &Stream) -> Result<(), CudaFailure> {
        match self {
            // SAFETY: the context is current on a rank's thread in a step; the launch was prepared in it,
            // lives in the bound plan, and names ranges that were checked against their allocations. The plan
            // orders all other accesses to them.
            Self::Kernel(launch) => stream.meter().driver(|| unsafe { launch.enqueue(stream.handle()) }),
            Self::Copy { from, to, bytes } => stream.copy(*from, *to, *bytes),
            Self::CopyToHost { from, to, bytes, .. } => stream.copy_to_host(*from, *to, *bytes),
            Self::Push(rows) => stream.copy_rows(rows),
            Self::Zero { to, bytes } => stream.zero(*to, *bytes),
            Self::Memory(operations) => operations.enqueue(stream),
            Self::Group { communicator, transfers } => communicator.enqueue(stream, transfers),
            Self::MeetOnHost(meeting) => stream.meter().within(Activity::Waiting, || meeting.attend()),
        }
    }

    /// A launch.
    pub(crate) fn kernel(launch: KernelLaunch) -> Self {
        Self::Kernel(Box::new(launch))
    }

    /// A copy; nothing for no bytes.
    pub(crate) fn copy(from: DeviceAddress, to: DeviceAddress, bytes: usize) -> Option<Self> {
        (bytes > 0 && from != to).then_some(Self::Copy { from, to, bytes })
    }

    /// Zeroes a region of the arena at `arena`; nothing for an empty one.
    pub(crate) fn zero(arena: DeviceAddress, region: Region) -> Option<Self> {
        (region.bytes > 0).then(|| Self::Zero { to: arena.plus(region.offset), bytes: region.bytes })
    }
}
