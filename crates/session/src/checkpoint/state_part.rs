//! Kinds of state that a rank keeps for every element of a weight: master, moments, optimizer states.

use std::fmt;

use warpweft_base::id::StateId;
use warpweft_plan::layout::StateLayout;

/// A kind of state that is kept for every element of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatePart {
    /// The FP32 master.
    Master,
    /// A list of optimizer state.
    State(StateId),
}

impl StatePart {
    /// Adam's first moment.
    pub const FIRST_MOMENT: Self = Self::State(StateId::new(0));
    /// Adam's second moment.
    pub const SECOND_MOMENT: Self = Self::State(StateId::new(1));

    /// The master, and so many lists beside it; of a frozen weight there is the master alone.
    pub fn kept(lists: usize) -> impl Iterator<Item = Self> + Clone {
        std::iter::once(Self::Master).chain((0..lists).map(|list| Self::State(StateId::at(list))))
    }

    /// What it is where state is laid out so: a custom optimizer has states, and no moments.
    pub(crate) fn in_words(self, layout: StateLayout) -> &'static str {
        match self {
            Self::Master => "master",
            Self::State(list) => layout.in_words(list),
        }
    }
}

impl fmt::Display for StatePart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Master => out.write_str("master"),
            Self::FIRST_MOMENT => out.write_str("first moment"),
            Self::SECOND_MOMENT => out.write_str("second moment"),
            Self::State(list) => list.fmt(out),
        }
    }
}
