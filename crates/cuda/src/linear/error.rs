//! Why a product cannot be computed.

use crate::{ComputeCapability, CudaFailure};
use warpweft_format::{ElementType, Format, Fp8Element, Orientation, Shape};
use warpweft_plan::compute::ComputeError;

/// Why a layer cannot be made, or a product cannot be enqueued.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LinearError {
    /// A CUDA library refused.
    #[error(transparent)]
    Cuda(#[from] CudaFailure),
    /// The GPU has no products of this format, or this room does not use them.
    #[error(
        "no products of {format} on a GPU of compute capability {capability} ({needs}); declare the weight's uses as Form::DenseBf16 and compute by Recipe::Bf16"
    )]
    Unsupported {
        /// Format of the weight.
        format: Format,
        /// The GPU's generation.
        capability: ComputeCapability,
        /// What they need.
        needs: &'static str,
    },
    /// A dimension that the products of a recipe do not take.
    #[error(
        "{what} are {size}, and products of {recipe} need a multiple of {multiple}; pad them to {}, or compute by Recipe::Bf16",
        size.next_multiple_of(*multiple)
    )]
    Dimension {
        /// Which dimension.
        what: &'static str,
        /// What it is.
        size: usize,
        /// What it must be a multiple of.
        multiple: usize,
        /// The recipe's name.
        recipe: String,
    },
    /// Rows that would overlap.
    #[error(
        "{inputs} inputs do not fit into lines of {pitch} elements; the pitch is the width of the matrix that holds x"
    )]
    Pitch {
        /// Elements from one token to the next.
        pitch: usize,
        /// Inputs of the weight.
        inputs: usize,
    },
    /// No tokens, inputs or outputs.
    #[error(
        "a linear layer of {tokens} tokens and a weight of {weight} has nothing to compute; give it at least one of each"
    )]
    Empty {
        /// Rows of the activations.
        tokens: usize,
        /// The weight's shape.
        weight: Shape,
    },
    /// A matrix without elements.
    #[error("a matrix of {shape} has nothing to orthogonalize; give it at least one row and one column")]
    NoMatrix {
        /// Its shape.
        shape: Shape,
    },
    /// A size beyond what products can address.
    #[error("{size} {what} are more than the {largest} a product takes; split the layer")]
    TooLarge {
        /// What was counted.
        what: &'static str,
        /// How many.
        size: usize,
        /// How many there may be.
        largest: usize,
    },
    /// Results come in f32 or bf16.
    #[error("results are f32 or bf16, not {element}; ask for one of them in the LinearSpec")]
    Result {
        /// The element type asked for.
        element: ElementType,
    },
    /// The recipe's data gradient reads another orientation.
    #[error(
        "the data gradient of {recipe} reads the weight {expected}, not {actual}; use Recipe::dgrad_orientation"
    )]
    DataGradient {
        /// The recipe's name.
        recipe: String,
        /// What it reads.
        expected: Orientation,
        /// What was asked for.
        actual: Orientation,
    },
    /// Gradients in an element that the recipe does not quantize to.
    #[error(
        "{recipe} has one element for all factors and none of {element:?} for gradients; leave LinearSpec::gradients as LinearSpec::new has it"
    )]
    Gradients {
        /// The recipe's name.
        recipe: String,
        /// What was asked for.
        element: Fp8Element,
    },
    /// A weight that is not what the layer was made for.
    #[error(
        "the weight is {actual}, and this product reads {expected}; declare that use, or make a layer for this weight"
    )]
    Weight {
        /// What the product reads.
        expected: String,
        /// What it was given.
        actual: String,
    },
    /// GELU on the way to codes, where products do not support it.
    #[error(
        "{what} was to be made by GELU on the way to codes, which products of {recipe} do not; take it by Elementwise first and give the result"
    )]
    Gelu {
        /// Which operand.
        what: &'static str,
        /// The recipe's name.
        recipe: String,
    },
    /// Nothing is kept of an x that the weight's gradient multiplies as it is.
    #[error(
        "the weight's gradient of {recipe} reads x as it is, so there is nothing to keep of it; use Linear::forward, and give x to backward"
    )]
    NothingKept {
        /// The recipe's name.
        recipe: String,
    },
    /// Memory that begins where products do not expect it.
    #[error(
        "{what} begins at 0x{address:x}, and a multiple of {multiple} bytes is needed; a declared buffer begins at one"
    )]
    Misaligned {
        /// Which operand.
        what: &'static str,
        /// Where it begins.
        address: u64,
        /// What that must be a multiple of.
        multiple: usize,
    },
    /// An operand of the wrong size.
    #[error(
        "{what} has {actual} elements of {element}, and {expected} of {wanted} are needed; declare its buffer so, or make a layer for what there is"
    )]
    Operand {
        /// Which operand.
        what: &'static str,
        /// Its elements.
        actual: usize,
        /// Its element type.
        element: ElementType,
        /// Elements needed.
        expected: usize,
        /// Element type needed.
        wanted: ElementType,
    },
}

warpweft_base::debug_in_words!(LinearError);

impl From<LinearError> for ComputeError {
    fn from(error: LinearError) -> Self {
        Self::closure(error)
    }
}
