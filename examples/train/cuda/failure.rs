//! Failures on the way to a GPU and on it.

/// Why the GPU cannot do what the example wants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// A library is not on this machine.
    #[error("{library} cannot be opened; {advice}")]
    Missing {
        /// The library, by its name in prose and on disk.
        library: &'static str,
        /// How to come by it.
        advice: &'static str,
    },
    /// There is no such GPU.
    #[error(
        "GPU {ordinal} was requested, but this machine shows {found}; see nvidia-smi -L and CUDA_VISIBLE_DEVICES"
    )]
    NoDevice {
        /// The GPU requested.
        ordinal: u32,
        /// How many there are.
        found: u32,
    },
    /// A library refused a call.
    #[error("{call} answered {code}")]
    Refused {
        /// The call.
        call: &'static str,
        /// What the library calls it.
        code: String,
    },
    /// The kernels do not compile.
    #[error("the example's kernels do not compile for {architecture}:\n{log}")]
    Compile {
        /// The architecture.
        architecture: String,
        /// What the compiler said.
        log: String,
    },
    /// An operand of a kernel or product is not as long as its shape says.
    #[error("{what} takes an operand of {wanted} elements, but was given {given}")]
    Length {
        /// The kernel or product.
        what: &'static str,
        /// Elements by the shape.
        wanted: usize,
        /// Elements there.
        given: usize,
    },
    /// A size that a kernel or library cannot take.
    #[error("{what} cannot take a size of {size}; make the model or the batch smaller")]
    Size {
        /// The kernel or product.
        what: &'static str,
        /// The size.
        size: usize,
    },
}
