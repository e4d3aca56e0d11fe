//! The header of a safetensors file: which tensors there are, and where their bytes lie.
//!
//! Law **SF-1**: the tensors of a [`Header`] tile the data exactly. Each has as many bytes as its dtype and
//! shape say, no two share a byte, none is left over, and no name is used twice. Whoever reads a tensor need
//! check nothing.
//!
//! A file begins with the length of the header as a little-endian u64, then the header as a JSON object, then
//! the data. Source: the description of the safetensors format.

use std::collections::{BTreeMap, HashSet};

use super::entry::{LENGTH_BYTES, LONGEST_HEADER, TensorEntry};
use super::invalid::Invalid;
use super::parse::{self, Parsed};
use warpweft_base::errors::shown;

/// A valid header (SF-1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    tensors: Vec<TensorEntry>,
    metadata: BTreeMap<String, String>,
}

impl Header {
    /// Bytes of the header that begins with `length`, in a file of `bytes`.
    pub(super) fn length(length: [u8; LENGTH_BYTES as usize], bytes: u64) -> Result<u64, Invalid> {
        let available = bytes.saturating_sub(LENGTH_BYTES);
        let bytes = u64::from_le_bytes(length);
        if bytes > LONGEST_HEADER {
            return Err(Invalid::HeaderTooLarge { bytes, limit: LONGEST_HEADER });
        }
        let cut_off = || {
            format!(
                "byte 0: the header has {bytes} bytes, but only {available} follow; the file is cut off or not safetensors"
            )
        };
        if bytes > available { Err(Invalid::CutOff(cut_off())) } else { Ok(bytes) }
    }

    /// Reads the JSON of a header and checks it against the `data_bytes` that follow it in the file.
    ///
    /// Memory is at most twelve times the bytes of `json`, whatever it says.
    ///
    /// # Errors
    /// [`Invalid`] with the tensor and the place.
    pub fn parse(json: &[u8], data_bytes: u64) -> Result<Self, Invalid> {
        let Parsed { mut tensors, metadata } = parse::parse(json)?;
        let mut names = HashSet::new();
        if let Some(twice) = tensors.iter().find(|entry| !names.insert(entry.name.as_str())) {
            return Err(Invalid::DuplicateTensor { tensor: twice.name.clone() });
        }
        drop(names);
        tensors.iter().try_for_each(TensorEntry::check_size)?;
        tensors.sort_by_key(|entry| (entry.begin, entry.end));
        check_tiling(&tensors, data_bytes)?;
        Ok(Self { tensors, metadata })
    }

    /// The tensors, in the order of their bytes.
    #[must_use]
    pub fn tensors(&self) -> &[TensorEntry] {
        &self.tensors
    }

    /// The file's metadata.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

/// Checks that sorted tensors follow each other from 0 to `data_bytes`.
fn check_tiling(tensors: &[TensorEntry], data_bytes: u64) -> Result<(), Invalid> {
    let mut last: Option<&TensorEntry> = None;
    for entry in tensors {
        let TensorEntry { name, begin, end, .. } = entry;
        let (name, reached) = (shown(name), last.map_or(0, |last| last.end));
        if *begin > reached {
            let hole =
                format!("the bytes {reached}..{begin} in front of tensor `{name}` belong to no tensor");
            return Err(Invalid::Header(hole));
        }
        if let Some(other) = last.filter(|_| *begin < reached) {
            let other = shown(&other.name);
            let overlap =
                format!("tensor `{name}` begins at byte {begin}, but `{other}` reaches to {reached}");
            return Err(Invalid::Header(overlap));
        }
        if *end > data_bytes {
            return Err(Invalid::CutOff(format!(
                "tensor `{name}` reaches to byte {end}, but only {data_bytes} follow the header; the file is cut off"
            )));
        }
        last = Some(entry);
    }
    let end = last.map_or(0, |last| last.end);
    if end < data_bytes {
        let more = data_bytes - end;
        return Err(Invalid::Header(format!(
            "the last tensor ends at byte {end}, but {more} more follow; the header does not belong to this file"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str, data_bytes: u64) -> Result<Header, Invalid> {
        Header::parse(json.as_bytes(), data_bytes)
    }

    fn complaint(json: &str, data_bytes: u64) -> String {
        parse(json, data_bytes).unwrap_err().to_string()
    }

    #[test]
    fn a_sound_header_gives_its_tensors_in_the_order_of_their_bytes() {
        let header = parse(
            r#"{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},
                "__metadata__":{"format":"pt"},
                "empty":{"dtype":"I64","shape":[0,7],"data_offsets":[2,2]},
                "a":{"data_offsets":[0,2],"shape":[],"dtype":"BF16"}}   "#,
            26,
        )
        .unwrap();
        let names: Vec<&str> = header.tensors().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a", "empty", "b"]);
        assert_eq!(header.tensors()[2].bytes(), 24);
        assert_eq!(header.metadata()["format"], "pt");
        for nothing in ["{}", r#"{"__metadata__":{}}"#, r#"{"__metadata__":null}"#] {
            assert_eq!(parse(nothing, 0).unwrap(), Header::default(), "{nothing}");
        }
    }

    #[test]
    fn an_error_in_the_json_tells_its_offset_in_the_file_and_the_tensor() {
        for (json, expected) in [
            ("", "byte 8: EOF"),
            ("[]", "byte 8: invalid type: sequence, expected an object of tensors by name"),
            ("{} x", "byte 11: trailing characters"),
            (r#"{"w":{"dtype":"F33""#, "tensor `w`: unknown variant `F33`, expected one of"),
            (r#"{"w":{"dtype":"F32","shape":[NaN]"#, "byte 37: tensor `w`: expected value"),
            (r#"{"w":{"shape":[1.5]"#, "tensor `w`: invalid type: floating point `1.5`, expected usize"),
            (r#"{"w":{"shape":[-1]"#, "tensor `w`: invalid value: integer `-1`, expected usize"),
            (r#"{"w":{"shape":[1e999]"#, "tensor `w`: number out of range"),
            (r#"{"w":{"shape":7"#, "tensor `w`: invalid type: integer `7`, expected a list of dimensions"),
            (r#"{"w":{"data_offsets":[0,18446744073709551616]"#, "tensor `w`: invalid type: floating point"),
            (r#"{"w":{"data_offsets":[0,1,2]"#, "tensor `w`: trailing characters"),
            (r#"{"w":{"dtype":"U8","dtype":"U8""#, "tensor `w`: duplicate field `dtype`"),
            (r#"{"w":{"stride":1"#, "tensor `w`: unknown field `stride`"),
            (r#"{"w":{"dtype":"U8","shape":[1]}}"#, "tensor `w`: missing field `data_offsets`"),
            (r#"{"__metadata__":{"a":1}}"#, "invalid type: integer `1`, expected a string"),
            (r#"{"__metadata__":{"a":"","a":""}}"#, "`a` stands in the metadata twice"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#, "`__metadata__` stands there twice"),
        ] {
            let message = complaint(json, 0);
            assert!(message.starts_with("byte ") && message.contains(expected), "{json}: {message}");
        }
        let newline = complaint("{\n\n  x", 0);
        assert!(newline.starts_with("byte 13: "), "{newline}");
    }

    #[test]
    fn a_list_without_end_is_refused_where_it_gets_silly() {
        let message = complaint(&format!(r#"{{"w":{{"shape":[{}1]}}}}"#, "1,".repeat(1_000_000)), 0);
        assert!(message.contains("more than 64 dimensions"), "{message}");
        let nested = complaint(&format!(r#"{{"w":{}"#, "[".repeat(1_000_000)), 0);
        assert!(nested.contains("tensor `w`"), "{nested}");
    }

    /// SF-1.
    #[test]
    fn tensors_that_do_not_tile_the_data_are_refused() {
        let two = |a: &str, b: &str| {
            let tensor = |offsets| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":[{offsets}]}}"#);
            format!(r#"{{"a":{},"b":{}}}"#, tensor(a), tensor(b))
        };
        for (json, data_bytes, expected) in [
            (two("0,4", "4,8"), 9, "ends at byte 8, but 1 more follow"),
            (two("0,4", "4,8"), 7, "`b` reaches to byte 8, but only 7"),
            (two("4,8", "0,4"), 3, "`b` reaches to byte 4, but only 3"),
            (two("0,4", "3,7"), 8, "`b` begins at byte 3, but `a` reaches to 4"),
            (two("0,4", "0,4"), 4, "begins at byte 0, but"),
            (two("0,4", "5,9"), 9, "the bytes 4..5 in front of tensor `b`"),
            (two("1,5", "5,9"), 9, "the bytes 0..1 in front of tensor `a`"),
            (two("4,0", "4,8"), 8, "`a`: its bytes end at 0, before they begin at 4"),
            (two("0,5", "5,9"), 9, "takes 4 bytes, but the header gives it 5, from 0"),
            ("{}".to_owned(), 1, "ends at byte 0, but 1 more follow"),
        ] {
            let message = complaint(&json, data_bytes);
            assert!(message.contains(expected), "{json}: {message}");
        }
        let twice = two("0,4", "4,8").replace("\"b\"", "\"a\"");
        assert!(complaint(&twice, 8).contains("tensor `a` twice"));
    }

    #[test]
    fn a_size_that_overflows_or_splits_a_byte_is_refused() {
        for (dtype, shape) in [
            ("F32", "[9223372036854775807,9223372036854775807]"),
            ("F64", "[2305843009213693952]"),
            ("U8", "[18446744073709551615,0]"),
            ("F4", "[3]"),
            ("F6_E2M3", "[2]"),
        ] {
            let json = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,0]}}}}"#);
            let message = complaint(&json, 0);
            assert!(message.contains("has no size in whole bytes"), "{json}: {message}");
        }
    }
}
