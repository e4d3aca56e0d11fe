//! Rows to peers up to counts that are read on the device, and the check of counts: `kernels/dispatch.cu`.

use bytemuck::{Pod, Zeroable};

use super::check::{element_aligned, narrow, present};
use super::launch::{KernelLaunch, RESIDENT, THREADS};
use super::meeting::{COPIERS, Mark, MeetingArguments, PIECE, Partner, blocks, workspace};
use super::module::Kernels;
use super::source::Family;
use super::tiles::{TileArguments, TileTable};
use crate::device::address::DeviceAddress;
use crate::failure::CudaFailure;
use warpweft_plan::compute::SPOILED;

/// What a rank has for one that takes, itself perhaps: slots one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GivenOperand {
    /// Its first slot.
    pub from: DeviceAddress,
    /// Where that goes; does not overlap any slot that is given.
    pub to: DeviceAddress,
    /// u32 counts of filled rows, one for each slot.
    pub counts: DeviceAddress,
    /// Where they go, at most the capacity each; null where the taker knows them.
    pub taken: DeviceAddress,
}
const _: () = assert!(size_of::<GivenOperand>() == 32);

/// What all slots of a launch have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotShape {
    /// Slots for each that takes.
    pub slots: usize,
    /// Rows of a slot.
    pub capacity: usize,
    /// Bytes of a row.
    pub row: usize,
}

/// Counts that a call has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountsOperand {
    /// u32 counts.
    pub counts: DeviceAddress,
    /// How many.
    pub slots: usize,
    /// The largest that passes.
    pub capacity: usize,
    /// What the report of a count that does not begins with; not 0.
    pub number: u32,
}

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arguments {
    tiles: TileArguments,
    given: DeviceAddress,
    meetings: MeetingArguments,
    row: u64,
    slots: u32,
    capacity: u32,
}
const _: () = assert!(size_of::<Arguments>() == 72);

/// `Written` of the kernel.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct WrittenArguments {
    counts: DeviceAddress,
    slots: u32,
    capacity: u32,
    number: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<WrittenArguments>() == 24);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct CheckArguments {
    written: DeviceAddress,
    fault: DeviceAddress,
    overflow: DeviceAddress,
    many: u32,
    call: u32,
}
const _: () = assert!(size_of::<CheckArguments>() == 32);

/// A capacity as kernels compare it with counts.
fn compared(capacity: usize) -> u32 {
    u32::try_from(capacity).unwrap_or(u32::MAX)
}

/// Counts that are lowered.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct LowerArguments {
    counts: DeviceAddress,
    slots: u32,
    capacity: u32,
}
const _: () = assert!(size_of::<LowerArguments>() == 16);

/// What is spoiled.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct SpoilArguments {
    slots: DeviceAddress,
    counts: DeviceAddress,
    row: u64,
    many: u32,
    capacity: u32,
    byte: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<SpoilArguments>() == 40);

impl Kernels {
    /// Fills what lies after the filled rows of each slot with [`SPOILED`] bytes: `shape.slots` slots from `first` on,
    /// a u32 count for each at `counts`. A count above the capacity is taken as that.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned, or too many slots.
    pub fn spoil_rest(
        &self,
        first: DeviceAddress,
        counts: DeviceAddress,
        shape: SlotShape,
    ) -> Result<KernelLaunch, CudaFailure> {
        present("slots to spoil", first)?;
        present("counts of rows", counts)?;
        element_aligned("counts of rows", counts, 4)?;
        let many = narrow("slots", shape.slots)?;
        let arguments = SpoilArguments {
            slots: first,
            counts,
            row: shape.row as u64,
            many,
            capacity: compared(shape.capacity),
            byte: u32::from(SPOILED),
            reserved: 0,
        };
        let function = self.function(Family::Dispatch, c"spoil_rest")?;
        Ok(KernelLaunch::new(function, many.min(RESIDENT as u32), THREADS, arguments, None))
    }

    /// Lowers u32 counts to what a slot has room for: those that other ranks sent as they were.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned, or too many counts.
    pub fn lower_counts(
        &self,
        counts: DeviceAddress,
        slots: usize,
        capacity: usize,
    ) -> Result<KernelLaunch, CudaFailure> {
        present("counts to lower", counts)?;
        element_aligned("counts to lower", counts, 4)?;
        let arguments =
            LowerArguments { counts, slots: narrow("slots", slots)?, capacity: compared(capacity) };
        let function = self.function(Family::Dispatch, c"lower_counts")?;
        Ok(KernelLaunch::new(function, 1, THREADS, arguments, None))
    }

    /// Meets `partners`, copies of each slot that is given its filled rows, and the counts, meets them again, and
    /// leaves `mark`. A count above the capacity is taken as that.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned, and for more partners than a block has
    /// threads.
    pub fn dispatch(
        &self,
        given: &[GivenOperand],
        shape: SlotShape,
        partners: &[Partner],
        mark: Option<Mark>,
    ) -> Result<KernelLaunch, CudaFailure> {
        for operand in given {
            present("slots to give", operand.from)?;
            present("slots to fill", operand.to)?;
            present("counts of rows", operand.counts)?;
            element_aligned("counts of rows", operand.counts, 4)?;
            element_aligned("counts of rows for another rank", operand.taken, 4)?;
        }
        let content = workspace(partners)?;
        let slots = narrow("slots", shape.slots.saturating_mul(given.len().max(1)))?;
        let most = (shape.row as u64).saturating_mul(shape.capacity as u64).div_ceil(PIECE);
        let most = most.saturating_mul(u64::from(slots)).min(u64::from(u32::MAX)) as u32;
        // The kernel cuts by counts: no tile is numbered.
        let tiles = given.iter().map(|_| 0);
        let table =
            TileTable::with_workspace(given.len(), tiles, content.len(), |_| (given.to_vec(), content))?;
        let arguments = Arguments {
            tiles: table.tiles,
            given: table.descriptors,
            meetings: MeetingArguments::new(table.workspace, partners, mark),
            row: shape.row as u64,
            slots: narrow("slots", shape.slots)?,
            capacity: compared(shape.capacity),
        };
        let function = self.function(Family::Dispatch, c"dispatch")?;
        Ok(KernelLaunch::new(function, blocks(most), COPIERS, arguments, Some(table.table)))
    }

    /// Looks for a count above its capacity. For the first, in the order of operands, it sets the u32 at `fault` to
    /// `call`, unless it is other than 0, and then the three u32 at `overflow`, which may be the host's, to the
    /// operand's number, the slot and the count. All that are above are lowered to the capacity.
    ///
    /// # Errors
    /// [`CudaFailure::Refused`] for an address that is missing or misaligned.
    pub fn count_check(
        &self,
        operands: &[CountsOperand],
        (fault, call): (DeviceAddress, u32),
        overflow: DeviceAddress,
    ) -> Result<KernelLaunch, CudaFailure> {
        for (what, word) in [("the fault word", fault), ("what a report names", overflow)] {
            present(what, word)?;
            element_aligned(what, word, 4)?;
        }
        let written = |operand: &CountsOperand| {
            present("counts to check", operand.counts)?;
            element_aligned("counts to check", operand.counts, 4)?;
            let (capacity, number) = (compared(operand.capacity), operand.number);
            let slots = narrow("slots", operand.slots)?;
            Ok((WrittenArguments { counts: operand.counts, slots, capacity, number, reserved: 0 }, 0))
        };
        let all: Vec<_> = operands.iter().map(written).collect::<Result<_, CudaFailure>>()?;
        let table = TileTable::new(&all, 0)?;
        let many = narrow("counts", all.len())?;
        let arguments = CheckArguments { written: table.descriptors, fault, overflow, many, call };
        let function = self.function(Family::Dispatch, c"count_check")?;
        Ok(KernelLaunch::new(function, 1, THREADS, arguments, Some(table.table)))
    }
}
