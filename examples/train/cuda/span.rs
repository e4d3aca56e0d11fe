//! Device memory as kernels take it: an address with a length and a lifetime.
//!
//! Law: a span is made from memory somebody lent or owns, never from a number, and does not outlive it.

use std::marker::PhantomData;

use bytemuck::Pod;
use warpweft::backend::cuda::{DeviceSlice, DeviceSliceMut};

/// Elements on the device, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Span<'a, T> {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) lent: PhantomData<&'a T>,
}

/// Elements on the device, to be written.
pub(crate) struct SpanMut<'a, T> {
    pub(super) address: u64,
    pub(super) len: usize,
    pub(super) lent: PhantomData<&'a mut T>,
}

impl<'a, T: Pod> From<DeviceSlice<'a, T>> for Span<'a, T> {
    fn from(slice: DeviceSlice<'a, T>) -> Self {
        Self { address: slice.address().number(), len: slice.len(), lent: PhantomData }
    }
}

impl<'a, T: Pod> From<DeviceSliceMut<'a, T>> for SpanMut<'a, T> {
    fn from(slice: DeviceSliceMut<'a, T>) -> Self {
        Self { address: slice.address().number(), len: slice.len(), lent: PhantomData }
    }
}

impl<T> SpanMut<'_, T> {
    /// The same elements, to be read meanwhile.
    pub(crate) fn as_span(&self) -> Span<'_, T> {
        Span { address: self.address, len: self.len, lent: PhantomData }
    }

    /// The same elements, to be written by one more operation.
    pub(crate) fn again(&mut self) -> SpanMut<'_, T> {
        SpanMut { address: self.address, len: self.len, lent: PhantomData }
    }
}

/// A row-major matrix, or the transposed view of one.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(super) data: Span<'a, f32>,
    /// Rows as stored.
    pub(super) rows: usize,
    /// Columns as stored.
    pub(super) cols: usize,
    pub(super) transposed: bool,
}

impl<'a> Matrix<'a> {
    /// A contiguous `rows × cols` matrix; the length is checked when it is multiplied.
    pub(crate) fn dense(data: Span<'a, f32>, rows: usize, cols: usize) -> Self {
        Self { data, rows, cols, transposed: false }
    }

    /// The same elements with rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Rows and columns as seen.
    pub(super) fn shape(self) -> (usize, usize) {
        if self.transposed { (self.cols, self.rows) } else { (self.rows, self.cols) }
    }
}
