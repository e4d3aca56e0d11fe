//! What a rank reserves before it runs: memory that its peers know, and lanes.
//!
//! Law: all ranks of the world reserve and open together, outside of any step.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{CudaBackend, CudaMemory};
use crate::bind::lane::CudaStream;
use crate::device::ipc::PAGE;
use crate::device::memory::DeviceMemory;
use crate::device::stream::{Event, Priority, Stream};
use crate::failure::CudaFailure;
use crate::shutdown::progress::LANES;
use crate::surface::{CudaHandles, CudaSurface};
use crate::transport::lane_communicators::LaneCommunicators;
use crate::transport::signal::Home;
use warpweft_backend::bell::lock;
use warpweft_backend::closures::Closures;
use warpweft_plan::layout::{ALIGNMENT, Lane, LaneKind};

impl CudaBackend {
    /// Zeroed device memory: the arena of `bytes`, then the flags by which ranks signal each other, then the
    /// receive buffer. All ranks of the world tell each other their addresses.
    pub(super) fn reserve_zeroed(
        &self,
        bytes: usize,
        receive_buffer: usize,
    ) -> Result<CudaMemory, CudaFailure> {
        let words = self.world.signals().bytes();
        let too_much = || CudaFailure::Refused("more bytes than there are addresses".to_owned());
        let after = |start: usize, bytes: usize| {
            start
                .checked_add(bytes)
                .and_then(|end| end.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(too_much)
        };
        let arena_bytes = after(0, bytes)?;
        let signals_end = after(arena_bytes, words)?;
        let all = after(signals_end, receive_buffer)?;
        // Whole pages, so that what is lent to other processes is this memory and nothing else.
        let pages = all.checked_next_multiple_of(PAGE).ok_or_else(too_much)?;
        let memory = Arc::new(DeviceMemory::zeroed(&self.context, &self.transfers, pages)?);
        let arena = memory.address();
        let home = Home { arena, signals: arena.plus(arena_bytes), receive_buffer: arena.plus(signals_end) };
        self.transfers.upload(bytemuck::bytes_of(&1u32), self.world.signals().one(home.signals))?;
        self.world.settle(self.rank, home, Arc::clone(&memory))?;
        let snapshot = OnceLock::new();
        Ok(CudaMemory { memory, arena_bytes, receive_buffer_bytes: all - signals_end, snapshot })
    }

    /// A stream for a lane, with the communicators that it needs.
    pub(super) fn open_lane(
        &self,
        memory: &CudaMemory,
        lane: Lane,
        closures: Closures<CudaSurface>,
    ) -> Result<CudaStream, CudaFailure> {
        if lane.id.index() >= LANES {
            return Err(CudaFailure::Refused(format!(
                "{}: a rank has at most {LANES} lanes, numbered from 0; use fewer in the plan",
                lane.id
            )));
        }
        let priority = match lane.kind {
            LaneKind::Sum | LaneKind::Snapshot => Priority::Least,
            LaneKind::Compute | LaneKind::Quantize | LaneKind::Communicator(_) => Priority::Greatest,
        };
        let stream = Arc::new(Stream::metered(Arc::clone(&self.context), priority, Arc::clone(&self.meter))?);
        let communication = match lane.kind {
            LaneKind::Communicator(communicator) => {
                Some(LaneCommunicators::open(&self.world, self.rank, communicator, &self.context, &stream)?)
            }
            LaneKind::Compute | LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => None,
        };
        lock(&self.lanes).insert(lane.id, communication);
        Ok(CudaStream {
            world: Arc::clone(&self.world),
            rank: self.rank,
            lane,
            handles: CudaHandles::of(&stream, self.captures.keep_alive()),
            arena: memory.memory.address(),
            stream,
            closures,
            fault: None,
            faulted: false,
            usual_wait: Duration::ZERO,
            captures: false,
            join: Event::order(Arc::clone(&self.context))?,
        })
    }
}
