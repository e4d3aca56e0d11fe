//! Digests of a checkpoint in one file: of its tensors, and of what it says of itself.
//!
//! Law: a file of version 3 or later that changed in any way that a reader could see is refused. Every tensor has a
//! digest of its element type, its shape and its bytes; the metadata list them by name, and have one of
//! themselves under a key of their own. So no list, count or note changes unseen, and no tensor is missing or
//! too many. A file of before is read by what it has, but none that has the key of now: its version is what
//! changed.

use std::collections::BTreeMap;
use std::io;

use safetensors::Dtype;

use crate::checkpoint::hexadecimal;
use crate::checkpoint::safetensors::tensor::{Taker, Tensor};
use warpweft_base::digest::Digest;
use warpweft_base::errors::shown;

/// The key of the digests of all tensors, a JSON object.
pub(super) const TENSORS: &str = "digests";

/// The key of the digest of the metadata themselves.
pub(super) const METADATA: &str = "metadata_digest";

const ADVICE: &str = "copy the file again, or load another checkpoint";

/// Puts digests of `tensors` and of `about` into `about`.
///
/// # Errors
/// What a tensor that is made when it is requested could not be made of.
pub(super) fn seal(tensors: &[Tensor<'_>], about: &mut BTreeMap<String, String>) -> io::Result<()> {
    let mut digests = BTreeMap::new();
    for tensor in tensors {
        let mut taken = described(tensor.dtype, &tensor.shape);
        let take = |bytes: &[u8]| {
            taken.more(bytes);
            Ok(bytes.len())
        };
        tensor.content.write(&mut Taker(take))?;
        digests.insert(tensor.name.as_str(), words(taken));
    }
    about.insert(TENSORS.to_owned(), serde_json::to_string(&digests)?);
    about.insert(METADATA.to_owned(), of_metadata(about));
    Ok(())
}

/// The digests that a file lists, by the names of tensors. Before version 3 a digest is of a tensor's bytes, and none
/// need be there.
#[derive(Debug)]
pub struct Listed {
    digests: BTreeMap<String, String>,
    sealed: bool,
}

impl Listed {
    /// The digests in a file's metadata, which are as they were saved. Files that are `sealed` have a digest of them:
    /// those of version 3 or later.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub(super) fn of(about: &BTreeMap<String, String>, sealed: bool) -> Result<Self, String> {
        match (about.get(METADATA), sealed) {
            (None, false) => {}
            (Some(saved), true) if *saved == of_metadata(about) => {}
            (Some(_), _) => return Err(format!("its metadata are not as they were saved; {ADVICE}")),
            (None, true) => return Err(format!("it has no `{METADATA}`; {ADVICE}")),
        }
        let digests = match about.get(TENSORS) {
            None if sealed => return Err(format!("it has no `{TENSORS}`; {ADVICE}")),
            None => BTreeMap::new(),
            Some(listed) => {
                serde_json::from_str(listed).map_err(|error| format!("its `{TENSORS}`: {error}; {ADVICE}"))?
            }
        };
        Ok(Self { digests, sealed })
    }

    /// The begin of the digest of a tensor, which goes on with its bytes.
    pub fn begin(&self, dtype: Dtype, shape: &[usize]) -> Digest {
        if self.sealed { described(dtype, shape) } else { Digest::default() }
    }

    /// Is the tensor `name`, whose digest is `taken`, as it was saved?
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn compare(&self, name: &str, taken: Digest) -> Result<(), String> {
        match self.digests.get(name) {
            Some(saved) if *saved == words(taken) => Ok(()),
            Some(_) => {
                let name = shown(name);
                Err(format!("`{name}` is not as it was saved, for its digest is another; {ADVICE}"))
            }
            None if self.sealed => Err(format!("`{}` was not saved with the others; {ADVICE}", shown(name))),
            None => Ok(()),
        }
    }

    /// Is every tensor there that was saved? Before version 3 one that is missing is reported by whoever needs it.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub(super) fn are_all(&self, is_there: impl Fn(&str) -> bool) -> Result<(), String> {
        match self.digests.keys().find(|name| self.sealed && !is_there(name)) {
            Some(missing) => Err(format!("`{}` is missing; {ADVICE}", shown(missing))),
            None => Ok(()),
        }
    }
}

/// The begin of a tensor's digest, which goes on with its bytes.
fn described(dtype: Dtype, shape: &[usize]) -> Digest {
    let mut digest = Digest::default();
    digest.add(dtype.to_string().as_bytes());
    digest.add(format!("{shape:?}").as_bytes());
    digest
}

/// The digest of all keys and texts but its own, in the order of keys.
fn of_metadata(about: &BTreeMap<String, String>) -> String {
    let others = about.iter().filter(|(key, _)| *key != METADATA);
    words(others.flat_map(|(key, text)| [key.as_bytes(), text.as_bytes()]).collect())
}

fn words(digest: Digest) -> String {
    hexadecimal::text(digest.short())
}
