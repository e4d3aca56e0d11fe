//! The surface of a backend on which no closure runs.
//!
//! Law: there is no value of it, so no context can be made and no closure called.

use bytemuck::Pod;

use crate::compute::{ComputeError, Surface};
use crate::layout::Region;

/// What closures would get their memory from.
#[derive(Clone, Copy, Debug)]
pub enum SimSurface {}

impl Surface for SimSurface {
    type Handles = ();
    type Device = ();
    type Read<'a, T: Pod> = &'a [T];
    type Write<'a, T: Pod> = &'a mut [T];

    fn read<T: Pod>(&self, _region: Region) -> Result<&[T], ComputeError> {
        match *self {}
    }

    fn write<T: Pod>(&self, _region: Region) -> Result<&mut [T], ComputeError> {
        match *self {}
    }

    fn spoil(&self, _region: Region) -> Result<(), ComputeError> {
        match *self {}
    }

    fn handles(&self) -> &() {
        match *self {}
    }
}
