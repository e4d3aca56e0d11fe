//! Launches: a kernel, its operands in the kernel's order, how many blocks.
//!
//! Law: an operand is named with the number of elements the kernel touches there, which must be the span's length;
//! the kernels promise to touch no others. A launch that does not fit is refused, none of it is enqueued.

use std::ffi::c_uint;

use super::device::Device;
use super::failure::Failure;
use super::kernel::Kernel;
use super::span::{Span, SpanMut};

/// Threads of a block; `common.cu` says the same.
pub(super) const THREADS: usize = 128;
/// More operands than any kernel has.
pub(super) const OPERANDS: usize = 12;
/// Shared memory every architecture gives a block without being asked, less what the kernels take themselves.
const SHARED_BYTES: usize = 46 << 10;

/// Declares the kernels of an example: `Kernel`, each with its name in the source.
macro_rules! kernels {
    ($($kernel:ident = $name:literal,)*) => {
        /// The kernels of the source.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kernel {
            $($kernel,)*
        }

        impl Kernel {
            /// All, in the order of their declaration.
            pub(crate) const ALL: &[Self] = &[$(Self::$kernel,)*];

            /// Its name in the source.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$kernel => $name,)*
                }
            }
        }
    };
}

pub(crate) use kernels;

impl Device {
    /// A launch of one block per row.
    pub(crate) fn rows(&self, kernel: Kernel, rows: usize) -> Launch<'_> {
        Launch {
            device: self,
            kernel,
            blocks: rows,
            shared_bytes: 0,
            slots: [0; OPERANDS],
            used: 0,
            failure: None,
        }
    }

    /// A launch of one thread per element.
    pub(crate) fn elements(&self, kernel: Kernel, elements: usize) -> Launch<'_> {
        self.rows(kernel, elements.div_ceil(THREADS))
    }
}

/// A launch in the making: operands in the kernel's order, then [`Launch::run`].
#[must_use = "a launch does nothing before `run`"]
pub(crate) struct Launch<'d> {
    device: &'d Device,
    kernel: Kernel,
    blocks: usize,
    shared_bytes: usize,
    /// Operands as the driver takes them: each in the low bytes of its slot, on the little-endian hosts CUDA has.
    slots: [u64; OPERANDS],
    used: usize,
    failure: Option<Failure>,
}

impl Launch<'_> {
    /// Shared memory for `elements` numbers per block.
    pub(crate) fn shared(mut self, elements: usize) -> Self {
        self.shared_bytes = elements * size_of::<f32>();
        if self.shared_bytes > SHARED_BYTES {
            self.failure.get_or_insert(Failure::Size { what: self.kernel.name(), size: elements });
        }
        self
    }

    /// An operand of which `elements` are read.
    pub(crate) fn reads<T>(self, span: Span<'_, T>, elements: usize) -> Self {
        self.operand(span.address, span.len, elements)
    }

    /// An operand of which `elements` are written, or updated.
    pub(crate) fn writes<T>(self, span: SpanMut<'_, T>, elements: usize) -> Self {
        self.operand(span.address, span.len, elements)
    }

    /// An `unsigned`.
    pub(crate) fn size(mut self, size: usize) -> Self {
        if c_uint::try_from(size).is_err() {
            self.failure.get_or_insert(Failure::Size { what: self.kernel.name(), size });
        }
        self.slot(size as u64)
    }

    /// A `float`.
    pub(crate) fn float(self, value: f32) -> Self {
        self.slot(u64::from(value.to_bits()))
    }

    fn operand(mut self, address: u64, given: usize, wanted: usize) -> Self {
        if let Err(failure) = length(self.kernel.name(), wanted, given) {
            self.failure.get_or_insert(failure);
        }
        self.slot(address)
    }

    fn slot(mut self, bits: u64) -> Self {
        match self.slots.get_mut(self.used) {
            Some(slot) => *slot = bits,
            None => {
                _ = self.failure.get_or_insert(Failure::Size { what: self.kernel.name(), size: self.used })
            }
        }
        self.used += 1;
        self
    }

    /// Enqueues the kernel.
    ///
    /// # Errors
    /// The first operand that does not fit, or what the driver refuses.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let blocks = i32::try_from(self.blocks).ok().filter(|blocks| *blocks > 0);
        let blocks = blocks.ok_or(Failure::Size { what: self.kernel.name(), size: self.blocks })?;
        self.device.enqueue(self.kernel, blocks.unsigned_abs(), self.shared_bytes as c_uint, self.slots)
    }
}

/// An operand's length against that of its shape.
pub(super) fn length(what: &'static str, wanted: usize, given: usize) -> Result<(), Failure> {
    if wanted == given { Ok(()) } else { Err(Failure::Length { what, wanted, given }) }
}
