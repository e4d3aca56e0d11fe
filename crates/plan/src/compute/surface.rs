//! The type through which a backend lends memory.
//!
//! Law: a surface reaches the whole arena, so closures never see one. They see a
//! [`ComputeContext`](super::ComputeContext), which asks it for declared regions alone.

use bytemuck::Pod;

use super::error::ComputeError;
use super::left_out::LeftOut;
use crate::layout::Region;

/// A piece of memory as a surface lends it.
pub trait LentSlice {
    /// Number of elements.
    fn len(&self) -> usize;

    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Memory that a backend lends to closures, and the handles a closure needs besides it.
///
/// Law: only a [`ComputeContext`](super::ComputeContext) or [`UpdateContext`](super::UpdateContext) holds a surface. A
/// backend makes one for each call or update and gives it to the context alone, so no closure can name a region of its
/// own choice. A backend therefore lets no other code make or copy its surface.
pub trait Surface {
    /// What closures need to launch work of their own and only the backend knows, such as the compute lane's
    /// CUDA stream; `()` where there is nothing. It gives no access to memory.
    type Handles;
    /// What distinguishes a rank's device from others of its kind: the ordinal of a GPU, or `()` where there
    /// is nothing to distinguish. The factory of the rank's closures gets it in its [`Seat`](super::Seat).
    type Device: Copy + std::fmt::Debug;
    /// A readable piece of memory: a slice on the CPU, a device pointer on a GPU.
    type Read<'a, T: Pod>: LentSlice
    where
        Self: 'a;
    /// A writable piece of memory.
    type Write<'a, T: Pod>: LentSlice
    where
        Self: 'a;

    /// Lends `region` for reading.
    ///
    /// # Errors
    /// [`ComputeError::Element`] or [`ComputeError::Race`].
    fn read<T: Pod>(&self, region: Region) -> Result<Self::Read<'_, T>, ComputeError>;

    /// Lends `region` for writing.
    ///
    /// # Errors
    /// [`ComputeError::Element`] or [`ComputeError::Race`].
    fn write<T: Pod>(&self, region: Region) -> Result<Self::Write<'_, T>, ComputeError>;

    /// Fills `region` with [`SPOILED`](super::SPOILED) bytes, in order with what the call does.
    ///
    /// # Errors
    /// Like [`Surface::write`]; whatever the backend says.
    fn spoil(&self, region: Region) -> Result<(), ComputeError>;

    /// What a closure that has returned left of the [`SPOILED`](super::SPOILED) bytes in `region`, whose elements have
    /// `element` bytes; `None` if nothing, or where the host cannot look without waiting for the device, which is the
    /// default.
    ///
    /// # Errors
    /// Like [`Surface::read`].
    fn left_out(&self, _region: Region, _element: usize) -> Result<Option<LeftOut>, ComputeError> {
        Ok(None)
    }

    /// The backend's handles for the lane the call runs on.
    fn handles(&self) -> &Self::Handles;
}
