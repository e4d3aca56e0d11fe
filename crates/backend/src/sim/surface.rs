//! The surface of a backend on which no closure runs.
//!
//! Law: there is no value of it, nor of what it would lend, so no context can be made and no closure called.

use bytemuck::Pod;

use warpweft_plan::compute::{ComputeError, LentSlice, Surface};
use warpweft_plan::layout::Region;

/// What closures would get their memory from.
#[derive(Clone, Copy, Debug)]
pub enum SimSurface {}

impl LentSlice for SimSurface {
    fn len(&self) -> usize {
        match *self {}
    }
}

impl Surface for SimSurface {
    type Handles = ();
    type Device = ();
    type Read<'a, T: Pod> = Self;
    type Write<'a, T: Pod> = Self;

    fn read<T: Pod>(&self, _region: Region) -> Result<Self, ComputeError> {
        match *self {}
    }

    fn write<T: Pod>(&self, _region: Region) -> Result<Self, ComputeError> {
        match *self {}
    }

    fn spoil(&self, _region: Region) -> Result<(), ComputeError> {
        match *self {}
    }

    fn handles(&self) -> &() {
        match *self {}
    }
}
