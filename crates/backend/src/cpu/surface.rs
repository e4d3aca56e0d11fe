//! The memory a closure sees: slices of its rank's arena.

use std::sync::Arc;

use bytemuck::Pod;

use super::memory::{Arena, BorrowError, ReadSlice, WriteSlice};
use warpweft_plan::compute::{Borrower, ComputeContext, ComputeError, LeftOut, SPOILED, Surface};
use warpweft_plan::layout::Region;
use warpweft_plan::model::Call;

/// Gives back `closure`, whose arguments now need no types: they are those of a closure on the CPU.
///
/// ```
/// use warpweft::prelude::*;
///
/// let silent = on_cpu(|call, context| {
///     println!("{} on {}", call.name, context.rank());
///     context.write_named::<f32>("loss")?.fill(0.0);
///     Ok(())
/// });
/// let builder = Session::builder(Config::default(), move |_| silent);
/// ```
#[must_use]
pub fn on_cpu<F>(closure: F) -> F
where
    F: FnMut(&Call, &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError>,
{
    closure
}

/// Lends slices of one rank's arena to one call or update. Slices are checked at run time: two that overlap, at least
/// one of which is written, are a [`ComputeError::Race`].
///
/// The CPU backend makes one for each of them and gives it only to its context.
#[derive(Debug)]
pub struct CpuSurface {
    arena: Arc<Arena>,
    borrower: Arc<dyn Borrower>,
}

impl CpuSurface {
    pub(super) fn new(arena: Arc<Arena>, borrower: Arc<dyn Borrower>) -> Self {
        Self { arena, borrower }
    }

    fn refusal(&self, error: BorrowError) -> ComputeError {
        let (call, reason) = (self.borrower.name().to_owned(), error.to_string());
        let named = |region| self.borrower.name_at(region);
        match error {
            BorrowError::Element { region, element } => {
                ComputeError::Element { call, what: named(region), bytes: region.bytes, element }
            }
            BorrowError::Race { wanted, held, .. } => {
                ComputeError::Race { call, wanted: named(wanted), held: named(held), reason }
            }
            BorrowError::Outside { region, .. } => {
                ComputeError::Outside { call, what: named(region), reason }
            }
        }
    }
}

impl Surface for CpuSurface {
    type Handles = ();
    type Device = ();
    type Read<'a, T: Pod> = ReadSlice<'a, T>;
    type Write<'a, T: Pod> = WriteSlice<'a, T>;

    fn read<T: Pod>(&self, region: Region) -> Result<ReadSlice<'_, T>, ComputeError> {
        self.arena.read(region).map_err(|error| self.refusal(error))
    }

    fn write<T: Pod>(&self, region: Region) -> Result<WriteSlice<'_, T>, ComputeError> {
        self.arena.write(region).map_err(|error| self.refusal(error))
    }

    fn spoil(&self, region: Region) -> Result<(), ComputeError> {
        self.write::<u8>(region)?.fill(SPOILED);
        Ok(())
    }

    fn left_out(&self, region: Region, element: usize) -> Result<Option<LeftOut>, ComputeError> {
        Ok(LeftOut::among(&self.read::<u8>(region)?, element))
    }

    fn handles(&self) -> &() {
        &()
    }
}
