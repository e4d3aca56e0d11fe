//! Bytes to peers between two meetings, as one launch: `kernels/exchange.cu`.
//!
//! Law: a launch waits for launches of other ranks, on GPUs of their own. Ranks of one GPU must not use it:
//! nothing promises that both kernels run at once.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, present};
use super::launch::KernelLaunch;
use super::memory::{CopyOperand, RangeArguments};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;

/// The words a rank shares with one partner, of 8 bytes each; `there` is the partner's memory. The first half
/// of a word is 1 from a signal until it has been waited for; a second half other than 0 opens it for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Partner {
    /// Says that this rank may be written to.
    pub ready_there: DeviceAddress,
    /// Says that the partner may be written to.
    pub ready_here: DeviceAddress,
    /// Says that this rank has written.
    pub done_there: DeviceAddress,
    /// Says that the partner has written.
    pub done_here: DeviceAddress,
}
const _: () = assert!(size_of::<Partner>() == 32);

/// A word and what is left in it once everything is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The word, of this device or of pinned memory of the host.
    pub word: DeviceAddress,
    /// What is written.
    pub number: u32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    ranges: DeviceAddress,
    partners: DeviceAddress,
    gate: DeviceAddress,
    progress: DeviceAddress,
    partner_count: u32,
    number: u32,
}

/// `COPIERS` of the kernel.
const COPIERS: u32 = 512;
/// `TILE` of the kernel.
const TILE: u64 = 32768;
/// The most multiprocessors it takes. Eight leave a third of NVLink unused on an H200 and thirty-two gain
/// nothing, while each is taken from the products that run meanwhile.
const BLOCKS: u32 = 16;
/// Bytes of the gate, which the partners follow.
const GATE: usize = 16;

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
        let partner_count = u32::try_from(partners.len()).unwrap_or(u32::MAX);
        if partner_count > COPIERS {
            return Err(CudaFailure::Refused(format!(
                "{partner_count} partners meet in one kernel, which takes {COPIERS}; set transport = \"nccl\""
            )));
        }
        for word in
            partners.iter().flat_map(|one| [one.ready_there, one.ready_here, one.done_there, one.done_here])
        {
            present("a word to meet with", word)?;
            element_aligned("a word to meet with", word, 8)?;
        }
        let range = |copy: &CopyOperand| {
            present("a source", copy.from)?;
            present("a target", copy.to)?;
            let descriptor = RangeArguments::new(copy.from, copy.to, copy.bytes);
            Ok((descriptor, (copy.bytes as u64).div_ceil(TILE)))
        };
        let ranges: Vec<_> = copies.iter().map(range).collect::<Result<_, CudaFailure>>()?;
        let workspace = GATE + size_of_val(partners);
        let tiles = ranges.iter().map(|(_, tiles)| *tiles);
        let table = TileTable::with_workspace(ranges.len(), tiles, workspace, |_| {
            let mut content = vec![0; GATE];
            content.extend_from_slice(bytemuck::cast_slice(partners));
            (ranges.iter().map(|(range, _)| *range).collect::<Vec<_>>(), content)
        })?;
        let arguments = Arguments {
            tiles: table.tiles,
            ranges: table.descriptors,
            partners: table.workspace.plus(GATE),
            gate: table.workspace,
            progress: mark.map_or(DeviceAddress::NULL, |mark| mark.word),
            partner_count,
            number: mark.map_or(0, |mark| mark.number),
        };
        // A rank that has nothing to say still meets the others.
        let blocks = table.blocks().clamp(1, BLOCKS);
        let function = self.function(Family::Exchange, c"exchange")?;
        Ok(KernelLaunch::new(function, blocks, COPIERS, arguments, Some(table.table)))
    }
}

#[cfg(test)]
mirrors!(Family::Exchange, COPIERS, TILE);
