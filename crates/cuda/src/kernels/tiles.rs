//! The tiles of one launch over a list of tensors, and the table on the device that describes them.
//!
//! Law: the tiles of the tensors are numbered one after the other. The table holds the tensors' descriptors,
//! the number of each tensor's first tile followed by the number of all tiles, and the workspace a kernel
//! requested, zeroed. The descriptor of a launch's only tensor also goes with the arguments (`only`). Mirrors
//! `Tiles` of `kernels/common.cuh`.

use bytemuck::{NoUninit, Pod, Zeroable};

use super::device_table::DeviceTable;
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// Alignment of the parts of a table.
const ALIGNMENT: usize = 256;

/// `Tiles` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct TileArguments {
    first: DeviceAddress,
    tensors: u32,
    count: u32,
}
const _: () = assert!(size_of::<TileArguments>() == 16);

impl TileArguments {
    /// The `count` tiles of a launch's only tensor, of which kernels read no table.
    pub(super) const fn of_one(count: u32) -> Self {
        Self { first: DeviceAddress::NULL, tensors: 1, count }
    }
}

/// The table of one launch.
#[derive(Debug)]
pub(super) struct TileTable {
    pub(super) table: DeviceTable,
    pub(super) tiles: TileArguments,
    pub(super) descriptors: DeviceAddress,
    pub(super) workspace: DeviceAddress,
}

impl TileTable {
    /// The table of `tensors`: a descriptor and a number of tiles for each. `workspace` bytes follow.
    pub(super) fn new<D: NoUninit>(tensors: &[(D, u64)], workspace: usize) -> Result<Self, CudaFailure> {
        Self::with_workspace(tensors.len(), tensors.iter().map(|(_, tiles)| *tiles), workspace, |_| {
            (tensors.iter().map(|(descriptor, _)| *descriptor).collect(), Vec::new())
        })
    }

    /// The same where the descriptors or the workspace hold addresses inside the workspace: `make` is given its
    /// address, and returns `tensors` descriptors and the beginning of the workspace.
    pub(super) fn with_workspace<D: NoUninit>(
        tensors: usize,
        tiles: impl Iterator<Item = u64>,
        workspace: usize,
        make: impl FnOnce(DeviceAddress) -> (Vec<D>, Vec<u8>),
    ) -> Result<Self, CudaFailure> {
        let first = first_tiles(tiles)?;
        let count = first.last().copied().unwrap_or(0);
        let first: &[u8] = bytemuck::cast_slice(&first);
        let first_at = (tensors * size_of::<D>()).next_multiple_of(ALIGNMENT);
        let workspace_at = first_at + first.len().next_multiple_of(ALIGNMENT);
        let table = DeviceTable::fill(workspace_at + workspace, |base| {
            let (descriptors, content) = make(base.plus(workspace_at));
            let mut bytes: Vec<u8> = bytemuck::cast_slice(&descriptors).to_vec();
            bytes.resize(first_at, 0);
            bytes.extend(first);
            bytes.resize(workspace_at, 0);
            bytes.extend(content);
            bytes
        })?;
        let base = table.address();
        let number = u32::try_from(tensors).map_err(|_| too_many())?;
        Ok(Self {
            table,
            tiles: TileArguments { first: base.plus(first_at), tensors: number, count },
            descriptors: base,
            workspace: base.plus(workspace_at),
        })
    }

    /// Blocks of a launch with one per tile.
    pub(super) const fn blocks(&self) -> u32 {
        self.tiles.count
    }
}

/// The descriptor that goes with the arguments: that of a launch's only tensor. Where there are more, it is
/// not read.
pub(super) fn only<D: Zeroable + Copy>(tensors: &[(D, u64)]) -> D {
    tensors.first().map_or(D::zeroed(), |(descriptor, _)| *descriptor)
}

/// Numbers of the first tiles, and of all.
fn first_tiles(tiles: impl Iterator<Item = u64>) -> Result<Vec<u32>, CudaFailure> {
    let mut first = vec![0];
    let mut sum = 0_u64;
    for tiles in tiles {
        sum = sum.saturating_add(tiles);
        // A grid has at most 2^31 - 1 blocks.
        let number = i32::try_from(sum).map_err(|_| too_many())?;
        first.push(number.unsigned_abs());
    }
    Ok(first)
}

fn too_many() -> CudaFailure {
    CudaFailure::Refused("one launch covers at most 2^31 - 1 tiles; put fewer weights into one bucket".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_numbered_one_after_the_other() {
        assert_eq!(first_tiles([3, 0, 2].into_iter()).unwrap(), [0, 3, 3, 5]);
        assert_eq!(first_tiles([].into_iter()).unwrap(), [0]);
    }

    #[test]
    fn more_tiles_than_a_grid_has_blocks_are_refused() {
        assert!(first_tiles([u64::from(u32::MAX)].into_iter()).is_err());
        assert!(first_tiles([u64::MAX, u64::MAX].into_iter()).is_err());
        assert_eq!(first_tiles([i32::MAX as u64].into_iter()).unwrap(), [0, i32::MAX as u32]);
    }
}
