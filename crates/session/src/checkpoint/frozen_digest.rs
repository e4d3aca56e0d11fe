//! The digest of a frozen weight's values, in files and between ranks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::hexadecimal;

/// The digest of a frozen weight's values: equal for equal planes in one format, whatever the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FrozenDigest(#[serde(with = "hexadecimal")] u64);

impl FrozenDigest {
    /// That with this number.
    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// As a number, for a digest of a checkpoint.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Sixteen hexadecimal digits.
impl fmt::Display for FrozenDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&hexadecimal::text(self.0))
    }
}

impl FromStr for FrozenDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        hexadecimal::read(text).map(Self)
    }
}
