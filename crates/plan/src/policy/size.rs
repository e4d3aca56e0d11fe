//! Sizes in bytes, as people write them.
//!
//! `1.2 GiB`, `512 MiB`, `10 GB`, `4096`. A fraction of a byte is cut off. Every size prints in a
//! way that parses back to it: in the largest binary unit that divides it, else in bytes.
//!
//! Law: this is the one place that words amounts of memory for people. Messages say them in full
//! ([`ByteSize::in_full`]), because somebody may have to write the number down; tables and lines of figures say
//! them rounded ([`ByteSize::rounded`]). Counts that must match another count, as of a plane or a file's header,
//! are plain numbers.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names of units and their bytes; binary ones first and largest first, as printing wants them.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
];

/// From here on digits alone are hard to read.
const LARGE: u64 = 1 << 20;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

/// Why a text is no byte size.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no byte size: {reason}; write a number and one of TiB, GiB, MiB, KiB, TB, GB, MB, KB, B"
)]
pub struct ByteSizeError {
    text: String,
    reason: &'static str,
}

warpweft_base::debug_in_words!(ByteSizeError);

impl ByteSize {
    /// So many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// How many bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// What a count in memory is, for people.
    #[doc(hidden)]
    pub const fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }

    /// Every byte, and from a MiB on a rounded size beside them: `4096 bytes`, `1288490188 bytes (1.20 GiB)`.
    pub fn in_full(self) -> String {
        match self.0 {
            1 => "1 byte".to_owned(),
            bytes if bytes < LARGE => format!("{bytes} bytes"),
            bytes => format!("{bytes} bytes ({})", self.rounded()),
        }
    }

    /// As [`ByteSize::rounded`] has it, but never less than there are: a limit that is set to it is enough.
    pub fn rounded_up(self) -> String {
        let divisor = UNITS[..4].iter().find(|(_, unit)| self.0 >= *unit);
        let Some((name, unit)) = divisor else { return format!("{} B", self.0) };
        let hundredths = (u128::from(self.0) * 100).div_ceil(u128::from(*unit));
        format!("{}.{:02} {name}", hundredths / 100, hundredths % 100)
    }

    /// Two decimals of the largest unit that leaves at least one: `1.25 MiB`.
    pub fn rounded(self) -> String {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut unit = 0;
        let mut number = self.0 as f64;
        while number >= 1023.995 && unit + 1 < UNITS.len() {
            number /= 1024.0;
            unit += 1;
        }
        match unit {
            0 => format!("{} B", self.0),
            _ => format!("{number:.2} {}", UNITS[unit]),
        }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |unit: &&(&str, u64)| self.0 > 0 && self.0.is_multiple_of(unit.1);
        let (name, unit) = UNITS.iter().find(divides).copied().unwrap_or(("B", 1));
        f.pad(&format!("{} {name}", self.0 / unit))
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let error = |reason| ByteSizeError { text: text.to_owned(), reason };
        let trimmed = text.trim();
        let split = trimmed.rfind(|c: char| c.is_ascii_digit() || c == '.').map_or(0, |last| last + 1);
        let (number, unit) = trimmed.split_at(split);
        if number.is_empty() {
            return Err(error("there is no number in front"));
        }
        if number.contains(|c: char| !c.is_ascii_digit() && c != '.') || number.matches('.').count() > 1 {
            return Err(error("its number is not digits with at most one dot among them"));
        }
        let unit = match unit.trim_start() {
            "" => 1,
            name => match UNITS.iter().find(|unit| unit.0 == name) {
                Some(&(_, bytes)) => bytes,
                None => return Err(error("the unit is unknown")),
            },
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() {
            return Err(error("there is no number in front"));
        }
        // Digits past the 15th are worth less than a byte of the largest unit.
        let fraction = &fraction[..fraction.len().min(15)];
        let power = 10u128.pow(fraction.len() as u32);
        let whole: u64 = whole.parse().map_err(|_| error("it is too large"))?;
        let fraction: u64 = if fraction.is_empty() {
            0
        } else {
            fraction.parse().map_err(|_| error("its fraction is no number"))?
        };
        let scaled = (u128::from(whole) * power + u128::from(fraction)).checked_mul(unit.into());
        let bytes = scaled.and_then(|scaled| u64::try_from(scaled / power).ok());
        bytes.map(Self).ok_or_else(|| error("it is too large"))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    /// From text, or from a whole number of bytes.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte size")
    }

    fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(bytes))
    }

    fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
        let negative = || E::invalid_value(de::Unexpected::Signed(bytes), &self);
        u64::try_from(bytes).map(ByteSize).map_err(|_| negative())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Result<u64, ByteSizeError> {
        text.parse().map(ByteSize::bytes)
    }

    #[test]
    fn people_read_every_byte_and_a_rounded_size_where_it_is_large() {
        let full =
            [0, 1, 4096, (1 << 20) - 1, 1 << 20, 1_288_490_188].map(|bytes| ByteSize::new(bytes).in_full());
        let expected = [
            "0 bytes",
            "1 byte",
            "4096 bytes",
            "1048575 bytes",
            "1048576 bytes (1.00 MiB)",
            "1288490188 bytes (1.20 GiB)",
        ];
        assert_eq!(full, expected);
        let rounded =
            [0, 1023, 1024, 1280, (1 << 20) - 1, 1 << 30].map(|bytes| ByteSize::new(bytes).rounded());
        assert_eq!(rounded, ["0 B", "1023 B", "1.00 KiB", "1.25 KiB", "1.00 MiB", "1.00 GiB"]);
        assert_eq!(ByteSize::new(u64::MAX).rounded(), "16777216.00 TiB");
        let up = [0, 1023, 1024, 1281, (1 << 20) - 1, (1 << 30) + 1].map(|n| ByteSize::new(n).rounded_up());
        assert_eq!(up, ["0 B", "1023 B", "1.00 KiB", "1.26 KiB", "1024.00 KiB", "1.01 GiB"]);
    }

    #[test]
    fn sizes_parse_as_people_write_them() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes(" 512MiB "), Ok(512 << 20));
        assert_eq!(bytes("1.2 GiB"), Ok(1_288_490_188));
        assert_eq!(bytes("10 GB"), Ok(10_000_000_000));
        assert_eq!(bytes("0.5 KiB"), Ok(512));
        assert_eq!(bytes("1. KB"), Ok(1000));
        assert_eq!(bytes("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn what_is_no_size_says_why() {
        for (text, why) in [
            ("", "no number"),
            ("GiB", "no number"),
            (".5 GiB", "no number"),
            ("NaN", "no number"),
            ("1.2.3 GiB", "one dot"),
            ("1,2 GiB", "its number is not digits"),
            ("-1", "its number is not digits"),
            ("-1 GiB", "its number is not digits"),
            ("1e9", "its number is not digits"),
            ("1e30GiB", "its number is not digits"),
            ("1 gigabyte", "unit is unknown"),
            ("5 %", "unit is unknown"),
            ("18446744073709551616", "too large"),
            ("99999999 TiB", "too large"),
        ] {
            let error = bytes(text).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("GiB"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn what_is_rounded_up_is_enough_and_hardly_more(shift in 1u32..64, bytes: u64) {
            let bytes = bytes >> shift;
            let enough: ByteSize = ByteSize::new(bytes).rounded_up().parse().unwrap();
            prop_assert!(enough.bytes() >= bytes && enough.bytes() - bytes <= bytes / 100 + 1);
        }

        #[test]
        fn every_size_prints_as_text_that_parses_back(shift in 0u32..64, bytes: u64) {
            let size = ByteSize::new(bytes >> shift << (shift / 2));
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[0-9.]{0,30} ?[A-Za-z]{0,4}|.{0,20}") {
            let _ = bytes(&text);
        }
    }
}
