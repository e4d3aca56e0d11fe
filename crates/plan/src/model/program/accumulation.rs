//! Gradient accumulation: gradients of several steps for one step of the optimizer.
//!
//! Law: a sum of gradients is begun by one step, continued by any number, and ended by one with the optimizer. What
//! a step is of it is fixed when it is planned, so there is a plan for each; a program that does not accumulate has
//! the one of whole steps.

use serde::Serialize;

/// What one step is of a step of the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub enum Accumulation {
    /// All of it, or a step of a program without an optimizer.
    #[default]
    Whole,
    /// Its first step: begins the sum, and leaves it in main grads.
    First,
    /// One in between: adds to the sum.
    Next,
    /// Its last step: adds to the sum, then runs the optimizer.
    Last,
}

impl Accumulation {
    /// Those that a program has plans for beside that of whole steps, if it accumulates.
    #[doc(hidden)]
    pub const PARTS: [Self; 3] = [Self::First, Self::Next, Self::Last];

    /// Does it add to what steps before it left in main grads?
    #[must_use]
    pub const fn continues(self) -> bool {
        matches!(self, Self::Next | Self::Last)
    }

    /// Is the sum left in main grads for steps after it?
    #[must_use]
    pub const fn stays_open(self) -> bool {
        matches!(self, Self::First | Self::Next)
    }

    /// Is nothing left open, and nothing found open?
    #[doc(hidden)]
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        matches!(self, Self::Whole)
    }
}

/// In a sentence, `the first step`: `first`, and `only` of a whole one.
impl std::fmt::Display for Accumulation {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Whole => "only",
            Self::First => "first",
            Self::Next => "next",
            Self::Last => "last",
        })
    }
}
