//! Names that a checkpoint lists, each once.

use std::collections::HashSet;

use warpweft_base::errors::shown;

/// A file holds one tensor of a name. A name listed twice would have its tensors read twice, and a short list could
/// request any amount of memory.
pub(super) fn once<'name>(kind: &str, mut names: impl Iterator<Item = &'name String>) -> Result<(), String> {
    let mut seen = HashSet::new();
    match names.find(|name| !seen.insert(*name)) {
        Some(name) => Err(format!("it lists the {kind} `{}` twice", shown(name))),
        None => Ok(()),
    }
}
