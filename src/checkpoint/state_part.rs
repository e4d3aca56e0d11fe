//! What a rank keeps of every element of a weight.

use std::fmt;

use warpweft_base::id::StateId;
use warpweft_plan::layout::StateLayout;

/// What the optimizer keeps of every element of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatePart {
    /// The FP32 master.
    Master,
    /// Adam's first moment, or the first list that a custom optimizer keeps.
    FirstMoment,
    /// Adam's second moment, or the second list.
    SecondMoment,
}

impl StatePart {
    /// All of them. Of a frozen weight there is the master alone, and a custom optimizer may keep fewer.
    pub const ALL: [Self; 3] = [Self::Master, Self::FirstMoment, Self::SecondMoment];

    /// The master, and so many lists beside it.
    pub fn kept(lists: usize) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().take(1 + lists)
    }

    /// What it is where state is laid out so: a custom optimizer has states, and no moments.
    pub(crate) fn in_words(self, layout: StateLayout) -> &'static str {
        match self {
            Self::Master => "master",
            Self::FirstMoment => layout.in_words(StateId::new(0)),
            Self::SecondMoment => layout.in_words(StateId::new(1)),
        }
    }
}

impl fmt::Display for StatePart {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Master => "master",
            Self::FirstMoment => "first moment",
            Self::SecondMoment => "second moment",
        })
    }
}
