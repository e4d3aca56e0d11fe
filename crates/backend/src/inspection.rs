//! Gradient inspection: what a backend reports of the gradients that calls wrote in a step.
//!
//! Law: a gradient is inspected once, right after the call that wrote it and before anything reads it, so
//! the call that is named is the one that made the value. The first in program order stands.

use warpweft_base::id::{CallId, WeightId};

/// Whether the gradients that calls of a rank wrote in a step are finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inspection {
    /// They were not inspected.
    #[default]
    None,
    /// All of them are finite.
    Finite,
    /// One has an infinite value or a NaN.
    NonFinite {
        /// The first call, in program order, that wrote such a gradient.
        call: CallId,
        /// Of which weight; of several of the call, the first that it declares.
        weight: WeightId,
    },
}
