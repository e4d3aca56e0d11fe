//! Bytes to peers between two meetings, as one launch: `kernels/exchange.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::present;
use super::launch::KernelLaunch;
use super::meeting::{COPIERS, Mark, MeetingArguments, PIECE, Partner, blocks, workspace};
use super::memory::{CopyOperand, RangeArguments};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    ranges: DeviceAddress,
    meetings: MeetingArguments,
}
const _: () = assert!(size_of::<Arguments>() == 56);

impl Kernels {
    /// Meets `partners`, copies, meets them again, and leaves `mark`. Ranges may have any alignment; they do
    /// not overlap.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned, and for more partners than a
    /// block has threads.
    pub fn exchange(
        &self,
        copies: &[CopyOperand],
        partners: &[Partner],
        mark: Option<Mark>,
    ) -> Result<KernelLaunch, CudaFailure> {
        let content = workspace(partners)?;
        let range = |copy: &CopyOperand| {
            present("a source", copy.from)?;
            present("a target", copy.to)?;
            let descriptor = RangeArguments::new(copy.from, copy.to, copy.bytes);
            Ok((descriptor, (copy.bytes as u64).div_ceil(PIECE)))
        };
        let ranges: Vec<_> = copies.iter().map(range).collect::<Result<_, CudaFailure>>()?;
        let tiles = ranges.iter().map(|(_, tiles)| *tiles);
        let table = TileTable::with_workspace(ranges.len(), tiles, content.len(), |_| {
            (ranges.iter().map(|(range, _)| *range).collect::<Vec<_>>(), content)
        })?;
        let arguments = Arguments {
            tiles: table.tiles,
            ranges: table.descriptors,
            meetings: MeetingArguments::new(table.workspace, partners, mark),
        };
        let function = self.function(Family::Exchange, c"exchange")?;
        Ok(KernelLaunch::new(function, blocks(table.blocks()), COPIERS, arguments, Some(table.table)))
    }
}
