//! A rank's part of the master of a weight: `Fragment` of `kernels/fragment.cuh`.

use bytemuck::{Pod, Zeroable};

use super::check::{divides, element_aligned, narrow, refused};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_format::{FlatShard, Format, Shape};

/// f32 master values: consecutive elements of a flattened row-major matrix, with any start and end.
///
/// A row shard is a matrix of its own, all of it ([`MasterFragment::whole`]); a flat (ZeRO) shard is a slice of
/// the weight's matrix, at any offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasterFragment {
    /// Where the fragment's first element is; a multiple of 4.
    pub master: DeviceAddress,
    /// The matrix.
    pub shape: Shape,
    /// Which of its elements.
    pub shard: FlatShard,
}

impl MasterFragment {
    /// All of a matrix: a row shard, or a whole weight.
    #[must_use]
    pub const fn whole(master: DeviceAddress, shape: Shape) -> Self {
        Self { master, shape, shard: FlatShard { start: 0, len: shape.elements() } }
    }

    /// The arguments for the kernels. Any shape is read correctly; it is fast if rows begin at multiples of
    /// 16 bytes.
    pub(super) fn arguments(&self, format: Format) -> Result<FragmentArguments, CudaFailure> {
        element_aligned("a master", self.master, 4)?;
        divides(format, self.shape)?;
        self.shard.check(self.shape).map_err(refused)?;
        let aligned = self.master.number().is_multiple_of(16)
            && self.shape.cols.is_multiple_of(4)
            && self.shard.start.is_multiple_of(4);
        Ok(FragmentArguments {
            master: self.master,
            start: self.shard.start as u64,
            len: self.shard.len as u64,
            rows: narrow("rows", self.shape.rows)?,
            cols: narrow("columns", self.shape.cols)?,
            aligned: u32::from(aligned),
            reserved: 0,
        })
    }
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct FragmentArguments {
    pub(super) master: DeviceAddress,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) rows: u32,
    pub(super) cols: u32,
    pub(super) aligned: u32,
    pub(super) reserved: u32,
}
const _: () = assert!(size_of::<FragmentArguments>() == 40);
