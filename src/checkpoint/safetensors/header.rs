//! What a safetensors file holds, by its header alone, whoever wrote it.
//!
//! Law: memory is in proportion to the header, and a header is no longer than its file. The tensors of one
//! that was read tile the rest of the file: each has the bytes of its dtype and shape, no two share one, none
//! is left over, and no name is used twice. So whoever reads rows of a tensor stays inside of it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::writer::{METADATA, MOST_HEADER};
use crate::checkpoint::kind::MOST_DIMENSIONS;
use warpweft_base::errors::shown;
use warpweft_base::whole_file::regular;

/// Bytes of the length that a file begins with.
const LENGTH: u64 = 8;

/// A file whose header is sound.
pub(in crate::checkpoint) struct Described {
    pub(in crate::checkpoint) file: File,
    /// Where the bytes of tensors begin.
    pub(in crate::checkpoint) data: u64,
    /// The tensors by name; offsets count from `data`.
    pub(in crate::checkpoint) tensors: Vec<(String, TensorInfo)>,
    /// What the file says of itself, as far as it is text.
    pub(in crate::checkpoint) about: HashMap<String, String>,
    /// The bytes of the header, behind its length.
    pub(in crate::checkpoint) header: Vec<u8>,
}

/// Why a file has no sound header. Which file it is, and what to do about it, says whoever asked.
#[derive(Debug)]
pub(in crate::checkpoint) enum Unsound {
    /// The file system refused.
    File(io::Error),
    /// What is wrong with the content.
    Content(String),
}

/// Opens `path` and reads its header.
///
/// # Errors
/// [`Unsound`].
pub(in crate::checkpoint) fn read(path: &Path) -> Result<Described, Unsound> {
    let (failed, unsound) = (Unsound::File, Unsound::Content);
    let mut file = regular::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidInput => unsound(error.to_string()),
        _ => failed(error),
    })?;
    let bytes = file.metadata().map_err(failed)?.len();
    let Some(available) = bytes.checked_sub(LENGTH) else {
        return Err(unsound(format!("it has {bytes} bytes, so it is empty or cut off")));
    };
    let mut length = [0; LENGTH as usize];
    file.read_exact(&mut length).map_err(failed)?;
    let length = u64::from_le_bytes(length);
    if length > MOST_HEADER as u64 {
        return Err(unsound(format!("its first bytes give no length of a header, but {length}")));
    }
    if length > available {
        return Err(unsound(format!("it is cut off in its header of {length} bytes")));
    }
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).map_err(failed)?;
    let Entries { tensors, about } = entries(&json, available - length).map_err(unsound)?;
    Ok(Described { file, data: LENGTH + length, tensors, about, header: json })
}

/// The tensors that `json` describes, which tile `available` bytes.
fn entries(json: &[u8], available: u64) -> Result<Entries, String> {
    let Entries { mut tensors, about } =
        serde_json::from_slice(json).map_err(|error| shown(format!("its header: {error}")))?;
    let mut names = HashSet::new();
    if let Some((twice, _)) = tensors.iter().find(|(name, _)| !names.insert(name.as_str())) {
        return Err(format!("its header describes `{}` twice", shown(twice)));
    }
    let long = |(_, about): &&(String, TensorInfo)| about.shape.len() > MOST_DIMENSIONS;
    if let Some((name, _)) = tensors.iter().find(long) {
        return Err(format!("its header gives `{}` more than {MOST_DIMENSIONS} dimensions", shown(name)));
    }
    tensors.sort_by_key(|(_, about)| about.data_offsets);
    let checked = Metadata::new(None, tensors.clone());
    let end = checked.map_err(|error| shown(format!("its header: {error}")))?.data_len() as u64;
    if end > available {
        return Err(format!("it is cut off: its tensors have {end} bytes, and {available} are there"));
    }
    if end < available {
        return Err(format!("{} bytes behind its last tensor belong to none", available - end));
    }
    Ok(Entries { tensors, about })
}

/// The tensors of a header in the order of the text, a name that is there twice included, and what is said of all.
struct Entries {
    tensors: Vec<(String, TensorInfo)>,
    about: HashMap<String, String>,
}

/// The texts of what a file says of itself. Files of others may say anything.
fn texts(about: Value) -> HashMap<String, String> {
    let Value::Object(about) = about else { return HashMap::new() };
    let text = |(key, value)| if let Value::String(text) = value { Some((key, text)) } else { None };
    about.into_iter().filter_map(text).collect()
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tensors;
        impl<'de> Visitor<'de> for Tensors {
            type Value = Entries;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let (mut tensors, mut about) = (Vec::new(), HashMap::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        about = texts(map.next_value()?);
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Entries { tensors, about })
            }
        }
        deserializer.deserialize_map(Tensors)
    }
}
