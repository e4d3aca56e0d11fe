//! Numbers that files keep as sixteen hexadecimal digits: digests, and what saves are known by.

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

use warpweft_base::errors::shown;

/// The digits of a number.
pub(super) fn text(number: u64) -> String {
    format!("{number:016x}")
}

/// The number of these digits; none for any other text.
pub(super) fn number(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok().filter(|number| text(*number) == digits)
}

/// That number, or what to say of another text.
pub(super) fn read(digits: &str) -> Result<u64, String> {
    number(digits).ok_or_else(|| format!("`{}` is no number of sixteen hexadecimal digits", shown(digits)))
}

pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&text(*number))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    read(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}
