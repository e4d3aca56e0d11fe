//! One in-order queue of a GPU, for work outside a session.
//!
//! Law: what a capture touches outlives the capture's last replay, and handles do not outlive the queue.
//! Nothing here enforces this, so it is for the benchmarks of this repository alone.

use std::rc::Rc;
use std::sync::Arc;

use bytemuck::Pod;

use super::blas::Blas;
use super::buffer::DeviceBuffer;
use crate::device::stream::{Graph, Priority, Stream};
use crate::failure::CudaFailure;
use crate::surface::CudaHandles;

/// An in-order queue of one GPU: what a session's compute lane is to closures, for a program that has no session.
#[derive(Debug)]
pub struct Queue {
    stream: Stream,
    handles: CudaHandles,
    blas: Rc<Blas>,
}

/// Work of a queue, captured once, to be enqueued by one launch.
#[derive(Debug)]
pub struct CapturedGraph(Graph);

impl Queue {
    pub(crate) fn new(blas: &Rc<Blas>) -> Result<Self, CudaFailure> {
        let stream = Stream::create(Arc::clone(&blas.context), Priority::Least)?;
        // SAFETY: the stream is one of the device's primary context, which is current, and lives as long as
        // the queue that lends the handles.
        let handles = unsafe { CudaHandles::new(stream.handle(), blas.context.ordinal()) };
        Ok(Self { stream, handles, blas: Rc::clone(blas) })
    }

    /// What layers enqueue with, valid for as long as the queue lives.
    #[must_use]
    pub const fn handles(&self) -> &CudaHandles {
        &self.handles
    }

    /// Waits until everything enqueued so far has run.
    ///
    /// # Errors
    /// [`CudaFailure::Call`], also for work that failed.
    pub fn synchronize(&self) -> Result<(), CudaFailure> {
        self.stream.synchronize()
    }

    /// Captures what `work` enqueues, instead of running it. What it launches must have run once before.
    ///
    /// # Errors
    /// Those of `work`, and of the capture.
    pub fn capture<E: From<CudaFailure>>(
        &self,
        work: impl FnOnce(&CudaHandles) -> Result<(), E>,
    ) -> Result<CapturedGraph, E> {
        self.blas.make_current()?;
        self.stream.begin_capture()?;
        let worked = work(&self.handles);
        let graph = self.stream.end_capture();
        worked?;
        let graph = graph?;
        self.stream.upload_graph(&graph)?;
        Ok(CapturedGraph(graph))
    }

    /// Enqueues what was captured.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn replay(&self, capture: &CapturedGraph) -> Result<(), CudaFailure> {
        self.stream.launch(&capture.0)
    }

    /// Copies a buffer to the host, after everything enqueued so far.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn download<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>, CudaFailure> {
        let held = buffer.read();
        let mut values = vec![T::zeroed(); held.len()];
        self.stream.download(held.address(), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}
