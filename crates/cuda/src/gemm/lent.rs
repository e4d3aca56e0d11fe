//! Device memory lent to a closure, without its element type.

use std::marker::PhantomData;

use crate::device::address::DeviceAddress;
use crate::surface::{DeviceSlice, DeviceSliceMut};

/// Bytes lent for reading.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lent<'a> {
    address: DeviceAddress,
    bytes: usize,
    lent: PhantomData<&'a u8>,
}

/// Bytes lent for writing.
#[derive(Debug)]
pub(crate) struct LentMut<'a> {
    address: DeviceAddress,
    bytes: usize,
    lent: PhantomData<&'a mut u8>,
}

impl Lent<'_> {
    /// Callers own the range for as long as the value lives.
    pub(super) const fn new(address: DeviceAddress, bytes: usize) -> Self {
        Self { address, bytes, lent: PhantomData }
    }

    pub(crate) const fn address(self) -> DeviceAddress {
        self.address
    }

    pub(crate) const fn bytes(self) -> usize {
        self.bytes
    }
}

impl<'a> LentMut<'a> {
    /// Callers own the range exclusively for as long as the value lives.
    pub(super) const fn new(address: DeviceAddress, bytes: usize) -> Self {
        Self { address, bytes, lent: PhantomData }
    }

    pub(crate) const fn address(&self) -> DeviceAddress {
        self.address
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same range, to be read by later work on the stream, once it is written.
    pub(super) const fn as_lent(&self) -> Lent<'a> {
        Lent::new(self.address, self.bytes)
    }
}

impl<'a, T> From<DeviceSlice<'a, T>> for Lent<'a> {
    fn from(slice: DeviceSlice<'a, T>) -> Self {
        Self::new(slice.address(), slice.len() * size_of::<T>())
    }
}

impl<'a, T> From<DeviceSliceMut<'a, T>> for LentMut<'a> {
    fn from(slice: DeviceSliceMut<'a, T>) -> Self {
        Self::new(slice.address(), slice.len() * size_of::<T>())
    }
}
