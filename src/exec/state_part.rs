//! What a rank keeps of every element of a weight.

use std::fmt;

/// What the optimizer keeps of every element of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StatePart {
    /// The FP32 master.
    Master,
    /// The first moment.
    FirstMoment,
    /// The second moment.
    SecondMoment,
}

impl StatePart {
    /// All of them; of a frozen weight there is the master alone.
    pub const ALL: [Self; 3] = [Self::Master, Self::FirstMoment, Self::SecondMoment];
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
