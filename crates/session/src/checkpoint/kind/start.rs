//! Files that are no safetensors, by how they begin.
//!
//! Law: a safetensors file begins with the length of its header, which is below 2^32. So nothing here is ever said of
//! one, however that length reads as text.

use std::io::Read;
use std::path::Path;

use warpweft_base::whole_file::regular;

/// Bytes that are read: an index names its `weight_map` after a few of its own metadata.
const START: u64 = 1 << 16;

/// The index of a model in several files.
const INDEX: &str = "the index of a model in several files; name the files that it lists, each by itself: `warpweft \
                     quantize` takes one at a time, and `PretrainedFiles::open_model` opens the folder of the index";

const FOLDER: &str = "a folder; name a file in it: `warpweft quantize` takes one safetensors file at a time, and \
                      `PretrainedFiles::open_model` opens the folder of a model";

const JSON: &str = "JSON text; name a safetensors file";

const PICKLE: &str = "a Python pickle, as torch.save writes it; load it where it is trusted, and write its tensors by \
                      safetensors.torch.save_file";

/// How files begin, and what they are.
const STARTS: [(&[u8], &str); 6] = [
    (b"GGUF", "a GGUF file, as llama.cpp reads it; take the model's safetensors files"),
    (
        b"PK\x03\x04",
        "a zip archive of pickles or arrays, as torch.save and numpy.savez write it; load it where it is trusted, and \
         write its tensors by safetensors.torch.save_file",
    ),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes it; write its tensors as safetensors"),
    (b"\x93NUMPY", "an array of NumPy; write it by safetensors.numpy.save_file"),
    (b"\x1f\x8b", "a gzip archive; unpack it"),
    (
        b"version https://git-lfs",
        "a pointer of Git LFS, and not the file that it stands for; fetch that by `git lfs pull`",
    ),
];

/// What is at `path`, if that is a folder, or begins as files of another kind do: a phrase after "is".
pub fn of_start(path: &Path) -> Option<&'static str> {
    if path.is_dir() {
        return Some(FOLDER);
    }
    let mut start = Vec::new();
    regular::open(path).ok()?.take(START).read_to_end(&mut start).ok()?;
    of_bytes(&start)
}

fn of_bytes(start: &[u8]) -> Option<&'static str> {
    let could_be_a_length = start.get(4..8) == Some(&[0; 4]);
    if could_be_a_length {
        return None;
    }
    let begins = |(begin, _): &&(&[u8], &str)| start.starts_with(begin);
    if let Some((_, what)) = STARTS.iter().find(begins) {
        return Some(what);
    }
    match start.trim_ascii_start() {
        [0x80, 2..=5, ..] => Some(PICKLE),
        json @ [b'{', ..] => {
            let key = b"\"weight_map\"";
            Some(if json.windows(key.len()).any(|window| window == key) { INDEX } else { JSON })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_header_is_never_taken_for_the_start_of_another_kind_of_file() {
        for length in [u64::from(u32::from_le_bytes(*b"GGUF")), 0x0280, 0x8b1f, u64::from(b'{')] {
            let bytes = [&length.to_le_bytes()[..], b"{\"weight_map\":1}"].concat();
            assert_eq!(of_bytes(&bytes), None, "{length}");
        }
        assert!(of_bytes(b"GGUF\x03\0\0\0").is_some_and(|what| what.contains("GGUF")));
        assert!(of_bytes(b"GG").is_none() && of_bytes(b"").is_none());
    }
}
