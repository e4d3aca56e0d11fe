//! The meetings of a launch that writes into the memory of peers: `kernels/meeting.cuh`.
//!
//! Law: a launch that meets waits for launches of other ranks, on GPUs of their own. Ranks of one GPU must meet nobody
//! in it: nothing promises that both kernels run at once.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, present};
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

/// `Meetings` of the kernels.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct MeetingArguments {
    partners: DeviceAddress,
    gate: DeviceAddress,
    progress: DeviceAddress,
    partner_count: u32,
    number: u32,
}
const _: () = assert!(size_of::<MeetingArguments>() == 32);

/// `COPIERS` of the kernels.
pub(super) const COPIERS: u32 = 512;
/// `PIECE` of the kernels.
pub(super) const PIECE: u64 = 32768;
/// The most multiprocessors a launch takes. Eight leave a third of NVLink unused on an H200 and thirty-two gain
/// nothing, while each is taken from the products that run meanwhile.
const BLOCKS: u32 = 16;
/// Bytes of the gate, which the partners follow.
const GATE: usize = 16;

/// The number of thread blocks for a number of pieces; one without any, as a rank that sends nothing meets the others.
pub(super) fn blocks(pieces: u32) -> u32 {
    pieces.clamp(1, BLOCKS)
}

/// What a launch's workspace begins with: the gate, and the partners.
///
/// # Errors
/// [`CudaFailure::Refused`] for an address that is missing or misaligned, and for more partners than a block has
/// threads.
pub(super) fn workspace(partners: &[Partner]) -> Result<Vec<u8>, CudaFailure> {
    if partners.len() > COPIERS as usize {
        return Err(CudaFailure::Refused(format!(
            "{} partners meet in one kernel, which takes {COPIERS}; set transport = \"nccl\"",
            partners.len()
        )));
    }
    for word in
        partners.iter().flat_map(|one| [one.ready_there, one.ready_here, one.done_there, one.done_here])
    {
        present("a word to meet with", word)?;
        element_aligned("a word to meet with", word, 8)?;
    }
    let mut content = vec![0; GATE];
    content.extend_from_slice(bytemuck::cast_slice(partners));
    Ok(content)
}

impl MeetingArguments {
    /// Meets the partners of the workspace at `workspace`, and leaves the mark.
    pub(super) fn new(workspace: DeviceAddress, partners: &[Partner], mark: Option<Mark>) -> Self {
        Self {
            partners: workspace.plus(GATE),
            gate: workspace,
            progress: mark.map_or(DeviceAddress::NULL, |mark| mark.word),
            partner_count: partners.len() as u32,
            number: mark.map_or(0, |mark| mark.number),
        }
    }
}

#[cfg(test)]
mirrors!(super::source::Family::Exchange, COPIERS, PIECE);
