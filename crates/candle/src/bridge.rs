//! The memory that a session lends, as tensors of one device of candle's.
//!
//! Law: all that candle does with lent memory it does between `enter` and `leave` of a call, and on return no tensor is
//! left that holds it. What goes into a slot comes out of it again, whatever became of the call.

use candle_core::{Device, Result, Tensor};
use warpweft::bytemuck::Pod;
use warpweft::compute::Surface;

use crate::slot::Slot;
use crate::values::Form;

/// Lent values of a weight.
pub(crate) enum Lent<'a, S: Surface + 'a> {
    /// As the session has them.
    F32(S::Read<'a, f32>),
    /// Rounded by the session.
    Bf16(S::Read<'a, warpweft::bf16>),
}

/// Between a rank's session and candle.
pub(crate) trait Bridge {
    /// The session's side.
    type Surface: Surface + 'static;

    /// Candle's side.
    fn device(&self) -> &Device;

    /// Work of candle's comes after the session's from now on.
    fn enter(&self, handles: &<Self::Surface as Surface>::Handles) -> Result<()>;

    /// Work of the session comes after candle's from now on.
    fn leave(&self, handles: &<Self::Surface as Surface>::Handles) -> Result<()>;

    /// Lent values on the host, which waits for them.
    fn read<T: Pod>(&self, lent: &<Self::Surface as Surface>::Read<'_, T>) -> Result<Vec<T>>;

    /// A tensor of `form` with a copy of as many bytes as it needs of the first that are lent.
    fn tensor(
        &self,
        lent: &<Self::Surface as Surface>::Read<'_, u8>,
        form: &Form,
        variable: bool,
    ) -> Result<Tensor>;

    /// Puts lent values in place, in the tensor's dtype.
    fn put(&mut self, slot: &Slot, lent: Lent<'_, Self::Surface>) -> Result<()>;

    /// Takes out what is in place. After an error nobody frees it.
    fn take(&mut self, slot: &Slot) -> Result<()>;

    /// Overwrites lent memory with the bytes of a tensor, which may be fewer; the rest become zeros. Without one, all.
    fn store<T: Pod>(
        &self,
        values: Option<&Tensor>,
        lent: &mut <Self::Surface as Surface>::Write<'_, T>,
    ) -> Result<()>;
}
