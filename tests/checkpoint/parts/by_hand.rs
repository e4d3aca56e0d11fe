//! Sharded checkpoints that are changed by hand and still fit together: their digests are computed here, by definition.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest as _, Sha256};

use super::files;

/// Bytes that have a digest of their own.
const BLOCK: usize = 1 << 20;

/// What stands before the digest of an index.
const SEAL: &str = ",\n  \"digest\": \"";

/// The first eight bytes of SHA-256, as a number from its smallest byte on.
fn digest(bytes: &[u8]) -> String {
    let first = Sha256::digest(bytes).first_chunk().copied().unwrap();
    format!("{:016x}", u64::from_le_bytes(first))
}

/// Tensors of a file by name, and what it says of itself.
#[derive(Default)]
pub(crate) struct Content {
    pub(crate) tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    pub(crate) about: HashMap<String, String>,
}

impl Content {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let about = SafeTensors::read_metadata(&bytes).unwrap().1.metadata().clone().unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |(name, view): (String, TensorView<'_>)| {
            (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
        };
        Self { tensors: file.tensors().into_iter().map(tensor).collect(), about }
    }

    /// Writes a file with digests, if it says that it is a part that has them.
    fn write(mut self, path: &Path) {
        if self.about.get("warpweft_part").is_some_and(|version| version == "3") {
            self.about.insert("digests".to_owned(), String::new());
            let bytes = self.bytes();
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let blocks = |name: &String| self.tensors[name].2.chunks(BLOCK).map(digest).collect::<String>();
            let digests = header.offset_keys().iter().map(blocks).collect();
            self.about.insert("digests".to_owned(), digests);
        }
        std::fs::write(path, self.bytes()).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize(views, Some(self.about.clone())).unwrap()
    }

    pub(crate) fn set(&mut self, tensor: &str, element: usize, value: f32) {
        let bytes = &mut self.tensors.get_mut(tensor).unwrap().2;
        bytes[4 * element..4 * element + 4].copy_from_slice(&value.to_le_bytes());
    }
}

/// Changes a part, and lets the index know its header.
pub(crate) fn edit(path: &Path, change: impl FnOnce(&mut Content)) {
    let mut content = Content::read(path);
    change(&mut content);
    content.write(path);
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let header = digest(&bytes[8..8 + length]);
    let rank: usize = path.file_name().unwrap().to_str().unwrap()[5..10].parse().unwrap();
    let text = index(path.parent().unwrap());
    let begin = text.find("\"digests\": \"").unwrap() + "\"digests\": \"".len() + 16 * rank;
    let text = [&text[..begin], &header, &text[begin + 16..]].concat();
    seal(path.parent().unwrap(), &text);
}

fn index(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("checkpoint.json")).unwrap()
}

/// Writes an index, with the digest of what it says if it has one.
fn seal(folder: &Path, text: &str) {
    let text = match text.rfind(SEAL).filter(|_| text.ends_with("\"\n}")) {
        Some(place) => format!("{}{SEAL}{}\"\n}}", &text[..place], digest(&text.as_bytes()[..place])),
        None => text.to_owned(),
    };
    std::fs::write(folder.join("checkpoint.json"), text).unwrap();
}

/// Changes the index, and lets it end with its digest.
pub(crate) fn edit_index(folder: &Path, from: &str, to: &str) {
    let text = index(folder);
    assert!(text.contains(from), "{text}");
    seal(folder, &text.replacen(from, to, 1));
}

/// A part as version 1 wrote it: it does not know its step, and has no digests.
pub(crate) fn outdate_part(content: &mut Content) {
    content.about.insert("warpweft_part".to_owned(), "1".to_owned());
    content.about.remove("optimizer_step").unwrap();
    content.about.remove("digests").unwrap();
}

/// The index as version 1 wrote it.
pub(crate) fn outdate_index(folder: &Path) {
    let mut index: serde_json::Value = serde_json::from_str(&index(folder)).unwrap();
    index["warpweft_parts"] = 1.into();
    ["digests", "digest"].iter().for_each(|key| drop(index.as_object_mut().unwrap().remove(*key).unwrap()));
    std::fs::write(folder.join("checkpoint.json"), serde_json::to_vec_pretty(&index).unwrap()).unwrap();
}

/// A checkpoint in another folder.
pub(crate) fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}
