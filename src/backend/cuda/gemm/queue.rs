//! One in-order queue of a GPU and memory on it, for work outside of a session.
//!
//! Law: memory is zeroed when it is made and freed when it is dropped, behind the work that uses it. What a recording touches must
//! outlive the recording's last replay.

use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use bytemuck::Pod;

use super::super::failure::CudaFailure;
use super::super::memory::DeviceMemory;
use super::super::stream::{Graph, Priority, Stream};
use super::super::surface::{CudaHandles, DeviceSlice, DeviceSliceMut};
use super::blas::Blas;

/// An in-order queue of one GPU: what a session's compute lane is to closures, for a program that has no session.
#[derive(Debug)]
pub struct Queue {
    stream: Stream,
    handles: CudaHandles,
    blas: Rc<Blas>,
}

/// Work of a queue, recorded once, to be enqueued by one launch.
#[derive(Debug)]
pub struct Recording(Graph);

impl Queue {
    pub(crate) fn new(blas: &Rc<Blas>) -> Result<Self, CudaFailure> {
        let stream = Stream::create(Arc::clone(&blas.context), Priority::Least)?;
        // SAFETY: the stream is one of the device's primary context, which is current, and lives as long as the queue that lends
        // the handles.
        let handles = unsafe { CudaHandles::new(stream.handle(), blas.context.ordinal()) };
        Ok(Self { stream, handles, blas: Rc::clone(blas) })
    }

    /// What layers enqueue with. They serve for as long as the queue lives.
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

    /// Records what `work` enqueues, instead of running it. What it launches must have run once before.
    ///
    /// # Errors
    /// Those of `work`, and of the recording.
    pub fn record<E: From<CudaFailure>>(
        &self,
        work: impl FnOnce(&CudaHandles) -> Result<(), E>,
    ) -> Result<Recording, E> {
        self.blas.make_current()?;
        self.stream.begin_capture()?;
        let worked = work(&self.handles);
        let graph = self.stream.end_capture();
        worked?;
        let graph = graph?;
        self.stream.upload_graph(&graph)?;
        Ok(Recording(graph))
    }

    /// Enqueues what was recorded.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn replay(&self, recording: &Recording) -> Result<(), CudaFailure> {
        self.stream.launch(&recording.0)
    }

    /// Copies a buffer to the host, behind everything enqueued so far.
    ///
    /// # Errors
    /// [`CudaFailure::Call`].
    pub fn download<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> Result<Vec<T>, CudaFailure> {
        let mut values = vec![T::zeroed(); buffer.len];
        self.stream.download(buffer.memory.address(), bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

/// Memory of one GPU that belongs to a closure, or to a program without a session.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    memory: DeviceMemory,
    len: usize,
    elements: PhantomData<T>,
}

impl<T: Pod> DeviceBuffer<T> {
    pub(crate) fn zeroed(blas: &Blas, len: usize) -> Result<Self, CudaFailure> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            CudaFailure::Refused(format!("{len} elements are more than memory has addresses for"))
        })?;
        Ok(Self { memory: blas.memory(bytes)?, len, elements: PhantomData })
    }

    /// All elements, to be read.
    #[must_use]
    pub const fn read(&self) -> DeviceSlice<'_, T> {
        // SAFETY: the elements are this value's own and live as long as the slice; memory is freed behind work that uses it.
        unsafe { DeviceSlice::from_address(self.memory.address(), self.len) }
    }

    /// All elements, to be written.
    #[must_use]
    pub const fn write(&mut self) -> DeviceSliceMut<'_, T> {
        // SAFETY: as above, and the value is borrowed alone.
        unsafe { DeviceSliceMut::from_address(self.memory.address(), self.len) }
    }
}
