//! A null backend: it takes every task and does nothing.

use std::time::Instant;

use warpweft_backend::cpu::CpuSurface;
use warpweft_backend::{Backend, BackendError, ClosureFault, Inspection, TaskInterval};
use warpweft_base::id::{EventId, LaneId, RankId, TaskId};
use warpweft_plan::compute::ComputeFactory;
use warpweft_plan::layout::{Binding, Lane, Region};
use warpweft_plan::model::Mesh;
use warpweft_plan::policy::Reduce;

/// One rank without a device.
#[derive(Debug)]
pub(crate) struct Null {
    /// The world it claims to be in.
    pub(crate) mesh: Mesh,
}

impl Backend for Null {
    type Surface = CpuSurface;
    type Memory = ();
    type Stream = LaneId;
    type Bound = ();
    type Graph = ();

    fn rank(&self) -> RankId {
        RankId::new(0)
    }

    fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn reduce(&self) -> Reduce {
        Reduce::Ordered
    }

    fn describe(&self) -> String {
        "does nothing".to_owned()
    }

    fn origin(&self) -> Instant {
        Instant::now()
    }

    fn receive_buffer_bytes(&self, _binding: &Binding<'_>) -> Result<usize, BackendError> {
        Ok(0)
    }

    fn reserve(&self, _bytes: usize, _receive_buffer: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn open(
        &self,
        (): &(),
        lane: Lane,
        _closures: Option<ComputeFactory<CpuSurface>>,
    ) -> Result<LaneId, BackendError> {
        Ok(lane.id)
    }

    fn lane(&self, stream: &LaneId) -> LaneId {
        *stream
    }

    fn bind(&self, (): &(), _binding: &Binding<'_>) -> Result<(), BackendError> {
        Ok(())
    }

    fn begin_step(&self, (): &mut ()) -> Result<(), BackendError> {
        Ok(())
    }

    fn has_cold_steps(&self) -> bool {
        false
    }

    fn warmed(&self, (): &mut ()) {}

    fn enqueue(&self, _stream: &mut LaneId, (): &(), _task: TaskId) -> Result<(), BackendError> {
        Ok(())
    }

    fn record(&self, _stream: &mut LaneId, (): &(), _event: EventId) -> Result<(), BackendError> {
        Ok(())
    }

    fn wait(&self, _stream: &mut LaneId, (): &(), _event: EventId) -> Result<(), BackendError> {
        Ok(())
    }

    fn begin_capture(&self, _streams: &mut [LaneId], (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn end_capture(&self, _streams: &mut [LaneId], (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn launch(&self, _streams: &mut [LaneId], (): &(), (): &()) -> Result<(), BackendError> {
        Ok(())
    }

    fn synchronize(&self, _stream: &mut LaneId) -> Result<(), BackendError> {
        Ok(())
    }

    fn take_fault(&self, _stream: &mut LaneId) -> Option<ClosureFault> {
        None
    }

    fn take_diverged(&self) -> bool {
        false
    }

    fn take_inspection(&self, _bound: &Self::Bound) -> Inspection {
        Inspection::None
    }

    fn upload(&self, (): &(), _region: Region, _bytes: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn download(&self, (): &(), _region: Region, _bytes: &mut [u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn intervals(&self, (): &(), into: &mut Vec<TaskInterval>) {
        into.clear();
    }

    fn poison(&self, _reason: &str) {}

    fn abort(&self, _reason: &str) {}
}
