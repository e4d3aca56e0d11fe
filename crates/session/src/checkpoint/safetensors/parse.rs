//! The JSON of a header, as it stands: tensors in the order of the text, metadata by key.
//!
//! Law: memory is in proportion to the text. What the text means is checked in `header.rs`.

use std::collections::BTreeMap;
use std::fmt;

use safetensors::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::entry::{LENGTH_BYTES, METADATA, TensorEntry};
use super::invalid::Invalid;
use warpweft_base::errors::shown;

/// Far above any tensor that exists: a header with a longer list of dimensions is refused.
const MOST_DIMENSIONS: usize = 64;

/// The header as it stands in the text.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) tensors: Vec<TensorEntry>,
    pub(super) metadata: BTreeMap<String, String>,
}

/// Reads the text of a header.
pub(super) fn parse(json: &[u8]) -> Result<Parsed, Invalid> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let mut tensor = None;
    let parsed = deserializer.deserialize_map(Header { tensor: &mut tensor });
    let parsed = parsed.and_then(|parsed| deserializer.end().map(|()| parsed));
    parsed.map_err(|error| {
        let message = error.to_string();
        // The place follows in words of its own.
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(message, _)| message);
        let offset = LENGTH_BYTES + position(json, error.line(), error.column());
        let tensor = tensor.map(|name| format!("tensor `{}`: ", shown(name))).unwrap_or_default();
        Invalid::Header(format!("byte {offset}: {tensor}{}", shown(message)))
    })
}

/// The offset of a line and column as serde_json counts them, from 1.
fn position(json: &[u8], line: usize, column: usize) -> u64 {
    let lines = json.split_inclusive(|&byte| byte == b'\n');
    let before: usize = lines.take(line.saturating_sub(1)).map(<[u8]>::len).sum();
    (before + column.saturating_sub(1)).min(json.len()) as u64
}

/// Reads the header; `tensor` is the one that is being read.
struct Header<'a> {
    tensor: &'a mut Option<String>,
}

impl<'de> Visitor<'de> for Header<'_> {
    type Value = Parsed;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Parsed, A::Error> {
        let mut parsed = Parsed::default();
        let mut metadata = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                // The safetensors library takes `null` for no metadata, and so do others.
                let texts: Option<Texts> = map.next_value()?;
                if metadata.replace(texts.map(|Texts(texts)| texts).unwrap_or_default()).is_some() {
                    return Err(A::Error::custom("`__metadata__` stands there twice"));
                }
                continue;
            }
            *self.tensor = Some(name.clone());
            let Description { dtype, shape: Dimensions(shape), data_offsets: (begin, end) } =
                map.next_value()?;
            *self.tensor = None;
            parsed.tensors.push(TensorEntry { name, dtype, shape, begin, end });
        }
        parsed.metadata = metadata.unwrap_or_default();
        Ok(parsed)
    }
}

/// What a header says about a tensor. A key we do not know would be lost in a copy, so it is refused.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    dtype: Dtype,
    shape: Dimensions,
    data_offsets: (u64, u64),
}

/// A shape of at most [`MOST_DIMENSIONS`].
struct Dimensions(Vec<usize>);

impl<'de> Deserialize<'de> for Dimensions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Dimensions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of dimensions")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Dimensions, A::Error> {
                let mut shape = Vec::new();
                while let Some(dimension) = list.next_element()? {
                    if shape.len() == MOST_DIMENSIONS {
                        return Err(A::Error::custom(format!("more than {MOST_DIMENSIONS} dimensions")));
                    }
                    shape.push(dimension);
                }
                Ok(Dimensions(shape))
            }
        }
        deserializer.deserialize_seq(List)
    }
}

/// Texts by key, no key twice.
struct Texts(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Texts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Texts, A::Error> {
                let mut texts = BTreeMap::new();
                while let Some((key, text)) = map.next_entry::<String, String>()? {
                    if texts.contains_key(&key) {
                        return Err(A::Error::custom(format!("`{key}` stands in the metadata twice")));
                    }
                    texts.insert(key, text);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
