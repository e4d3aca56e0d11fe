//! The digest of a frozen weight's values, in files and between ranks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use warpweft_base::errors::shown;

/// The digest of a frozen weight's values: equal for equal planes in one format, whatever the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct FrozenDigest(u64);

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
        write!(out, "{:016x}", self.0)
    }
}

impl FromStr for FrozenDigest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = u64::from_str_radix(text, 16).ok().map(Self);
        let digest = number.filter(|digest| digest.to_string() == text);
        digest.ok_or_else(|| format!("`{}` is no digest of sixteen hexadecimal digits", shown(text)))
    }
}

impl From<FrozenDigest> for String {
    fn from(digest: FrozenDigest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for FrozenDigest {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
